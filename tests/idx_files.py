"""For tests of data sets: small image sets in the IDX format, and a machine on which no other data are found."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bymi import InputError
from bymi.core.random_streams import stream
from bymi.datasets import data_folders as locate


def idx_bytes(tensor: Tensor) -> bytes:
    """A uint8 tensor as the bytes of an IDX file."""
    assert tensor.dtype == torch.uint8
    header = bytes([0, 0, 8, tensor.dim()]) + b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return header + tensor.contiguous().numpy().tobytes()


def write_idx(path: Path, tensor: Tensor, compressed: bool) -> None:
    data = idx_bytes(tensor)
    path.write_bytes(gzip.compress(data, mtime=0) if compressed else data)


def write_image_set(folder: Path, *, train: int, test: int, side: int = 28, classes: int = 10, seed: int = 0) -> None:
    """Write the four gzip files of a set that a small model can learn.

    Each class has a random pattern of 7 x 7 black or bright fields; an image is its class's pattern plus noise. Labels
    are as balanced as the number of images allows, in random order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fields = (stream(seed, "fields").uniform(classes, 7, 7) < 0.5) * 160.0
    place = torch.arange(side) * 7 // side
    patterns = fields[:, place][:, :, place]
    for part, count in (("train", train), ("t10k", test)):
        labels = stream(seed, f"{part}-labels").permutation(count) % classes
        noise = stream(seed, f"{part}-noise").uniform(count, side, side) * 95
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", (patterns[labels] + noise).to(torch.uint8), compressed=True)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels.to(torch.uint8), compressed=True)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the files of the person who runs it, and none goes through a proxy."""
    monkeypatch.delenv("BYMI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", {"fashion-mnist": tmp_path / "system"})


def line_of(caught: pytest.ExceptionInfo[InputError]) -> str:
    line = str(caught.value)
    assert "\n" not in line
    return line
