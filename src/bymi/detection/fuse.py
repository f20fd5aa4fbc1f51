"""The fuse on parameter messages: what is far off this round is left out of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bymi.detection.robust import log
from bymi.detection.spectrum import FEW_DIMENSIONS
from bymi.inbox import Inbox, Mixture

_SPREADS = 5.0
_QUARTILE = 0.6745  # of a normal variable, in standard deviations


def fused(inbox: Inbox, factor: float) -> tuple[Mixture, Tensor]:
    """The mixing weights without messages farther off than `factor` x the median distance, and who was left out [B, J].

    Where distances of one round differ widely, as those of networks late in training do, the limit is that many spreads of
    their logarithm above the median that a good one does not reach. Median and spread (below the median, where no liar can
    stretch it) are over those who carry weight; the weight of whoever is left out goes to the own vector. A fuse, not a
    rule: it bounds what one round can do, and how often it blew counts at the next detection.
    """
    distance = _distances(inbox)
    kept = inbox.heard & (inbox.weight > 0)
    blown = torch.zeros_like(kept)
    suspect = _may_blow(distance, inbox.heard, kept, factor)
    if bool(suspect.any()):
        some = log(distance[suspect])
        blown[suspect] = inbox.heard[suspect] & (some > _limit(some, kept[suspect], factor))
    usual = inbox.average()
    weight = torch.where(blown, 0.0, usual.weight)
    return Mixture(usual.own + (usual.weight - weight).sum(1), weight), blown


def _distances(inbox: Inbox) -> Tensor:
    """Of each message to the receiver's own vector [B, J]."""
    if inbox.own.shape[1] > FEW_DIMENSIONS:
        return inbox.dist2_to_own().sqrt()
    own, messages = inbox.own.to(torch.float64), inbox.messages.to(torch.float64)
    return torch.cdist(own, messages, compute_mode="donot_use_mm_for_euclid_dist")


def _may_blow(distance: Tensor, heard: Tensor, kept: Tensor, factor: float) -> Tensor:
    """Receivers [B] at which the farthest message is beyond `factor` x the median: at all others there is nothing to sort."""
    farthest = torch.where(heard, distance, 0.0).amax(1, keepdim=True)
    near = (kept & (distance <= farthest / factor)).sum(1)
    return 2 * near >= kept.sum(1)


def _limit(values: Tensor, kept: Tensor, factor: float) -> Tensor:
    """Largest logarithm of a distance that is still let in [b, 1].

    Where nobody carries weight there is no usual distance: all are let in, or all would be flagged for it later.
    """
    ordered = torch.where(kept, values, torch.inf).sort(1).values
    last = (kept.sum(1, keepdim=True) - 1).clamp_min(0)
    middle, lower = ordered.gather(1, last // 2), ordered.gather(1, last // 4)
    wide = (_SPREADS / _QUARTILE * (middle - lower)).nan_to_num(0.0).clamp_min(math.log(factor))
    return torch.where(kept.any(1, keepdim=True), middle + wide, torch.inf)
