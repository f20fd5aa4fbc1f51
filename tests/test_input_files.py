"""Every input file goes through the one reader: whatever is in its place or in it, a run begins or there is one line."""

from __future__ import annotations

import copy
import gzip
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bymi import InputError
from bymi.core import files, graph
from bymi.datasets import idx_files as idx
from bymi.datasets import read_idx
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.runs import ResolvedSpec, __main__, read_resolved_specs
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.run_setup import check_resolved_spec, set_up_run
from bymi.runs.safetensors_file import TensorFile, UnusableError
from tests.commands import TINY, mistake, only_line
from tests.idx_files import write_image_set

DEEP = 5000


def in_time(work: Callable[[], Any]) -> Any:
    """What it returns or raises, within ten seconds: reading a pipe would last for ever."""
    ended: list[Any] = []

    def call() -> None:
        try:
            ended.append(work())
        except BaseException as problem:
            ended.append(problem)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert ended, "it hangs"
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


# Specs


SPECS: dict[str, tuple[bytes, str]] = {
    "NUL.json": (b'{"nodes": 20, "seed\0": 1}', "it has a NUL"),
    "NUL.toml": (b"nodes = 20\0", "it has a NUL"),
    "deep.json": (b'{"panel":' * DEEP + b"1" + b"}" * DEEP, "nested too deeply"),
    "deep.toml": (b"nodes = " + b"[" * DEEP, "nested too deeply"),
    "digits.json": (b'{"nodes": ' + b"9" * 5000 + b"}", "an integer of more than 4300 digits"),
    "digits.toml": (b"nodes = " + b"9" * 5000, "an integer of more than 4300 digits"),
    "latin.json": (b'{"nodes": "\xe9"}', "utf-8"),
    "large.json": (b" " * (1 << 20) + b"{}", "got 1048578 bytes, allowed: up to 1048576"),
    "large.toml": (b"#" * (1 << 21), "allowed: up to 1048576"),
    "huge number.json": (b'{"attack": {"name": "ipm", "a": 1e999}}', "attack.a: got inf, allowed: "),
    "surrogate.json": (b'{"attack": "\\ud800"}', "attack: got "),
    "NUL in a path.json": (b'{"graph": {"name": "file", "path": "a\\u0000b"}}', "embedded null byte"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_hostile_spec_is_one_line(name: str, tmp_path: Path) -> None:
    content, words = SPECS[name]
    (tmp_path / name).write_bytes(content)
    assert words in mistake("run", tmp_path / name, "nodes=20", "--out", tmp_path / "out")


@pytest.mark.parametrize("depth", [50, 500, 900, 950, 980, 990, 995])
def test_values_as_deep_as_python_can_just_read_are_one_line(depth: int, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"panel":' + '{"high":' * depth + "1" + "}" * depth + "}")
    assert "\n" not in mistake("run", tmp_path / "deep.json", "--out", tmp_path / "out")


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_spec_that_is_a_pipe_or_a_device(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    (tmp_path / f"zero.{ending}").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        path = tmp_path / f"{name}.{ending}"
        assert in_time(lambda path=path: mistake("run", path)) == f"cannot read {path}: not a regular file"


# Edge files


def edges(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        in_time(lambda: graph.read_edges(path))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 400
    return line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0 1\n1 \x002\n", "it has a NUL at character 6"),
        (b"0 " + b"9" * 5000, "line 1: expected two node numbers from 0 to 1000000000, got '0 999"),
        (b"0 " + b"9" * 4000, "line 1: expected two node numbers from 0 to 1000000000, got '0 999"),
        (b"0 1000000001", "line 1: expected two node numbers"),
        (b"0 1000000000", "got node number 1000000000 but 1 edges"),
        (b"\xff\xfe", "'utf-8' codec"),
        (b"x" * 100_000, "line 1: expected two node numbers"),
    ],
)
def test_a_hostile_edge_file_is_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "edges").write_bytes(content)
    assert words in edges(tmp_path / "edges")


def test_an_edge_file_has_a_largest_size_and_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert edges(tmp_path / "pipe") == f"cannot read the edge file {tmp_path / 'pipe'}: not a regular file"
    assert edges(Path("/dev/zero")) == "cannot read the edge file /dev/zero: not a regular file"
    with (tmp_path / "large").open("wb") as file:
        file.truncate((256 << 20) + 1)
    assert f"got {(256 << 20) + 1} bytes, allowed: up to {256 << 20}" in edges(tmp_path / "large")
    words = [*TINY, f"graph={{name='file', path='{tmp_path / 'large'}'}}", "--out", tmp_path / "out"]
    assert "allowed: up to " in mistake("run", *words)


# Images


def test_an_idx_file_is_a_file_of_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError):
            in_time(lambda path=path: read_idx(path))
    with (tmp_path / "large").open("wb") as file:
        file.truncate((1 << 30) + 100)
    with pytest.raises(InputError, match=f"got {(1 << 30) + 100} bytes, allowed: up to {(1 << 30) + 20}"):
        read_idx(tmp_path / "large")


def test_a_compressed_idx_file_is_unpacked_up_to_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "_MOST_BYTES", 1000)
    content = b"\0\0\x08\x01" + (1001).to_bytes(4, "big") + bytes(1001)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match="expected at most 1000 elements, found 1001 in the header"):
        read_idx(tmp_path / "bomb.gz")


