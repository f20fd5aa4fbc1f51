"""`python -m bymi.runs`: specs run where pydantic, typer, rich, matplotlib, sklearn and jinja2 are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, run_all
from bymi.runs import ResolvedSpec, __main__, read_resolved_specs, write_resolved_specs
from bymi.runs import run_folder as store
from bymi.runs.run_folder import SUMMARY_KEYS
from tests.commands import dates_in, only_line
from tests.idx_files import write_image_set

MISSING = ("pydantic", "pydantic_core", "typer", "click", "rich", "matplotlib", "sklearn", "jinja2")
LINEAR = ("profile=paper", "nodes=20", "steps=20", "data.dim=5", "data.samples=40", "record_every=5")
IMAGES = (
    *("profile=paper", "nodes=6", "graph=complete", "steps=4", "warm_up.steps=2"),
    *("record_every=2", "attack=ood", "method=drsgd-bymi"),
)


def specs() -> list[Spec]:
    """Two runs of the linear model, one with a detection, and one of LeNet with questions to neighbours."""
    linear = load(None, [*LINEAR, "method=['rule', 'drsgd-bymi']"]).expand()
    return [*linear, load(None, [*IMAGES, "data=mnist:samples=20,identification=8", "detection.point=receiver"])]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def call(*words: object) -> int:
    """The exit code of the command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bymi.runs", *map(str, words)])
        return __main__.main()


