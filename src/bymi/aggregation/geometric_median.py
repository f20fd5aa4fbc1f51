"""Geometric median by Weiszfeld's iteration, from inner products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, dist2_to_mean, others, squared_distances
from bymi.core.cuda_graphs import captured
from bymi.core.linalg import lower_median, on_host
from bymi.core.named_parts import bounded

_TURNS = 8  # on an accelerator, turns between two looks at what is left to do
_FAR = 1e3  # usual distances: for points within this, converged weights suffice
_SURELY = 2.5  # times the longest: above the distance of any two points, with room for rounding


@dataclass(frozen=True)
class GeometricMedian(SetRule):
    """argmin_y sum_j |y - x_j| over N_i and i, also called RFA (Pillutla, Kakade, Harchaoui 2022).

    By Weiszfeld's iteration (1937): y <- sum x_j / max(nu, |y - x_j|), normalised; nu is `smoothing` times the median of the
    points' median distances to each other, so that the result depends neither on units nor on how far Byzantine points are.
    The breakdown point is one half; the bias grows with the Byzantine share.
    """

    smoothing: float = bounded(1e-6, gt=0)
    iterations: int = bounded(1000, ge=1)
    tolerance: float = 1e-12

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        weight = valid / valid.sum(1, keepdim=True, dtype=torch.float64)
        return self._on_host(weight, gram, valid) if on_host(gram) else self._on_accelerator(weight, gram, valid)

    def _on_accelerator(self, weight: Tensor, gram: Tensor, valid: Tensor) -> Tensor:
        """Weights by iterations of which the host looks at few."""
        floor, settled = captured(self._floor, gram, valid), torch.zeros_like(valid[:, :1])
        for done in range(0, self.iterations, _TURNS):
            turns = min(_TURNS, self.iterations - done)
            weight, settled = captured(self._turns, weight, settled, floor, gram, valid, turns=turns)
            if bool(settled.all()):
                break
        return weight

    def _turns(
        self, weight: Tensor, settled: Tensor, floor: Tensor, gram: Tensor, valid: Tensor, turns: int
    ) -> tuple[Tensor, Tensor]:
        """Weights [b, n] after some turns, and which sets converged in the last one [b, 1]."""
        for _ in range(turns):
            distance = _distance(weight, gram, valid)
            before, update = weight, _pulled(distance, floor, valid)
            # Each set stops separately: its result must not depend on which others are held here.
            weight = torch.where(settled, weight, update)
        change = (update - before).abs()
        return weight, settled | self._converged(change, distance, _far(distance, valid), floor)

    def _on_host(self, weight: Tensor, gram: Tensor, valid: Tensor) -> Tensor:
        """Weights by iterations that compute what most sets do not need only where the host sees that it is needed."""
        # No two points are farther apart than twice the longest: while y stays away from all points by more than `smoothing`
        # times that, nu has no effect, and its median of medians need not be computed.
        longest = (gram.diagonal(dim1=1, dim2=2) * valid).amax(1, keepdim=True).clamp_min(0.0).sqrt()
        floor, known = _SURELY * self.smoothing * longest, False
        settled = torch.zeros_like(valid[:, :1])
        for _ in range(self.iterations):
            distance = _distance(weight, gram, valid)
            if not known and bool((valid & (distance <= floor)).any()):
                floor, known = self._floor(gram, valid), True
            update = _pulled(distance, floor, valid)
            change = (update - weight).abs()
            converged = change.amax(1, keepdim=True) <= self.tolerance
            if bool((converged & ~settled).any()) and bool((far := _far(distance, valid)).any()):
                converged = self._converged(change, distance, far, self._floor(gram, valid))
            weight = torch.where(settled, weight, update)
            settled = settled | converged
            if bool(settled.all()):
                break
        return weight

    def _converged(self, change: Tensor, distance: Tensor, far: Tensor, floor: Tensor) -> Tensor:
        """Sets [b, 1] whose weights changed little: that of a `far` point can move y by much, there y must have converged."""
        moved = (change * distance * far).amax(1, keepdim=True)
        steady = moved <= _FAR * self.tolerance * floor / self.smoothing
        return steady & (change.amax(1, keepdim=True) <= self.tolerance)

    def _floor(self, gram: Tensor, valid: Tensor) -> Tensor:
        """nu per set [b, 1]: from the median over its points of their median distance to the others."""
        medians = lower_median(squared_distances(gram), others(valid)).sqrt()
        floor = self.smoothing * lower_median(medians, valid).nan_to_num(0.0)[:, None]
        # If half of the points coincide, any positive scale works.
        weight = valid / valid.sum(1, keepdim=True, dtype=torch.float64)
        usual = self.smoothing * (weight * dist2_to_mean(weight, gram)).sum(1, keepdim=True).sqrt()
        return torch.where(floor > 0, floor, torch.where(usual > 0, usual, 1.0))


def _distance(weight: Tensor, gram: Tensor, valid: Tensor) -> Tensor:
    """Distances [b, n] of the points to y, their mean with weights [b, n]; 0 at padding."""
    return torch.where(valid, dist2_to_mean(weight, gram), 0.0).sqrt()


def _pulled(distance: Tensor, floor: Tensor, valid: Tensor) -> Tensor:
    """The next weights [b, n], from distances of the points to y [b, n] and nu [b, 1]."""
    pull = valid / torch.maximum(distance, floor)
    return pull / pull.sum(1, keepdim=True)


def _far(distance: Tensor, valid: Tensor) -> Tensor:
    """Mask [b, n] of points much farther from y than usual."""
    return distance > _FAR * lower_median(distance, valid)[:, None]
