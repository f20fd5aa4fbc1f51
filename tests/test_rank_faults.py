"""What happens when a rank, or whoever started it, dies or hangs: the others say so in one line and end. Loopback only."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bymi.core.errors import RankLostError
from bymi.distributed.collectives import Group
from tests.commands import bymi
from tests.forked import Forked, call, fork, start
from tests.idx_files import write_image_set
from tests.launcher import free_port

ROOT = Path(__file__).parents[1]
LONG = [
    "run",
    "nodes=8",
    "data.samples=24",
    "graph=complete",
    "attack=ipm",
    "method=drsgd-bymi",
    "profile=paper",
    "record_every=1",
]


@dataclass
class Job:
    """Ranks under way, started by `launcher`."""

    launcher: Forked
    ranks: list[int]
    out: Path

    def wait_for(self, phase: str, seconds: float = 40) -> None:
        """Until a round of a phase is on record."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for metrics in self.out.glob(".*/metrics.jsonl"):
                if f'"{phase}"' in metrics.read_text():
                    return
            time.sleep(0.05)
        raise AssertionError(f"no round of {phase}")

    def end(self, seconds: float = 40) -> tuple[dict[int, int], str]:
        """Exit codes by rank, and what was said."""
        done = self.launcher.end(seconds)
        ended = [json.loads(line) for line in done.stdout.splitlines() if '"code"' in line]
        return {line["rank"]: line["code"] for line in ended}, done.stderr


@contextmanager
def launched(out: Path, words: list[str], *, size: int = 2, **more: Any) -> Iterator[Job]:
    jobs = json.dumps([{"size": size, "words": [*words, "--out", str(out)], **more}])
    launcher = start("-m", "tests.launcher", jobs, cwd=ROOT)
    ranks: list[int] = []
    try:
        until = time.monotonic() + 40
        while "\n" not in launcher.out:
            assert time.monotonic() < until, launcher.err
            time.sleep(0.01)
        ranks = json.loads(launcher.out.splitlines()[0])["started"]
        yield Job(launcher, ranks, out)
    finally:
        for process in (launcher.pid, *ranks):
            if alive(process):
                os.kill(process, signal.SIGKILL)
        launcher.process.join()


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def gone(processes: list[int], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, processes))


@pytest.mark.parametrize(
    ("phase", "lengths"),
    [
        ("warm-up", ["steps=90000", "warm_up.steps=80000"]),
        ("optimisation", ["steps=90000", "warm_up.steps=2"]),
    ],
)
def test_a_killed_rank_ends_the_others_with_one_line(phase: str, lengths: list[str], tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, *lengths], size=3) as job:
        job.wait_for(phase)
        os.kill(job.ranks[1], signal.SIGKILL)
        codes, said = job.end()
    check_survivors(codes, said, tmp_path)


def test_a_rank_killed_in_a_detection_ends_the_others_with_one_line(tmp_path: Path) -> None:
    words = [*LONG, "steps=20", "warm_up.steps=3", "detection.point=receiver"]
    with launched(tmp_path, words, size=3, breaks=["killed", 1, "answers", 1]) as job:
        codes, said = job.end()
    check_survivors(codes, said, tmp_path)
    assert said.count("in round 3 (answers)") == 2


def _wait_for(other: int | None, rank: int, port: int, said: Path) -> None:
    """One of three ranks: dies, or waits for another and writes what it then says."""
    store = dist.TCPStore("127.0.0.1", port, 3, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    group = Group(rank, 3, store)
    group.all_agree(True)  # all are connected
    if other is None:
        os._exit(9)
    try:
        group._do(lambda: dist.recv(torch.zeros(1), src=other), "words")
    except RankLostError as lost:
        said.write_text(str(lost))


def test_a_rank_that_waits_for_a_stopped_one_reports_in_time(tmp_path: Path) -> None:
    """Rank 0 waits for rank 2 and that for rank 1, which dies: nobody blames a rank that lives."""
    port = free_port()
    waiting = {0: 2, 1: None, 2: 1}
    processes = [fork(_wait_for, other, rank, port, tmp_path / str(rank)) for rank, other in waiting.items()]
    for process in processes:
        process.join(40)
    assert [process.exitcode for process in processes] == [0, 9, 0]
    for rank in (0, 2):
        assert "no word from rank 1 (" in (tmp_path / str(rank)).read_text()


def check_survivors(codes: dict[int, int], said: str, out: Path) -> None:
    assert codes == {0: 6, 1: -signal.SIGKILL, 2: 6}
    lines = [line for line in said.splitlines() if line.startswith("bymi:")]
    assert len(lines) == 2
    for line in lines:
        assert "no word from rank 1 (" in line
        assert " round " in line
        assert "start the same command again" in line
    assert not list(out.glob("[!.]*"))


def test_a_rank_that_hangs_is_lost_after_the_timeout(tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, "steps=90000", "warm_up.steps=80000", "--timeout", "2"]) as job:
        job.wait_for("warm-up")
        os.kill(job.ranks[1], signal.SIGSTOP)
        start = time.monotonic()
        assert gone(job.ranks[:1], 15)
        assert time.monotonic() - start > 1.5
        os.kill(job.ranks[1], signal.SIGKILL)
        codes, said = job.end()
    assert codes[0] == 6
    assert "no word from rank 1 (" in said


