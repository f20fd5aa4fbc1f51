"""DSGD-RTC, remove then clip (Yang and Ghaderi 2024): drop the farthest neighbours, clip the others about the own vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation.base import Around, DistanceRule
from bymi.aggregation.scclip import adaptive_radius, clipped
from bymi.core.inbox import Round
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class RTC(DistanceRule):
    """Remove the neighbours farthest from x_i while their weight in all is at most delta_i, and clip S, those left, about x_i.

    tau_i = sqrt((1 / delta_i) sum_S W_ij |x_i - x_j|^2), x_i <- sum_S W_ij (x_i + clip(x_j - x_i, tau_i)) + (rest of the
    weight) x_i. delta_i = `share` of the neighbours' weight. Weights are those of the graph (published: max-degree weights),
    the centre is the own vector as sent. `clip_power`: 1 for the factor min(1, tau / |v|), 2 for min(1, tau^2 / |v|^2), as in
    some implementations; the paper's code is not public. The published method steps along a momentum: `momentum+rtc`.
    """

    share: float = bounded(0.35, ge=0, lt=1)
    clip_power: Literal[1, 2] = 1

    def choose(self, around: Around, round: Round) -> Tensor:
        near, radius2 = adaptive_radius(around, self.share)
        return around.weight * torch.where(near, clipped(around.dist2, radius2) ** self.clip_power, 0.0)
