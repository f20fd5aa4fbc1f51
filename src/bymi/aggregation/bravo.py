"""BRAVO (Peng, Li, Ling 2023): the sign method DRSA with variance-reduced gradients, for a constant step size."""

from __future__ import annotations

from dataclasses import dataclass

from bymi.aggregation.gradient_estimators import LSVRG, SAGA, LocalGradient
from bymi.aggregation.tv_norm import DRSA
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class BravoSAGA(DRSA):
    """BRAVO-SAGA: DRSA with SAGA gradients, on blocks of `batch` samples.

    Published: step 0.005, penalty 0.005. The published code fills its table with gradients of single samples and overwrites
    them with those of mini-batches, which is biased; here entries are of fixed blocks. Memory: see `SAGA`.
    """

    batch: int = bounded(32, ge=1)

    @property
    def local_gradient(self) -> LocalGradient:
        return SAGA(self.batch)


@dataclass(frozen=True)
class BravoLSVRG(DRSA):
    """BRAVO-LSVRG: DRSA with loopless SVRG gradients, on blocks of `batch` samples.

    Published: step 0.01, penalty 0.005. Memory: two vectors per node.
    """

    batch: int = bounded(32, ge=1)

    @property
    def local_gradient(self) -> LocalGradient:
        return LSVRG(self.batch)
