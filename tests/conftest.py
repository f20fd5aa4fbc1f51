"""One thread per test process and per process that it starts: the suite runs in parallel, and sums come out in one order."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy and torch are imported

import pytest
import torch

torch.set_num_threads(1)

if "PYTEST_DEBUG_TEMPROOT" not in os.environ and os.access("/dev/shm", os.W_OK):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = (
        "/dev/shm"  # run folders are flushed to disk file by file: in memory that costs nothing
    )


_LONG = (
    "golden",
    "node_run",
    "same_numbers",
    "sharded_list",
    "lists_on_ranks",
    "node_",
    "own_parts",
    "default_experiment",
    "rank_",
    "adversary.py",
    "interrupt",
    "documents",
    "refusals",
    "launchers",
    "bounds",
    "arrays",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no worker is left with one of them when the others have ended."""

    def place(item: pytest.Item) -> int:
        return next((number for number, word in enumerate(_LONG) if word in item.path.name), len(_LONG))

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so where golden runs whose digests differ are compared by values."""
    from tests.golden import stored

    moved = stored.elsewhere(stored.read_runs()[0])
    if moved is not None:
        terminalreporter.write_line(
            f"golden runs: where digests differ, values were compared to {stored.TOLERANCE:g}: stored with {moved}"
        )
