"""Self-centred clipping of parameter messages: how far one of them may pull its receiver in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.inbox import Inbox, Mixture
from bymi.core.linalg import ascending
from bymi.detection.robust_statistics import log

_REACH = 1.25  # median distances to which a message is clipped
_SPREADS = 5.0
_WIDEST = 10.0  # largest factor that a spread may give
_NEAR = 0.1  # least lower quartile for the spread, over the median
_QUARTILE = 0.6745  # of a normal variable, in standard deviations


def shorten(inbox: Inbox, factor: float) -> tuple[Tensor, Tensor]:
    """Share kept of each message's difference to the receiver's own vector [B, P], and mask of messages far out [B, P].

    A message is clipped to `_REACH` median distances of those that carry weight. A larger reach would let Byzantine neighbours
    drive a receiver away: its distance to the others is then the median, and with a reach of three and 26 % Byzantine
    neighbours it grows. Far out are messages beyond `factor` medians, or beyond five spreads of the logarithm where the
    distances of one round differ widely, as those of neural networks late in training; a few close Byzantine neighbours cannot
    stretch that beyond `_WIDEST`.
    """
    return SelfCentredClipping(factor)(inbox)


class SelfCentredClipping:
    """`shorten` over many rounds: what depends on arcs and weights only is computed once.

    Results may share tensors between rounds: do not write to them.
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
        if not inbox.complete:  # a non-finite own vector has no distances, and hears no message
            share = share.nan_to_num(nan=1.0)
        return share, far & (distance > middle * wide.exp())


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Which messages are heard, and which carry weight."""

    heard: Tensor  # [B, J]
    weight: Tensor  # [B, J]

    def are_of(self, inbox: Inbox) -> bool:
        pairs = ((self.heard, inbox.heard), (self.weight, inbox.weight))
        return all(known is now or (known.shape == now.shape and torch.equal(known, now)) for known, now in pairs)

    @cached_property
    def idle(self) -> Tensor:
        """Infinity where no weight is carried, else zero [B, P].

        A receiver without weighted messages has an infinite median distance: nothing is clipped, or all would be flagged later.
        """
        return torch.where(self.heard & (self.weight > 0), 0.0, torch.inf).to(self.weight)

    @cached_property
    def last(self) -> Tensor:
        """Index [B, 1] of the largest distance among the messages that carry weight."""
        return ((self.idle == 0).sum(1, keepdim=True) - 1).clamp_min(0)

    @cached_property
    def share(self) -> Tensor:
        """Share of a round without clipping: ones."""
        return torch.ones_like(self.weight)

    @cached_property
    def far_out(self) -> Tensor:
        """Mask of a round with no message far out."""
        return torch.zeros_like(self.heard)


def fused(inbox: Inbox, share: Tensor) -> Mixture:
    """The mixing weights on clipped messages; the remainder, and the weight of messages not heard, goes to the own vector."""
    weight = inbox.weight * share
    return Mixture(1 - weight.sum(1), weight)
