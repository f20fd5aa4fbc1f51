"""IOS, iterative outlier scissor (Wu, Chen, Ling 2023): drop the farthest from the weighted mean, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bymi.aggregation.base import WeightedRule, whole
from bymi.errors import require
from bymi.inbox import Inbox, Mixture, Round


@dataclass(frozen=True)
class IOS(WeightedRule):
    """Remove q_i = ceil(share |N_i|) neighbours, one at a time, each time the farthest from the mean of those left.

    The mean uses the mixing weights, shared over the set left; the own vector is in it and is never removed. `share`
    must not be below the bad part of any neighbourhood: with too little, a liar stays in; too much costs little when
    data are alike. At least one neighbour is kept.
    """

    share: float = 0.35

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, "share", self.share, "0 <= share < 1")

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        rows, own_row = inbox.rows, inbox.own_row
        gram, square = rows.gram, rows.gram.diagonal()
        removable = torch.zeros_like(inbox.member)
        removable[:, : inbox.heard.shape[1]] = inbox.heard
        weight = torch.zeros(removable.shape, dtype=torch.float64, device=gram.device)
        weight[:, : inbox.heard.shape[1]] = inbox.weight
        weight.scatter_add_(1, own_row[:, None], inbox.self_weight[:, None])

        count = inbox.heard.sum(1)
        quota = torch.ceil(whole(self.share, count)).minimum(count - 1).clamp_min(0)
        total = weight.sum(1)
        product = weight @ gram  # <unnormalised mean, x_r>, kept up to date as members leave
        receivers = torch.arange(len(weight), device=gram.device)
        for turn in range(int(quota.max()) if len(quota) else 0):
            mean2 = (weight * product).sum(1) / total**2
            dist2 = square[None, :] - 2 * product / total[:, None] + mean2[:, None]
            farthest = torch.where(removable, dist2, -torch.inf).argmax(1)
            active = turn < quota
            leaving = torch.where(active, weight[receivers, farthest], 0.0)
            weight[receivers, farthest] -= leaving
            removable[receivers, farthest] &= ~active
            total = total - leaving
            product = product - leaving[:, None] * gram[farthest]
        return inbox.split(weight / total[:, None])
