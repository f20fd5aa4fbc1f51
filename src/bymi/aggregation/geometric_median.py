"""Geometric median by Weiszfeld's iteration, from inner products alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.errors import require


@dataclass(frozen=True)
class GeometricMedian(SetRule):
    """argmin_y sum_j |y - x_j| over N_i and i, also called RFA.

    y <- sum x_j / max(nu, |y - x_j|), normalised; nu is `smoothing` times the root mean square distance at the start, so
    that the result does not depend on units. Breaks only beyond one half; its bias grows with the share of liars.
    """

    smoothing: float = 1e-6
    iterations: int = 1000
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        require(self.smoothing > 0, "smoothing", self.smoothing, "above 0")
        require(self.iterations >= 1, "iterations", self.iterations, "1 or more")

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        weight = valid / valid.sum(1, keepdim=True, dtype=torch.float64)
        floor = self.smoothing * (weight * self._dist2(weight, gram, valid)).sum(1, keepdim=True).sqrt()
        floor = torch.where(floor > 0, floor, 1.0)  # all in one place: any weights will do
        for _ in range(self.iterations):
            distance = self._dist2(weight, gram, valid).sqrt()
            pull = valid / torch.maximum(distance, floor)
            update = pull / pull.sum(1, keepdim=True)
            change = (update - weight).abs().max()
            weight = update
            if bool(change <= self.tolerance):
                break
        return weight

    @staticmethod
    def _dist2(weight: Tensor, gram: Tensor, valid: Tensor) -> Tensor:
        product = (weight[:, None, :] @ gram).squeeze(1)
        centre2 = (weight * product).sum(1, keepdim=True)
        square = gram.diagonal(dim1=1, dim2=2)
        return torch.where(valid, (square - 2 * product + centre2).clamp_min(0.0), 0.0)
