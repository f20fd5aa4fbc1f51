"""One run under two launchers, as on two machines: each starts ranks of its own. Loopback only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bymi.runs import run_folder as store
from tests.commands import bymi
from tests.launcher import free_port

ROOT = Path(__file__).parents[1]


def test_ranks_of_two_launchers_are_one_run(tmp_path: Path) -> None:
    spec = ["nodes=8", "steps=4", "warm_up.steps=2", "data.samples=24", "graph=complete", "method=drsgd-bymi", "attack=silent"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--nnodes", "2", "--nproc-per-node", "2"]
    run = ["-m", "bymi", "run", *spec, "--out", str(tmp_path / "ranks")]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *meet, "--node-rank", str(node), *run],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert bymi("run", *spec, "--out", str(tmp_path / "alone")).code == 0
    (spread,), (alone,) = ((tmp_path / name).glob("*-seed0-*") for name in ("ranks", "alone"))
    assert store.read_json(spread / store.ENVIRONMENT)["ranks"] == 4
    for left, right in zip(*((folder / store.METRICS).read_text().splitlines() for folder in (spread, alone)), strict=True):
        one, other = json.loads(left), json.loads(right)
        assert one.keys() == other.keys()
        assert one["step"] == other["step"]
        assert one["gap"] == pytest.approx(other["gap"], rel=1e-9)
