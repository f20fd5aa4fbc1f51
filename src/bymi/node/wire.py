"""Bytes on the wire: request frames, tensor bodies in safetensors, commitments. See docs/protocol.md.

Everything here is read from peers that may send anything: sizes are checked before anything is parsed, and whatever is not
exactly as expected is refused with one of a few reasons, which are counted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

SERVICE, GET, ASK = "bymi-node-1", "Get", "Ask"
STATUS = "status"
HEADER_LIMIT = 1000
"""Bytes of the longest safetensors header that is parsed: one of 50,000 empty tensors would take a second."""

WORDS_LIMIT = 512
"""Bytes of the longest request frame without its body."""

PIECE = 1 << 20
"""Bytes of a piece: a longer message is sent as several, of which all but the last have this length."""

NONCE, COMMITMENT = 32, 32  # bytes
_LENGTH = struct.Struct("<Q")
_FRAME = struct.Struct(">H")
_DTYPES: dict[torch.dtype, tuple[str, np.dtype[Any]]] = {
    torch.float32: ("F32", np.dtype("<f4")),
    torch.float64: ("F64", np.dtype("<f8")),
}
_KIND_LIMIT, _COUNT_LIMIT = 64, 2**31


Body = bytes | bytearray | memoryview


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


class Request(NamedTuple):
    """A decoded request."""

    run: str
    tag: Tag
    body: Body = b""


Expected = Mapping[str, tuple[torch.dtype, int]]
"""Type and number of coordinates of each tensor, by name."""


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Vectors by name as safetensors."""
    return save({name: vector.detach().contiguous().numpy() for name, vector in tensors.items()})


def body_limit(expected: Expected) -> int:
    """Bytes of the largest body with these tensors."""
    return _LENGTH.size + HEADER_LIMIT + sum(dtype.itemsize * count for dtype, count in expected.values())


def decode(body: Body, expected: Expected) -> dict[str, Tensor]:
    """Vectors by name, exactly those expected; raises Refused otherwise. Values are not looked at.

    Vectors share the memory of a body that may be written to.
    """
    size = sum(dtype.itemsize * count for dtype, count in expected.values())
    if len(body) < _LENGTH.size:
        raise Refused("cut short")
    (length,) = _LENGTH.unpack_from(body)
    if length > HEADER_LIMIT:
        raise Refused("header too long")
    start = _LENGTH.size + length
    if len(body) < start + size:
        raise Refused("cut short")
    if len(body) > start + size:
        raise Refused("too large")
    try:
        header: Any = json.loads(bytes(body[_LENGTH.size : start]))
    except (ValueError, RecursionError):
        raise Refused("not safetensors") from None
    if not isinstance(header, dict):
        raise Refused("not safetensors")
    if header.keys() != expected.keys():
        raise Refused("wrong tensors")
    vectors, spans = {}, []
    for name, (dtype, count) in expected.items():
        entry = header[name]
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise Refused("not safetensors")
        word, kind = _DTYPES[dtype]
        if entry["dtype"] != word:
            raise Refused("wrong type")
        if entry["shape"] != [count]:
            raise Refused("wrong shape")
        span = entry["data_offsets"]
        whole = isinstance(span, list) and [type(end) for end in span] == [int, int]
        if not whole or not 0 <= span[0] <= span[1] <= size or span[1] - span[0] != kind.itemsize * count:
            raise Refused("not safetensors")
        spans.append(span)
        found = np.frombuffer(body, kind, count, start + span[0])
        vectors[name] = torch.from_numpy(found if found.flags.aligned and found.flags.writeable else found.copy())
    spans.sort()
    if any(one[1] != following[0] for one, following in pairwise(spans)):
        raise Refused("not safetensors")  # they overlap
    return vectors


def pieces(body: bytes, head: bytes = b"") -> Iterator[bytes]:
    """The pieces in which a head and a body are sent, at least one."""
    view, first = memoryview(body), PIECE - len(head)
    yield head + view[:first] if head or len(body) > first else body
    for start in range(first, len(body), PIECE):
        yield bytes(view[start : start + PIECE])


async def join_pieces(parts: AsyncIterable[bytes], limit: int) -> Body:
    """A message from its pieces, counted while they come; raises Refused at the first one beyond `limit` bytes."""
    whole: bytes | bytearray = b""
    count = 0
    async for piece in parts:
        if len(whole) != count * PIECE or (count and not piece):  # many short ones would cost time
            raise Refused("pieces of other lengths")
        if len(whole) + len(piece) > limit:
            raise Refused("too large")
        if count == 1:
            whole = bytearray(whole)  # grows in place
        whole += piece
        count += 1
    return whole


def is_finite(vector: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum has finite terms, and is ten times as fast to compute."""
    return bool(torch.isfinite(vector.sum())) or bool(torch.isfinite(vector).all())


def frame(run: str, tag: Tag) -> bytes:
    """The head of a request: length of its words (two bytes, big-endian) and the words as JSON. A body may follow."""
    words = json.dumps({"run": run, "kind": tag.kind, "step": tag.step, "number": tag.number}).encode()
    return _FRAME.pack(len(words)) + words


def read_frame(request: Body) -> Request:
    """A request from its bytes; raises Refused."""
    if len(request) < _FRAME.size:
        raise Refused("cut short")
    (length,) = _FRAME.unpack_from(request)
    words = request[_FRAME.size : _FRAME.size + length]
    if length > WORDS_LIMIT or len(words) < length:
        raise Refused("cut short" if length <= WORDS_LIMIT else "too large")
    try:
        found: Any = json.loads(bytes(words))
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    match found:
        case {"run": str(run), "kind": str(kind), "step": step, "number": number} if len(found) == 4:
            if len(kind) <= _KIND_LIMIT and all(type(n) is int and 0 <= n < _COUNT_LIMIT for n in (step, number)):
                return Request(run, Tag(kind, step, number), memoryview(request)[_FRAME.size + length :])
    raise Refused("wrong words")


def commitment(run: str, tag: Tag, sender: str, opening: Body) -> bytes:
    """Commitment [32 bytes] of a sender, by fingerprint, to an opening: a nonce followed by a body.

    The sender is part of what is hashed, so that another node's commitment is of no use.
    """
    before = f"bymi commitment\n{run}\n{tag.kind}\n{tag.step}\n{tag.number}\n{sender}\n"
    hashed = hashlib.sha256(before.encode())
    hashed.update(opening)
    return hashed.digest()


def open_commitment(opening: Body, committed: Body, run: str, tag: Tag, sender: str) -> Body:
    """The body of an opening; raises Refused unless it is what the sender committed to."""
    if len(opening) < NONCE:
        raise Refused("cut short")
    if commitment(run, tag, sender, opening) != committed:
        raise Refused("differs from its commitment")
    return memoryview(opening)[NONCE:]
