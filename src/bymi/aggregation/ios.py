"""IOS, iterative outlier scissor (Wu, Chen, Ling 2023): drop the farthest from the weighted mean, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import WeightedRule, whole
from bymi.errors import require
from bymi.inbox import Inbox, Mixture, Round

_FAR = 1e4  # squared distances: products lose 4 of their 16 digits before they are formed anew


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
        receivers = torch.arange(len(weight), device=gram.device)
        product = weight @ gram  # <sum of the weighted members, x_r>, kept up to date as members leave
        gone = torch.zeros_like(weight[:, 0])  # squared distance of the farthest member that has left
        for turn in range(int(quota.max()) if len(quota) else 0):
            reach, farthest = _farthest(weight, product, square, removable)
            if bool((gone > _FAR * reach).any()):
                # The products still hold rounding errors of rows much farther than those left: form them anew, look again.
                product, gone = weight @ gram, torch.zeros_like(gone)
                reach, farthest = _farthest(weight, product, square, removable)
            gone = torch.maximum(gone, reach)
            leaving = weight[receivers, farthest] * (turn < quota)
            weight[receivers, farthest] -= leaving
            removable[receivers, farthest] &= turn >= quota
            product = product - leaving[:, None] * gram[farthest]
        return inbox.split(weight / weight.sum(1, keepdim=True))


def _farthest(weight: Tensor, product: Tensor, square: Tensor, removable: Tensor) -> tuple[Tensor, Tensor]:
    """The removable row farthest from each receiver's weighted mean: its squared distance [B] and its place [B]."""
    total = weight.sum(1, keepdim=True)
    dist2 = square - 2 * product / total + (weight * product).sum(1, keepdim=True) / total**2
    reach, place = torch.where(removable, dist2, -torch.inf).max(1)
    return reach.clamp_min(0.0), place
