"""A complete run folder is one that can be read: with a damaged file, or behind a link, the run is made again."""

from __future__ import annotations

import errno
import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from bymi.core import files
from bymi.core.errors import InputError, StorageError
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, run
from bymi.paper import study_scenarios_a_b as studies
from bymi.paper.page_scenarios_a_b import draw
from bymi.report import figures
from bymi.runs import checkpoints
from bymi.runs import run_folder as store
from bymi.runs.observers import RunStatus
from tests.commands import TINY, Answer, bymi, dates_in, files_in, only_folder
from tests.forked import call

WORDS = [*TINY, "method=drsgd-bymi", "record_every=5"]
DAMAGE: dict[str, Any] = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "garbage": lambda content: b"\xff\x00" * 50,
    "other JSON": lambda content: b"[]\n",
    "wrong types": lambda content: content.replace(b": ", b': "x', 1).replace(b"  ", b" ", 1),
    "one bit": lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("original")
    bymi("run", *WORDS, "--out", out)
    return only_folder(out)


def copy(original: Path, out: Path) -> Path:
    place = out / original.name
    for name in files_in(original):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((original / name).read_bytes())
    assert store.is_complete(place)
    return place


def without_times(answer: Answer) -> list[list[str]]:
    return [[word for word in row if not word.replace(".", "").isdigit()] for row in answer.rows]


@pytest.mark.parametrize("name", [store.METRICS, store.VERDICT, store.SUMMARY, store.SPEC, store.ENVIRONMENT, store.SUMS])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_has_the_run_made_again(name: str, how: str, original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path)
    (folder / name).write_bytes(DAMAGE[how]((folder / name).read_bytes()))
    assert not store.is_complete(folder)
    run(Spec.model_validate_json((original / store.SPEC).read_text()), tmp_path)
    assert store.is_complete(folder)
    assert (folder / store.METRICS).read_bytes() == (original / store.METRICS).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "nothing else is left"


@pytest.mark.parametrize("name", [store.METRICS, store.VERDICT, store.SUMMARY])
def test_the_command_goes_on_as_if_nothing_had_been(name: str, original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path)
    undamaged = bymi("run", *WORDS, "--out", tmp_path)
    (folder / name).write_bytes(b"{")
    again = bymi("run", *WORDS, "--out", tmp_path)
    assert (again.code, again.err) == (undamaged.code, "")
    assert without_times(again) == without_times(undamaged)
    assert files_in(folder) == files_in(original)


