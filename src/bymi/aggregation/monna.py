"""MoNNA (Farhadkhani et al. 2023): the mean of the vectors nearest to the own one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi.aggregation.base import Around, DistanceRule, Tolerant, smallest
from bymi.core.inbox import Round


@dataclass(frozen=True)
class MoNNA(Tolerant, DistanceRule):
    """Mean of the own vector and the n - f - 1 messages nearest to it, of n vectors in all: nearest neighbour averaging.

    f = ceil(`share` |N_i|), or `f`; at least one message is used. Published with momentum: "momentum+monna:beta=0.99".
    """

    def choose(self, around: Around, round: Round) -> Tensor:
        heard = around.heard.sum(1, keepdim=True)
        number = heard - self.assumed(heard, heard - 1)
        return smallest(around.dist2, around.heard, number) / (number + 1)