def test_without_its_launcher_no_rank_is_left(tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, "steps=90000", "warm_up.steps=80000", "--timeout", "30"]) as job:
        job.wait_for("warm-up")
        os.kill(job.ranks[1], signal.SIGSTOP)  # even one that cannot look by itself
        os.kill(job.launcher.pid, signal.SIGKILL)
        assert gone(job.ranks, 8)
        assert "the launcher is gone" in job.launcher.err


_FAILING = """
import os
from bymi import cli, runs  # what forked ranks share
from bymi.distributed import collectives as group
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import config_from_args, get_args_parser
import sys
import time

swap = group.Group.swap

def fail(self, rows, counts, coming, name):
    early = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 10
    if self.rank == 1 and early and "in round 2" in self.moment: os._exit(9)
    if not early and self.moment.startswith(("in round 0", "in round 1")): os._exit(8)  # that is stored
    return swap(self, rows, counts, coming, name)

if __name__ == "__main__":
    group.Group.swap = fail
    group._PATIENCE = 0.2  # a rank that is gone reports nothing
    dynamic_rendezvous._delay = lambda seconds: time.sleep(0.02)  # a second between looks of the agent at its store
    words = ["--nproc-per-node=2", "--max-restarts=10", "--start-method=fork", "--monitor-interval=0.02"]
    words += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "bymi"]  # what torchrun takes on one machine
    config, _, _ = config_from_args(get_args_parser().parse_args(words))
    elastic_launch(config, cli.main)()
"""


def test_torchrun_restarts_with_gloo_and_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    """Restarted ranks find the store of those before, with their addresses, and must not take them for those of the living.

    Ten times in a row. The agent of torchrun forks its ranks here, so that torch is imported once.
    """
    spec = ["nodes=8", "steps=4", "warm_up.steps=2", "data.samples=24", "graph=complete", "method=rule"]
    (tmp_path / "failing.py").write_text(_FAILING)
    words = [str(tmp_path / "failing.py"), "run", *spec, "--checkpoint-every", "1", "--out", str(tmp_path / "ranks")]
    done = call(*words, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("no word from rank 1") == 10
    assert bymi("run", *spec, "--out", str(tmp_path / "alone")).code == 0
    (spread,), (alone,) = ((tmp_path / name).glob("*/metrics.jsonl") for name in ("ranks", "alone"))
    for left, right in zip(spread.read_text().splitlines(), alone.read_text().splitlines(), strict=True):
        assert numbers(left) == pytest.approx(numbers(right), rel=1e-9)


def numbers(row: str) -> dict[str, float]:
    return {key: value for key, value in json.loads(row).items() if isinstance(value, int | float)}


def test_a_study_that_is_told_to_stop_leaves_no_worker(tmp_path: Path) -> None:
    study = start("-m", "bymi", "reproduce", "scenario-a", "--seeds", "1", "--jobs", "2", "--out", str(tmp_path), cwd=ROOT)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("*/.*-seed*")) and time.monotonic() < until:
        time.sleep(0.1)
    workers = children(study.pid)
    study.process.terminate()
    done = study.end(30)
    assert len(workers) >= 2
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert gone(workers)
    left = list(tmp_path.glob("*/.*-seed*"))  # a worker that had begun with rounds has stored the last one
    assert all(folder.suffix == ".checkpoints" for folder in left)


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in found]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        few = ["run", "nodes=3", "steps=4", "warm_up.steps=2", "graph=complete", "--out", str(tmp_path / "few")]
        # The one Byzantine node is on one rank: only there the labels are looked at.
        write_image_set(tmp_path / "mnist", train=60, test=10)
        labels = [*few, "data=mnist:samples=20,identification=8", "byzantine_ratio=0.34", "attack=label-flip:classes=5"]
        jobs = [
            {"size": 4, "words": few},
            {"size": 2, "words": [[*few, "--seed", "1"], [*few, "--seed", "2"]]},
            {"size": 1, "words": few, "port": taken.getsockname()[1]},
            {"size": 2, "words": [*few, "--jobs", "2"]},
            {"size": 2, "words": [*few, "colour=red"]},
            {"size": 2, "words": [*labels, "--data", str(tmp_path)]},
        ]
        done = call("-m", "tests.launcher", json.dumps(jobs), cwd=ROOT, timeout=100)
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["code"] for line in ended if "code" in line} == {2}, done.stderr
    few_nodes, specs, port, jobs_given, unknown, one_rank = (
        line for line in done.stderr.splitlines() if line.startswith("bymi:")
    )
    assert few_nodes == "bymi: nodes: got 3 for 4 ranks, allowed: a node or more for each rank"
    assert specs.startswith("bymi: spec: rank 1 has ")
    assert port.startswith("bymi: port: 127.0.0.1:")
    assert jobs_given.startswith("bymi: --jobs: got 2, allowed: without torchrun")
    assert "colour" in unknown
    assert one_rank == "bymi: attack.classes: got 5, allowed: more than the largest label, 9"
    assert "Traceback" not in done.stderr


def test_an_address_that_others_can_reach_is_said_once(tmp_path: Path) -> None:
    words = ["run", "nodes=4", "steps=2", "data.samples=24", "graph=complete", "method=rule"]
    env = {"MASTER_ADDR": "0.0.0.0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with launched(tmp_path, words, env=env) as job:
        codes, said = job.end()
    assert codes == {0: 0, 1: 0}, said
    assert said.count("one owner on a private network") == 1