def test_the_sums_are_those_of_sha256sum(original: Path) -> None:
    done = subprocess.run(["sha256sum", "-c", "--strict", store.SUMS], cwd=original, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {line.split(":")[0] for line in done.stdout.splitlines()} == {
        name for name in files_in(original) if "/" not in name and name != store.SUMS
    }


def test_names_in_the_sums_lead_nowhere_else(original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path)
    with (folder / store.SUMS).open("a") as file:
        file.write(f"{'0' * 64}  ../outside\n{'0' * 64}  /etc/passwd\n")
    assert store.is_complete(folder), "what is not in the folder is not looked at"


def test_looking_at_many_folders_is_quick(original: Path, tmp_path: Path) -> None:
    """A verdict of half a megabyte, as of 150 nodes: a few milliseconds, ten times less than reading its numbers."""
    folder = copy(original, tmp_path)
    (folder / store.VERDICT).write_bytes(b"[" + b"0.123456789, " * 40_000 + b"0]")
    store.seal(folder)
    start = time.process_time()
    assert all(store.is_complete(folder) for _ in range(100))
    assert time.process_time() - start < 2.0, "20 ms each"


def test_what_is_complete_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is synced before the folder gets its name, and the folder around it afterwards."""
    seen: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def named(source: Any, target: Any) -> None:
        seen.append(f"name {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    spec = load(None, WORDS)
    run(spec, tmp_path)
    folder = store.folder_of(tmp_path, spec)
    at = seen.index(f"name {folder.name}")
    assert files_in(folder) - {store.SUMS} <= set(seen[:at])
    assert any(name.startswith(f".{store.SUMS}.") for name in seen[:at])
    assert tmp_path.name in seen[at:]


# Figures


def test_a_figure_is_whole_or_not_there(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy(original, tmp_path)
    for path in (folder / "figures").iterdir():
        path.unlink()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert figures.draw_run(folder) == []
    assert files_in(folder / "figures") == set()
    assert {path.name for path in figures.draw_run(folder)} == {"gap.png", "gap.svg", "scores.png", "scores.svg"}


@pytest.mark.parametrize("name", ["gap.png", "gap.svg", "scores.svg"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_figure_does_not_count_as_done(name: str, share: float, original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path)
    path = folder / "figures" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    others = {other: date for other, date in dates_in(folder / "figures").items() if other.split(".")[0] != name.split(".")[0]}
    made = figures.draw_run(folder)
    assert path in made
    assert path.read_bytes() == whole
    assert {other: dates_in(folder / "figures")[other] for other in others} == others, "whole ones are left alone"


KILLED = """
import os, signal, sys
from pathlib import Path
from bymi.core import files
from bymi.report import figures
real = files.write_bytes
def cut(path, content):
    real(path, content) if path.suffix == ".png" else None
    if path.suffix == ".svg":
        with files.writing(path) as file:
            file.write(content[: len(content) // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
files.write_bytes = cut
figures.draw_run(Path(sys.argv[1]))
"""


def test_a_kill_while_drawing_is_made_good_by_the_next_call(original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path)
    (folder / "figures" / "gap.svg").unlink()
    assert call("-c", KILLED, str(folder)).returncode == -9
    assert not (folder / "figures" / "gap.svg").exists()
    bymi("run", *WORDS, "--out", tmp_path)
    assert ElementTree.parse(folder / "figures" / "gap.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    "problem", [ValueError("no\nsuch font"), MemoryError(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_a_figure_that_fails_is_a_warning_and_no_more(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*words: Any, **more: Any) -> None:
        raise problem

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    answer = bymi("run", *TINY, 'method=["dsgd", "drsgd-bymi"]', "--jobs", 1, "--out", tmp_path)
    assert answer.code == 5, "that of the runs"
    assert "Figure: " not in answer.out
    assert len(caplog.messages) == 4, "two figures of one run, one of the other, and the comparison"
    for line in caplog.messages:
        assert line.startswith("bymi: no figure ")
        assert "\n" not in line
    assert not any(path.suffix in (".svg", ".png") for path in tmp_path.rglob("*"))


def test_the_warning_is_a_line_on_stderr(tmp_path: Path) -> None:
    program = (
        "import sys; from matplotlib.figure import Figure; from bymi.cli import main\n"
        "def fail(*words, **more): raise RuntimeError('out of ink')\n"
        "Figure.savefig = fail; sys.argv[0] = 'bymi'; main()"
    )
    done = call("-c", program, "run", *TINY, "method=dsgd", "--out", str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == f"bymi: no figure {only_folder(tmp_path)}/figures/gap: out of ink\n"


# No symbolic link is followed


def test_a_linked_run_folder_is_refused(original: Path, tmp_path: Path) -> None:
    elsewhere = copy(original, tmp_path / "elsewhere")
    before = dates_in(elsewhere)
    (tmp_path / "out").mkdir()
    link = tmp_path / "out" / original.name
    link.symlink_to(elsewhere)
    assert not store.is_complete(link)
    with pytest.raises(InputError, match=f"{link}: got a symbolic link, which is not followed"):
        run(load(None, WORDS), tmp_path / "out")
    assert dates_in(elsewhere) == before


def test_a_file_in_the_place_of_a_run_folder_is_refused_before_the_run(original: Path, tmp_path: Path) -> None:
    (tmp_path / original.name).write_text("mine")
    told: list[RunStatus] = []
    with pytest.raises(InputError, match="got a file, allowed: a run folder, or nothing yet"):
        run(load(None, WORDS), tmp_path, told.append)
    assert told == []
    assert (tmp_path / original.name).read_text() == "mine"


@pytest.mark.parametrize("name", [store.SUMMARY, store.VERDICT, store.SUMS])
def test_a_linked_file_in_a_run_folder_is_not_read(name: str, original: Path, tmp_path: Path) -> None:
    folder = copy(original, tmp_path / "out")
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / name)
    before = dates_in(tmp_path / "out")
    assert not store.is_complete(folder)
    run(load(None, WORDS), tmp_path / "out")
    assert not (folder / name).is_symlink()
    assert (tmp_path / name).exists()
    assert dates_in(tmp_path / "out") != before


def test_a_linked_checkpoint_folder_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was cleared of everything that looks like a checkpoint."""
    spec, host = load(None, WORDS), Host(checkpoint_every=3)
    target = tmp_path / "target"
    for number in range(12):
        (target / f"round-{number:08d}").mkdir(parents=True)
        (target / f"round-{number:08d}" / "mine.txt").write_text("mine")
    before = dates_in(target)
    out = tmp_path / "out"
    out.mkdir()
    store.checkpoints_of(out, spec).symlink_to(target)
    run(spec, out, host=host)
    assert dates_in(target) == before
    assert store.is_complete(store.folder_of(out, spec))
    (line,) = caplog.messages
    assert "no checkpoint of round 3: " in line
    assert "is a symbolic link, which is not followed; the run goes on without" in line
    store.prepare(out)
    assert dates_in(target) == before


def test_linked_rounds_and_shards_are_nothing(tmp_path: Path) -> None:
    folder, target = tmp_path / "kept", tmp_path / "target"
    (folder / "round-00000001").mkdir(parents=True)
    target.mkdir()
    (target / "shard-0000-of-0001.safetensors").write_text("mine")
    (folder / "round-00000002").symlink_to(target)
    (folder / "round-00000001" / "shard-0000-of-0001.safetensors").symlink_to(target / "shard-0000-of-0001.safetensors")
    assert [path.name for path in checkpoints._rounds(folder)] == ["round-00000001"]
    assert checkpoints._sets(folder / "round-00000001") == {}
    checkpoints.forget(folder)
    assert (target / "shard-0000-of-0001.safetensors").read_text() == "mine"


def test_a_linked_folder_of_figures_is_not_written_to(original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy(original, tmp_path / "out")
    (folder / "figures").rename(tmp_path / "moved")
    for path in (tmp_path / "moved").iterdir():
        path.unlink()
    (folder / "figures").symlink_to(tmp_path / "moved")
    answer = bymi("run", *WORDS, "--out", tmp_path / "out")
    assert answer.code == 5
    assert files_in(tmp_path / "moved") == set()
    assert all("got a symbolic link, which is not followed here" in line for line in caplog.messages)
    assert len(caplog.messages) == 2


def test_a_linked_study_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "reproduce-scenario-a-fast").symlink_to(tmp_path / "target")
    (tmp_path / "out" / "reproduce-scenario-a").symlink_to(tmp_path / "target")
    answer = bymi("reproduce", "scenario-a", "--fast", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "got a symbolic link, which is not followed here" in answer.err
    assert files_in(tmp_path / "target") == set()


def test_the_folder_for_runs_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert bymi("run", *TINY, "method=dsgd", "--out", tmp_path / "out").code == 0
    assert len(list((tmp_path / "disk").iterdir())) == 1


def test_a_scratch_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    spec = load(None, WORDS)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    scratch = tmp_path / f".{store.folder_of(tmp_path, spec).name}.{os.uname().nodename}.{os.getpid()}"
    scratch.symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="File exists"):
        run(spec, tmp_path)
    assert files_in(tmp_path / "target") == {"mine"}


def test_the_writer_of_reports_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and values of studies: nothing is written but by `files.write_bytes`."""
    written: list[str] = []
    real = files.write_bytes

    def told(path: Path, content: bytes) -> None:
        written.append(path.name)
        real(path, content)

    for room in ("page_scenarios_a_b", "page_images", "page_red_team"):
        monkeypatch.setattr(f"bymi.paper.{room}.write_bytes", told)
    monkeypatch.setattr(files, "write_bytes", told)
    specs = [load(None, [*WORDS, f"attack.share={share}"]) for share in (0.4, 0.8)]
    for spec in specs:
        run(spec, tmp_path)
    cells = [studies.Cell(30, "BALANCE", spec.attack.share, spec) for spec in specs]
    written.clear()
    paths = draw(studies.Study("small", "A small study", "s_r", (0.4, 0.8), cells), tmp_path, "bymi reproduce small")
    assert sorted(written) == sorted(path.name for path in paths)
    assert {"small.png", "small.svg", "medians.md", "values.json"} == set(written)
