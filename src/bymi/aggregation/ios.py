"""IOS, iterative outlier scissor (Wu, Chen, Ling 2023): repeatedly drop the neighbour farthest from the weighted mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import WeightedRule, whole
from bymi.core.errors import require
from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.neighbourhoods import Neighbourhoods

_FAR = 1e4  # ratio of squared distances from which sums are recomputed: products have lost 4 of their 16 digits


@dataclass(frozen=True)
class IOS(WeightedRule):
    """Remove q_i = ceil(share |N_i|) neighbours, one at a time, each time the farthest from the mean of those left.

    The mean uses the mixing weights, normalised over the remaining set; the own vector is part of it and is never removed.
    `share` must not be below the Byzantine share of any neighbourhood: with less, a Byzantine neighbour remains; more costs
    little when data are alike. At least one neighbour is kept.
    """

    share: float = 0.35

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.share < 1, "share", self.share, "0 <= share < 1")

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        return inbox.mixture(
            (hood, self._weights_in(hood, inbox.mixing(hood))) for hood in inbox.neighbourhoods("products", common=True)
        )

    def _weights_in(self, hood: Neighbourhoods, mixing: Tensor) -> Tensor:
        """Weights of neighbourhoods [b, n] after removal, from mixing weights [b, n]."""
        assert hood.gram is not None
        # Many tiny steps on small matrices: microseconds each on a CPU, dominated by launches on an accelerator.
        gram, neighbours = hood.gram.to("cpu"), hood.neighbours.to("cpu")
        size = torch.where(neighbours, gram.diagonal(dim1=-2, dim2=-1), -torch.inf)
        weight = self._scissor(mixing.to("cpu"), size, gram, neighbours.sum(1))
        return (weight / weight.sum(1, keepdim=True)).to(mixing.device)

    def _scissor(self, weight: Tensor, size: Tensor, gram: Tensor, heard: Tensor) -> Tensor:
        """Weights [B, R] after removal, from those before and |x_r|^2 of the removable rows, else -inf [B, R].

        Products are [R, R], or [B, R, R] where each receiver has its own rows; `heard` [B] counts neighbours.
        """
        quota = torch.ceil(whole(self.share, heard)).minimum(heard - 1).clamp_min(0)
        receivers = torch.arange(len(weight))
        sums = _Sums(weight, gram)
        removed = torch.zeros_like(sums.total)  # squared distance of the farthest member removed
        for iteration in range(int(quota.max()) if len(quota) else 0):
            reach, farthest = sums.farthest(size)
            if bool((removed > _FAR * reach).any()):
                # The sums hold rounding errors of rows much farther than the remaining ones: compute them again.
                sums, removed = _Sums(weight, gram), torch.zeros_like(removed)
                reach, farthest = sums.farthest(size)
            removed = torch.maximum(removed, reach)
            leaving = weight[receivers, farthest] * (iteration < quota)
            sums.drop(farthest, leaving, gram)
            weight[receivers, farthest] -= leaving
            size[receivers, farthest] = torch.where(iteration < quota, -torch.inf, size[receivers, farthest])
        return weight


class _Sums:
    """Sums over each receiver's members with weights w: sum of w, <sum w x, x_r> and |sum w x|^2, updated as members leave."""

    def __init__(self, weight: Tensor, gram: Tensor) -> None:
        self.total = weight.sum(1)
        self.product = weight @ gram if gram.ndim == 2 else (weight[:, None, :] @ gram).squeeze(1)
        self.square = (weight * self.product).sum(1)

    def farthest(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance [B] and index [B] of the row farthest from the mean: |x_r|^2 - 2 <mean, x_r> + |mean|^2."""
        most, index = torch.addcmul(size, self.product, (2 / self.total)[:, None], value=-1).max(1)
        return (most + self.square / self.total**2).clamp_min(0.0), index

    def drop(self, place: Tensor, leaving: Tensor, gram: Tensor) -> None:
        """Subtract the weight `leaving` [B] of the rows `place` [B] from the sums."""
        before = self.product.gather(1, place[:, None]).squeeze(1)
        row = gram[place] if gram.ndim == 2 else gram[torch.arange(len(place)), place]
        square = row.gather(1, place[:, None]).squeeze(1)
        self.square += leaving * (leaving * square - 2 * before)
        self.product.addcmul_(row, leaving[:, None], value=-1)
        self.total = self.total - leaving
