"""Runs that are broken off, in every phase and in every way, go on from their checkpoint and end as if nothing had been."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bymi.core import list_graph as sparse
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, run, run_all
from bymi.runs import checkpoints
from bymi.runs import run_folder as store
from bymi.runs import safetensors_file as tensorfile
from bymi.runs import single_run as runner
from bymi.runs import trained_models as models
from bymi.runs.checkpoints import Checkpointer, Place
from bymi.runs.observers import RunStatus
from bymi.runs.run_setup import set_up_run
from tests.commands import bymi, mistake
from tests.forked import call
from tests.idx_files import write_image_set
from tests.interruption_fixtures import RUNS, SMALL, frame_of, state_at

OFTEN, NEVER = Host(checkpoint_every=3), Host(checkpoint_every=0)


def spec_of(name: str, *words: str, seed: int = 0) -> Spec:
    return load(None, [*SMALL, *RUNS[name], "record_every=4", *words], seed)


def result_of(out: Path, spec: Spec) -> dict[str, Any]:
    """All that a run leaves behind, without what depends on the time."""
    folder = store.folder_of(out, spec)
    summary = store.read_json(folder / store.SUMMARY)
    names = (store.METRICS, store.VERDICT, models.MODEL, models.NODES)
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    return {**files, **{key: value for key, value in summary.items() if "seconds" not in key}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What undisturbed runs without any checkpoint leave behind."""
    out, known = tmp_path_factory.mktemp("undisturbed"), dict[str, dict[str, Any]]()

    def look(spec: Spec) -> dict[str, Any]:
        if spec.digest not in known:
            run(spec, out, host=NEVER)
            known[spec.digest] = result_of(out, spec)
        return known[spec.digest]

    return look


def rounds_in(out: Path, spec: Spec) -> list[str]:
    return sorted(path.name for path in store.checkpoints_of(out, spec).glob("*"))


class StopError(Exception):
    """What a handler of the tests makes of SIGTERM."""


@contextmanager
def breaking_at(step: int, phase: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGTERM arrives while the round or the detection is at work."""

    def end(number: int, frame: object) -> None:
        raise StopError

    before = signal.signal(signal.SIGTERM, end)
    see = runner.Recorder.see

    def told(self: Any, snapshot: Any, models: Any) -> Any:
        if snapshot.step == step and phase in (None, snapshot.phase):
            os.kill(os.getpid(), signal.SIGTERM)
        return see(self, snapshot, models)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(runner.Recorder, "see", told)
            yield
    finally:
        assert signal.getsignal(signal.SIGTERM) is end, "handlers are put back"
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("name", "step", "phase"),
    [
        *[("dsgd", 1, None), ("rule", 17, None), ("rule", 40, None)],
        *[("paper", 2, "warm-up"), ("paper", 4, "warm-up"), ("paper", 4, "detection"), ("paper", 21, "optimisation")],
        *[("paper, tracker on the move", step, "optimisation") for step in (5, 33)],
        *[("hardened", 3, "warm-up"), ("hardened", 6, "detection"), ("hardened", 12, "optimisation")],
        *[("hardened", 16, "optimisation"), ("hardened", 16, "detection"), ("hardened", 40, "optimisation")],
        *[("hardened, directed", 29, "optimisation"), ("hardened, two faces", 19, None), ("hardened, poisoned", 38, None)],
    ],
)
def test_told_to_stop_a_run_stores_its_round_and_goes_on_from_there(
    name: str,
    step: int,
    phase: str | None,
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = spec_of(name)
    with breaking_at(step, phase, monkeypatch), pytest.raises(StopError):
        run(spec, tmp_path)
    stored = f"round-{step:08d}" + ("-judged" if phase == "detection" else "")
    assert rounds_in(tmp_path, spec) == [stored]
    (line,) = caplog.messages
    assert line.endswith(f": stopped after round {step}; the same command goes on from there")
    assert [path.name for path in tmp_path.iterdir()] == [store.checkpoints_of(tmp_path, spec).name]

    run(spec, tmp_path)
    assert result_of(tmp_path, spec) == whole(spec)
    assert [path.name for path in tmp_path.iterdir()] == [store.folder_of(tmp_path, spec).name], "no checkpoint is left"
    assert len(caplog.messages) == 1


def test_a_run_that_is_broken_off_again_and_again(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of("hardened")
    for step in (2, 5, 6, 11, 20, 36, 39):
        with breaking_at(step, None, monkeypatch), pytest.raises(StopError):
            run(spec, tmp_path)
    done: list[RunStatus] = []
    run(spec, tmp_path, done.append)
    assert sum(status.rounds for status in done) == 40, "what was done before counts as done"
    assert result_of(tmp_path, spec) == whole(spec)


def test_a_run_of_networks_in_single_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image_set(tmp_path / "data" / "mnist", train=120, test=50)
    words = ["data=mnist:samples=20,identification=8", "nodes=6", "graph=complete", "steps=6", "warm_up.steps=2", "attack=ipm"]
    spec = load(None, [*words, "method=drsgd-bymi", "detection.sample=8", "watch.every=2", "record_every=2"])
    host = Host(device="cpu", data=tmp_path / "data")
    run(spec, tmp_path / "undisturbed", host=host)
    for step in (1, 3):
        with breaking_at(step, None, monkeypatch), pytest.raises(StopError):
            run(spec, tmp_path, host=host)
    run(spec, tmp_path, host=host)
    assert result_of(tmp_path, spec) == result_of(tmp_path / "undisturbed", spec)


@pytest.mark.parametrize("profile", ["hardened", "hardened, directed", "paper"])
def test_a_run_on_lists_of_neighbours(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "lists_from", 40)
    monkeypatch.setattr(LIMITS, "nodes_per_place", 1)
    spec = load(None, [*SMALL, "nodes=40", "graph=regular:degree=8", "record_every=4", *RUNS[profile]])
    assert isinstance(set_up_run(spec.resolved).graph, sparse.ListGraph)
    run(spec, tmp_path / "undisturbed")
    for step in (3, 7, 21, 38):
        with breaking_at(step, None, monkeypatch), pytest.raises(StopError):
            run(spec, tmp_path)
    run(spec, tmp_path)
    assert result_of(tmp_path, spec) == result_of(tmp_path / "undisturbed", spec)


DIE = """
import os, signal, sys
from bymi.cli import main
room, name, count = __import__(sys.argv[1], fromlist=["x"]), sys.argv[2], int(sys.argv[3])
del sys.argv[1:4]
real, number = getattr(room, name), int(os.environ.get("SIGNAL", signal.SIGKILL))

def die(*words, **more):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), number)
    return real(*words, **more)

