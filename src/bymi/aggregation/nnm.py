"""NNM, nearest neighbour mixing (Allouah et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bymi.aggregation.base import Tolerant, smallest, squared_distances
from bymi.aggregation.wrapper import Points, Wrapper
from bymi.core.cuda_graphs import captured
from bymi.core.inbox import Round


@dataclass(frozen=True)
class NNM(Tolerant, Wrapper):
    """Each of the n vectors of N_i and i becomes the mean of the n - f nearest to it, itself included.

    f = ceil(`share` |N_i|), or `f`. So does its mixing weight.
    """

    def apply(self, points: Points, round: Round) -> Points:
        matrix = captured(self._nearest, points.gram, points.valid)
        # Vectors with the same nearest become equal: their weights must be, too, or the order of senders would decide.
        mixing = (matrix @ points.mixing[:, :, None]).squeeze(2)
        return replace(points.map(matrix), mixing=mixing / mixing.sum(1, keepdim=True))

    def _nearest(self, gram: Tensor, valid: Tensor) -> Tensor:
        """The means [b, n, n] as sums of the points."""
        count = valid.sum(1)
        number = count - self.assumed(count - 1, count - 1)
        dist2 = squared_distances(gram)
        among = valid[:, None, :].expand_as(dist2)
        each = number[:, None].expand_as(valid).reshape(-1, 1)
        near = smallest(dist2.flatten(0, 1), among.flatten(0, 1), each).view_as(dist2) / number[:, None, None]
        return torch.where(valid[:, :, None], near, 0.0)
