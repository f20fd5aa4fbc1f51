"""The fuse on parameter messages: what is far off this round is left out of it."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.robust import median
from bymi.inbox import Inbox, Mixture


def fused(inbox: Inbox, factor: float) -> tuple[Mixture, Tensor]:
    """The mixing weights without messages farther off than `factor` x the median distance, and who was left out [B, J].

    The median is over those who carry weight; the weight of whoever is left out goes to the own vector. A fuse, not a
    rule: near consensus it bounds what one round can do, and how often it blew counts at the next detection.
    """
    distance = inbox.dist2_to_own().sqrt()
    kept = inbox.heard & (inbox.weight > 0)
    # Where nobody carries weight there is no usual distance: nobody is left out, or all would be flagged for it later.
    limit = factor * median(distance, kept).nan_to_num(torch.inf)
    blown = inbox.heard & (distance > limit)
    usual = inbox.average()
    weight = torch.where(blown, 0.0, usual.weight)
    return Mixture(usual.own + (usual.weight - weight).sum(1), weight), blown