@dataclass(frozen=True)
class Bare:
    """Sheets that were run, two at a time, by an interpreter without the packages in MISSING."""

    specs: Path
    out: Path
    data: Path
    answer: Answer

    def folders(self) -> list[Path]:
        return [store.folder_of(self.out, spec) for spec in specs()]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    place = tmp_path_factory.mktemp("bare")
    write_image_set(place / "data" / "mnist", train=120, test=50)
    exported = place / "specs.json"
    write_resolved_specs(exported, [spec.resolved for spec in specs()])
    # Read at the start of every interpreter, those of the worker processes as well.
    (place / "lacks").mkdir()
    (place / "lacks" / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({MISSING!r}))\n")
    path = os.pathsep.join([str(place / "lacks"), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, "BYMI_DATA": str(place / "data")}
    words = [sys.executable, "-m", "bymi.runs", str(exported), "--out", str(place / "out"), "--jobs", "2", "--device", "cpu"]
    done = subprocess.run(words, cwd=place, env={**os.environ, **settings}, text=True, capture_output=True, timeout=120)
    return Bare(exported, place / "out", place / "data", Answer(done.returncode, done.stdout, done.stderr))


def test_the_packages_are_really_missing(tmp_path: Path) -> None:
    """The same trick makes the experiments, which need pydantic, fail."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({MISSING!r}))\n")
    words = [sys.executable, "-c", "import bymi.experiment"]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_resolved_specs_run_without_them(bare: Bare) -> None:
    assert bare.answer.err == ""
    assert bare.answer.code == 0
    assert bare.answer.out.splitlines()[-1] == "3 of 3 runs are there, 0 left, 0 failed"
    assert {folder.name for folder in bare.out.iterdir()} == {folder.name for folder in bare.folders()}
    for folder, spec in zip(bare.folders(), specs(), strict=True):
        summary = store.read_json(folder / store.SUMMARY)
        assert set(summary) == {"method", "seed", "digest", *SUMMARY_KEYS}
        assert (summary["digest"], summary["method"]) == (spec.digest, spec.label)
        assert summary["steps_done"] == spec.steps
        assert store.read_json(folder / store.SPEC) == spec.resolved.values
    where = [store.read_json(folder / store.ENVIRONMENT) for folder in bare.folders()]
    assert [(entry["device"], entry["gradients"]) for entry in where] == [("cpu", "closed form")] * 2 + [("cpu", "stacked")]


def test_experiments_find_the_folders_complete(bare: Bare) -> None:
    before, told = dates_in(bare.out), []
    host = Host(data=bare.data)
    results = run_all(specs(), bare.out, jobs=1, watch=lambda *status: told.append(status), host=host)
    assert results == [store.read_json(folder / store.SUMMARY) for folder in bare.folders()]
    assert told == []
    assert dates_in(bare.out) == before


def test_the_numbers_are_those_of_a_run_in_this_process(bare: Bare, tmp_path: Path) -> None:
    """One after the other with two threads here, side by side with one thread there: the same bits of the images' run."""
    ours = run_all(specs(), tmp_path, jobs=1, host=Host(device="cpu", data=bare.data, threads=2))
    theirs = [store.read_json(folder / store.SUMMARY) for folder in bare.folders()]
    for left, right in zip(ours, theirs, strict=True):
        assert isinstance(left, dict)
        assert {**left, "seconds": None, "detection_seconds": None} == {
            **{key: pytest.approx(value) if isinstance(value, float) else value for key, value in right.items()},
            "seconds": None,
            "detection_seconds": None,
        }
    images = bare.folders()[2].name
    for file in (store.METRICS, store.VERDICT):
        assert (tmp_path / images / file).read_bytes() == (bare.out / images / file).read_bytes()


def test_a_second_call_runs_nothing(bare: Bare, capsys: pytest.CaptureFixture[str]) -> None:
    before = dates_in(bare.out)
    assert call(bare.specs, "--out", bare.out) == 0
    assert capsys.readouterr().out == "3 of 3 runs are there, 0 left, 0 failed\n"
    assert dates_in(bare.out) == before


def test_without_time_nothing_is_started(bare: Bare, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(bare.specs, "--out", tmp_path / "new", "--seconds", 0, "--jobs", 1) == 0
    assert capsys.readouterr().out == "0 of 3 runs are there, 3 left, 0 failed\n"
    assert list((tmp_path / "new").iterdir()) == []
    # What is complete still counts.
    assert call(bare.specs, "--out", bare.out, "--seconds", 0) == 0
    assert capsys.readouterr().out == "3 of 3 runs are there, 0 left, 0 failed\n"


def test_one_run_that_cannot_be_does_not_spoil_the_others(
    bare: Bare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its data a run has an error of one line; the exit code says so."""
    (tmp_path / "empty").mkdir()
    assert call(bare.specs, "--out", tmp_path / "out", "--data", tmp_path / "empty", "--jobs", 1) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "2 of 3 runs are there, 0 left, 1 failed"
    assert "train-images-idx3-ubyte" in only_line(said.err)


def test_resolved_specs_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [spec.resolved for spec in specs()]
    write_resolved_specs(tmp_path / "specs.json", written)
    read = read_resolved_specs(tmp_path / "specs.json")
    assert [resolved.values for resolved in read] == [resolved.values for resolved in written]
    assert [resolved.digest for resolved in read] == [spec.digest for spec in specs()]
    for resolved, spec in zip(read, specs(), strict=True):
        for key in ("method", "warm_up_steps", "label"):
            assert getattr(resolved, key) == getattr(spec, key)
    assert ResolvedSpec({**read[0].values, "seed": 1}).digest != read[0].digest


BAD: list[Any] = [
    ("[", "is not a file of resolved specs"),
    ("", "is not a file of resolved specs"),
    ("null", "is not a file of resolved specs"),
    (b"\xa3\x00", "is not a file of resolved specs"),
    ('{"method": "dsgd"}', "is not a file of resolved specs"),
    ("[1, 2]", "is not a file of resolved specs"),
    ("[{}]", "is not a file of resolved specs"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_bad_file_gives_one_line(text: str | bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert call(path, "--out", tmp_path / "out") == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert only_line(found.err).startswith(f"{path} {said}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.json",), "cannot read nowhere.json: No such file or directory"),
        (("specs.json", "--device", "tpu"), "device: got 'tpu', allowed: auto, cpu, cuda"),
        (("specs.json", "--out", "specs.json"), "cannot write to the folder specs.json"),
    ],
)
def test_a_bad_word_gives_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("specs.json").write_text(json.dumps([specs()[0].resolved.values]))
    assert call(*words) == 2
    assert only_line(capsys.readouterr().err).startswith(said)
