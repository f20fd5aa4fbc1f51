"""The fuse on parameter messages: what is far off this round is left out of it."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.robust import log, median, spread
from bymi.inbox import Inbox, Mixture

_SPREADS = 5.0


def fused(inbox: Inbox, factor: float) -> tuple[Mixture, Tensor]:
    """The mixing weights without messages farther off than `factor` x the median distance, and who was left out [B, J].

    Where distances of one round differ widely, as those of networks late in training do, the limit is that many spreads of
    their logarithm above the median that an honest one does not reach. The median is over those who carry weight; the weight
    of whoever is left out goes to the own vector. A fuse, not a rule: it bounds what one round can do, and how often it
    blew counts at the next detection.
    """
    distance = inbox.dist2_to_own().sqrt()
    kept = inbox.heard & (inbox.weight > 0)
    wide = (_SPREADS * spread(log(distance), kept)).exp().nan_to_num(1.0)
    # Where nobody carries weight there is no usual distance: nobody is left out, or all would be flagged for it later.
    limit = wide.clamp_min(factor) * median(distance, kept).nan_to_num(torch.inf)
    blown = inbox.heard & (distance > limit)
    usual = inbox.average()
    weight = torch.where(blown, 0.0, usual.weight)
    return Mixture(usual.own + (usual.weight - weight).sum(1), weight), blown
