"""Named random streams: a draw depends on its purpose, never on call order, grouping or device.

Counter-based: the n-th number of a stream is a hash (SplitMix64) of the stream's key and n. Opening a stream costs nothing,
many nodes draw at once, and node 7 draws the same numbers alone as among 150 others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bymi.core import random_streams_kernel as kernel
from bymi.core.errors import is_integer, require


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit value; torch multiplies int64 modulo 2^64."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_LARGEST = (1 << 63) - 1
_WORDS = 1 << 64


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical right shift; torch's own shift copies the sign bit."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of 64-bit words."""
    if bits.device.type == "cpu":
        # The same with numpy's unsigned words: a third of torch's time for small tensors.
        words = np.atleast_1d(bits.numpy().view(np.uint64))
        words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST % _WORDS)
        words ^= words >> np.uint64(27)
        words *= np.uint64(_SECOND % _WORDS)
        words ^= words >> np.uint64(31)
        return torch.from_numpy(words.view(np.int64)).view(bits.shape)
    bits = _shift(bits, 30).bitwise_xor_(bits).mul_(_FIRST)
    bits = _shift(bits, 27).bitwise_xor_(bits).mul_(_SECOND)
    return _shift(bits, 31).bitwise_xor_(bits)


@dataclass(frozen=True, eq=False)
class Stream:
    """An endless sequence of random numbers per key. A scalar key draws [*shape]; keys [B] draw [B, *shape]."""

    source: Tensor | Callable[[], Tensor]

    def __post_init__(self) -> None:
        fits = callable(self.source) or (isinstance(self.source, Tensor) and self.source.dtype == torch.int64)
        require(
            fits, "source", self.source, "keys as a tensor of torch.int64, or a function that makes them; `stream` opens one"
        )

    @cached_property
    def keys(self) -> Tensor:
        """int64 keys, computed at the first draw: many streams are opened and not used."""
        return self.source if isinstance(self.source, Tensor) else self.source()

    @cached_property
    def _made(self) -> dict[tuple[object, ...], Tensor]:
        return {}

    def once(self, key: tuple[object, ...], make: Callable[[Stream], Tensor]) -> Tensor:
        """Result of `make` at the start of this stream, cached by `key`: for draws that are the same in every round."""
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = make(self)
        return made

    def bits(self, *shape: int) -> Tensor:
        """Uniform int64 words."""
        counter = torch.arange(1, math.prod(shape) + 1, device=self.keys.device, dtype=torch.int64)
        words = _mix(self.keys.unsqueeze(-1) + counter * _GOLDEN)
        return words.reshape(*self.keys.shape, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Float64 in the open interval (0, 1)."""
        return (_shift(self.bits(*shape), 11).to(torch.float64) + 0.5) * 2.0**-53

    def integers(self, high: int | Tensor, *shape: int) -> Tensor:
        """Integers in [0, high), with replacement; a tensor `high` broadcasts with the result."""
        if not isinstance(high, Tensor):
            require(high > 0, "high", high, "an integer of 1 or more")
        words = self.bits(*shape).bitwise_and_(_LARGEST)
        if isinstance(high, Tensor) or words.device.type != "cpu":
            return words.remainder_(high)
        numbers = words.numpy()
        numbers -= numbers // high * high  # a third of the time of torch's remainder
        return words

    def normal(self, *shape: int) -> Tensor:
        """Standard normal float64."""
        count = math.prod(shape)
        drawn = kernel.normals(self.keys.flatten(), count)
        return (_normals(self.keys, count) if drawn is None else drawn).reshape(*self.keys.shape, *shape)

    def permutation(self, count: int) -> Tensor:
        """Uniformly random order of 0..count-1 per key."""
        return torch.argsort(self.bits(count), dim=-1, stable=True)

    def permutations(self, counts: Tensor) -> Tensor:
        """Random orders [B, n] for B keys, n the largest of `counts` [B]: of 0..counts[b]-1, then the numbers beyond."""
        words = self.bits(int(counts.max()))
        beyond = torch.arange(words.shape[-1], device=words.device) >= counts[:, None]
        order = torch.argsort(words, dim=-1, stable=True)
        return order.gather(-1, torch.argsort(beyond.gather(-1, order).to(torch.int8), dim=-1, stable=True))


def _number(value: int | Tensor, device: torch.device | None) -> Tensor:
    """An int64 tensor; a whole number without a copy from the host, for which a GPU would wait."""
    if isinstance(value, Tensor):
        return value.to(device, torch.int64)
    return torch.full((), value, dtype=torch.int64, device=device)


def _keys(nodes: Tensor | None, keys: Tensor, steps: Tensor | None) -> Tensor:
    if nodes is not None:
        keys = _mix(keys + (nodes + 1) * _GOLDEN)
    return keys if steps is None else _mix((keys ^ _FIRST) + (steps + 1) * _SECOND)


def _normals(keys: Tensor, count: int) -> Tensor:
    """Standard normal float64 [*keys, count] (Box-Muller)."""
    pairs = Stream(keys).uniform(2, (count + 1) // 2)
    radius = torch.sqrt(-2.0 * torch.log(pairs[..., 0, :]))
    angle = 2.0 * math.pi * pairs[..., 1, :]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[..., :count]


def _are_integers(value: object) -> bool:
    return value is None or is_integer(value) or (isinstance(value, Tensor) and not value.is_floating_point())


def stream(
    seed: int,
    purpose: str,
    *,
    node: int | Tensor | None = None,
    step: int | Tensor | None = None,
    device: torch.device | None = None,
) -> Stream:
    """Open the stream of one purpose, optionally per node and step; tensors of these broadcast.

    Examples:
        >>> torch.equal(stream(0, "batch", node=torch.tensor([3, 7])).bits(4)[1], stream(0, "batch", node=7).bits(4))
        True
    """
    require(is_integer(seed), "seed", seed, "an integer")
    require(isinstance(purpose, str), "purpose", purpose, "a string")
    require(_are_integers(node), "node", node, "an integer, a tensor of integers, or None")
    require(_are_integers(step), "step", step, "an integer, a tensor of integers, or None")

    def make_keys() -> Tensor:
        digest = hashlib.blake2b(f"{seed}\x00{purpose}".encode(), digest_size=8).digest()
        where = next((given.device for given in (node, step) if isinstance(given, Tensor)), None) if device is None else device
        start = _signed(int.from_bytes(digest, "little"))
        nodes = None if node is None else _number(node, where)
        if nodes is not None and nodes.ndim == 1 and not isinstance(step, Tensor):
            found = kernel.keys_of_nodes(nodes, start, step)
            if found is not None:
                return found
        return _keys(nodes, _number(start, where), None if step is None else _number(step, where))

    return Stream(make_keys)
