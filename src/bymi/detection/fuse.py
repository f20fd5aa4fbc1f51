"""The fuse on parameter messages: how far one of them may pull in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.detection.robust import log
from bymi.detection.spectrum import FEW_DIMENSIONS
from bymi.inbox import Inbox, Mixture
from bymi.vectors import ascending

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
    return Fuse(factor)(inbox)


class Fuse:
    """`shorten` for round after round: what hangs on arcs and their weights alone is found once.

    What it gives out may be the same tensors in many rounds: not to be written to.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._arcs: _Arcs | None = None

    def __call__(self, inbox: Inbox) -> tuple[Tensor, Tensor]:
        if self._arcs is None or not self._arcs.are_of(inbox):
            self._arcs = _Arcs(inbox.heard, inbox.weight)
        arcs, distance = self._arcs, _distances(inbox)
        some = _beyond_reach(distance, arcs).nonzero().flatten()
        if not len(some):  # at all these there is nothing to sort
            return arcs.share, arcs.blown
        if len(some) == len(distance):
            return _limited(distance, arcs, some, self._factor)
        share, blown = _limited(distance.index_select(0, some), arcs, some, self._factor)
        return arcs.share.index_copy(0, some, share), arcs.blown.index_copy(0, some, blown)


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Who is heard, and who carries weight."""

    heard: Tensor  # [B, J]
    weight: Tensor  # [B, J]

    def are_of(self, inbox: Inbox) -> bool:
        pairs = ((self.heard, inbox.heard), (self.weight, inbox.weight))
        return all(known is now or (known.shape == now.shape and torch.equal(known, now)) for known, now in pairs)

    @cached_property
    def kept(self) -> Tensor:
        return self.heard & (self.weight > 0)

    @cached_property
    def count(self) -> Tensor:
        """How many carry weight at each receiver [B]."""
        return self.kept.sum(1)

    @cached_property
    def loud(self) -> Tensor:
        """One where a message is heard, else zero: a product with it is much faster than a choice."""
        return self.heard.to(torch.float64)

    @cached_property
    def idle(self) -> Tensor:
        """Infinity where no weight is carried, else zero."""
        return torch.where(self.kept, 0.0, torch.inf).to(self.weight)

    @cached_property
    def share(self) -> Tensor:
        """Nothing shortened."""
        return torch.ones_like(self.weight)

    @cached_property
    def blown(self) -> Tensor:
        """Nothing blown."""
        return torch.zeros_like(self.heard)


def fused(inbox: Inbox, share: Tensor) -> Mixture:
    """The mixing weights on shortened messages; what they lack, and the weight of what was not heard, stays with the own."""
    weight = inbox.weight * share
    return Mixture(1 - weight.sum(1), weight)


def _distances(inbox: Inbox) -> Tensor:
    """Of each message to the receiver's own vector [B, J]."""
    if inbox.own.shape[1] > FEW_DIMENSIONS or inbox.lists is not None or inbox.own is inbox.messages:
        return inbox.dist2_to_own().sqrt()
    own, messages = inbox.own.to(torch.float64), inbox.messages.to(torch.float64)
    return torch.cdist(own, messages, compute_mode="donot_use_mm_for_euclid_dist")


def _beyond_reach(distance: Tensor, arcs: _Arcs) -> Tensor:
    """Receivers [B] at which some message is out of reach.

    One that nobody carries weight at has no usual distance: nothing is shortened there, or all would be flagged for it later.
    """
    farthest = (distance * arcs.loud).amax(1, keepdim=True)
    near = (arcs.kept & (distance <= farthest / _REACH)).sum(1)
    return (2 * near >= arcs.count) & (arcs.count > 0)


def _limited(distance: Tensor, arcs: _Arcs, receivers: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Shares and who is blown [b, J] at some receivers [b], from the distances [b, J] there."""
    heard, idle, count = arcs.heard, arcs.idle, arcs.count
    if len(receivers) < len(heard):
        heard, idle, count = (part.index_select(0, receivers) for part in (heard, idle, count))
    ordered = ascending(distance + idle)
    last = count[:, None] - 1
    middle = ordered.gather(1, last // 2)
    lower = ordered.gather(1, last // 4).clamp_min(_NEAR * middle)
    wide = (_SPREADS / _QUARTILE * (log(middle) - log(lower))).clamp(math.log(factor), math.log(max(factor, _WIDEST)))
    share = (_REACH * middle / distance.clamp_min(1e-300)).clamp_max_(1.0)
    return share, heard & (distance > middle * wide.exp())