setattr(room, name, die)
main()
"""


def ending(room: str, name: str, count: int, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, which gets a signal when it calls something for the n-th time."""
    words = ["run", *SMALL, *RUNS["hardened"], "record_every=4", "--out", str(out), "--checkpoint-every", "3"]
    return call("-c", DIE, room, name, str(count), *words, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("room", "name", "count", "newest"),
    [
        ("bymi.training.phases", "Round", 6, "round-00000003"),  # in the sixth round of the warm-up
        ("bymi.training.phases", "judge_neighbours", 3, "round-00000015"),  # in the third detection
        ("bymi.training.phases", "local_steps", 27, "round-00000030"),  # in the last phase
        ("os", "replace", 6, "round-00000012"),  # while a checkpoint is written, the fifth after the spec
    ],
)
def test_killed_in_every_phase(
    room: str, name: str, count: int, newest: str, whole: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kill -9: nothing but the files of the last checkpoint is left of the process."""
    spec = spec_of("hardened")
    ended = ending(room, name, count, tmp_path)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stderr == ""
    torn = name == "replace"
    assert rounds_in(tmp_path, spec)[-2 if torn else -1] == newest
    run(spec, tmp_path)
    assert result_of(tmp_path, spec) == whole(spec)
    assert [path.name for path in tmp_path.iterdir()] == [store.folder_of(tmp_path, spec).name]
    lines = ["round-00000015 not used (it is empty); going on from round-00000012"] if torn else []
    assert [line.split("checkpoint ")[1] for line in caplog.messages] == lines


def test_ended_by_sigterm(whole: Any, tmp_path: Path) -> None:
    """In the middle of a detection: it is finished and stored, then the process ends as SIGTERM ends one."""
    spec = spec_of("hardened")
    ended = ending("bymi.training.phases", "judge_neighbours", 3, tmp_path, SIGNAL=str(int(signal.SIGTERM)))
    assert ended.returncode == -signal.SIGTERM
    name = store.folder_of(tmp_path, spec).name
    assert ended.stderr == f"bymi: {name}: stopped after round 16; the same command goes on from there\n"
    assert rounds_in(tmp_path, spec) == ["round-00000015", "round-00000016-judged"]
    run(spec, tmp_path)
    assert result_of(tmp_path, spec) == whole(spec)


def test_runs_in_other_processes_are_put_by_when_all_are_stopped(whole: Any, tmp_path: Path) -> None:
    """`bymi reproduce` ends its processes with SIGTERM; each stores its round first."""
    specs = [spec_of("rule", "steps=20000", seed=seed) for seed in (0, 1)]
    heard = set()

    def watch(index: int, status: RunStatus) -> None:
        heard.add(index)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(specs, tmp_path, jobs=2, watch=watch)
    assert all(len(rounds_in(tmp_path, spec)) == 1 for spec in specs)
    assert not any(store.is_complete(path) for path in tmp_path.iterdir())


# How often


def test_a_short_run_makes_no_checkpoint_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "save", None)
    run(spec_of("hardened"), tmp_path)


def test_by_the_clock(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the time has come, and not more often than the share of time that checkpoints may take allows."""
    now, saved, spec = 0.0, list[float](), spec_of("hardened")

    def save(*words: Any) -> int:
        nonlocal now
        saved.append(now)
        now += 3.0
        return 0

    see = runner.Recorder.see

    def told(self: Any, snapshot: Any, models: Any) -> Any:
        nonlocal now
        now += 4.0
        return see(self, snapshot, models)

    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(runner.Recorder, "see", told)
    monkeypatch.setattr(checkpoints, "save", save)
    run(spec, tmp_path)
    assert saved == [32.0, 95.0, 158.0], "30 s, then 20 times the 3 s that one takes"
    assert result_of(tmp_path, spec) == whole(spec)


def test_every_so_many_rounds_with_the_same_numbers(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, steps, save = spec_of("hardened"), list[int](), checkpoints.save

    def told(folder: Path, digest: str, state: Any, *words: Any) -> int:
        steps.append(state.step)
        return save(folder, digest, state, *words)

    monkeypatch.setattr(checkpoints, "save", told)
    run(spec, tmp_path, host=OFTEN)
    assert steps == list(range(3, 40, 3))
    assert result_of(tmp_path, spec) == whole(spec)


def test_how_often_is_no_part_of_the_spec(tmp_path: Path) -> None:
    words = ("run", *SMALL, *RUNS["rule"], "--out", tmp_path)
    first = bymi(*words, "--checkpoint-every", 5)
    assert bymi(*words, "--checkpoint-every", 0) == first
    assert "checkpoint-every" in mistake(*words, "--checkpoint-every", -1)


def test_without_checkpoints_signals_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with breaking_at(5, None, monkeypatch), pytest.raises(StopError):
        run(spec_of("rule"), tmp_path, host=NEVER)
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_acts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see = runner.Recorder.see

    def twice(self: Any, snapshot: Any, models: Any) -> Any:
        if snapshot.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return see(self, snapshot, models)

    monkeypatch.setattr(runner.Recorder, "see", twice)
    with breaking_at(5, None, monkeypatch), pytest.raises(StopError):
        run(spec_of("rule"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_whoever_handles_the_signal_may_let_the_run_go_on(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, expected = list[int](), whole(spec_of("rule"))
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        see, spec = runner.Recorder.see, spec_of("rule")

        def told(self: Any, snapshot: Any, models: Any) -> Any:
            if snapshot.step in (5, 9):
                os.kill(os.getpid(), signal.SIGINT)
            return see(self, snapshot, models)

        monkeypatch.setattr(runner.Recorder, "see", told)
        run(spec, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT, signal.SIGINT]
    assert result_of(tmp_path, spec) == expected


def test_all_processes_of_a_run_stop_after_the_same_round(tmp_path: Path) -> None:
    """One of them was told to; the others learn it from the group, store the same round and stop, too."""
    state, frame, group = state_at("hardened", 12), frame_of("hardened"), Group(rank=1)
    asked: list[bool] = []

    def end(number: int, frame: object) -> None:
        raise StopError

    def all_agree(flag: bool) -> bool:
        asked.append(flag)
        return flag and len(asked) == 1  # after the first round nobody was told to, after the second another process was

    group.all_agree = all_agree  # type: ignore[method-assign,assignment]
    before = signal.signal(signal.SIGTERM, end)
    try:
        with Checkpointer(tmp_path, "digest", None, frame, [Place(torch.arange(16), 1, 2)], group) as one:
            assert not one.wants(state.step, state.phase)
            one.turn([state], nothing_beside)
            with pytest.raises(StopError):
                one.turn([state], nothing_beside)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [path.name for path in tmp_path.rglob("*")] == ["round-00000012", "shard-0001-of-0002.safetensors"]
    assert asked == [True, True], "nothing was wanted here"


def nothing_beside() -> Any:
    """Of all processes only the first writes more than its state."""
    raise AssertionError


# What disks do


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the fourth checkpoint on. The ones before stay, and nothing half written."""
    spec, sync, left = spec_of("hardened"), os.fsync, 3
    seen: list[list[str]] = []
    write = tensorfile.write

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def told(*words: Any) -> int:
        nonlocal left
        left -= words[0].name.startswith("shard")
        if not words[0].name.startswith("shard"):  # a trained model is a result, no insurance: for it there is room again
            monkeypatch.setattr(os, "fsync", sync)
            return write(*words)
        monkeypatch.setattr(os, "fsync", full if left < 0 else sync)
        try:
            return write(*words)
        finally:
            monkeypatch.setattr(os, "fsync", sync)  # the results have room again
            kept = store.checkpoints_of(tmp_path, spec)
            seen.append(sorted(path.parent.name for path in kept.rglob("*") if path.is_file()))

    monkeypatch.setattr(tensorfile, "write", told)
    run(spec, tmp_path, host=OFTEN)
    (line,) = caplog.messages
    assert line.endswith(": no checkpoint of round 12: No space left on device; the run goes on without")
    assert seen[-1] == ["round-00000006", "round-00000009"]
    assert result_of(tmp_path, spec) == whole(spec)


def test_a_real_limit_on_the_size_of_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The system itself refuses to write on in the middle of the file."""
    spec = load(None, ["profile=paper", "method=rule", "nodes=10", "steps=12", "data.dim=500", "data.samples=8"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert run(spec, tmp_path, host=OFTEN)["outcome"] == "finished"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = caplog.messages
    assert "no checkpoint of round 3: File too large" in line


def test_a_damaged_checkpoint_is_passed_over_with_one_line(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of("hardened")
    with breaking_at(20, None, monkeypatch), pytest.raises(StopError):
        run(spec, tmp_path, host=OFTEN)
    assert rounds_in(tmp_path, spec) == ["round-00000018", "round-00000020"]
    (newest,) = store.checkpoints_of(tmp_path, spec).glob("round-00000020/*")
    newest.write_bytes(newest.read_bytes()[:-7])
    caplog.clear()
    run(spec, tmp_path)
    (line,) = caplog.messages
    assert line == (
        f"bymi: {store.folder_of(tmp_path, spec).name}: checkpoint round-00000020 not used "
        "(shard-0000-of-0001.safetensors: cut short); going on from round-00000018"
    )
    assert caplog.records[0].levelno == logging.WARNING
    assert result_of(tmp_path, spec) == whole(spec)


MISSING: dict[str, Any] = {
    "no rows": lambda tensors, words: tensors.pop("run.rows"),
    "rows that are none": lambda tensors, words: tensors.update({"run.rows": tensors["run.rows"][5:]}),
    "no counts": lambda tensors, words: words["run"]["recorder"].pop("guard_acted"),
    "counts below zero": lambda tensors, words: words["run"]["recorder"].update(detections=-1),
    "no last row": lambda tensors, words: words["run"]["recorder"].update(last=None),
    "a small verdict": lambda tensors, words: tensors.update({"run.verdict.scores": tensors["run.verdict.scores"][1:]}),
    "reasons that are none": lambda tensors, words: tensors["run.verdict.reason"].fill_(99),
    "no recorder": lambda tensors, words: words["run"].pop("recorder"),
    "no time": lambda tensors, words: words["run"].update(seconds="long"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_checkpoint_whose_measures_do_not_fit_is_passed_over(
    what: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of("hardened")
    with breaking_at(20, None, monkeypatch), pytest.raises(StopError):
        run(spec, tmp_path, host=OFTEN)
    (path,) = store.checkpoints_of(tmp_path, spec).glob("round-00000020/*")
    file = tensorfile.TensorFile(path)
    tensors, words = {name: file.read(name) for name in file.names}, file.words
    MISSING[what](tensors, words)
    tensorfile.write(path, tensors, words)
    caplog.clear()
    run(spec, tmp_path)
    assert "going on from round-00000018" in caplog.messages[0]
    assert result_of(tmp_path, spec) == whole(spec)


def test_checkpoints_of_a_run_that_is_complete_are_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a process dies between the two, or another process has made the same run in the meantime."""
    spec, other = spec_of("rule"), spec_of("dsgd")
    for one in (spec, other):
        with breaking_at(5, None, monkeypatch), pytest.raises(StopError):
            run(one, tmp_path)
    os.rename(store.checkpoints_of(tmp_path, spec), tmp_path / "aside")
    run(spec, tmp_path)
    os.rename(tmp_path / "aside", store.checkpoints_of(tmp_path, spec))
    store.prepare(tmp_path)
    assert rounds_in(tmp_path, spec) == []
    assert rounds_in(tmp_path, other) == ["round-00000005"], "of a run that is not, they stay"
