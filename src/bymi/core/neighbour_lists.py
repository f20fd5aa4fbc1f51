"""Neighbour lists: the numbers at each place of each receiver's list, which large graphs have in place of [M, M] matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.linalg import VectorStack, dist2

_AT_ONCE = 1 << 17  # entries of differences formed at a time: fits a CPU's cache
_FEW = 256  # dimensions up to which gathered copies of vectors are cheap


@dataclass(frozen=True, eq=False)
class NeighbourLists:
    """Padded lists of numbers (nodes or messages), ascending: place k of receiver b holds `index[b, k]` if `mask[b, k]`.

    What a small graph stores per receiver and node, [B, M], is stored per place here, [B, n].
    """

    index: Tensor  # [B, n] int64, 0 at padding
    mask: Tensor  # [B, n] bool, False at padding; before pruning, the first places of each row

    @staticmethod
    def of_arcs(receivers: Tensor, numbers: Tensor, size: int) -> NeighbourLists:
        """From arcs [E] in any order, without duplicates, for `size` receivers."""
        order = torch.argsort(receivers * (1 + int(numbers.max()) if len(numbers) else 1) + numbers)
        receivers, numbers = receivers[order], numbers[order]
        counts = torch.bincount(receivers, minlength=size)
        places = torch.arange(len(numbers), device=numbers.device) - (torch.cumsum(counts, 0) - counts)[receivers]
        index = torch.zeros(size, int(counts.max()) if size else 0, dtype=torch.int64, device=numbers.device)
        mask = torch.zeros_like(index, dtype=torch.bool)
        index[receivers, places], mask[receivers, places] = numbers, True
        return NeighbourLists(index, mask)

    def of(self, receivers: Tensor) -> NeighbourLists:
        """The lists of the given receivers, by row."""
        return NeighbourLists(self.index.index_select(0, receivers), self.mask.index_select(0, receivers))

    def to(self, device: torch.device | str) -> NeighbourLists:
        return NeighbourLists(self.index.to(device), self.mask.to(device))

    def at_places(self, values: Tensor) -> Tensor:
        """Values by number [J, ...] gathered at each place [B, n, ...]; at padding that of number 0."""
        return values[self.index]

    def count(self, mask: Tensor, size: int) -> Tensor:
        """Number of receivers that mark each number [size], from a mask over places [B, n]."""
        if mask is self.mask:
            return torch.nn.functional.pad(self._counts, (0, size - len(self._counts)))
        return torch.bincount(self.index[mask & self.mask], minlength=size)

    @cached_property
    def last(self) -> int:
        """Largest number at any place; -1 without places."""
        return int(self.index.max()) if self.index.numel() else -1

    @cached_property
    def _counts(self) -> Tensor:
        """Number of receivers that have each number, up to the largest one."""
        return torch.bincount(self.flat[1])

    @cached_property
    def _places(self) -> Tensor:
        return self.mask.flatten().nonzero().flatten()

    def flatten(self, values: Tensor) -> Tensor:
        """Values [E] at non-empty places, from values over places [B, n]."""
        return values.flatten().index_select(0, self._places)

    @cached_property
    def flat(self) -> tuple[Tensor, Tensor]:
        """Receiver and number of every non-empty place, each [E], receiver by receiver."""
        receivers, places = self.mask.nonzero(as_tuple=True)
        return receivers, self.index[receivers, places]

    @cached_property
    def _starts(self) -> Tensor:
        counts = self.mask.sum(1)
        return torch.cumsum(counts, 0) - counts

    def total(self, weight: Tensor, vectors: Tensor) -> Tensor:
        """Weighted sums [B, D] of the vectors [J, D] in each list, by weights [B, n], without a gathered copy."""
        numbers = self.flat[1]
        if not len(numbers):
            return vectors.new_zeros(len(weight), vectors.shape[1])
        # Each row is summed over its own places in order: bits do not depend on which other receivers are held here.
        return torch.nn.functional.embedding_bag(
            numbers, vectors, self._starts, mode="sum", per_sample_weights=self.flatten(weight).to(vectors.dtype)
        )

    def dist2(self, own: Tensor, messages: Tensor, acceptable: Tensor | None = None) -> Tensor:
        """Squared distances of messages to the receivers' own vectors [B, n], float64, zero at padding.

        `acceptable` [J]: valid messages, None for all.
        """
        # Directly from differences: there are few, and nothing cancels.
        output = torch.zeros(self.mask.shape, dtype=torch.float64, device=own.device)
        output[self.mask] = dist2_of_pairs(own, self.flat[0], messages, self.flat[1])
        return output


@dataclass(frozen=True, eq=False)
class Further:
    """The arcs that carry a variant, receiver by receiver."""

    receivers: Tensor  # [C]
    numbers: Tensor  # [C] message number
    index: Tensor  # [C] index into a flattened [B, n]
    starts: Tensor  # [B] first entry per receiver


@dataclass(frozen=True, eq=False)
class PerArcLists(NeighbourLists):
    """Lists with one place per node: place j holds message j or, on some arcs, a variant of it.

    Where many messages have one receiver each, this is far smaller than a matrix of receivers and messages.
    """

    @cached_property
    def further(self) -> Further:
        count = self.index.shape[1]
        receivers, places = (self.mask & (self.index >= count)).nonzero(as_tuple=True)
        starts = torch.searchsorted(receivers, torch.arange(len(self.index), device=receivers.device))
        return Further(receivers, self.index[receivers, places], receivers * count + places, starts)

    @cached_property
    def _parts(self) -> list[tuple[Tensor, PerArcLists]]:
        return []

    @cached_property
    def first(self) -> Tensor:
        """Mask [B, n] of arcs on which place j holds message j."""
        return self.mask & (self.index < self.index.shape[1])

    @cached_property
    def alone(self) -> bool:
        """Whether each variant has exactly one receiver."""
        return len(self.further.numbers.unique()) == len(self.further.numbers)

    @cached_property
    def _usual(self) -> Tensor:
        """One where place j holds message j, else zero [B, n]."""
        return (self.index < self.index.shape[1]).to(torch.float64)

    def of(self, receivers: Tensor) -> PerArcLists:
        # The same receivers are selected in every round.
        if not self._parts or self._parts[0][0] is not receivers:
            part = PerArcLists(self.index.index_select(0, receivers), self.mask.index_select(0, receivers))
            self._parts[:] = [(receivers, part)]
        return self._parts[0][1]

    def dist2(self, own: Tensor, messages: Tensor, acceptable: Tensor | None = None) -> Tensor:
        # Distances to message j first, then corrected where a variant is heard.
        first_messages = messages[: self.index.shape[1]]
        distances = dist2(
            own,
            first_messages,
            VectorStack(first_messages, None if acceptable is None else acceptable[: len(first_messages)]).origin,
        )
        further = dist2_of_pairs(own, self.further.receivers, messages, self.further.numbers)
        return distances.flatten().index_copy(0, self.further.index, further).view_as(distances)

    def total(self, weight: Tensor, vectors: Tensor) -> Tensor:
        if vectors.shape[1] > _FEW:  # no copies of long vectors
            wide = weight.new_zeros(len(weight), len(vectors)).scatter_(1, self.index, weight)
            return wide.to(vectors.dtype) @ vectors
        output = (weight * self._usual).to(vectors.dtype) @ vectors[: self.index.shape[1]]
        if not len(self.further.numbers):
            return output
        part = weight.flatten().index_select(0, self.further.index).to(vectors.dtype)
        return output + torch.nn.functional.embedding_bag(
            self.further.numbers, vectors, self.further.starts, mode="sum", per_sample_weights=part
        )


def dist2_of_pairs(own: Tensor, receivers: Tensor, messages: Tensor, numbers: Tensor) -> Tensor:
    """Squared distances |own_r - message_s|^2 of pairs [E], float64."""
    # One output: small results allocated between the large differences would fragment the heap.
    output = torch.empty(len(receivers), dtype=torch.float64, device=own.device)
    size = max(1, _AT_ONCE // max(1, own.shape[1]))
    for receiver_block, number_block, target in zip(
        receivers.split(size), numbers.split(size), output.split(size), strict=True
    ):
        differences = messages.index_select(0, number_block).to(torch.float64) - own.index_select(0, receiver_block).to(
            torch.float64
        )
        torch.linalg.vecdot(differences, differences, out=target)
    return output


def median_by_number(numbers: Tensor, values: Tensor, size: int, fill: float) -> Tensor:
    """Lower median [size] of the values [E] per number [E], `fill` for a number without values."""
    if not len(values):
        return values.new_full((size,), fill)
    counts = torch.bincount(numbers, minlength=size)
    single = counts[numbers] == 1  # nothing to sort
    output = values.new_full((size,), fill).index_copy(0, numbers[single], values[single])
    if bool(single.all()):
        return output
    numbers, values, counts = numbers[~single], values[~single], torch.where(counts == 1, 0, counts)
    order = torch.argsort(values)
    order = order[torch.argsort(numbers[order], stable=True)]
    middle = torch.cumsum(counts, 0) - counts + (counts - 1).clamp_min(0) // 2
    median = values[order][middle.clamp_max(len(values) - 1)]
    return torch.where(counts > 0, median, output)
