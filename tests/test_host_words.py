"""`--data`, `--device` and `--gradients`: where and how a run happens, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bymi.experiment import load
from bymi.runs import run_folder as store
from tests.commands import TINY, bymi, mistake, only_folder, only_line, start, summary_in
from tests.idx_files import write_image_set

IMAGES = (
    "data=mnist:samples=20,identification=8",
    "nodes=6",
    "graph=complete",
    "steps=4",
    "warm_up.steps=2",
    "record_every=2",
    "attack=ipm",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_image_set(tmp_path / "data" / "mnist", train=120, test=50)
    return tmp_path / "data"


@pytest.mark.parametrize("way", ["loop", "batched"])
def test_a_run_on_images(way: str, data: Path, tmp_path: Path) -> None:
    words = ("--data", data, "--device", "cpu", "--gradients", way, "--out", tmp_path / "runs")
    answer = bymi("run", *IMAGES, "method=dsgd", *words)
    assert answer.code == 0
    folder = only_folder(tmp_path / "runs")
    where = store.read_json(folder / store.ENVIRONMENT)
    assert (where["device"], where["gradients"]) == ("cpu", way)
    summary = summary_in(folder)
    (row,) = [words for words in answer.rows if words[0] == "DSGD"]
    assert {f"{100 * summary[key]:.1f}" for key in ("acc_all", "acc_normal")} <= set(row)
    assert "accuracy.png" in {path.name for path in folder.glob("figures/*")}


def test_where_and_how_is_no_part_of_the_spec(data: Path, tmp_path: Path) -> None:
    """The same run by another way is the same run: its folder is found again."""
    words = ("run", *IMAGES, "method=dsgd", "--data", data, "--out", tmp_path / "runs")
    first = bymi(*words, "--gradients", "loop")
    assert bymi(*words, "--gradients", "batched", "--device", "cpu") == first
    assert only_folder(tmp_path / "runs").name.endswith(load(None, [*IMAGES, "method=dsgd"]).digest)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("command", [("run", *TINY), ("reproduce", "table-mnist", "--fast")])
def test_cuda_without_cuda_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    line = mistake(*command, "--device", "cuda", "--out", tmp_path / "runs")
    assert line == "device: got 'cuda', but torch sees no CUDA device here; allowed: cpu, auto"
    assert not (tmp_path / "runs").exists()


def test_an_unknown_device_is_one_line(tmp_path: Path) -> None:
    line = mistake("run", *TINY, "--device", "tpu", "--out", tmp_path / "runs")
    assert line == "device: got 'tpu', allowed: auto, cpu, cuda, cuda:NUMBER"


@pytest.mark.parametrize("what", [TINY, IMAGES])
def test_an_unknown_way_of_gradients_is_one_line(what: tuple[str, ...], data: Path, tmp_path: Path) -> None:
    """Before anything is run, and whether or not the task would look at it."""
    words = ("method=dsgd", "--gradients", "fast", "--data", data, "--jobs", 1, "--out", tmp_path / "runs")
    line = mistake("run", *what, *words)
    assert line == "gradients: got 'fast', allowed: auto, loop, stacked, batched, captured"
    assert not (tmp_path / "runs").exists()


def test_captured_gradients_need_cuda(data: Path, tmp_path: Path) -> None:
    words = ("--gradients", "captured", "--device", "cpu", "--data", data, "--out", tmp_path / "runs")
    assert mistake("run", *IMAGES, "method=dsgd", *words).startswith("gradients: got 'captured' on cpu, allowed: ")


def test_a_folder_without_the_data_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    line = mistake("run", *IMAGES, "method=dsgd", "--data", tmp_path / "data", "--out", tmp_path / "runs")
    assert "train-images-idx3-ubyte" in line
    assert str(tmp_path / "data") in line


def test_the_installed_command_names_a_missing_device(tmp_path: Path) -> None:
    process = start("run", *TINY, "--device", "gpu", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert only_line(err) == "device: got 'gpu', allowed: auto, cpu, cuda, cuda:NUMBER"
