"""The inbox of small graphs: matrices with one column per message, [B, J]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.cuda_graphs import captured_up_to
from bymi.core.inbox import Inbox, Mixture, PairMakers, Sides, T, fold
from bymi.core.linalg import dist2, inner_about_central, on_host
from bymi.core.neighbourhoods import Need, Neighbourhoods, Trial, Work, of_members, over_rows, reduce_members
from bymi.core.performance_thresholds import LIMITS


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseInbox(Inbox):
    """An inbox in which place j of every receiver's row is message j. Products of all pairs of rows [R, R] are formed once."""

    @property
    def member(self) -> Tensor:
        """Mask [B, R] of the messages heard plus the receiver's own vector."""

        def make() -> Tensor:
            return self._over_rows(self.heard).scatter(1, self.own_row[:, None], True)

        return self._recalled("member", (self.heard, self.own_column), make)

    @property
    def _row_count(self) -> int:
        return len(self.rows.vectors)

    def _over_rows(self, values: Tensor) -> Tensor:
        """Values per message [B, J] as values per row [B, R], zero for own vectors that were not sent."""
        return torch.nn.functional.pad(values, (0, self._row_count - values.shape[1]))

    def neighbourhoods(self, need: Need, *, common: bool = False) -> Iterator[Neighbourhoods]:
        if common:
            gram = None if need == "nothing" else self._gram()
            return iter([self._with_own(Neighbourhoods(slice(None), self.member, gram=gram))])
        recall = self.recall if self.complete else None
        return map(self._with_own, of_members(self.rows, self.member, need, self._gram, recall))

    def _gram(self) -> Tensor:
        """Products of all rows [R, R]: on a GPU a recording, if the rows are those of every round."""
        if self.recall is None or not self.complete or on_host(self.own):
            return self.rows.gram
        return captured_up_to(LIMITS.captured_vectors, inner_about_central, self.rows.vectors)

    def _with_own(self, hood: Neighbourhoods) -> Neighbourhoods:
        def make() -> Tensor:
            own = self.own_row[hood.receivers, None]
            return own if hood.index is None else (hood.index == own).int().argmax(1, keepdim=True)

        return replace(hood, own=self._recalled(f"own place, {hood.receivers}", (hood.index, self.own_column), make))

    def mixing(self, hood: Neighbourhoods) -> Tensor:
        def make() -> Tensor:
            own = self.own_row[:, None]
            weight = self._over_rows(self.weight).scatter_add(1, own, self.self_weight[:, None])[hood.receivers]
            return weight if hood.index is None else weight.gather(1, hood.index)

        of = (hood.index, self.weight, self.self_weight, self.own_column)
        return self._recalled(f"mixing, {hood.receivers}", of, make).clone()  # a rule may change it

    def mixture(self, found: Iterable[tuple[Neighbourhoods, Tensor]]) -> Mixture:
        weight = over_rows(found, (len(self.heard), self._row_count), self.heard.device)
        own = torch.gather(weight, 1, self.own_row[:, None]).squeeze(1)
        return Mixture(own, weight.scatter(1, self.own_row[:, None], 0.0)[:, : self.heard.shape[1]])

    def reduce_coordinates(self, work: Work) -> Tensor:
        return reduce_members(self.rows, self.member, work, self.own_row)

    def iter_receivers(self, wanted: Tensor) -> Iterator[Trial]:
        own = self.own_row[:, None]
        places = torch.arange(wanted.shape[1], device=wanted.device).expand_as(wanted)
        yield Trial(slice(None), self.rows.vectors, self._over_rows(wanted).scatter(1, own, True), places, own)

    def paired(self, second: Inbox, makers: PairMakers[T], *, who: Tensor | None = None, history: Sides | None = None) -> T:
        assert isinstance(second, DenseInbox)
        return makers.common(self, second)

    def mix(self, mixture: Mixture) -> Tensor:
        dtype = self.own.dtype
        if self.own is self.messages and self.own.shape[1] > len(self.own):
            # All own vectors are messages: one product, without a temporary [B, D].
            return (mixture.weight + torch.diag(mixture.own)).to(dtype) @ self.messages
        return torch.addmm(mixture.own.to(dtype)[:, None] * self.own, mixture.weight.to(dtype), self.messages)

    def averages_of(self, receivers: Tensor) -> Tensor:
        average, dtype = self.average(), self.own.dtype
        own_weight, own, weight = (part.index_select(0, receivers) for part in (average.own, self.own, average.weight))
        return torch.addmm(own_weight.to(dtype)[:, None] * own, weight.to(dtype), self.messages)

    def distance_to_own(self) -> Tensor:
        if self.own.shape[1] > LIMITS.direct_dim or self.own is self.messages:
            return super().distance_to_own()
        # Directly from differences: as fast for few coordinates, and without cancellation.
        own, messages = self.own.to(torch.float64), self.messages.to(torch.float64)
        return torch.cdist(own, messages, compute_mode="donot_use_mm_for_euclid_dist")

    def places_of(self, receivers: Tensor, columns: Tensor) -> Tensor:
        expected = self.expected[receivers]
        numbers = torch.arange(expected.shape[1], device=expected.device)
        senders = numbers if self.senders is None else self.senders
        size = 1 + max(int(senders.max()), int(columns.max()))
        # Of all columns of one sender, a receiver expects exactly one.
        column = torch.zeros(len(expected), size, dtype=torch.int64, device=expected.device)
        column.scatter_reduce_(1, senders.expand_as(expected), torch.where(expected, numbers, 0), "amax")
        return torch.gather(column, 1, columns)

    def by_node(self, values: Tensor, size: int, fill: float) -> Tensor:
        if self.senders is None:
            return values
        output = values.new_full((len(values), size), fill)
        receiver, column = self.expected.nonzero(as_tuple=True)
        output[receiver, self.senders[column]] = values[receiver, column]
        return output

    def by_sender(self, mask: Tensor, size: int) -> Tensor:
        return mask if self.senders is None else fold(mask, self.senders, size)

    def from_node(self, values: Tensor) -> Tensor:
        return values if self.senders is None else values[:, self.senders]

    @cached_property
    def _dist2_to_own(self) -> Tensor:
        if not on_host(self.own) and self.own is self.messages and self.complete:
            return captured_up_to(LIMITS.captured_vectors, _dist2_among, self.own)
        rows, count = self.rows, self.heard.shape[1]
        if 2 * count > 3 * len(self.own):  # variants, or few receivers: most pairs of rows are not needed
            return dist2(rows.vectors[self.own_row], rows.vectors[:count], rows.origin)
        if self.own is rows.vectors:  # place i of both is node i
            return _dist2_of(rows.gram)
        own_row, square = self.own_row, rows.gram.diagonal().clone()  # contiguous: sums of pairs take half the time
        products = rows.gram[own_row][:, :count]
        return torch.add(square[own_row][:, None], square[:count]).sub_(products, alpha=2).clamp_min_(0.0)


def _dist2_of(gram: Tensor) -> Tensor:
    """Squared distances [R, R] from products."""
    square = gram.diagonal().clone()  # contiguous: sums of pairs take half the time
    return torch.add(square[:, None], square).sub_(gram, alpha=2).clamp_min_(0.0)


def _dist2_among(vectors: Tensor) -> Tensor:
    return _dist2_of(inner_about_central(vectors))
