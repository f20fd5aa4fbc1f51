"""Filtering (Diakonikolas et al. 2017): take weight from what sticks out along the direction of largest variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, batches
from bymi.errors import require
from bymi.vectors import Rows

_EMPTY = 1e-9  # of a point's first weight: with so little left it counts as gone, and no longer sets the scale for others


@dataclass(frozen=True)
class Filtering(SetRule):
    """A robust mean of N_i and i whose error does not grow with the dimension. The paper's choice for detection.

    With weights c (all 1 at first), mean mu_c and top eigenvector v of the weighted covariance: tau_j = <x_j - mu_c, v>^2,
    c_j <- c_j (1 - tau_j / max tau), until `share` of all weight is gone; the last step is shortened to end there. Too small
    a share leaves liars in, too large a one costs little. Paper: prop:robust_est.
    """

    # Paper gap: the share is not stated and the printed feasible set has a typo, docs/adr/0003-filtering.md.
    share: float = 0.45

    def __post_init__(self) -> None:
        require(0 <= self.share < 0.5, "share", self.share, "0 <= share < 0.5")

    def coefficients(self, rows: Rows, member: Tensor) -> Tensor:
        points = rows.coordinates
        weight = torch.zeros(member.shape, dtype=torch.float64, device=points.device)
        for receivers, index, valid in batches(member, width=points.shape[1]):
            kept = self._filter(points[index], valid.to(torch.float64))
            weight[receivers] = weight[receivers].scatter_add(1, index, kept * valid)
        return weight / weight.sum(1, keepdim=True)

    def _filter(self, points: Tensor, weight: Tensor) -> Tensor:
        """Weights [b, n] after filtering points [b, n, r] that start with weights of 0 or 1 [b, n]."""
        goal = (1 - self.share) * weight.sum(1)
        for _ in range(points.shape[1]):  # every full step empties at least one point
            excess = weight.sum(1) - goal
            active = excess > 1e-12 * goal
            if not bool(active.any()):
                break
            tau = top_spread(points[active], weight[active])
            peak = tau.amax(1, keepdim=True)
            # tau / peak first: it is exactly 1 at the peak, so that the farthest point loses exactly all of its weight.
            loss = weight[active] * (tau / torch.where(peak > 0, peak, 1.0))
            taken = loss.sum(1)
            if not bool((taken > 0).any()):  # all points in one place: nothing sticks out
                break
            share = (excess[active] / torch.where(taken > 0, taken, 1.0)).clamp_max(1.0)
            weight = weight.clone()
            left = weight[active] - share[:, None] * loss
            weight[active] = torch.where(left > _EMPTY, left, 0.0)
        return weight


def top_spread(points: Tensor, weight: Tensor) -> Tensor:
    """Squared projections [b, n] of points [b, n, r] on the top eigenvector of their weighted covariance, 0 without weight."""
    share = weight / weight.sum(1, keepdim=True)
    centred = points - (share[:, None, :] @ points)
    scaled = share.sqrt()[:, :, None] * centred
    # The covariance and the Gram matrix of the scaled points have the same top eigenpair: solve the smaller one.
    if points.shape[2] <= points.shape[1]:
        direction = torch.linalg.eigh(scaled.mT @ scaled).eigenvectors[:, :, -1:]
    else:
        dual = torch.linalg.eigh(scaled @ scaled.mT).eigenvectors[:, :, -1:]
        direction = torch.nn.functional.normalize(scaled.mT @ dual, dim=1)
    return torch.where(weight > 0, (centred @ direction).squeeze(2).square(), 0.0)
