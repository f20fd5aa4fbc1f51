"""Multi-Krum (Blanchard et al. 2017): the mean of the vectors with the best Krum scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi.aggregation.base import smallest
from bymi.aggregation.krum import Krum


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Mean of the n - f vectors of N_i and i with the smallest Krum scores; f as for `Krum`."""

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        score, assumed = self.scores(gram, valid)
        number = valid.sum(1, keepdim=True) - assumed
        return smallest(score, valid, number) / number
