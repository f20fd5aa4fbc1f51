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
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bymi.core.errors import RankLostError
from bymi.distributed import collectives
from bymi.distributed.collectives import Group
from bymi.distributed.join_process_group import _use_loopback
from bymi.experiment import load
from bymi.runs import parallel_runs
from tests.commands import bymi
from tests.forked import Forked, call, fork, start
from tests.idx_files import write_image_set
from tests.launcher import free_port

ROOT = Path(__file__).parents[1]
PATIENCE = 15.0  # seconds for which one of several survivors may stall on a slow machine without being taken for lost
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

    def wait_for(self, phase: str, seconds: float = 120) -> None:
        """Until a round of a phase is on record."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for metrics in self.out.glob(".*/metrics.jsonl"):
                if f'"{phase}"' in metrics.read_text():
                    return
            time.sleep(0.05)
        raise AssertionError(f"no round of {phase}")

    def end(self, seconds: float = 120) -> tuple[dict[int, int], str]:
        """Exit codes by rank, and what was said."""
        done = self.launcher.end(seconds)
        ended = [json.loads(line) for line in done.stdout.splitlines() if '"code"' in line]
        return {line["rank"]: line["code"] for line in ended}, done.stderr


@contextmanager
def launched(out: Path, words: list[str], *, size: int = 2, **more: Any) -> Iterator[Job]:
    jobs = json.dumps([{"size": size, "words": [*words, "--out", str(out)], **more}])
    launcher = start("-m", "tests.launcher", jobs, cwd=ROOT)
    try:
        until = time.monotonic() + 120
        while "\n" not in launcher.out:
            assert time.monotonic() < until, launcher.err
            time.sleep(0.01)
        yield Job(launcher, json.loads(launcher.out.splitlines()[0])["started"], out)
    finally:
        launcher.process.kill()  # ranks that are left end without it: their numbers may be those of other processes by now
        launcher.process.join()


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def gone(processes: list[int], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, processes))


@pytest.mark.parametrize(
    ("phase", "killed", "lengths"),
    [
        ("warm-up", 1, ["steps=90000", "warm_up.steps=80000"]),
        ("optimisation", 0, ["steps=90000", "warm_up.steps=2"]),  # the store ends with it
    ],
)
def test_a_killed_rank_ends_the_others_with_one_line(phase: str, killed: int, lengths: list[str], tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, *lengths], size=3, patience=PATIENCE) as job:
        job.wait_for(phase)
        os.kill(job.ranks[killed], signal.SIGKILL)
        codes, said = job.end()
    check_survivors(codes, said, tmp_path, killed)


def test_a_rank_killed_in_a_detection_ends_the_others_with_one_line(tmp_path: Path) -> None:
    words = [*LONG, "steps=20", "warm_up.steps=3", "detection.point=receiver"]
    with launched(tmp_path, words, size=3, breaks=["killed", 1, "answers", 1], patience=PATIENCE) as job:
        codes, said = job.end()
    check_survivors(codes, said, tmp_path, 1)
    assert said.count("in round 3 (answers)") == 2


def test_a_rank_that_is_told_to_stop_in_a_collective_is_heard_by_the_others(tmp_path: Path) -> None:
    words = [*LONG, "steps=90000", "warm_up.steps=80000", "--checkpoint-every", "0"]  # nothing defers the signal
    with launched(tmp_path, words, size=3, patience=PATIENCE) as job:
        job.wait_for("warm-up")
        os.kill(job.ranks[1], signal.SIGTERM)
        codes, said = job.end()
    assert codes == dict.fromkeys(range(3), 6)
    assert said.count("told to stop by the launcher") == 1
    assert said.count("so have all other ranks") == 3


def test_a_rank_that_has_left_starts_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches the error and goes on to the next collective gets it again, and a run does not take it for its own."""
    group = Group(rank=1, size=2)
    error = group.lost("told to stop by the launcher")
    with pytest.raises(RankLostError) as again:
        group.tell({})
    assert again.value is error

    def told(*_: object) -> None:
        raise error

    monkeypatch.setattr(parallel_runs, "run", told)
    (spec,) = load(None, ["nodes=4", "steps=2", "method=dsgd"]).expand()
    with pytest.raises(RankLostError):
        parallel_runs.run_all([spec.resolved], tmp_path, jobs=1)


@dataclass(frozen=True)
class Scene:
    """Three connected ranks, of which each does something, and what must be said by those that are lost."""

    roles: tuple[int | str, int | str, int | str]  # by rank: the rank that it waits for, or how it stops
    codes: tuple[int | None, int | None, int | None]
    says: str
    patience: float = PATIENCE
    timeout: float = 60.0


