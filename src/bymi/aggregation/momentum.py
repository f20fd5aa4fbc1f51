"""Local momentum, as a wrapper of any rule."""

from __future__ import annotations

from dataclasses import dataclass

from bymi.aggregation.gradient_estimators import LocalGradient, WithMomentum
from bymi.aggregation.wrapper import Points, Wrapper
from bymi.core.inbox import Round
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class Momentum(Wrapper):
    """Nodes step along m <- beta m + (1 - beta) g, which starts at the first gradient. Vectors are left as they are.

    Published: 0.9 for SCCLIP and RTC, 0.99 for MoNNA.
    """

    beta: float = bounded(0.9, ge=0, lt=1)

    def apply(self, points: Points, round: Round) -> Points:
        return points

    def around(self, inner: LocalGradient) -> LocalGradient:
        """The estimate with this momentum."""
        return WithMomentum(inner, self.beta)
