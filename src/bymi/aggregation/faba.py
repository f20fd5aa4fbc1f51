"""FABA (Xia et al. 2019), decentralised: drop the neighbours farthest from the neighbours' mean, then average with the own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import NeighbourhoodRule, Tolerant
from bymi.aggregation.ios import scissor
from bymi.core.inbox import Round
from bymi.core.neighbourhoods import Neighbourhoods


@dataclass(frozen=True)
class FABA(Tolerant, NeighbourhoodRule):
    """f times, drop the neighbour farthest from the mean of the neighbours left; then (h mean + x_i) / (h + 1), h of them left.

    f = ceil(`share` |N_i|), or `f`; at least two neighbours are kept: of two, neither is nearer to their mean. IOS is FABA with
    mixing weights and the own vector in the mean.
    """

    common: ClassVar[bool] = True

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        assert hood.own is not None
        neighbours = hood.neighbours
        heard = neighbours.sum(1)
        left = scissor(hood, neighbours.to(torch.float64), self.assumed(heard, heard - 2))
        left = left.scatter(1, hood.own, 1.0)
        return left / left.sum(1, keepdim=True)
