"""Matrices from files of several formats, and names of their rows. Files are untrusted: nothing in them is executed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.files import MEBIBYTE, read_bytes

LIMIT = 4096 * MEBIBYTE
"""Bytes of the largest file that is read, and of the arrays in an archive once unpacked."""

_MEMBERS = 100  # files in an archive
_HEADER = 100 * MEBIBYTE  # bytes of a safetensors header, as in the reference implementation
_ID_WORDS = ("", "id", "name", "machine", "node", "client", "worker", "device", "host", "rank")
_TYPES = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
}
_SAFE_TORCH = (2, 6)  # before, torch.load(weights_only=True) could be made to run code (CVE-2025-32434)


@dataclass(frozen=True, eq=False)
class Contents:
    """The matrices of a file by name, in its order, and names of their rows if it has any."""

    matrices: dict[str, Tensor] = field(default_factory=dict)
    names: list[str] | None = None


def read_matrices(path: Path) -> Contents:
    """All matrices [n, d] in a file; errors are InputErrors of one line. Nothing but plain tensors is unpickled."""
    if path.suffix not in _READERS:
        raise InputError(f"{path}: got a {path.suffix or 'nameless'} file, allowed: {', '.join(_READERS)}")
    content = read_bytes(path, limit=_limit(path))
    try:
        contents = _READERS[path.suffix](content)
    except Exception as problem:  # a damaged file may raise anything in its reader
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(f"{path} is not a readable {path.suffix} matrix: {reason}") from None
    if not contents.matrices:
        raise InputError(f"{path} is not a readable {path.suffix} matrix: it holds no arrays")
    for name, matrix in contents.matrices.items():
        if matrix.ndim != 2:
            of = f" ({name})" if len(contents.matrices) > 1 else ""
            raise InputError(f"{path}{of}: got an array of shape {list(matrix.shape)}, need a matrix [n, d]")
    return contents


def read_names(path: Path) -> list[str]:
    """Names of machines, one per line; blank lines are ignored."""
    try:
        text = read_bytes(path, limit=16 * MEBIBYTE).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file in UTF-8") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _limit(path: Path) -> int:
    """The file's size, up to LIMIT, so that no more memory is reserved to read it."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return LIMIT  # reading it raises the error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"cannot read {path}: not a regular file")
    return min(status.st_size, LIMIT)


def _array(content: bytes) -> np.ndarray[Any, Any]:
    """The array of an .npy file, without a copy."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    readers: dict[Any, Any] = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format {version[0]}.{version[1]} is not known")
    shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they would have to be unpickled")
    if len(content) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"it has {len(content) - stream.tell()} bytes of data, its header says {math.prod(shape)} x {dtype}")
    flat = np.frombuffer(content, dtype, math.prod(shape), stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _read_npz(content: bytes) -> Contents:
    matrices, names = {}, None
    with _archive(content) as archive:
        for entry in archive.infolist():
            array = _array(archive.read(entry))
            name = entry.filename.removesuffix(".npy")
            if array.ndim == 1 and array.dtype.kind == "U":
                names = [str(word) for word in array.tolist()]
            else:
                matrices[name] = _tensor(array)
    return Contents(matrices, names)


def _archive(content: bytes) -> zipfile.ZipFile:
    """A zip file whose directory is within limits; no entry unpacks to more bytes than the directory says."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    entries = archive.infolist()
    if len(entries) > _MEMBERS:
        raise ValueError(f"it holds {len(entries)} files, allowed: up to {_MEMBERS}")
    total = sum(entry.file_size for entry in entries)
    if total > LIMIT:
        raise ValueError(f"it unpacks to {total} bytes, allowed: up to {LIMIT}")
    return archive


def _read_pt(content: bytes) -> Contents:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        raise ValueError(f"torch {torch.__version__} does not read it safely; update torch to 2.6, or save as .safetensors")
    _archive(content).close()
    loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if isinstance(loaded, Tensor):
        return Contents({"array": loaded})
    if not isinstance(loaded, dict) or not all(isinstance(part, Tensor) for part in loaded.values()):
        raise ValueError("it holds neither a tensor nor a dictionary of tensors")
    return Contents({str(name): part for name, part in loaded.items()})


def _read_safetensors(content: bytes) -> Contents:
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(_HEADER, len(content) - 8):
        raise ValueError("it is cut short" if len(content) < 10 else f"a header of {length} bytes")
    try:
        header = json.loads(content[8 : 8 + length])
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    return Contents({name: _part(content, 8 + length, name, entry) for name, entry in header.items()})


def _part(content: bytes, start: int, name: str, entry: Any) -> Tensor:
    dtype = _TYPES.get(str(entry.get("dtype"))) if isinstance(entry, dict) else None
    if dtype is None:
        raise ValueError(f"{name} has no type that is known: {', '.join(_TYPES)}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    for values in (shape, offsets):
        if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
            raise ValueError(f"{name} has no shape or no place")
    begin, end = offsets if len(offsets) == 2 else (0, -1)
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > len(content):
        raise ValueError(f"{name} does not lie where its shape says")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if (start + begin) % dtype.itemsize:  # frombuffer needs an aligned offset
        content, start = content[start + begin : start + end], -begin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only buffer, which is never written to
        return torch.frombuffer(content, dtype=dtype, count=math.prod(shape), offset=start + begin).reshape(shape)


def _read_csv(content: bytes) -> Contents:
    """Comma-separated numbers; a heading line and a first column of names are recognised."""
    lines = [line for line in content.decode("utf-8-sig").splitlines() if line.split("#")[0].strip()]
    if not lines:
        raise ValueError("it is empty")
    heading = _fields(lines[0])
    titled = heading[0].lower() in _ID_WORDS or not all(_is_number(word) for word in heading[1:])
    titled = titled or (len(heading) == 1 and not _is_number(heading[0]))
    if titled:
        lines = lines[1:]
        if not lines:
            raise ValueError("it has a heading and no rows")
    named = (titled and heading[0].lower() in _ID_WORDS) or not all(_is_number(_fields(line)[0]) for line in lines)
    names = None
    if named and len(_fields(lines[0])) > 1:
        cut = [_fields(line) for line in lines]
        names = [words[0] for words in cut]
        lines = [",".join(words[1:]) for words in cut]
    # An empty field is a missing number.
    lines = [",".join(word.strip() or "nan" for word in line.split(",")) if _has_gap(line) else line for line in lines]
    widths = [line.split("#")[0].count(",") + 1 for line in lines]
    for row, width in enumerate(widths):
        if width != widths[0]:
            raise ValueError(f"row {row + 1} has {width} number{'s' * (width > 1)}, expected {widths[0]} as in row 1")
    return Contents({"array": torch.from_numpy(np.loadtxt(lines, delimiter=",", ndmin=2))}, names)


def _fields(line: str) -> list[str]:
    return [word.strip() for word in (next(csv.reader([line])) if '"' in line else line.split(","))]


def _has_gap(line: str) -> bool:
    return ",," in line or line.startswith(",") or line.endswith(",") or ", ," in line


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return not word
    return True


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"numbers of type {array.dtype}, allowed: real numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.float64)  # torch has few operations on these
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or array.dtype == np.longdouble:
        array = array.astype(np.float64 if array.dtype == np.longdouble else native)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only buffer, which is never written to
        return torch.from_numpy(array)


_READERS: dict[str, Callable[[bytes], Contents]] = {
    ".npy": lambda content: Contents({"array": _tensor(_array(content))}),
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".pt": _read_pt,
    ".safetensors": _read_safetensors,
}
