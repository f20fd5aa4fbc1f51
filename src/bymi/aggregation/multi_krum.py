"""Multi-Krum (Blanchard et al. 2017): the mean of the vectors with the best Krum scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi.aggregation.base import SetRule, check_tolerance, smallest
from bymi.aggregation.krum import scores


@dataclass(frozen=True)
class MultiKrum(SetRule):
    """Mean of the n - f vectors of N_i and i with the smallest Krum scores; f as for `Krum`."""

    share: float = 0.35
    f: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tolerance(self.share, self.f, below=0.5)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        score, assumed = scores(gram, valid, self.share, self.f)
        number = valid.sum(1, keepdim=True) - assumed
        return smallest(score, valid, number) / number
