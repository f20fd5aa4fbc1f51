"""Attacks on parameters as they are sent: gradients stay honest, so tests of gradients alone do not detect them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from bymi.attacks.base import Level, PerReceiver, VectorAttack, directions
from bymi.attacks.gradient import ALIE
from bymi.core.errors import require
from bymi.core.linalg import VectorStack, lower_median
from bymi.core.random_streams import Stream

_How = Literal["large", "fuse", "alie"]
_EXACT = "donot_use_mm_for_euclid_dist"  # without cancellation
_BELOW = 0.95  # of the clipping radius: leaves room for rounding and for the receiver's other neighbours


@dataclass(frozen=True)
class Poison(VectorAttack, PerReceiver):
    """Honest gradients, poisoned parameters: mean + size u ("large"), inside a clipping radius ("fuse"), mean - z std ("alie").

    "fuse" sends each receiver its own vector plus 0.95 factor (median distance of its honest neighbours) u, which passes
    self-centred clipping at `factor` medians. u is one unit vector per run.
    """

    level: ClassVar[Level] = "message"
    how: Literal["large", "fuse", "alie"] = "large"
    size: float = 10.0
    factor: float = 3.0
    z: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.how in get_args(_How), "how", self.how, ", ".join(get_args(_How)))
        require(self.size >= 0, "size", self.size, "0 or above")
        require(self.factor >= 0, "factor", self.factor, "0 or above")

    @property
    def tailored(self) -> bool:
        return self.how == "fuse"

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        if self.how == "alie":
            return ALIE(self.z)(honest, would_send, shared, fresh)
        target = honest.mean(0) + self.size * directions(shared, 1, honest.shape[1], honest)[0]
        return target.expand_as(would_send).clone()

    def tailor(self, own: Tensor, within: Tensor, outside: Tensor, shared: Stream, others: Tensor | None = None) -> Tensor:
        if others is None:
            gram = VectorStack(own).gram
            square = gram.diagonal()
            away2 = torch.add(square[:, None], square).sub_(gram, alpha=2).clamp_min_(0)
        else:
            away2 = torch.cdist(own.to(torch.float64), others.to(torch.float64), compute_mode=_EXACT).square_()
        middle = lower_median(away2, within > 0).sqrt().nan_to_num(nan=0.0)
        along = directions(shared, 1, own.shape[1], own)[0]
        return own + (_BELOW * self.factor * middle).to(own)[:, None] * along


@dataclass(frozen=True)
class Dissensus(PerReceiver):
    """Sends each receiver x_i - eps sum_j W_ij (x_j - x_i) / sum_b W_ib: at eps = 1 averaging leaves it where it is.

    j runs over its honest neighbours, b over the attackers. Above 1 it drives the honest nodes apart (He et al. 2022).
    """

    eps: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eps >= 0, "eps", self.eps, "0 or above")

    def tailor(self, own: Tensor, within: Tensor, outside: Tensor, shared: Stream, others: Tensor | None = None) -> Tensor:
        return own - self.eps * _pull(own, within, others) / _weight(outside, own)


@dataclass(frozen=True)
class Isolation(PerReceiver):
    """Sends each receiver what makes its weighted average, sum_j W_ij x_j, its own vector, so that it learns nothing.

    With weights that sum to one this is dissensus with eps = 1.
    """

    def tailor(self, own: Tensor, within: Tensor, outside: Tensor, shared: Stream, others: Tensor | None = None) -> Tensor:
        return own - _pull(own, within, others) / _weight(outside, own)


def _pull(own: Tensor, within: Tensor, others: Tensor | None) -> Tensor:
    """How far honest neighbours move each receiver, sum_j W_ij (x_j - x_i) [h, D]."""
    weights = within.to(own)
    return weights @ (own if others is None else others) - weights.sum(1, keepdim=True) * own


def _weight(outside: Tensor, own: Tensor) -> Tensor:
    """The weight that each receiver gives to attackers [h, 1]; one where it has none, to divide by."""
    return torch.where(outside > 0, outside, 1.0).to(own)[:, None]
