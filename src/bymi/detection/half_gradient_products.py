"""Evidence of receivers on their neighbours: inner products of the two halves, in any dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.linalg import gather_members
from bymi.detection.robust_statistics import centred_diagonal

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Evidence:
    """Float64 products of first halves x1 and second halves x2 [b, n, n] about one origin per receiver, padded to n rows.

    `valid` [b, n] marks rows that are vectors and count; `judged` excludes the receiver's own.
    """

    first: Tensor  # <x1_r, x1_s>
    second: Tensor  # <x2_r, x2_s>
    cross: Tensor  # <x1_r, x2_s>
    valid: Tensor
    judged: Tensor
    points: tuple[Tensor, Tensor] | None = None  # x1 and x2 [b, n, d] minus that origin, if d is small

    def without(self, gone: Tensor) -> Evidence:
        """The evidence without the rows `gone` [b, n], which are neither valid nor judged."""
        return replace(self, valid=self.valid & ~gone, judged=self.judged & ~gone)

    def of(self, receivers: Tensor) -> Evidence:
        """The evidence of some of the receivers."""
        points = None if self.points is None else (self.points[0][receivers], self.points[1][receivers])
        first, second, cross = (products[receivers] for products in (self.first, self.second, self.cross))
        return Evidence(first, second, cross, self.valid[receivers], self.judged[receivers], points)

    @property
    def difference(self) -> Tensor:
        """Products of x1 - x2, which is noise alone for honest nodes, whatever their mean."""
        return (self.first + self.second).sub_(self.cross).sub_(self.cross.mT)

    @property
    def difference2(self) -> Tensor:
        """|x1 - x2|^2 [b, n]."""
        first, second, cross = (part.diagonal(dim1=1, dim2=2) for part in (self.first, self.second, self.cross))
        return first + second - 2 * cross

    @cached_property
    def middle(self) -> Tensor:
        """Products of (x1 + x2) / 2."""
        if self.points is not None:
            points = (self.points[0] + self.points[1]) / 2
            return points @ points.mT
        return (self.first + self.second).add_(self.cross).add_(self.cross.mT).div_(4)

    @property
    def count(self) -> Tensor:
        """Number of neighbours that each receiver judges [b, 1]."""
        return self.judged.sum(1, keepdim=True).to(torch.float64)

    def scores(self, weights: Tensor, *, cross_fit: bool = True) -> Tensor:
        """(x1 - c1)'(x2 - c2) [b, n], c1 the weighted mean of first halves, c2 that of second ones or, as published, c1.

        Paper: eq:score.
        """
        if cross_fit:
            return self.about(weights, 0, 1)
        first, second = (weights[:, None, :] @ part for part in (self.first, self.cross))
        both = (first.squeeze(1) * weights).sum(1, keepdim=True)
        return self.cross.diagonal(dim1=1, dim2=2) - first.squeeze(1) - second.squeeze(1) + both

    def lengths(self, weights: Tensor) -> Tensor:
        """|x1 - c1| |x2 - c2| [b, n], the denominator of a score's cosine."""
        one, two = (self.about(weights, half, half).clamp_min(0.0).sqrt() for half in (0, 1))
        return one * two

    def cosines(self, weights: Tensor) -> Tensor:
        """Cosines of x1 - c1 and x2 - c2 [b, n]."""
        return self.scores(weights) / self.lengths(weights).clamp_min(_TINY)

    def about(self, weights: Tensor, left: int, right: int) -> Tensor:
        """<x - c, z - d> [b, n] of halves x and z, 0 for the first and 1 for the second, c and d their weighted means."""
        if self.points is None:
            return centred_diagonal({(0, 0): self.first, (1, 1): self.second, (0, 1): self.cross}[left, right], weights)
        one, two = (half - weights[:, None, :] @ half for half in (self.points[left], self.points[right]))
        products: Tensor = torch.linalg.vecdot(one, two)
        return products


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """Padded neighbour index of b receivers: neighbours in ascending order, then the receiver, then padding."""

    receivers: Tensor  # [b] positions among the nodes held here
    nodes: Tensor  # [b, n] columns of the arcs: node numbers or, over lists, places; the receiver's number for itself
    taken: Tensor  # [b, n] bool: not padding
    judged: Tensor  # [b, n] bool: neighbours

    @staticmethod
    def of(arcs: Tensor, nodes: Tensor, receivers: Tensor) -> NeighbourIndex:
        """The index of some receivers, from arcs [B, M] and the numbers of all nodes held here [B]."""
        index, judged = gather_members(arcs[receivers])
        count = judged.sum(1, keepdim=True)
        wide = torch.nn.functional.pad(torch.where(judged, index, 0), (0, 1)).scatter(1, count, nodes[receivers][:, None])
        judged = torch.nn.functional.pad(judged, (0, 1))
        return NeighbourIndex(receivers, wide, judged.scatter(1, count, True), judged)

    @property
    def at(self) -> Tensor:
        """Columns of the neighbours in the arcs [b, n]; 0 for other entries."""
        return torch.where(self.judged, self.nodes, 0)

    def places(self, inbox: Inbox) -> Tensor:
        """Places of the neighbours in the receivers' rows of an inbox [b, n]; 0 for other entries."""
        return torch.where(self.judged, inbox.places_of(self.receivers, self.at), 0)

    def columns(self, inbox: Inbox) -> Tensor:
        """Message numbers of the neighbours in an inbox [b, n]; 0 for other entries."""
        return torch.where(self.judged, inbox.messages_at(self.receivers, self.places(inbox)), 0)

    def rows(self, inbox: Inbox) -> tuple[Tensor, Tensor]:
        """Rows of the inbox at each entry [b, n], and whether it is a vector that was heard [b, n]."""
        columns, own = self.columns(inbox), self.taken & ~self.judged
        heard = self.judged & torch.gather(inbox.heard[self.receivers], 1, self.places(inbox))
        return torch.where(own, inbox.own_row[self.receivers][:, None], columns), heard | own

    def spread(self, values: Tensor, into: Tensor) -> None:
        """Write values of the judged entries [b, n] into a matrix like the arcs [B, M]."""
        row, entry = self.judged.nonzero(as_tuple=True)
        into[self.receivers[row], self.nodes[row, entry]] = values[row, entry].to(into.dtype)
