"""Runs made again: from the first round, while the folder that is there stays until the new one is complete."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bymi.commands.run import steps_to_do
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load, run, run_all
from bymi.runs import __main__ as runs_command
from bymi.runs import run_folder as store
from bymi.runs import single_run as runner
from bymi.runs import write_resolved_specs
from bymi.runs.observers import RunStatus
from tests.commands import bymi
from tests.forked import call

WORDS = ("profile=paper", "method=dsgd", "nodes=12", "steps=20", "data.dim=3", "data.samples=20", "record_every=5")
SPEC = load(None, list(WORDS))
MARK = "of the first run"


def first_run(out: Path, mark: str = MARK) -> Path:
    """A complete folder whose summary says that it is the first."""
    run(SPEC, out)
    folder = store.folder_of(out, SPEC)
    store.write_json(folder / store.SUMMARY, {**store.read_json(folder / store.SUMMARY), "mark": mark})
    store.seal(folder)
    return folder


def left_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_a_complete_folder_is_read_unless_it_is_to_be_made_again(tmp_path: Path) -> None:
    folder, done = first_run(tmp_path), list[RunStatus]()
    (folder / "figures").mkdir()
    assert run(SPEC, tmp_path, done.append)["mark"] == MARK
    assert done == []
    summary = run(SPEC, tmp_path, done.append, again=True)
    assert "mark" not in summary
    assert sum(status.rounds for status in done) == 20
    assert summary == run(SPEC, tmp_path), "and what is read from now on is the new one"
    assert not (folder / "figures").exists(), "nothing of the old one is left"
    assert left_in(tmp_path) == [folder.name]


def test_the_old_folder_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = first_run(tmp_path), []
    write = store.write_json

    def told(path: Path, value: Any, **how: Any) -> None:
        seen.append(store.is_complete(folder) and store.read_json(folder / store.SUMMARY)["mark"])
        write(path, value, **how)

    monkeypatch.setattr(store, "write_json", told)
    run(SPEC, tmp_path, again=True)
    assert len(seen) >= 3
    assert set(seen) == {MARK}


def test_a_run_that_breaks_off_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = first_run(tmp_path)

    def broken(*words: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_models", broken)
        with pytest.raises(KeyboardInterrupt):
            run(SPEC, tmp_path, again=True, host=Host(checkpoint_every=5))
    assert run(SPEC, tmp_path)["mark"] == MARK
    assert "mark" not in run(SPEC, tmp_path, again=True)
    assert left_in(tmp_path) == [folder.name]


def test_a_process_that_dies_between_the_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = first_run(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    move, moved = os.replace, list[str]()

    def die(source: Path, target: Path) -> None:
        if Path(target) == folder:
            raise KeyboardInterrupt  # and no word after that
        moved.append(Path(target).name)
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "replace", die)
        patch.setattr(store.os, "getpid", lambda: process.pid)
        with pytest.raises(KeyboardInterrupt):
            run(SPEC, tmp_path, again=True, host=Host(keep_models="none", checkpoint_every=0))
    assert moved[-1] == f".{folder.name}.replaced.{platform.node()}.{process.pid}", "after the files of the new one"
    assert not folder.exists()
    store.prepare(tmp_path)
    assert store.read_json(folder / store.SUMMARY)["mark"] == MARK
    assert left_in(tmp_path) == [folder.name]


def test_a_folder_that_was_replaced_by_a_process_that_died_afterwards_is_removed(tmp_path: Path) -> None:
    folder = first_run(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    aside = tmp_path / f".{folder.name}.replaced.{platform.node()}.{process.pid}"
    aside.mkdir()
    (aside / store.SUMMARY).write_text("{}")
    alive = tmp_path / f".{folder.name}.replaced.{platform.node()}.{os.getpid()}"
    alive.mkdir()
    store.prepare(tmp_path)
    assert left_in(tmp_path) == sorted([folder.name, alive.name]), "that of a process at work is left alone"
    assert store.read_json(folder / store.SUMMARY)["mark"] == MARK


def test_no_checkpoint_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_models", broken)
        with pytest.raises(KeyboardInterrupt):
            run(SPEC, tmp_path, host=Host(checkpoint_every=5))
    kept = store.checkpoints_of(tmp_path, SPEC)
    assert kept.exists()
    seen: list[int] = []
    see = runner.Recorder.see

    def told(self: Any, snapshot: Any, models: Any) -> Any:
        seen.append(snapshot.step)
        return see(self, snapshot, models)

    monkeypatch.setattr(runner.Recorder, "see", told)
    run(SPEC, tmp_path, again=True, host=Host(checkpoint_every=5))
    assert seen == list(range(1, 21))
    assert left_in(tmp_path) == [store.folder_of(tmp_path, SPEC).name]


def test_many_are_made_again(tmp_path: Path) -> None:
    first_run(tmp_path)
    other = load(None, list(WORDS), 1)
    assert steps_to_do([SPEC.resolved, other.resolved], tmp_path) == 20
    assert steps_to_do([SPEC.resolved, other.resolved], tmp_path, again=True) == 40
    results = run_all([SPEC, other], tmp_path, jobs=2, again=True)
    assert all(isinstance(result, dict) and "mark" not in result for result in results)
    assert run_all([SPEC, other], tmp_path) == results


def test_the_command_runs_again(tmp_path: Path) -> None:
    folder = first_run(tmp_path)
    assert bymi("run", *WORDS, "--out", tmp_path).code == 0
    assert store.read_json(folder / store.SUMMARY)["mark"] == MARK
    assert bymi("run", *WORDS, "--out", tmp_path, "--again").code == 0
    assert "mark" not in store.read_json(folder / store.SUMMARY)
    assert (folder / "figures" / "gap.svg").exists()


def test_so_does_the_one_for_resolved_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = first_run(tmp_path / "out")
    write_resolved_specs(tmp_path / "specs.json", [SPEC.resolved])
    words = ["bymi.runs", str(tmp_path / "specs.json"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    for more, there in (([], True), (["--again"], False)):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        assert runs_command.main() == 0
        assert ("mark" in store.read_json(folder / store.SUMMARY)) is there


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_run_again(apart: bool, tmp_path: Path) -> None:
    folder = first_run(tmp_path / "out")
    (tmp_path / "specs.json").write_text(json.dumps([SPEC.resolved.values]))
    words = [str(tmp_path / "specs.json"), "--out", str(tmp_path / "out"), "--device", "cpu", *(["--apart"] if apart else [])]
    for more, there in (([], True), (["--again"], False)):
        job = {"size": 2, "program": "bymi.runs", "words": [*words, *more]}
        done = call("-m", "tests.launcher", json.dumps([job]), cwd=Path(__file__).parents[1])
        assert done.stdout.count('"code": 0') == 2, done.stderr
        assert ("mark" in store.read_json(folder / store.SUMMARY)) is there
