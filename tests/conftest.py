"""One torch thread a test process: the suite runs in parallel, and sums then come out in one order."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so where golden runs whose digests differ are compared by values."""
    from tests.golden import stored

    moved = stored.elsewhere(stored.read_runs()[0])
    if moved is not None:
        terminalreporter.write_line(
            f"golden runs: where digests differ, values were compared to {stored.TOLERANCE:g}: stored with {moved}"
        )