def images(tmp_path: Path, *words: str, side: int = 28) -> None:
    write_image_set(tmp_path / "mnist", train=120, test=20, side=side)
    base = ["data=mnist:samples=12,identification=4", "nodes=8", "graph=complete", "steps=4", "warm_up.steps=2", "method=dsgd"]
    set_up_run(load(None, [*base, *words]).resolved, Host(device="cpu", data=tmp_path))


@pytest.mark.parametrize("side", [1, 2, 8, 27, 32])
def test_images_that_lenet_cannot_take_are_one_line(side: int, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        images(tmp_path, "attack=ipm", side=side)
    assert str(caught.value) == f"data: got 'mnist of {side} x {side} pixels', allowed: 28 x 28, which LeNet is for"


def test_images_of_one_grey_are_one_line(tmp_path: Path) -> None:
    write_image_set(tmp_path / "mnist", train=120, test=20)
    for path in (tmp_path / "mnist").glob("*images*"):
        raw = path.read_bytes()
        plain = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        path.write_bytes(plain[:16] + bytes(len(plain) - 16))
    words = ["data=mnist:samples=12,identification=4", "nodes=8", "graph=complete", "attack=ipm", "method=dsgd"]
    with pytest.raises(InputError, match="with one grey only"):
        set_up_run(load(None, words).resolved, Host(device="cpu", data=tmp_path))


@pytest.mark.parametrize(("classes", "labels"), [(100, "0, 99"), (11, "0, 10")])
def test_flipped_labels_that_do_not_exist_are_one_line(classes: int, labels: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        images(tmp_path, f"attack=label-flip:classes={classes}")
    line = str(caught.value)
    assert line == (
        f"attack: LabelFlip(classes={classes}) makes labels: got [{labels}], allowed: labels 0 to 9, those of mnist"
    )
    images(tmp_path, "attack=label-flip:classes=10")


# Checkpoints


def test_a_checkpoint_that_is_a_pipe_or_a_link_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnusableError, match="pipe: not a regular file"):
        in_time(lambda: TensorFile(tmp_path / "pipe"))
    tensorfile.write(tmp_path / "file", {}, {})
    (tmp_path / "link").symlink_to(tmp_path / "file")
    TensorFile(tmp_path / "file")
    with pytest.raises(UnusableError, match="link: a symbolic link, which is not followed here"):
        TensorFile(tmp_path / "link")


# Sheets


WHOLE: dict[str, Any] = load(None, [*TINY, "profile=hardened", "method=drsgd-bymi"]).resolved.values
IMAGES: dict[str, Any] = load("mnist").resolved.values | {"method": "drsgd-bymi"}


def paths(values: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All keys of a resolved, those of sections inside as well."""
    found = []
    for key, value in values.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += paths(value, (*before, key))
    return found


def changed(path: tuple[str, ...], value: Any) -> ResolvedSpec:
    values = copy.deepcopy(WHOLE)
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return ResolvedSpec(values)


def call(tmp_path: Path, content: Any, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "specs.json").write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bymi.runs", str(tmp_path / "specs.json"), "--out", str(tmp_path / "out"), "--jobs", "1"])
        assert __main__.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert not (tmp_path / "out").exists()
    return only_line(said.err)


WRONG: dict[str, Any] = {"words": "many", "a list": [1, 2], "a table": {"x": 1}, "a half": 0.5, "less": -1, "huge": 10**12}


@pytest.mark.parametrize("path", paths(WHOLE), ids=".".join)
def test_wrongly_typed_sheets_are_one_line_or_fit(path: tuple[str, ...]) -> None:
    """Every key with everything that may be in its place: refused with its name, or one that a spec could have, too."""
    check_resolved_spec(ResolvedSpec(copy.deepcopy(WHOLE)), "here")
    refused = []
    for value in WRONG.values():
        try:
            check_resolved_spec(changed(path, value), "specs.json, resolved 1")
        except InputError as problem:
            refused.append(str(problem))
    assert all(line.startswith("specs.json, resolved 1: ") and "\n" not in line for line in refused)
    if path != ("profile",):  # any word: it says how the others were set
        assert len(refused) >= 3, "neither words nor a list nor a table is ever right for more than one of them"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("nodes",), "20", "nodes: got '20', allowed: int"),
        (("nodes",), True, "nodes: got True, allowed: int"),
        (("nodes",), 10**10, "nodes: got 10000000000, allowed: int"),
        (("seed",), 2**63, f"seed: got {2**63}, allowed: an integer from 0 to {2**63 - 1}"),
        (("method",), "sgd", "sgd"),
        (("method",), [], "list index out of range"),
        (("attack",), "ipm", "attack: got 'ipm', allowed: dict"),
        (("attack",), {"name": "ipm", "a": "2"}, "a: got '2', allowed: float"),
        (("attack",), {"name": "ipm", "b": 2}, "unexpected keyword argument 'b'"),
        (("data", "dim"), 2.5, "dim: got 2.5, allowed: int"),
        (("warm_up", "rule", "name"), 3, "not one of "),
        (("warm_up", "batch"), None, "warm_up.batch: got None, allowed: int"),
        (("optimisation", "step_size"), "theory", "optimisation.step_size: got 'theory', allowed: "),
        (("panel", "high"), [5], "high: got [5], allowed: "),
        (("watch", "every"), "often", "every: got 'often', allowed: "),
        (("detection", "sample"), "some", "detection.sample: got 'some', allowed: "),
        (("graph",), {"name": "file", "path": 3}, "path: got 3, allowed: str"),
    ],
)
def test_the_command_names_the_sheet_and_the_key(
    path: tuple[str, ...], value: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = call(tmp_path, [WHOLE, changed(path, value).values], capsys)
    assert line.startswith(f"{tmp_path / 'specs.json'}, spec 2: ")
    assert words in line


@pytest.mark.parametrize("values", [WHOLE, IMAGES], ids=["linear", "images"])
def test_resolved_specs_of_specs_are_good(values: dict[str, Any]) -> None:
    check_resolved_spec(ResolvedSpec(values), "here")


def test_a_file_of_sheets_is_a_file_of_a_largest_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        in_time(lambda: read_resolved_specs(tmp_path / "pipe"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match=f"allowed: up to {256 * files.MEBIBYTE}"):
        read_resolved_specs(tmp_path / "large")
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(InputError, match="deep is not a file of resolved specs: it is nested too deeply"):
        read_resolved_specs(tmp_path / "deep")
