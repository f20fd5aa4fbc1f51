"""Data sets: hostile files, where files are found, and the real thing where it is at hand."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bymi import InputError
from bymi.datasets import (
    ImageFiles,
    cache_folder,
    find_files,
    load_images,
    read_idx,
    read_image_set,
)
from bymi.datasets.data_folders import FILE_NAMES
from tests.idx_files import idx_bytes, line_of, nowhere, write_idx, write_image_set  # noqa: F401 (an autouse fixture)

GIVEN_DATA = os.environ.get("BYMI_DATA")  # before any test hides it
NO_DATA = "needs the real files: set BYMI_DATA to a folder with mnist/ and fashion-mnist/"


# IDX files


def read_or_line(path: Path) -> torch.Tensor | str:
    try:
        return read_idx(path)
    except InputError as problem:
        return str(problem)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (1, 1, 1, 1)])
def test_what_is_written_is_read(tmp_path: Path, shape: tuple[int, ...], compressed: bool) -> None:
    written = (torch.arange(24).reshape(-1)[: torch.Size(shape).numel()] * 10).to(torch.uint8).reshape(shape)
    write_idx(tmp_path / "x.bin", written, compressed)
    read = read_idx(tmp_path / "x.bin")
    assert read.dtype == torch.uint8
    assert torch.equal(read, written)


WHOLE = idx_bytes(torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))
HUGE = b"\0\0\x08\x03" + b"\xff" * 12
BAD_CONTENTS = [
    (b"", "expected an IDX file, which begins with 00 00, found an empty file"),
    (b"\0\0", "expected an IDX file, which begins with 00 00, found 00 00"),
    (b"\x89PNG\r\n", "expected an IDX file, which begins with 00 00, found 89 50 4e 47"),
    (b"\0\0\x0d\x01" + b"\0\0\0\x01" + b"\0" * 4, "expected elements of type 0x08 (unsigned byte), found type 0x0d"),
    (b"\0\0\x08\0", "expected 1 to 4 dimensions, found 0"),
    (b"\0\0\x08\xff" + b"\0\0\0\x01" * 255 + b"\0", "expected 1 to 4 dimensions, found 255"),
    (b"\0\0\x08\x03\0\0", "expected a header of 16 bytes, found 6 bytes"),
    (b"\0\0\x08\x02\0\0\0\0\0\0\0\x05", "expected dimensions of 1 or more, found 0 x 5"),
    (HUGE, "expected at most 1073741824 elements, found 4294967295 x 4294967295 x 4294967295 in the header"),
    (WHOLE[:-1], "expected 24 elements (2 x 3 x 4), found 23"),
    (WHOLE[:16], "expected 24 elements (2 x 3 x 4), found 0"),
]


@pytest.mark.parametrize(("content", "words"), BAD_CONTENTS)
@pytest.mark.parametrize("compressed", [True, False])
def test_a_bad_file_is_one_line(tmp_path: Path, content: bytes, words: str, compressed: bool) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(InputError) as caught:
        read_idx(path)
    assert line_of(caught) == f"{path}: {words}"


def test_extra_bytes_are_refused(tmp_path: Path) -> None:
    for content, words in ((WHOLE + b"\0", "found 25"), (gzip.compress(WHOLE + b"\0"), "found more")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_idx(tmp_path / "x")
        assert line_of(caught) == f"{tmp_path / 'x'}: expected 24 elements (2 x 3 x 4), {words}"


def test_every_kind_of_damaged_gzip_is_one_line(tmp_path: Path) -> None:
    """Cut off anywhere, any bit flipped, or with something behind it: never another exception, never wrong data unseen."""
    packed = gzip.compress(WHOLE, mtime=0)
    path = tmp_path / "x.gz"
    damaged = [packed[:length] for length in range(2, len(packed))] + [packed + b"rubbish", packed + packed]
    flipped = [packed[:at] + bytes([packed[at] ^ 1 << bit]) + packed[at + 1 :] for at in range(len(packed)) for bit in range(8)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_idx(path)
        assert line_of(caught).startswith(f"{path}: expected ")
    for content in flipped:
        path.write_bytes(content)
        read = read_or_line(path)
        if isinstance(read, torch.Tensor):  # a bit of no meaning, such as the time in the header
            assert torch.equal(read, torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=40), zipped=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(gzip.compress(b"\0\0\x08" + content) if zipped else content)
    read = read_or_line(path)
    if isinstance(read, torch.Tensor):
        assert read.numel() <= 40
    else:
        assert "\n" not in read


def test_a_gzip_bomb_does_not_fill_the_memory(tmp_path: Path) -> None:
    """200 MB behind a header that says 24 bytes, and little behind one that says 1 GB."""
    with gzip.open(tmp_path / "bomb", "wb", compresslevel=1) as packer:
        packer.write(WHOLE)
        for _ in range(200):
            packer.write(bytes(1 << 20))
    (tmp_path / "boast").write_bytes(gzip.compress(b"\0\0\x08\x01\x3f\xff\xff\xff" + bytes(1000)))
    for name in ("bomb", "boast"):
        tracemalloc.start()
        with pytest.raises(InputError):
            read_idx(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


def test_no_file_a_folder_and_a_pipe_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an IDX file, found no file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(InputError, match="expected an IDX file, found a folder"):
        read_idx(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="expected an IDX file, found no file"):
            read_idx(tmp_path / "pipe")


# Image sets


def files_in(folder: Path) -> ImageFiles:
    return ImageFiles(*(folder / f"{name}.gz" for name in FILE_NAMES))


def test_an_image_set(tmp_path: Path) -> None:
    write_image_set(tmp_path, train=60, test=20, side=9, classes=4)
    images = read_image_set("small", files_in(tmp_path), classes=4)
    assert images.name == "small"
    assert images.train_images.shape == (60, 1, 9, 9)
    assert images.test_images.shape == (20, 1, 9, 9)
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert images.train_labels.dtype == images.test_labels.dtype == torch.int64
    assert torch.bincount(images.train_labels).tolist() == [15] * 4
    assert images.classes == 4


def test_the_written_sets_can_be_learnt(tmp_path: Path) -> None:
    """The nearest class mean of the training images names every test image."""
    write_image_set(tmp_path, train=200, test=100)
    images = read_image_set("small", files_in(tmp_path))
    flat, test = images.train_images.flatten(1).double(), images.test_images.flatten(1).double()
    means = torch.stack([flat[images.train_labels == label].mean(0) for label in range(10)])
    assert torch.equal(torch.cdist(test, means).argmin(1), images.test_labels)


@pytest.mark.parametrize(
    ("changed", "tensor", "words"),
    [
        ("train-images-idx3-ubyte.gz", torch.zeros(60, 81), "{changed}: expected 3 dimensions, found 2"),
        ("train-labels-idx1-ubyte.gz", torch.zeros(60, 1), "{changed}: expected 1 dimension, found 2"),
        (
            "t10k-labels-idx1-ubyte.gz",
            torch.zeros(19),
            "{changed}: expected 20 labels, one for each image in {images}, found 19",
        ),
        ("t10k-labels-idx1-ubyte.gz", torch.full((20,), 10), "{changed}: expected labels 0 to 9, found 10"),
        (
            "t10k-images-idx3-ubyte.gz",
            torch.zeros(20, 8, 9),
            "{changed}: expected images of 9 x 9 pixels as in {train}, found 8 x 9",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, changed: str, tensor: torch.Tensor, words: str) -> None:
    write_image_set(tmp_path, train=60, test=20, side=9)
    write_idx(tmp_path / changed, tensor.to(torch.uint8), compressed=True)
    files = files_in(tmp_path)
    with pytest.raises(InputError) as caught:
        read_image_set("small", files)
    assert line_of(caught) == words.format(changed=tmp_path / changed, images=files.test_images, train=files.train_images)


# Where files are found


def test_files_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place that is given hides those after it: packages of the system, cache, BYMI_DATA, folder."""
    assert find_files("fashion-mnist") is None
    places = {
        "system": tmp_path / "system",
        "cache": tmp_path / "cache" / "bymi" / "fashion-mnist",
        "variable": tmp_path / "variable" / "fashion-mnist",
        "folder": tmp_path / "folder",
    }
    for place, folder in places.items():
        write_image_set(folder, train=10, test=10, side=3)
        if place == "variable":
            monkeypatch.setenv("BYMI_DATA", str(tmp_path / "variable"))
        found = find_files("fashion-mnist", folder if place == "folder" else None)
        assert found is not None
        assert {path.parent for path in found} == {folder}
    assert load_images("fmnist", tmp_path / "folder").name == "fashion-mnist"
    assert load_images("fashion").train_images.shape == (10, 1, 3, 3)


