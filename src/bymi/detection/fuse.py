"""The fuse on parameter messages: how far one of them may pull in one round."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bymi.detection.robust import log
from bymi.detection.spectrum import FEW_DIMENSIONS
from bymi.inbox import Inbox, Mixture

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
    distance = _distances(inbox)
    kept = inbox.heard & (inbox.weight > 0)
    share, blown = torch.ones_like(distance), torch.zeros_like(kept)
    some = _beyond_reach(distance, inbox.heard, kept)
    if bool(some.any()):
        far, heard, carrying = distance[some], inbox.heard[some], kept[some]
        middle, limit = _limits(far, carrying, factor)
        share[some] = (_REACH * middle / far.clamp_min(1e-300)).clamp_max(1.0)
        blown[some] = heard & (far > limit)
    return share, blown


def fused(inbox: Inbox, share: Tensor) -> Mixture:
    """The mixing weights on shortened messages; what they lack, and the weight of what was not heard, stays with the own."""
    weight = inbox.weight * share
    return Mixture(1 - weight.sum(1), weight)


def _distances(inbox: Inbox) -> Tensor:
    """Of each message to the receiver's own vector [B, J]."""
    if inbox.own.shape[1] > FEW_DIMENSIONS or inbox.lists is not None:
        return inbox.dist2_to_own().sqrt()
    own, messages = inbox.own.to(torch.float64), inbox.messages.to(torch.float64)
    return torch.cdist(own, messages, compute_mode="donot_use_mm_for_euclid_dist")


def _beyond_reach(distance: Tensor, heard: Tensor, kept: Tensor) -> Tensor:
    """Receivers [B] at which some message is out of reach: at all others there is nothing to sort.

    One that nobody carries weight at has no usual distance: nothing is shortened there, or all would be flagged for it later.
    """
    farthest = torch.where(heard, distance, 0.0).amax(1, keepdim=True)
    near = (kept & (distance <= farthest / _REACH)).sum(1)
    return (2 * near >= kept.sum(1)) & kept.any(1)


def _limits(distance: Tensor, kept: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Median distance of those who carry weight, and the distance beyond which a message is blown, each [b, 1]."""
    ordered = torch.where(kept, distance, torch.inf).sort(1).values
    last = (kept.sum(1, keepdim=True) - 1).clamp_min(0)
    middle = ordered.gather(1, last // 2)
    lower = ordered.gather(1, last // 4).clamp_min(_NEAR * middle)
    wide = (_SPREADS / _QUARTILE * (log(middle) - log(lower))).clamp(math.log(factor), math.log(max(factor, _WIDEST)))
    return middle, middle * wide.exp()
