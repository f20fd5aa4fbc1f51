"""Base of wrappers: what is done to the vectors of a neighbourhood before a rule sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bymi.aggregation.base import Vectors, inbox_of, stacked
from bymi.core.inbox import Inbox, Round
from bymi.core.named_parts import Checked
from bymi.core.neighbourhoods import Neighbourhoods


@dataclass(frozen=True, eq=False)
class Points:
    """Neighbourhoods of b receivers after some wrappers: m points each, which are sums of the n vectors heard and held."""

    gram: Tensor  # [b, m, m] float64 inner products
    valid: Tensor  # [b, m] bool
    own: Tensor  # [b, 1] place of the receiver's own point
    mixing: Tensor  # [b, m] mixing weights
    sums: Tensor | None  # [b, m, n] the points as sums of vectors; None: they are the vectors
    numbers: Tensor  # [b, m] node number of each point, of several the first
    receivers: Tensor  # [b] node numbers

    @staticmethod
    def of(inbox: Inbox, hood: Neighbourhoods, round: Round) -> Points:
        """The vectors themselves, in the frame of `hood`."""
        assert hood.gram is not None
        assert hood.own is not None
        assert hood.index is not None
        nodes = torch.arange(len(inbox.own), device=hood.valid.device) if round.nodes is None else round.nodes
        senders = hood.index if inbox.senders is None else inbox.senders[hood.index.clamp_max(len(inbox.senders) - 1)]
        receivers = nodes[hood.receivers]
        numbers = senders.scatter(1, hood.own, receivers[:, None])
        return Points(hood.gram, hood.valid, hood.own, inbox.mixing(hood) * hood.valid, None, numbers, receivers)

    def map(self, matrix: Tensor) -> Points:
        """The points that rows of `matrix` [b, m, m] make of these, each in the place of one of them."""
        gram = matrix @ self.gram @ matrix.mT
        return replace(self, gram=gram, sums=matrix if self.sums is None else matrix @ self.sums)

    def hood(self) -> Neighbourhoods:
        """As a rule sees them."""
        return Neighbourhoods(slice(None), self.valid, None, self.gram, own=self.own)


class Wrapper(Checked, ABC):
    """A map from the vectors of a neighbourhood to others, or to fewer, as a part of a `Chain`."""

    @abstractmethod
    def apply(self, points: Points, round: Round) -> Points:
        """The points after this wrapper."""

    def __call__(self, vectors: Vectors) -> Any:
        """What becomes of n plain vectors [n, d]: a list, tensor or array in; a tensor, or an array, [m, d] out."""
        rows, as_given = stacked(vectors)
        inbox = inbox_of(rows)
        (hood,) = inbox.neighbourhoods("products")
        points = self.apply(Points.of(inbox, hood, Round()), Round())
        assert hood.index is not None
        return as_given(combined(points, inbox.rows.vectors[hood.index[0]])[0])


def combined(points: Points, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Points of one receiver as vectors [m, D], its own point first, and their mixing weights [m]; from the n vectors."""
    place = points.own[0]
    others = points.valid[0].scatter(0, place, False).nonzero().flatten()
    order = torch.cat([place, others])
    rows = vectors[order] if points.sums is None else points.sums[0, order].to(vectors.dtype) @ vectors
    return rows, points.mixing[0, order]


def applied(wrappers: Sequence[Wrapper], points: Points, round: Round) -> Points:
    """Points after several wrappers, in order."""
    for wrapper in wrappers:
        points = wrapper.apply(points, round)
    return points
