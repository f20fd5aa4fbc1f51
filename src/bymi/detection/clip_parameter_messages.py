"""Self-centred clipping of parameter messages: how far one of them may pull its receiver in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.cuda_graphs import captured
from bymi.core.inbox import Inbox, Mixture
from bymi.core.linalg import any_true, on_host, sort_rows_
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
        if on_host(distance):
            found = _to_clip(distance, arcs.idle, arcs.quartiles, arcs.heard)
            if not any_true(found[0]):
                return arcs.share, arcs.far_out
            share, far_out = _clip(distance, *found, self._factor)
        else:
            share, far_out = captured(_clip_all, distance, arcs.idle, arcs.quartiles, arcs.heard, factor=self._factor)
        if not inbox.complete:  # a non-finite own vector has no distances, and hears no message
            share = share.nan_to_num(nan=1.0)
        return share, far_out


def _to_clip(distance: Tensor, idle: Tensor, quartiles: Tensor, heard: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mask of messages to be clipped [B, P], median and lower quartile of the distances of those that carry weight [B, 1]."""
    middle, lower = sort_rows_(distance + idle).gather(1, quartiles).split(1, 1)
    return heard & (distance > _REACH * middle), middle, lower


def _clip(distance: Tensor, clipped: Tensor, middle: Tensor, lower: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Shares and mask of messages far out, each [B, P]; changes the distances."""
    lower = lower.clamp_min(_NEAR * middle)
    limits = math.log(factor), math.log(max(factor, _WIDEST))
    wide = (_SPREADS / _QUARTILE * (log(middle) - log(lower))).clamp(*limits)
    share = torch.div(_REACH * middle, distance.clamp_min_(1e-300)).clamp_max_(1.0)
    return share, clipped & (distance > middle * wide.exp())


def _clip_all(distance: Tensor, idle: Tensor, quartiles: Tensor, heard: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Both, without a look at the result: where nothing is to be clipped, shares are one."""
    clipped, middle, lower = _to_clip(distance, idle, quartiles, heard)
    share, far_out = _clip(distance, clipped, middle, lower, factor)
    return torch.where(clipped.any(), share, 1.0), far_out


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
    def quartiles(self) -> Tensor:
        """Places [B, 2] of the median and of the lower quartile among the sorted distances of messages that carry weight."""
        last = ((self.idle == 0).sum(1, keepdim=True) - 1).clamp_min(0)
        return torch.cat([last // 2, last // 4], 1)

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
