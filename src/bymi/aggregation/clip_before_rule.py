"""Clipping of messages about the own vector, before any rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bymi.aggregation.base import dist2_to_own
from bymi.aggregation.wrapper import Points, Wrapper
from bymi.core.inbox import Round
from bymi.core.linalg import lower_median
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class Clipping(Wrapper):
    """x_j <- x_i + (x_j - x_i) min(1, radius / |x_j - x_i|).

    `radius` = None takes the median distance of the messages to x_i. Aggregators of gradients clip about zero instead;
    parameters would shrink.
    """

    radius: float | None = bounded(None, ge=0)

    def apply(self, points: Points, round: Round) -> Points:
        distance = dist2_to_own(points.gram, points.own).sqrt()
        others = points.valid.scatter(1, points.own, False)
        radius = lower_median(distance, others).nan_to_num(0.0)[:, None] if self.radius is None else self.radius
        factor = torch.where(distance > 0, radius / torch.where(distance > 0, distance, 1.0), 1.0).clamp_max(1.0)
        matrix = torch.diag_embed(factor)
        rest = (1 - factor)[:, :, None]
        matrix = matrix.scatter_add(2, points.own[:, None, :].expand(-1, matrix.shape[1], 1), rest)
        return points.map(matrix * points.valid[:, :, None])