@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("inside", [True, False])
def test_every_spelling_is_found(tmp_path: Path, dotted: bool, ending: str, inside: bool) -> None:
    folder = tmp_path / "mnist" if inside else tmp_path
    write_image_set(folder, train=10, test=10, side=3)
    for stem in FILE_NAMES:
        content = (folder / f"{stem}.gz").read_bytes()
        (folder / f"{stem}.gz").unlink()
        name = (stem.replace("-idx", ".idx") if dotted else stem) + ending
        (folder / name).write_bytes(content if ending else gzip.decompress(content))
    assert load_images("mnist", str(tmp_path)).train_images.shape == (10, 1, 3, 3)


def test_a_given_folder_without_the_files_is_an_error_and_no_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image_set(tmp_path / "cache" / "bymi" / "mnist", train=10, test=10)  # would do, but was not asked for
    write_image_set(tmp_path / "half" / "mnist", train=10, test=10)
    (tmp_path / "half" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    allowed = (
        "allowed: a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
        "t10k-labels-idx1-ubyte (each plain or .gz) in it or in mnist/"
    )
    with pytest.raises(InputError) as caught:
        load_images("mnist", tmp_path / "nothing")
    assert line_of(caught) == f"data: got '{tmp_path / 'nothing'}', which is no folder; {allowed}"
    monkeypatch.setenv("BYMI_DATA", str(tmp_path / "half"))
    with pytest.raises(InputError) as caught:
        load_images("mnist")
    assert line_of(caught) == f"BYMI_DATA: got '{tmp_path / 'half'}', which has no t10k-labels-idx1-ubyte in mnist/; {allowed}"


def test_mnist_is_not_taken_for_fashion(tmp_path: Path) -> None:
    write_image_set(tmp_path / "mnist", train=10, test=10)
    assert find_files("mnist", tmp_path / "mnist") is not None
    with pytest.raises(InputError, match="which by its name holds mnist; allowed"):
        find_files("fashion-mnist", tmp_path / "mnist")


def test_the_cache_is_where_the_system_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("mnist") == tmp_path / "cache" / "bymi" / "mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    for platform, caches in (("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "Local")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_folder("mnist") == tmp_path / caches / "bymi" / "mnist"


