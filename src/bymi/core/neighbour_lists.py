"""Neighbour lists: who stands at which place of each receiver's list. What large graphs have instead of [M, M] matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.linalg import VectorStack, dist2

_AT_ONCE = 1 << 17  # coordinates of differences formed at a time: what fits a CPU's cache
_FEW = 256  # dimensions up to which weighted copies of vectors are cheap


@dataclass(frozen=True, eq=False)
class NeighbourLists:
    """Place k of receiver b holds number `at[b, k]` where `there[b, k]`; rows are padded to the longest, numbers go up.

    Whatever a small graph keeps as a matrix of receivers and nodes is kept place by place here, [B, n] instead of [B, M].
    """

    at: Tensor  # [B, n] int64, 0 where nobody is
    there: Tensor  # [B, n] bool; of a whole list, the first places of each row

    @staticmethod
    def of_arcs(receivers: Tensor, numbers: Tensor, size: int) -> NeighbourLists:
        """From arcs [E] in any order, each once, for `size` receivers."""
        order = torch.argsort(receivers * (1 + int(numbers.max()) if len(numbers) else 1) + numbers)
        receivers, numbers = receivers[order], numbers[order]
        counts = torch.bincount(receivers, minlength=size)
        places = torch.arange(len(numbers), device=numbers.device) - (torch.cumsum(counts, 0) - counts)[receivers]
        at = torch.zeros(size, int(counts.max()) if size else 0, dtype=torch.int64, device=numbers.device)
        there = torch.zeros_like(at, dtype=torch.bool)
        at[receivers, places], there[receivers, places] = numbers, True
        return NeighbourLists(at, there)

    def of(self, receivers: Tensor) -> NeighbourLists:
        """The lists of some receivers, given by row."""
        return NeighbourLists(self.at.index_select(0, receivers), self.there.index_select(0, receivers))

    def to(self, device: torch.device | str) -> NeighbourLists:
        return NeighbourLists(self.at.to(device), self.there.to(device))

    def look(self, values: Tensor) -> Tensor:
        """Of values by number [J, ...] the one at each place [B, n, ...]; at an empty place that of number 0."""
        return values[self.at]

    def count(self, mask: Tensor, size: int) -> Tensor:
        """How many receivers mark each number [size], from a mask over places [B, n]."""
        if mask is self.there:
            return self._counted(size)
        return torch.bincount(self.at[mask & self.there], minlength=size)

    @cached_property
    def last(self) -> int:
        """The largest number at any place; -1 without places."""
        return int(self.at.max()) if self.at.numel() else -1

    @cached_property
    def _counts(self) -> dict[int, Tensor]:
        return {}

    def _counted(self, size: int) -> Tensor:
        """How many receivers have each number: asked for in every round."""
        if size not in self._counts:
            self._counts[size] = torch.bincount(self.flat[1], minlength=size)
        return self._counts[size]

    @cached_property
    def _places(self) -> Tensor:
        return self.there.flatten().nonzero().flatten()

    def flatten(self, values: Tensor) -> Tensor:
        """Of values over places [B, n] those that are not at an empty one [E]."""
        return values.flatten().index_select(0, self._places)

    @cached_property
    def flat(self) -> tuple[Tensor, Tensor]:
        """Receiver and number of every place that is not empty, each [E], receiver by receiver."""
        receivers, places = self.there.nonzero(as_tuple=True)
        return receivers, self.at[receivers, places]

    @cached_property
    def _starts(self) -> Tensor:
        counts = self.there.sum(1)
        return torch.cumsum(counts, 0) - counts

    def total(self, weight: Tensor, vectors: Tensor) -> Tensor:
        """Weighted sums [B, D] of the vectors [J, D] in each list, by weights over places [B, n]; no copy of any vector."""
        numbers = self.flat[1]
        if not len(numbers):
            return vectors.new_zeros(len(weight), vectors.shape[1])
        # The sum of each row runs over its own places in order: bits do not depend on who else is held here.
        return torch.nn.functional.embedding_bag(
            numbers, vectors, self._starts, mode="sum", per_sample_weights=self.flatten(weight).to(vectors.dtype)
        )

    def dist2(self, own: Tensor, messages: Tensor, usable: Tensor | None = None) -> Tensor:
        """Squared distances of the messages at each place to the receivers' own vectors [B, n], float64, zero at empty ones.

        `usable` [J]: messages that stand for a vector, None for all.
        """
        # Straight from the differences: there are few, and nothing cancels.
        output = torch.zeros(self.there.shape, dtype=torch.float64, device=own.device)
        output[self.there] = apart(own, self.flat[0], messages, self.flat[1])
        return output

    def median(self, values: Tensor, size: int, fill: float) -> Tensor:
        """The (lower) median over the receivers of each number [size] of values at places [B, n]; `fill` where none has it."""
        return median_by_number(self.flat[1], self.flatten(values), size, fill)


@dataclass(frozen=True, eq=False)
class Further:
    """The arcs that have a further message, receiver by receiver."""

    receivers: Tensor  # [C]
    numbers: Tensor  # [C] which message
    at: Tensor  # [C] where in a flattened matrix of receivers and places
    starts: Tensor  # [B] the first of each receiver


@dataclass(frozen=True, eq=False)
class PerArcLists(NeighbourLists):
    """Lists as long as there are nodes: place j is node j and holds its message j or, on some arcs, a further one of it.

    Where many messages are for one receiver each, that is far less than a matrix of receivers and messages.
    """

    @cached_property
    def further(self) -> Further:
        count = self.at.shape[1]
        receivers, places = (self.there & (self.at >= count)).nonzero(as_tuple=True)
        starts = torch.searchsorted(receivers, torch.arange(len(self.at), device=receivers.device))
        return Further(receivers, self.at[receivers, places], receivers * count + places, starts)

    @cached_property
    def _parts(self) -> list[tuple[Tensor, PerArcLists]]:
        return []

    @cached_property
    def first(self) -> Tensor:
        """Arcs on which the message of place j is message j [B, n] bool."""
        return self.there & (self.at < self.at.shape[1])

    @cached_property
    def alone(self) -> bool:
        """Whether each further message has one receiver."""
        return len(self.further.numbers.unique()) == len(self.further.numbers)

    @cached_property
    def _usual(self) -> Tensor:
        """One where the message of place j is message j, else zero [B, n]."""
        return (self.at < self.at.shape[1]).to(torch.float64)

    def of(self, receivers: Tensor) -> PerArcLists:
        # The same some are asked for in every round.
        if not self._parts or self._parts[0][0] is not receivers:
            part = PerArcLists(self.at.index_select(0, receivers), self.there.index_select(0, receivers))
            self._parts[:] = [(receivers, part)]
        return self._parts[0][1]

    def dist2(self, own: Tensor, messages: Tensor, usable: Tensor | None = None) -> Tensor:
        # Of message j, then put right where a further one is heard.
        usual = messages[: self.at.shape[1]]
        found = dist2(own, usual, VectorStack(usual, None if usable is None else usable[: len(usual)]).origin)
        further = apart(own, self.further.receivers, messages, self.further.numbers)
        return found.flatten().index_copy(0, self.further.at, further).view_as(found)

    def total(self, weight: Tensor, vectors: Tensor) -> Tensor:
        if vectors.shape[1] > _FEW:  # no copies of long vectors
            wide = weight.new_zeros(len(weight), len(vectors)).scatter_(1, self.at, weight)
            return wide.to(vectors.dtype) @ vectors
        output = (weight * self._usual).to(vectors.dtype) @ vectors[: self.at.shape[1]]
        if not len(self.further.numbers):
            return output
        part = weight.flatten().index_select(0, self.further.at).to(vectors.dtype)
        return output + torch.nn.functional.embedding_bag(
            self.further.numbers, vectors, self.further.starts, mode="sum", per_sample_weights=part
        )

    def wide(self, values: Tensor, size: int) -> Tensor:
        """Values over places [B, n] as values for all messages [B, size], zero where there is no arc."""
        return values.new_zeros(len(values), size).scatter_(1, self.at, values * self.there)

    def narrow(self, values: Tensor) -> Tensor:
        """Values for all messages [B, J] as values over places [B, n]."""
        return values.gather(1, self.at) * self.there


def apart(own: Tensor, receivers: Tensor, messages: Tensor, numbers: Tensor) -> Tensor:
    """Squared distances |own_r - message_s|^2 of pairs [E], float64."""
    # All in one place: small results that lie between the large differences keep the memory of these from being used again.
    found = torch.empty(len(receivers), dtype=torch.float64, device=own.device)
    size = max(1, _AT_ONCE // max(1, own.shape[1]))
    for some, which, into in zip(receivers.split(size), numbers.split(size), found.split(size), strict=True):
        away = messages.index_select(0, which).to(torch.float64) - own.index_select(0, some).to(torch.float64)
        torch.linalg.vecdot(away, away, out=into)
    return found


def median_by_number(numbers: Tensor, values: Tensor, size: int, fill: float) -> Tensor:
    """The (lower) median of the values [E] of each number [E], `fill` for one without any: [size]."""
    if not len(values):
        return values.new_full((size,), fill)
    counts = torch.bincount(numbers, minlength=size)
    alone = counts[numbers] == 1  # nothing to sort
    output = values.new_full((size,), fill).index_copy(0, numbers[alone], values[alone])
    if bool(alone.all()):
        return output
    numbers, values, counts = numbers[~alone], values[~alone], torch.where(counts == 1, 0, counts)
    order = torch.argsort(values)
    order = order[torch.argsort(numbers[order], stable=True)]
    middle = torch.cumsum(counts, 0) - counts + (counts - 1).clamp_min(0) // 2
    found = values[order][middle.clamp_max(len(values) - 1)]
    return torch.where(counts > 0, found, output)
