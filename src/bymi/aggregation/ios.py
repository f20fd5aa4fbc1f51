"""IOS, iterative outlier scissor (Wu, Chen, Ling 2023): drop the farthest from the weighted mean, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import WeightedRule, sets, whole
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
        super().__post_init__()
        require(0 <= self.share < 1, "share", self.share, "0 <= share < 1")

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        if inbox.lists is not None:
            return self._weigh_sets(inbox)
        rows, own_row, count = inbox.rows, inbox.own_row, inbox.heard.shape[1]
        # Many tiny steps on small matrices: a CPU takes each in microseconds, an accelerator waits for every launch.
        gram, heard_from = rows.gram.to("cpu"), inbox.heard.to("cpu")
        square = gram.diagonal()
        weight = torch.zeros(len(inbox.own), len(square), dtype=torch.float64)
        weight[:, :count] = inbox.weight
        weight.scatter_add_(1, own_row.to("cpu")[:, None], inbox.self_weight.to("cpu")[:, None])
        # |x_r|^2 of those who may leave, -inf for all others
        size = torch.full_like(weight, -torch.inf)
        size[:, :count] = torch.where(heard_from, square[:count], -torch.inf)
        weight = self._scissor(weight, size, gram, heard_from.sum(1))
        return inbox.split((weight / weight.sum(1, keepdim=True)).to(inbox.own.device))

    def _weigh_sets(self, inbox: Inbox) -> Mixture:
        """The same for neighbourhoods that share few points: products are those of each set."""
        own, weight = torch.zeros_like(inbox.self_weight), torch.zeros_like(inbox.weight)
        for some in sets(inbox):
            gram, length = inbox.rows.among(some.at).to("cpu"), some.at.shape[1] - 1
            heard = some.valid.to("cpu").clone()
            heard[:, -1] = False
            before = torch.cat([inbox.weight[some.receivers, :length], inbox.self_weight[some.receivers][:, None]], 1).to("cpu")
            size = torch.where(heard, gram.diagonal(dim1=1, dim2=2), -torch.inf)
            found = self._scissor(before, size, gram, heard.sum(1))
            found = (found / found.sum(1, keepdim=True)).to(inbox.own.device)
            own[some.receivers], weight[some.receivers, :length] = found[:, -1], found[:, :-1]
        return Mixture(own, weight)

    def _scissor(self, weight: Tensor, size: Tensor, gram: Tensor, heard: Tensor) -> Tensor:
        """Weights [B, R] after removal, from those before and |x_r|^2 of those who may leave, else -inf [B, R].

        Products are [R, R], or [B, R, R] with rows of its own for each receiver; `heard` [B] counts neighbours.
        """
        quota = torch.ceil(whole(self.share, heard)).minimum(heard - 1).clamp_min(0)
        receivers = torch.arange(len(weight))
        sums = _Sums(weight, gram)
        gone = torch.zeros_like(sums.total)  # squared distance of the farthest member that has left
        for turn in range(int(quota.max()) if len(quota) else 0):
            reach, farthest = sums.farthest(size)
            if bool((gone > _FAR * reach).any()):
                # The sums still hold rounding errors of rows much farther than those left: form them anew, look again.
                sums, gone = _Sums(weight, gram), torch.zeros_like(gone)
                reach, farthest = sums.farthest(size)
            gone = torch.maximum(gone, reach)
            leaving = weight[receivers, farthest] * (turn < quota)
            sums.drop(farthest, leaving, gram)
            weight[receivers, farthest] -= leaving
            size[receivers, farthest] = torch.where(turn < quota, -torch.inf, size[receivers, farthest])
        return weight


class _Sums:
    """Of each receiver's members with weights w: sum of w, <sum w x, x_r> and |sum w x|^2, kept up to date as members leave."""

    def __init__(self, weight: Tensor, gram: Tensor) -> None:
        self.total = weight.sum(1)
        self.product = weight @ gram if gram.ndim == 2 else (weight[:, None, :] @ gram).squeeze(1)
        self.square = (weight * self.product).sum(1)

    def farthest(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance [B] and place [B] of the row farthest from the mean: |x_r|^2 - 2 <mean, x_r> + |mean|^2."""
        most, place = torch.addcmul(size, self.product, (2 / self.total)[:, None], value=-1).max(1)
        return (most + self.square / self.total**2).clamp_min(0.0), place

    def drop(self, place: Tensor, leaving: Tensor, gram: Tensor) -> None:
        """Take the part `leaving` [B] of the rows at `place` [B] out of the sums."""
        before = self.product.gather(1, place[:, None]).squeeze(1)
        row = gram[place] if gram.ndim == 2 else gram[torch.arange(len(place)), place]
        square = row.gather(1, place[:, None]).squeeze(1)
        self.square += leaving * (leaving * square - 2 * before)
        self.product.addcmul_(row, leaving[:, None], value=-1)
        self.total = self.total - leaving
