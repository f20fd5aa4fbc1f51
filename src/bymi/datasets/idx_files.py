"""Reader of IDX files, the format of MNIST. Files are untrusted: nothing is allocated from the header's word alone."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.files import opened

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_MOST_DIMENSIONS = 4
_MOST_BYTES = 1 << 30  # twice the largest public set in this format; bounds gzip bombs
_LONGEST_HEADER = 4 + 4 * _MOST_DIMENSIONS
_BLOCK = 1 << 20


def read_idx(path: str | Path) -> Tensor:
    """The unsigned bytes of an IDX file, plain or gzip (by content, not by name), uint8 in the header's shape.

    Layout: 00 00, element type, number of dimensions, each dimension as a big-endian 32-bit word, then the elements. Raises
    InputError otherwise, in one line with the file, what was expected and what was found.
    """
    path = Path(path)
    if not os.path.isfile(path):  # reading a pipe or a device might never end
        raise _mistake(path, "an IDX file", "a folder" if os.path.isdir(path) else "no file")
    try:
        with opened(path, limit=_MOST_BYTES + _LONGEST_HEADER) as file:
            compressed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            if not compressed:
                return _read(path, file, length=os.fstat(file.fileno()).st_size)
            with gzip.open(file, "rb") as unpacked:
                return _read(path, unpacked, length=None)
    except (gzip.BadGzipFile, zlib.error, EOFError) as problem:
        raise _mistake(path, "a whole gzip file", f"a damaged one ({problem})") from problem
    except OSError as problem:
        raise _mistake(path, "a file that can be read", problem.strerror or str(problem)) from problem


def _read(path: Path, file: IO[bytes] | gzip.GzipFile, length: int | None) -> Tensor:
    """The tensor in an open file, of `length` bytes if that is known beforehand."""
    shape, offset = _read_header(path, file)
    count = math.prod(shape)
    words = " x ".join(map(str, shape))
    if count > _MOST_BYTES:
        raise _mistake(path, f"at most {_MOST_BYTES} elements", f"{words} in the header")
    if length is not None and length != offset + count:
        raise _mistake(path, f"{count} elements ({words})", f"{length - offset}")
    # Memory grows with what the file really holds, never with what its header says.
    data = bytearray()
    while len(data) < count:
        block = file.read(min(_BLOCK, count - len(data)))
        if not block:
            raise _mistake(path, f"{count} elements ({words})", f"{len(data)}")
        data += block
    if file.read(1):  # in a gzip file, this also verifies the checksum
        raise _mistake(path, f"{count} elements ({words})", "more")
    return torch.frombuffer(data, dtype=torch.uint8).reshape(shape)


def _read_header(path: Path, file: IO[bytes] | gzip.GzipFile) -> tuple[list[int], int]:
    """The dimensions, and the number of bytes before the first element."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise _mistake(path, "an IDX file, which begins with 00 00", magic.hex(" ") or "an empty file")
    if magic[2] != _UNSIGNED_BYTE:
        raise _mistake(path, "elements of type 0x08 (unsigned byte)", f"type 0x{magic[2]:02x}")
    if not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise _mistake(path, f"1 to {_MOST_DIMENSIONS} dimensions", str(magic[3]))
    words = file.read(4 * magic[3])
    if len(words) < 4 * magic[3]:
        raise _mistake(path, f"a header of {4 + 4 * magic[3]} bytes", f"{4 + len(words)} bytes")
    shape = [int.from_bytes(words[start : start + 4], "big") for start in range(0, len(words), 4)]
    if min(shape) < 1:
        raise _mistake(path, "dimensions of 1 or more", " x ".join(map(str, shape)))
    return shape, 4 + len(words)


def _mistake(path: Path, expected: str, found: str) -> InputError:
    return InputError(f"{path}: expected {expected}, found {found}")
