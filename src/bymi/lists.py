"""Neighbour lists: who stands at which place of each receiver's list. What large graphs have instead of [M, M] matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Lists:
    """Place k of receiver b holds number `at[b, k]` where `there[b, k]`; rows are padded to the longest, numbers go up.

    Whatever a small graph keeps as a matrix of receivers and nodes is kept place by place here, [B, n] instead of [B, M].
    """

    at: Tensor  # [B, n] int64, 0 where nobody is
    there: Tensor  # [B, n] bool; of a whole list, the first places of each row

    @staticmethod
    def of_arcs(receivers: Tensor, numbers: Tensor, size: int) -> Lists:
        """From arcs [E] in any order, each once, for `size` receivers."""
        order = torch.argsort(receivers * (1 + int(numbers.max()) if len(numbers) else 1) + numbers)
        receivers, numbers = receivers[order], numbers[order]
        counts = torch.bincount(receivers, minlength=size)
        places = torch.arange(len(numbers), device=numbers.device) - (torch.cumsum(counts, 0) - counts)[receivers]
        at = torch.zeros(size, int(counts.max()) if size else 0, dtype=torch.int64, device=numbers.device)
        there = torch.zeros_like(at, dtype=torch.bool)
        at[receivers, places], there[receivers, places] = numbers, True
        return Lists(at, there)

    def of(self, receivers: Tensor) -> Lists:
        """The lists of some receivers, given by row."""
        return Lists(self.at.index_select(0, receivers), self.there.index_select(0, receivers))

    def to(self, device: torch.device | str) -> Lists:
        return Lists(self.at.to(device), self.there.to(device))

    def look(self, values: Tensor) -> Tensor:
        """Of values by number [J, ...] the one at each place [B, n, ...]; at an empty place that of number 0."""
        return values[self.at]

    def count(self, mask: Tensor, size: int) -> Tensor:
        """How many receivers mark each number [size], from a mask over places [B, n]."""
        return torch.bincount(self.at[mask & self.there], minlength=size)

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
            numbers, vectors, self._starts, mode="sum", per_sample_weights=weight[self.there].to(vectors.dtype)
        )

    def median(self, values: Tensor, size: int, fill: float) -> Tensor:
        """The (lower) median over the receivers of each number [size] of values at places [B, n]; `fill` where none has it."""
        numbers, flat = self.flat[1], values[self.there]
        order = torch.argsort(flat)
        order = order[torch.argsort(numbers[order], stable=True)]
        counts = torch.bincount(numbers, minlength=size)
        middle = torch.cumsum(counts, 0) - counts + (counts - 1).clamp_min(0) // 2
        if not len(flat):
            return values.new_full((size,), fill)
        found = flat[order][middle.clamp_max(len(flat) - 1)]
        return torch.where(counts > 0, found, fill)
