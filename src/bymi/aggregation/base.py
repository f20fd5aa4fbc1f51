"""What a rule is: it turns an Inbox into one new vector for each receiver.

A rule is a final frozen dataclass: hyper-parameters and one pure method. Choose the base by what the rule needs:
`WeightedRule` decides weights from inner products, `SetRule` does so without giving the own vector a special part (so it
is a robust mean, too), `CoordinateRule` works on each coordinate alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.inbox import Inbox, Mixture, Round
from bymi.parts import Checked
from bymi.staying import StayingInbox
from bymi.vectors import Rows, gather_members

Order = Literal["adapt-then-combine", "combine-then-adapt"]

_TOGETHER = 512  # receivers whose neighbourhoods are looked at together: their products stay in a CPU's cache
_ENTRIES = 1 << 23  # numbers in the largest temporary of a batched rule: 64 MB in float64


class Rule(Checked, ABC):
    """A map from what was heard to a new vector for each receiver [B, D].

    `order` says whether nodes take their gradient step before they exchange (adapt-then-combine) or subtract it after.
    """

    order: ClassVar[Order] = "adapt-then-combine"
    plain: ClassVar[bool] = False  # whether its output is the average by the mixing weights

    @abstractmethod
    def __call__(self, inbox: Inbox, round: Round) -> Tensor: ...


class WeightedRule(Rule):
    """A rule whose output is a weighted sum of own vector and messages. Never forms anything of size [B, J, D]."""

    @abstractmethod
    def weigh(self, inbox: Inbox, round: Round) -> Mixture: ...

    def __call__(self, inbox: Inbox, round: Round) -> Tensor:
        return inbox.mix(self.weigh(inbox, round))


class SetRule(WeightedRule):
    """A weighted rule in which the own vector is one of the set: a mean of N_i and i, robust or not."""

    @abstractmethod
    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Weights [b, n] of the points of b sets, from their inner products about any origin [b, n, n], float64.

        `valid` [b, n] marks the points that are there; the others get zero, and rows sum to one.
        """

    def weights_of(self, rows: Rows, at: Tensor, valid: Tensor) -> Tensor:
        """The same for sets of few rows out of many: `at` [b, n] says which."""
        return self.weights(rows.among(at), valid)

    def coefficients(self, rows: Rows, member: Tensor) -> Tensor:
        """The same for sets that share their points: weights over `rows` [B, R], zero outside `member` [B, R]."""
        output = torch.zeros(member.shape, dtype=torch.float64, device=member.device)
        for receivers, index, valid in batches(member, width=max(1, int(member.sum(1).max()))):
            found = self.weights(rows.gram[index[:, :, None], index[:, None, :]], valid)
            output[receivers] = output[receivers].scatter_add(1, index, found * valid)
        return output

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        if inbox.lists is None:
            return inbox.split(self.coefficients(inbox.rows, inbox.member))
        own, weight = torch.zeros_like(inbox.self_weight), torch.zeros_like(inbox.weight)
        for some in sets(inbox):
            found = self.weights_of(inbox.rows, some.at, some.valid) * some.valid
            own[some.receivers], weight[some.receivers, : found.shape[1] - 1] = found[:, -1], found[:, :-1]
        return Mixture(own, weight)


class CoordinateRule(Rule):
    """A rule on each coordinate alone, worked through in blocks that bound the memory."""

    @abstractmethod
    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        """From values sorted along dim 1 [b, n, c], the first `count` [b, 1] of them real, to one value each [b, c]."""

    def centre(self, rows: Rows, member: Tensor) -> Tensor:
        """The rule's value over each set of `member` [B, R] as vectors [B, D]."""
        vectors = rows.vectors
        output = torch.empty(len(member), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        for receivers, index, valid in batches(member, width=min(vectors.shape[1], 4096)):
            output[receivers] = self.centre_of(rows, index, valid)
        return output

    def centre_of(self, rows: Rows, at: Tensor, valid: Tensor) -> Tensor:
        """The same over sets of rows `at` [b, n] as vectors [b, D]."""
        vectors = rows.vectors
        output = torch.empty(len(at), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        step = max(1, _ENTRIES // max(1, at.numel()))
        for start in range(0, vectors.shape[1], step):
            block = vectors[:, start : start + step][at]
            ordered = torch.where(valid[:, :, None], block, torch.inf).sort(dim=1).values
            output[:, start : start + step] = self.reduce(ordered, valid.sum(1, keepdim=True))
        return output

    def __call__(self, inbox: Inbox, round: Round) -> Tensor:
        # A receiver that hears nobody keeps its own vector, whatever it is.
        lonely = ~inbox.heard.any(1, keepdim=True)
        if inbox.lists is None:
            return torch.where(lonely, inbox.own, inbox.by_coordinate(self.centre))
        if isinstance(inbox, StayingInbox):
            return torch.where(lonely, inbox.own, inbox.by_sets(self.centre_of))
        output = torch.empty_like(inbox.own)
        for some in sets(inbox):
            output[some.receivers] = self.centre_of(inbox.rows, some.at, some.valid)
        return torch.where(lonely, inbox.own, output)


def whole(share: float, count: Tensor) -> Tensor:
    """`share` of `count` without rounding errors: floor and ceil are to see 7 where 0.07 x 100 gives 7.000000000000001."""
    exact: Tensor = torch.round(share * count.to(torch.float64), decimals=9)
    return exact


def batches(member: Tensor, *, width: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Receivers in groups whose [b, n, width] temporaries stay bounded: (which, padded indices [b, n], valid [b, n])."""
    largest = max(1, int(member.sum(1).max()))
    size = max(1, _ENTRIES // (largest * max(1, width)))
    for start in range(0, len(member), size):
        receivers = slice(start, start + size)
        index, valid = gather_members(member[receivers])
        yield receivers, index, valid


@dataclass(frozen=True, eq=False)
class Sets:
    """The neighbourhoods of some receivers of an inbox with lists: rows of the inbox, and the receiver's own last."""

    receivers: Tensor  # [b]
    at: Tensor  # [b, n + 1] which row of the inbox
    valid: Tensor  # [b, n + 1] bool: heard, or its own


def sets(inbox: Inbox) -> Iterator[Sets]:
    """All receivers in groups of alike degree, so that little is padded and [b, n, n] temporaries stay bounded."""
    assert inbox.lists is not None
    there = inbox.lists.there
    # Up to the last place taken: a list may have gaps.
    lengths = (there * torch.arange(1, there.shape[1] + 1, device=there.device)).amax(1) if there.numel() else there.sum(1)
    order = torch.argsort(lengths, stable=True)
    start = 0
    while start < len(order):
        # Lengths go up: a group that fits by its first is cut to what fits by its last.
        group = order[start : start + _group_size(int(lengths[order[start]]))]
        group = group[: max(1, _group_size(int(lengths[group[-1]])))]
        size = int(lengths[group[-1]])
        at = torch.cat([inbox.lists.at[group, :size], inbox.own_row[group][:, None]], 1)
        yield Sets(group, at, torch.nn.functional.pad(inbox.heard[group, :size], (0, 1), value=True))
        start += len(group)


def _group_size(length: int) -> int:
    return max(1, min(_TOGETHER, _ENTRIES // (length + 1) ** 2))
