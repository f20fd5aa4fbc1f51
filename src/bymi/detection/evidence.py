"""What B receivers can hold against their neighbours: inner products of the two halves, in any dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.linalg import gather_members
from bymi.detection.spectrum import centred_diagonal


@dataclass(frozen=True, eq=False)
class Evidence:
    """Float64 products of first halves x1 and second halves x2 [b, n, n] about one origin a receiver, padded to n rows.

    `valid` [b, n] marks the rows that stand for a vector and count; `judged` leaves out the receiver's own.
    """

    first: Tensor  # <x1_r, x1_s>
    second: Tensor  # <x2_r, x2_s>
    cross: Tensor  # <x1_r, x2_s>
    valid: Tensor
    judged: Tensor
    points: tuple[Tensor, Tensor] | None = None  # x1 and x2 themselves [b, n, d] about that origin, where d is small

    def without(self, gone: Tensor) -> Evidence:
        """The same without some rows [b, n], which leave all counts."""
        return replace(self, valid=self.valid & ~gone, judged=self.judged & ~gone)

    @property
    def difference(self) -> Tensor:
        """Products of x1 - x2: noise alone for whoever answers truthfully, wherever its mean is."""
        return self.first + self.second - self.cross - self.cross.mT

    @property
    def difference2(self) -> Tensor:
        """|x1 - x2|^2 [b, n]."""
        first, second, cross = (part.diagonal(dim1=1, dim2=2) for part in (self.first, self.second, self.cross))
        return first + second - 2 * cross

    @property
    def difference_points(self) -> Tensor | None:
        return None if self.points is None else self.points[0] - self.points[1]

    @property
    def middle(self) -> Tensor:
        """Products of (x1 + x2) / 2."""
        if self.points is not None:
            points = (self.points[0] + self.points[1]) / 2
            return points @ points.mT
        return (self.first + self.second + self.cross + self.cross.mT) / 4

    @property
    def swapped(self) -> Evidence:
        """First and second halves exchanged."""
        points = None if self.points is None else (self.points[1], self.points[0])
        return Evidence(self.second, self.first, self.cross.mT, self.valid, self.judged, points)

    @property
    def count(self) -> Tensor:
        """How many neighbours each receiver judges [b, 1]."""
        return self.judged.sum(1, keepdim=True).to(torch.float64)

    def scores(self, weights: Tensor, *, cross_fit: bool = True) -> Tensor:
        """(x1 - c1)'(x2 - c2) [b, n], c1 the weighted mean of first halves, c2 of second ones or, as published, c1 again.

        Paper: eq:score.
        """
        if cross_fit:
            return self.about(weights, 0, 1)
        first, second = (weights[:, None, :] @ part for part in (self.first, self.cross))
        both = (first.squeeze(1) * weights).sum(1, keepdim=True)
        return self.cross.diagonal(dim1=1, dim2=2) - first.squeeze(1) - second.squeeze(1) + both

    def lengths(self, weights: Tensor) -> Tensor:
        """|x1 - c1| |x2 - c2| [b, n], by which a score is a cosine."""
        one, two = (self.about(weights, half, half).clamp_min(0.0).sqrt() for half in (0, 1))
        return one * two

    def about(self, weights: Tensor, left: int, right: int) -> Tensor:
        """<x - c, z - d> [b, n] of halves x and z, 0 for the first and 1 for the second, c and d their weighted means."""
        if self.points is None:
            return centred_diagonal({(0, 0): self.first, (1, 1): self.second, (0, 1): self.cross}[left, right], weights)
        one, two = (half - weights[:, None, :] @ half for half in (self.points[left], self.points[right]))
        found: Tensor = torch.linalg.vecdot(one, two)
        return found


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """Who sits before each of b receivers, in one order for all evidence: its neighbours, then itself, then nobody."""

    receivers: Tensor  # [b] places among the nodes held here
    nodes: Tensor  # [b, n] columns of the arcs: node numbers or, by lists, places; the own seat has the receiver's number
    taken: Tensor  # [b, n] bool
    judged: Tensor  # [b, n] bool: neighbours

    @staticmethod
    def of(arcs: Tensor, nodes: Tensor, receivers: Tensor) -> NeighbourIndex:
        """Seats before some receivers, from arcs [B, M] and the numbers of all held here [B]."""
        index, judged = gather_members(arcs[receivers])
        count = judged.sum(1, keepdim=True)
        wide = torch.nn.functional.pad(torch.where(judged, index, 0), (0, 1)).scatter(1, count, nodes[receivers][:, None])
        judged = torch.nn.functional.pad(judged, (0, 1))
        return NeighbourIndex(receivers, wide, judged.scatter(1, count, True), judged)

    @property
    def at(self) -> Tensor:
        """Where neighbours stand in a row of the arcs [b, n]; 0 for other seats."""
        return torch.where(self.judged, self.nodes, 0)

    def places(self, inbox: Inbox) -> Tensor:
        """Which entry in the receiver's row of an inbox [B, P] each neighbour's is [b, n]; 0 for other seats."""
        return torch.where(self.judged, inbox.places_of(self.receivers, self.at), 0)

    def columns(self, inbox: Inbox) -> Tensor:
        """Which message of the inbox each neighbour's to this receiver is [b, n]; 0 for other seats."""
        return torch.where(self.judged, inbox.messages_at(self.receivers, self.places(inbox)), 0)

    def rows(self, inbox: Inbox) -> tuple[Tensor, Tensor]:
        """Which of the inbox's rows each seat's vector is [b, n], and whether it is there and was heard [b, n]."""
        columns, own = self.columns(inbox), self.taken & ~self.judged
        heard = self.judged & torch.gather(inbox.heard[self.receivers], 1, self.places(inbox))
        return torch.where(own, inbox.own_row[self.receivers][:, None], columns), heard | own

    def spread(self, values: Tensor, into: Tensor) -> None:
        """Write values of the judged seats [b, n] into a matrix like the arcs [B, M]."""
        place, seat = self.judged.nonzero(as_tuple=True)
        into[self.receivers[place], self.nodes[place, seat]] = values[place, seat].to(into.dtype)


def pick(products: Tensor, rows: Tensor) -> Tensor:
    """Products [R, R] of common rows as those of each receiver's seats [b, n, n]."""
    return products[rows[:, :, None], rows[:, None, :]]


def stack(matrices: Sequence[Tensor], size: int) -> Tensor:
    """Square matrices of different size as one stack, zero around them."""
    return torch.stack([torch.nn.functional.pad(m, (0, size - m.shape[1], 0, size - m.shape[0])) for m in matrices])


def stack_rows(matrices: Sequence[Tensor], size: int) -> Tensor:
    """Matrices with different numbers of rows as one stack, zero below them."""
    return torch.stack([torch.nn.functional.pad(m, (0, 0, 0, size - len(m))) for m in matrices])
