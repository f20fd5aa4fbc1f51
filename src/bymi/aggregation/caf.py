"""CAF, covariance-bound agnostic filter (Allouah et al. 2025): filter, and keep the mean with the least top eigenvalue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, Tolerant, waits
from bymi.aggregation.filtering import by_size, spread_of_points, spread_of_products
from bymi.core.linalg import on_host
from bymi.core.neighbourhoods import Need, Neighbourhoods


@dataclass(frozen=True)
class CAF(Tolerant, SetRule):
    """With weights c, initially 1, mean mu_c and top eigenpair (lambda, v) of the weighted covariance of N_i and i:

    while sum c > n - 2 f: c_j <- c_j (1 - tau_j / max tau), tau_j = <x_j - mu_c, v>^2. The output is the mu_c of the smallest
    lambda. No bound on the covariance has to be known. f = ceil(`share` |N_i|), or `f`, below n / 2. Eigenpairs are exact: an
    implementation that takes one power step from a random vector gives another result in every call.
    """

    need: ClassVar[Need] = "cloud"
    below: ClassVar[float] = 0.5

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        return by_size(lambda some, there: self._filter(spread_of_products, some, there), gram, valid)

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        if hood.points is None:
            return super().weights_in(hood)
        return self._filter(spread_of_points, hood.points, hood.valid)

    def _filter(self, spread: Callable[[Tensor, Tensor], Tensor], cloud: Tensor, valid: Tensor) -> Tensor:
        count = valid.sum(1)
        goal = (count - 2 * self.assumed(count - 1, (count - 1) // 2)).to(torch.float64)
        weight = valid.to(torch.float64)
        best, least = weight / weight.sum(1, keepdim=True), torch.full_like(goal, torch.inf)
        looked_at = on_host(cloud)
        for turn in range(cloud.shape[1]):  # every step removes at least one point
            active = weight.sum(1) > goal
            if waits(turn, cloud) and not bool(active.any()):
                break
            some = active.nonzero().flatten() if looked_at else slice(None)
            held, go_on = weight[some], active[some]
            tau = spread(cloud[some], held).square()
            value, peak = (held * tau).sum(1) / held.sum(1), tau.amax(1, keepdim=True)
            better = go_on & (value < least[some])
            best[some] = torch.where(better[:, None], held / held.sum(1, keepdim=True), best[some])
            least[some] = torch.where(better, value, least[some])
            left = held * (1 - tau / torch.where(peak > 0, peak, 1.0))
            left = torch.where(peak > 0, left, 0.0)  # all points coincide: done
            weight[some] = torch.where(go_on[:, None], left, held)
        return best
