"""Bytes on the wire: request frames, tensor bodies in safetensors, commitments. See docs/protocol.md.

Everything here is read from peers that may send anything: sizes are checked before anything is parsed, and whatever is not
exactly as expected is refused with one of a few reasons, which are counted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

SERVICE, GET, ASK = "bymi-node-1", "Get", "Ask"
STATUS = "status"
HEADER_LIMIT = 1000
"""Bytes of the longest safetensors header that is parsed: one of 50,000 empty tensors would take a second."""

WORDS_LIMIT = 512
"""Bytes of the longest request frame without its body."""

NONCE = 32
_LENGTH = struct.Struct("<Q")
_FRAME = struct.Struct(">H")
_DTYPES = {torch.float32: np.dtype("float32"), torch.float64: np.dtype("float64")}
_KIND_LIMIT, _COUNT_LIMIT = 64, 2**31


class Refused(ValueError):  # noqa: N818 - a decision about a message, not a failure of this program
    """A message that is not used. `reason` is one of a few texts, to be counted; the peer's own words are not part of it."""

    @property
    def reason(self) -> str:
        return str(self.args[0])


class Tag(NamedTuple):
    """Name of a message: its kind, the round, and its number among those of this kind in this round."""

    kind: str
    step: int
    number: int


@dataclass(frozen=True)
class Request:
    """A decoded request."""

    run: str
    tag: Tag
    body: bytes = b""


Expected = Mapping[str, tuple[torch.dtype, int]]
"""Type and number of coordinates of each tensor, by name."""


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Vectors by name as safetensors."""
    return save({name: vector.detach().contiguous().numpy() for name, vector in tensors.items()})


def body_limit(expected: Expected) -> int:
    """Bytes of the largest body with these tensors."""
    return _LENGTH.size + HEADER_LIMIT + sum(dtype.itemsize * count for dtype, count in expected.values())


def decode(body: bytes, expected: Expected) -> dict[str, Tensor]:
    """Vectors by name, exactly those expected; raises Refused otherwise. Values are not looked at."""
    size = sum(dtype.itemsize * count for dtype, count in expected.values())
    if len(body) < _LENGTH.size:
        raise Refused("cut short")
    (length,) = _LENGTH.unpack_from(body)
    if length > HEADER_LIMIT:
        raise Refused("header too long")
    if len(body) < _LENGTH.size + length + size:
        raise Refused("cut short")
    if len(body) > _LENGTH.size + length + size:
        raise Refused("too large")
    try:
        parts = load(body)
    except Exception:  # the parser's own error, also for JSON, offsets and types that do not fit
        raise Refused("not safetensors") from None
    if parts.keys() != expected.keys():
        raise Refused("wrong tensors")
    vectors = {}
    for name, (dtype, count) in expected.items():
        if parts[name].dtype != _DTYPES[dtype]:
            raise Refused("wrong type")
        if parts[name].shape != (count,):
            raise Refused("wrong shape")
        vectors[name] = torch.from_numpy(parts[name].copy())
    return vectors


def is_finite(vector: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum has finite terms, and is ten times as fast to compute."""
    return bool(torch.isfinite(vector.sum())) or bool(torch.isfinite(vector).all())


def frame(run: str, tag: Tag, body: bytes = b"") -> bytes:
    """A request: length of its words (two bytes, big-endian), the words as JSON, and a body."""
    words = json.dumps({"run": run, "kind": tag.kind, "step": tag.step, "number": tag.number}).encode()
    return _FRAME.pack(len(words)) + words + body


def read_frame(request: bytes) -> Request:
    """A request from its bytes; raises Refused."""
    if len(request) < _FRAME.size:
        raise Refused("cut short")
    (length,) = _FRAME.unpack_from(request)
    words = request[_FRAME.size : _FRAME.size + length]
    if length > WORDS_LIMIT or len(words) < length:
        raise Refused("cut short" if length <= WORDS_LIMIT else "too large")
    try:
        found: Any = json.loads(words)
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(found, dict) or found.keys() != {"run", "kind", "step", "number"}:
        raise Refused("wrong words")
    run, kind, step, number = (found[key] for key in ("run", "kind", "step", "number"))
    texts = isinstance(run, str) and isinstance(kind, str) and len(kind) <= _KIND_LIMIT
    counts = all(type(count) is int and 0 <= count < _COUNT_LIMIT for count in (step, number))
    if not texts or not counts:
        raise Refused("wrong words")
    return Request(run, Tag(kind, step, number), request[_FRAME.size + length :])


def commitment(run: str, tag: Tag, sender: str, opening: bytes) -> bytes:
    """Commitment [32 bytes] of a sender, by fingerprint, to an opening: a nonce followed by a body.

    The sender is part of what is hashed, so that another node's commitment is of no use.
    """
    before = f"bymi commitment\n{run}\n{tag.kind}\n{tag.step}\n{tag.number}\n{sender}\n"
    return hashlib.sha256(before.encode() + opening).digest()


def open_commitment(opening: bytes, committed: bytes, run: str, tag: Tag, sender: str) -> bytes:
    """The body of an opening; raises Refused unless it is what the sender committed to."""
    if len(opening) < NONCE:
        raise Refused("cut short")
    if commitment(run, tag, sender, opening) != committed:
        raise Refused("differs from its commitment")
    return opening[NONCE:]
