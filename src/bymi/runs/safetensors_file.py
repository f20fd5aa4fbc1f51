"""Files of tensors in the safetensors format: length of the header, header as JSON, data.

Reading executes nothing, and checks sizes, layout and checksum before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.files import opened, writing

_TYPES = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LENGTH = 8  # bytes that hold the length of the header
_HEADER = 1 << 20  # bytes of the longest header that is read: far more than ours
_BLOCK = 1 << 22  # bytes hashed at a time
_WORDS, _SUM = "bymi", "sha256"  # keys beside the tensors
_NO_SUM = "0" * 64  # placeholder while the checksum is computed


class UnusableError(ValueError):
    """A stored file that cannot be used; the text says why."""


@dataclass(frozen=True)
class _Part:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # offset in the file


def write(path: Path, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> int:
    """Write a file atomically (beside its place, fsync, rename); returns the number of bytes."""
    flat = {
        name: tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data for name, tensor in tensors.items()
    }
    header: dict[str, Any] = {"__metadata__": {_SUM: _NO_SUM, _WORDS: json.dumps(words, allow_nan=False)}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + flat[name].nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data start at a multiple of their size
    checksum = hashlib.sha256(text)
    for numbers in flat.values():
        checksum.update(numbers)
    text = text.replace(_NO_SUM.encode(), checksum.hexdigest().encode(), 1)
    with writing(path) as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        for numbers in flat.values():
            file.write(numbers)
    return _LENGTH + len(text) + end


class TensorFile:
    """A checked file: `words`, and tensors by name that are read on demand. `former`: today's names by those of older files."""

    def __init__(self, path: Path, former: Mapping[str, str] | None = None) -> None:
        self.path = path
        try:
            with opened(path, limit=None, links=False) as file:
                size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(_LENGTH), "little")
                if not 0 < length <= min(_HEADER, size - _LENGTH):
                    self._fail("cut short" if size < _LENGTH + 2 else f"a header of {length} bytes")
                text = file.read(length)
                header = _parse(text)
                meta = header.pop("__metadata__", None)
                if not isinstance(meta, dict) or not all(isinstance(meta.get(key), str) for key in (_SUM, _WORDS)):
                    self._fail("no checksum in its header")
                parts = self._layout(header, _LENGTH + length, size)
                self._parts = {(former or {}).get(name, name): part for name, part in parts.items()}
                checksum = hashlib.sha256(text.replace(meta[_SUM].encode(), _NO_SUM.encode(), 1))
                while block := file.read(_BLOCK):
                    checksum.update(block)
                if checksum.hexdigest() != meta[_SUM]:
                    self._fail("its checksum differs")
                self.words: dict[str, Any] = _parse(meta[_WORDS].encode())
        except InputError as problem:
            self._fail(str(problem).rpartition(": ")[2])
        except OSError as problem:
            self._fail(problem.strerror or str(problem))
        except RecursionError:
            self._fail("its header is nested too deeply")
        except ValueError as problem:
            if isinstance(problem, UnusableError):
                raise
            self._fail("its header is no JSON object")

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._parts[name].dtype

    def read(self, name: str) -> Tensor:
        """One tensor, in its own memory."""
        part = self._parts[name]
        count = math.prod(part.shape) * part.dtype.itemsize
        if not count:
            return torch.empty(part.shape, dtype=part.dtype)
        numbers = np.fromfile(self.path, dtype=np.uint8, count=count, offset=part.begin)
        if len(numbers) != count:
            self._fail("cut short")
        flat = torch.from_numpy(numbers)
        if part.dtype == torch.bool and bool((flat > 1).any()):
            self._fail(f"{name} has truth values that are neither")
        return flat.view(part.dtype).reshape(part.shape)

    def _layout(self, header: dict[str, Any], start: int, size: int) -> dict[str, _Part]:
        """Offsets of the tensors: contiguous, without gaps, to the end of the file."""
        parts, end = {}, 0
        for name, entry in header.items():
            dtype = _TYPES.get(str(entry.get("dtype"))) if isinstance(entry, dict) else None
            if dtype is None:
                self._fail(f"{name} is of no type that is known")
            shape = entry.get("shape")
            if not isinstance(shape, list) or not all(type(count) is int and count >= 0 for count in shape):
                self._fail(f"{name} has no shape")
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            if entry.get("data_offsets") != [begin, end]:
                self._fail(f"{name} does not lie where its shape says")
            parts[name] = _Part(dtype, tuple(shape), start + begin)
        if start + end != size:
            self._fail("cut short" if size < start + end else "longer than its header says")
        return parts

    def _fail(self, why: str) -> NoReturn:
        raise UnusableError(f"{self.path.name}: {why}") from None


def _parse(text: bytes) -> dict[str, Any]:
    """A JSON object; NaN and infinities are refused."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    parsed = json.loads(text, parse_constant=refuse)
    if not isinstance(parsed, dict):
        raise ValueError("no object")
    return parsed
