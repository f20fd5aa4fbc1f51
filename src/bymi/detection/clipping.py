"""The fuse on parameter messages: how far one of them may pull in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.inbox import Inbox, Mixture
from bymi.core.linalg import ascending
from bymi.detection.robust_statistics import log

_REACH = 1.25  # median distances that a message may pull
_SPREADS = 5.0
_WIDEST = 10.0  # factor beyond which no spread is believed
_NEAR = 0.1  # of the median: whoever is nearer says nothing about the spread
_QUARTILE = 0.6745  # of a normal variable, in standard deviations


def shorten(inbox: Inbox, factor: float) -> tuple[Tensor, Tensor]:
    """By how much each message is drawn towards the receiver's own vector [B, J], and which are far beyond all others [B, J].

    A message pulls no farther than `_REACH` median distances of those who carry weight. A longer reach would let liars drive
    a receiver off: its distance to the crowd is then the median, and with a reach of three and 26 % of liars that grows.
    Blown is what lies beyond `factor` medians, or beyond five spreads of the logarithm where distances of one round differ
    widely, as those of networks late in training do; a few liars close by cannot stretch that beyond `_WIDEST`.
    """
    return SelfCentredClipping(factor)(inbox)


class SelfCentredClipping:
    """`shorten` for round after round: what hangs on arcs and their weights alone is found once.

    What it gives out may be the same tensors in many rounds: not to be written to.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._arcs: _Arcs | None = None

    def __call__(self, inbox: Inbox) -> tuple[Tensor, Tensor]:
        if self._arcs is None or not self._arcs.are_of(inbox):
            self._arcs = _Arcs(inbox.heard, inbox.weight)
        arcs, distance = self._arcs, inbox.distance_to_own()
        ordered = ascending(distance + arcs.idle)
        middle = ordered.gather(1, arcs.last // 2)
        reach = _REACH * middle
        far = arcs.heard & (distance > reach)
        if not bool(far.any()):
            return arcs.share, arcs.far_out
        lower = ordered.gather(1, arcs.last // 4).clamp_min(_NEAR * middle)
        limits = math.log(self._factor), math.log(max(self._factor, _WIDEST))
        wide = (_SPREADS / _QUARTILE * (log(middle) - log(lower))).clamp(*limits)
        share = torch.div(reach, distance.clamp_min_(1e-300)).clamp_max_(1.0)
        if not inbox.complete:  # an own vector that is not finite has no distances, and hears nobody
            share = share.nan_to_num(nan=1.0)
        return share, far & (distance > middle * wide.exp())


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Who is heard, and who carries weight."""

    heard: Tensor  # [B, J]
    weight: Tensor  # [B, J]

    def are_of(self, inbox: Inbox) -> bool:
        pairs = ((self.heard, inbox.heard), (self.weight, inbox.weight))
        return all(known is now or (known.shape == now.shape and torch.equal(known, now)) for known, now in pairs)

    @cached_property
    def idle(self) -> Tensor:
        """Infinity where no weight is carried, else zero.

        A receiver at which nobody does has no usual distance, but an infinite one: nothing is shortened there, or all would be
        flagged for it later.
        """
        return torch.where(self.heard & (self.weight > 0), 0.0, torch.inf).to(self.weight)

    @cached_property
    def last(self) -> Tensor:
        """The place of the longest distance of those who carry weight, from 0 [B, 1]."""
        return ((self.idle == 0).sum(1, keepdim=True) - 1).clamp_min(0)

    @cached_property
    def share(self) -> Tensor:
        """Nothing shortened."""
        return torch.ones_like(self.weight)

    @cached_property
    def far_out(self) -> Tensor:
        """Nothing blown."""
        return torch.zeros_like(self.heard)


def fused(inbox: Inbox, share: Tensor) -> Mixture:
    """The mixing weights on shortened messages; what they lack, and the weight of what was not heard, stays with the own."""
    weight = inbox.weight * share
    return Mixture(1 - weight.sum(1), weight)
