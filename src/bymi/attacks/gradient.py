"""Attacks on gradients: those that ignore other nodes, and those that use the honest mean and spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.attacks.base import VectorAttack
from bymi.core.errors import require
from bymi.core.linalg import VectorStack
from bymi.core.random_streams import Stream


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
        key = ("direction", honest.shape[1], honest.dtype)
        direction = shared.once(key, lambda run: run.normal(honest.shape[1]).to(honest))
        noise = fresh.normal(honest.shape[1]).to(honest)
        return self.keep * mean + spread * (self.push * direction + noise)


@dataclass(frozen=True)
class InnerProductManipulation(VectorAttack):
    """g = -a mean(honest), of the same half when halves are queried. Close to an optimum it is nearly invisible."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "mean"

    a: float = 1.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return (-self.a * honest.mean(0)).expand_as(would_send).clone()


# Attacks on gradients that need nothing of other nodes, or only their mean.


@dataclass(frozen=True)
class SignFlip(VectorAttack):
    """g = -scale own: the own gradient uphill, also called bit flip. Invisible where gradients are zero."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "nothing"

    scale: float = 1.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return -self.scale * would_send


@dataclass(frozen=True)
class Zero(VectorAttack):
    """g = 0: a node that has stopped learning and still sends."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "nothing"

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return torch.zeros_like(would_send)


@dataclass(frozen=True)
class SameValue(VectorAttack):
    """g = (value, ..., value)."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "nothing"

    value: float = 100.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return torch.full_like(would_send, self.value)


@dataclass(frozen=True)
class Gaussian(VectorAttack):
    """g = mean(honest) + N(0, sigma^2 I), new noise for each attacker, round and half: right on average."""

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "mean"

    sigma: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sigma >= 0, "sigma", self.sigma, "0 or above")

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return honest.mean(0) + self.sigma * fresh.normal(honest.shape[1]).to(honest)


# Attacks on gradients that hide inside the spread of the honest gradients; all attackers send the same.


_HALVINGS = 40  # bisections of the interval in which min-max searches its factor


@dataclass(frozen=True)
class ALIE(VectorAttack):
    """A little is enough: mean - z std of the honest gradients, coordinate by coordinate (Baruch et al. 2019).

    Default z: the largest at which a majority would still lie farther from the mean. With n nodes, f of them attackers and s =
    floor(n / 2 + 1) - f honest supporters needed, z = Phi^-1((n - f - s) / (n - f)).
    """

    z: float | None = None

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        factor = self._factor(len(honest), len(would_send)) if self.z is None else self.z
        return (honest.mean(0) - factor * honest.std(0, correction=0)).expand_as(would_send).clone()

    @staticmethod
    def _factor(honest: int, attackers: int) -> float:
        supporters = math.floor((honest + attackers) / 2 + 1) - attackers
        share = (honest - supporters) / honest
        # With very few honest nodes the formula leaves the open interval (0, 1).
        return NormalDist().inv_cdf(min(max(share, 1e-3), 1 - 1e-3))


@dataclass(frozen=True)
class MinMax(VectorAttack):
    """mean - gamma std with the largest gamma that is no farther from any honest gradient than two of these are apart.

    Shejwalkar and Houmansadr (2021): no test of distances can distinguish it from an honest outlier.
    """

    largest: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.largest > 0, "largest", self.largest, "above 0")

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        mean, spread = honest.mean(0), honest.std(0, correction=0)
        gram = VectorStack(honest).gram
        square = gram.diagonal()
        allowed = float((square[:, None] + square[None, :] - 2 * gram).max())
        # |x_j - mean + gamma s|^2 is a quadratic in gamma per node j: three numbers per node, no vectors in the search.
        away = honest.to(torch.float64) - mean.to(torch.float64)
        along, size = (away @ spread.to(torch.float64)).cpu().numpy(), float(spread.to(torch.float64).square().sum())
        base = away.square().sum(1).cpu().numpy()
        low, high = 0.0, self.largest
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            inside = bool((base + 2 * middle * along + middle**2 * size).max() <= allowed)
            low, high = (middle, high) if inside else (low, middle)
        return (mean - low * spread).expand_as(would_send).clone()


@dataclass(frozen=True)
class Mimic(VectorAttack):
    """Every attacker sends the gradient of one honest node: harmless where data are alike, and it outweighs the others."""

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        chosen = int(shared.integers(1 << 30, 1)) % len(honest)
        return honest[chosen].expand_as(would_send).clone()
