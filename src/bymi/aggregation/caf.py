"""CAF, covariance-bound agnostic filter (Allouah et al. 2025): filter, and keep the mean with the least top eigenvalue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, Tolerant, iterate
from bymi.aggregation.spectral_filter_kernel import filtered
from bymi.aggregation.spectral_filtering import Spread, by_size, spread_of_points, spread_of_products
from bymi.core.cuda_graphs import captured
from bymi.core.named_parts import bounded
from bymi.core.neighbourhoods import Need, Neighbourhoods


@dataclass(frozen=True)
class CAF(Tolerant, SetRule):
    """Weigh down what lies far along the top eigenvector of the covariance; of all means the one with the least eigenvalue.

    With weights c, initially 1, mean mu_c and top eigenpair (lambda, v) of the weighted covariance of N_i and i: while
    sum c > n - 2 f: c_j <- c_j (1 - tau_j / max tau), tau_j = <x_j - mu_c, v>^2. The output is the mu_c of the smallest lambda.
    No bound on the covariance has to be known. f = ceil(`share` |N_i|), or `f`, below n / 2. Eigenpairs are exact: an
    implementation that takes one power step from a random vector gives another result in every call.
    """

    need: ClassVar[Need] = "cloud"
    share: float = bounded(0.35, ge=0, lt=0.5)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        if gram.is_cuda:
            found = filtered(gram, valid, captured(self._goal, valid), caf=True)
            if found is not None:
                return found
        return by_size(lambda some, mask: self._filter(spread_of_products, some, mask), gram, valid)

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        if hood.points is None:
            return super().weights_in(hood)
        return self._filter(spread_of_points, hood.points, hood.valid)

    def _filter(self, spread: Spread, cloud: Tensor, valid: Tensor) -> Tensor:
        goal = self._goal(valid)
        weight = valid.to(torch.float64)
        state = (weight, weight / weight.sum(1, keepdim=True), torch.full_like(goal, torch.inf))
        # Every step removes at least one point.
        return iterate(_step, (cloud, goal), state, weight.sum(1) > goal, cloud.shape[1], spread=spread)[1]

    def _goal(self, valid: Tensor) -> Tensor:
        """Weight [b] at which the filter ends."""
        count = valid.sum(1)
        return (count - 2 * self.assumed(count - 1, (count - 1) // 2)).to(torch.float64)


def _step(cloud: Tensor, goal: Tensor, weight: Tensor, best: Tensor, least: Tensor, spread: Spread) -> tuple[Tensor, ...]:
    """Weights c, the best means so far as weights [b, n], their lambda [b], and which sets go on [b]."""
    tau = spread(cloud, weight).square()
    value, peak = (weight * tau).sum(1) / weight.sum(1), tau.amax(1, keepdim=True)
    best = torch.where((value < least)[:, None], weight / weight.sum(1, keepdim=True), best)
    left = weight * (1 - tau / torch.where(peak > 0, peak, 1.0))
    left = torch.where(peak > 0, left, 0.0)  # all points coincide: done
    return left, best, torch.minimum(value, least), left.sum(1) > goal
