"""MoNNA (Farhadkhani et al. 2023): the mean of the vectors nearest to the own one, with momentum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi.aggregation.base import Around, DistanceRule, check_tolerance, smallest, tolerated
from bymi.core.inbox import Round


@dataclass(frozen=True)
class MoNNA(DistanceRule):
    """Mean of the own vector and the n - f - 1 messages nearest to it, of n vectors in all: nearest neighbour averaging.

    f = ceil(`share` |N_i|), or `f`; at least one message is used.
    """

    share: float = 0.35
    f: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tolerance(self.share, self.f)

    def choose(self, around: Around, round: Round) -> Tensor:
        heard = around.heard.sum(1, keepdim=True)
        number = heard - tolerated(self.share, self.f, heard, heard - 1)
        return smallest(around.dist2, around.heard, number) / (number + 1)