SCENES = {
    "a rank waits for one that has stopped": Scene((2, "dies", 1), (0, 9, 0), "no word from rank 1 ("),
    "rank 0 alone has an error": Scene(("leaves", 0, 0), (0, 0, 0), "so have all other ranks"),
    "rank 0 hangs, with the store": Scene(("hangs", 0, 0), (None, 0, 0), "no word from rank 0 (", 0.3, 10.0),
}


def _play(scene: Scene, rank: int, port: int, said: Path) -> None:
    _use_loopback()
    collectives._PATIENCE = scene.patience
    store = dist.TCPStore("127.0.0.1", port, 3, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=scene.timeout))
    group = Group(rank, 3, store)
    group.all_agree(True)  # all are connected
    match scene.roles[rank]:
        case "dies":
            os._exit(9)
        case "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "leaves":
            group.leave()
        case other:
            try:
                group._do(lambda: dist.recv(torch.zeros(1), src=int(other)), "words")
            except RankLostError as lost:
                said.write_text(str(lost))


def test_nobody_blames_a_rank_that_lives(tmp_path: Path) -> None:
    """All scenes at once: what takes long is to wait."""
    played = {}
    for name, scene in SCENES.items():
        port = free_port()
        played[name] = [fork(_play, scene, rank, port, tmp_path / f"{name} {rank}", daemon=True) for rank in range(3)]
    try:
        for name, scene in SCENES.items():
            for rank, (process, code) in enumerate(zip(played[name], scene.codes, strict=True)):
                if code is not None:
                    process.join(120)
                assert process.exitcode == code, (name, rank)
                if isinstance(scene.roles[rank], int):
                    assert scene.says in (tmp_path / f"{name} {rank}").read_text(), (name, rank)
    finally:
        for process in chain.from_iterable(played.values()):
            process.kill()
            process.join()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Group:
    """One of two ranks, with a store, that does not wait for the other."""
    monkeypatch.setattr(collectives, "_PATIENCE", 0.0)
    return Group(0, 2, dist.HashStore())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("\nConnection closed", "words: Connection closed"),
        ("[/x/pair.cc:534] \nConnection closed", "words: Connection closed"),
        ("[/x/pair.cc:534] Timed out. Or so", "words: Timed out)"),
        ("", "words: RuntimeError"),
    ],
)
def test_no_error_of_the_transport_is_passed_over(message: str, says: str, impatient: Group) -> None:
    def fail() -> None:
        raise RuntimeError(message)

    with pytest.raises(RankLostError) as lost:
        impatient._do(fail, "words")
    assert says in str(lost.value)


def test_a_signal_within_a_collective_acts_after_it(impatient: Group) -> None:
    done = []

    def work() -> None:
        impatient.stop()
        done.append(True)

    with pytest.raises(RankLostError, match="told to stop"):
        impatient._do(work, "words")
    assert done
    impatient.stop()  # no second error while it stops


def check_survivors(codes: dict[int, int], said: str, out: Path, killed: int) -> None:
    assert codes == {**dict.fromkeys(range(3), 6), killed: -signal.SIGKILL}
    lines = [line for line in said.splitlines() if line.startswith("bymi:")]
    assert len(lines) == 2
    for line in lines:
        assert f"no word from rank {killed} (" in line
        assert " round " in line
        assert "start the same command again" in line
    assert not list(out.glob("[!.]*"))


def test_a_rank_that_hangs_is_lost_after_the_timeout(tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, "steps=90000", "warm_up.steps=80000", "--timeout", "8"]) as job:
        job.wait_for("warm-up")
        os.kill(job.ranks[1], signal.SIGSTOP)
        assert gone(job.ranks[:1])
        os.kill(job.ranks[1], signal.SIGKILL)
        codes, said = job.end()
    assert codes[0] == 6
    assert "no word from rank 1 (" in said
    assert "8000ms" in said


def test_without_its_launcher_no_rank_is_left(tmp_path: Path) -> None:
    with launched(tmp_path, [*LONG, "steps=90000", "warm_up.steps=80000", "--timeout", "120"]) as job:
        job.wait_for("warm-up")
        os.kill(job.ranks[1], signal.SIGSTOP)  # even one that cannot look by itself
        os.kill(job.launcher.pid, signal.SIGKILL)
        assert gone(job.ranks)
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
    done = call(*words, cwd=ROOT, timeout=900)
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
    until = time.monotonic() + 120
    while not (list(tmp_path.glob("*/.*-seed*")) and len(children(study.pid)) > 1) and time.monotonic() < until:
        time.sleep(0.1)
    workers = children(study.pid)
    study.process.terminate()
    done = study.end(120)
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
        jobs = [{**job, "patience": PATIENCE} for job in jobs]
        done = call("-m", "tests.launcher", json.dumps(jobs), cwd=ROOT)
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
