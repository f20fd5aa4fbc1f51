"""DSGD-RTC, remove then clip (Yang and Ghaderi 2024): drop the farthest neighbours, clip the others about the own vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation.base import Around, DistanceRule, check_tolerance
from bymi.aggregation.scclip import clipped, without_farthest
from bymi.core.inbox import Round


@dataclass(frozen=True)
class RTC(DistanceRule):
    """Remove the neighbours farthest from x_i while their weight in all is at most delta_i; of those left, S:

    tau_i = sqrt((1 / delta_i) sum_S W_ij |x_i - x_j|^2), x_i <- sum_S W_ij (x_i + clip(x_j - x_i, tau_i)) + (rest of the
    weight) x_i. delta_i = `share` of the neighbours' weight. Weights are those of the graph (published: max-degree weights),
    the centre is the own vector as sent. `clip_power`: 1 for the factor min(1, tau / |v|), 2 for min(1, tau^2 / |v|^2), as in
    some implementations; the paper's code is not public. The published method steps along a momentum: `momentum+rtc`.
    """

    share: float = 0.35
    clip_power: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tolerance(self.share, None)

    def choose(self, around: Around, round: Round) -> Tensor:
        near, delta = without_farthest(around, self.share)
        radius2 = (around.weight * near * around.dist2).sum(1, keepdim=True) / delta
        return around.weight * torch.where(near, clipped(around.dist2, radius2) ** self.clip_power, 0.0)