# By name


@pytest.mark.parametrize(("name", "near"), [("mnits", "mnist"), ("fasion-mnist", "fashion-mnist"), ("fmnst", "fashion-mnist")])
def test_an_unknown_name_is_one_line_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        load_images(name)
    assert line_of(caught) == f"dataset: got {name!r}; did you mean {near!r}?; allowed: mnist, fashion-mnist, digits"


def test_the_name_of_a_partition_is_no_data_set() -> None:
    with pytest.raises(InputError, match="allowed: mnist, fashion-mnist, digits"):
        load_images("iid")


def test_digits() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn, the extra `digits`")
    digits = load_images("digits")
    assert digits.train_images.shape == (1497, 1, 28, 28)
    assert digits.test_images.shape == (300, 1, 28, 28)
    assert digits.train_images.dtype == torch.uint8
    assert int(digits.train_images.max()) == 255
    assert int(digits.train_images[..., :2].max()) == 0
    counts = torch.bincount(digits.train_labels), torch.bincount(digits.test_labels)
    whole = (counts[0] + counts[1]).double()
    assert whole.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as the package documents them
    assert float((counts[1] - 300 / 1797 * whole).abs().max()) < 1
    assert torch.equal(digits.test_images, load_images("digits").test_images)


def test_digits_without_scikit_learn_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError) as caught:
        load_images("digits")
    assert line_of(caught) == "digits: needs scikit-learn, which is not installed: pip install 'bymi[digits]'"


def test_digits_that_scikit_learn_lacks_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn, the extra `digits`")
    monkeypatch.setattr("bymi.datasets.digits._FILE", "datasets/data/none.csv.gz")
    with pytest.raises(InputError) as caught:
        load_images("digits")
    assert line_of(caught).startswith("digits: cannot read datasets/data/none.csv.gz of scikit-learn: ")


# SHA-256 of the unpacked files; their MD5 are those that are published for the unpacked files.
UNPACKED = {
    "mnist": ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", [5923, 6742, 5958, 6131, 5842]),
    "fashion-mnist": ("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", [6000] * 5),
}


@pytest.mark.skipif(not GIVEN_DATA, reason=NO_DATA)
@pytest.mark.parametrize("name", sorted(UNPACKED))
def test_the_real_files(name: str) -> None:
    images = load_images(name, GIVEN_DATA)
    assert images.train_images.shape == (60000, 1, 28, 28)
    assert images.test_images.shape == (10000, 1, 28, 28)
    digest, first_counts = UNPACKED[name]
    assert hashlib.sha256(idx_bytes(images.train_images.squeeze(1))).hexdigest() == digest
    assert torch.bincount(images.train_labels)[:5].tolist() == first_counts
