"""The inbox of large graphs: neighbour lists with one entry per place, [B, n]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.inbox import Inbox, Mixture, PairMakers, Sides, T
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists
from bymi.core.neighbourhoods import Need, Neighbourhoods, Trial, Work, by_degree, of_sets
from bymi.core.performance_thresholds import LIMITS


@dataclass(frozen=True, eq=False, kw_only=True)
class ListInbox(Inbox):
    """An inbox in which every receiver hears few of the J messages. Products are formed per neighbourhood [b, n, n]."""

    lists: NeighbourLists  # [B, n] message at each place of each receiver

    def _sets(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Receivers [b], rows of their neighbourhoods [b, n + 1] with the own row last, and mask of valid rows [b, n + 1]."""
        for receivers, size in by_degree(self.lists):
            index = torch.cat([self.lists.index[receivers, :size], self.own_row[receivers][:, None]], 1)
            yield receivers, index, torch.nn.functional.pad(self.heard[receivers, :size], (0, 1), value=True)

    def neighbourhoods(self, need: Need, *, common: bool = False) -> Iterator[Neighbourhoods]:
        for receivers, index, valid in self._sets():
            own = torch.full_like(index[:, :1], index.shape[1] - 1)
            yield replace(of_sets(self.rows, index, valid, need), receivers=receivers, own=own)

    def mixing(self, hood: Neighbourhoods) -> Tensor:
        length = hood.valid.shape[1] - 1
        return torch.cat([self.weight[hood.receivers, :length], self.self_weight[hood.receivers][:, None]], 1)

    def mixture(self, found: Iterable[tuple[Neighbourhoods, Tensor]]) -> Mixture:
        own, weight = torch.zeros_like(self.self_weight), torch.zeros_like(self.weight)
        for hood, weights in found:
            own[hood.receivers], weight[hood.receivers, : weights.shape[1] - 1] = weights[:, -1], weights[:, :-1]
        return Mixture(own, weight)

    def reduce_coordinates(self, work: Work) -> Tensor:
        output = torch.empty_like(self.own)
        for receivers, index, valid in self._sets():
            output[receivers] = work(self.rows, index, valid)
        return output

    def iter_receivers(self, wanted: Tensor) -> Iterator[Trial]:
        vectors = self.rows.vectors
        for receivers in torch.arange(len(wanted), device=wanted.device).split(LIMITS.tried_receivers):
            index = torch.cat([self.lists.index[receivers], self.own_row[receivers][:, None]], 1)
            valid = torch.nn.functional.pad(wanted[receivers], (0, 1), value=True)
            used, column = torch.where(valid, index, index[:, -1:]).unique(return_inverse=True)
            tried = torch.zeros(len(receivers), len(used), dtype=torch.bool, device=wanted.device).scatter(1, column, True)
            yield Trial(receivers, vectors.index_select(0, used), tried, column[:, :-1], column[:, -1:])

    def paired(self, second: Inbox, makers: PairMakers[T], *, who: Tensor | None = None, history: Sides | None = None) -> T:
        assert isinstance(second, ListInbox)
        return makers.lists(self, second)

    # PerArcLists count by message: places do not distinguish the variants of a sender.

    def tally(self, counts: Tensor | None, mask: Tensor) -> Tensor:
        if not isinstance(self.lists, PerArcLists):
            return super().tally(counts, mask)
        counts = torch.zeros(len(mask), len(self.messages), dtype=torch.int32, device=mask.device) if counts is None else counts
        return counts.scatter_add_(1, self.lists.index, mask.to(counts.dtype)) if bool(mask.any()) else counts

    def tallied(self, counts: Tensor, receivers: Tensor, places: Tensor) -> Tensor:
        by_message = isinstance(self.lists, PerArcLists)
        return super().tallied(counts, receivers, self.messages_at(receivers, places) if by_message else places)

    def mix(self, mixture: Mixture) -> Tensor:
        return mixture.own.to(self.own.dtype)[:, None] * self.own + self.lists.total(mixture.weight, self.messages)

    @cached_property
    def _dist2_to_own(self) -> Tensor:
        return self.lists.dist2(self.own, self.messages, None if self.complete else self._present)
