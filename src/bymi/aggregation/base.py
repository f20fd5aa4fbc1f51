"""Base classes of rules: a rule maps an Inbox to one new vector per receiver.

A rule is a final frozen dataclass: hyper-parameters and one pure method. Choose the base by what the rule needs:
`WeightedRule` chooses weights from inner products, `SetRule` does so without treating the own vector specially (so it is a
robust mean, too), `CoordinateRule` works on each coordinate separately.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.linalg import VectorStack
from bymi.core.named_parts import Checked
from bymi.core.neighbourhoods import Need, Neighbourhoods, of_members, of_sets, over_rows, reduce_members

Order = Literal["adapt-then-combine", "combine-then-adapt"]

_ENTRIES = 1 << 23  # entries of the largest temporary of a batched rule: 64 MB in float64


class Rule(Checked, ABC):
    """A map from the messages heard to one new vector per receiver [B, D].

    `order`: whether nodes take their gradient step before they exchange (adapt-then-combine) or subtract it after.
    """

    order: ClassVar[Order] = "adapt-then-combine"
    plain: ClassVar[bool] = False  # whether the output is the average by the mixing weights

    @abstractmethod
    def __call__(self, inbox: Inbox, round: Round) -> Tensor:
        """New vectors [B, D]."""
        ...


class WeightedRule(Rule):
    """A rule whose output is a weighted sum of own vector and messages. It never forms anything of size [B, J, D]."""

    @abstractmethod
    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        """Weights on the own vector and on the messages."""
        ...

    def __call__(self, inbox: Inbox, round: Round) -> Tensor:
        return inbox.mix(self.weigh(inbox, round))


class SetRule(WeightedRule):
    """A weighted rule in which the own vector is one of the set: a mean over N_i and i, robust or not."""

    need: ClassVar[Need] = "products"  # what `weights_in` uses

    @abstractmethod
    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Weights [b, n] of the points of b sets, from their inner products about any origin [b, n, n], float64.

        `valid` [b, n] marks points that are not padding; padding gets zero, and rows sum to one.
        """

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        """Weights [b, n] of neighbourhoods, which come with what the rule has a `need` for."""
        assert hood.gram is not None
        return self.weights(hood.gram, hood.valid)

    def weights_of(self, rows: VectorStack, at: Tensor, valid: Tensor) -> Tensor:
        """Weights [b, n] of sets of few rows out of many, given by `at` [b, n]."""
        return self.weights_in(of_sets(rows, at, valid, self.need))

    def coefficients(self, rows: VectorStack, member: Tensor) -> Tensor:
        """Weights over `rows` [B, R] of sets that share their points, zero outside `member` [B, R]."""
        hoods = of_members(rows, member, self.need)
        return over_rows(((hood, self.weights_in(hood) * hood.valid) for hood in hoods), member.shape, member.device)

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        return inbox.mixture((hood, self.weights_in(hood) * hood.valid) for hood in inbox.neighbourhoods(self.need))


class CoordinateRule(Rule):
    """A rule on each coordinate separately, computed in blocks of bounded memory."""

    @abstractmethod
    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        """One value per coordinate [b, c] from values sorted along dim 1 [b, n, c], the first `count` [b, 1] of them valid."""

    def centre(self, rows: VectorStack, member: Tensor) -> Tensor:
        """The rule's value over each set of `member` [B, R], as vectors [B, D]."""
        return reduce_members(rows, member, self.centre_of)

    def centre_of(self, rows: VectorStack, at: Tensor, valid: Tensor) -> Tensor:
        """The rule's value over sets of rows `at` [b, n], as vectors [b, D]."""
        vectors = rows.vectors
        output = torch.empty(len(at), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        step = max(1, _ENTRIES // max(1, at.numel()))
        for start in range(0, vectors.shape[1], step):
            block = vectors[:, start : start + step][at]
            ordered = torch.where(valid[:, :, None], block, torch.inf).sort(dim=1).values
            output[:, start : start + step] = self.reduce(ordered, valid.sum(1, keepdim=True))
        return output

    def __call__(self, inbox: Inbox, round: Round) -> Tensor:
        # A receiver that hears no message keeps its own vector, even if it is not finite.
        isolated = ~inbox.heard.any(1, keepdim=True)
        return torch.where(isolated, inbox.own, inbox.reduce_coordinates(self.centre_of))


def whole(share: float, count: Tensor) -> Tensor:
    """`share` of `count` without rounding errors, for floor and ceil: 7 where 0.07 x 100 gives 7.000000000000001."""
    exact: Tensor = torch.round(share * count.to(torch.float64), decimals=9)
    return exact
