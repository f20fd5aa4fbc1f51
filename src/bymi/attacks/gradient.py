"""Attacks on gradients: a node uses a wrong gradient in warm-up, in both detection halves and in optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from bymi.attacks.base import VectorAttack
from bymi.core.streams import Stream


@dataclass(frozen=True)
class GradientAttack(VectorAttack):
    """g = 0.5 mean(honest) + N(nu, std^2 I) with nu = 20 std z, z ~ N(0, I) drawn once per run and shared.

    std is the standard deviation of the honest gradients around their mean, over all entries, or per coordinate with
    `per_coordinate`. If nu were drawn again for each half, no score that compares halves could detect it.
    """

    keep: float = 0.5
    push: float = 20.0
    per_coordinate: bool = False

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        mean = honest.mean(0)
        variance = (honest - mean).square()
        spread = (variance.mean(0) if self.per_coordinate else variance.mean()).sqrt()
        direction = shared.once(("direction", honest.shape[1]), lambda run: run.normal(honest.shape[1])).to(honest)
        noise = fresh.normal(honest.shape[1]).to(honest)
        return self.keep * mean + spread * (self.push * direction + noise)


@dataclass(frozen=True)
class InnerProductManipulation(VectorAttack):
    """g = -a mean(honest), of the same half when halves are queried. Close to an optimum it is nearly invisible."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "mean"

    a: float = 1.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return (-self.a * honest.mean(0)).expand_as(would_send).clone()
