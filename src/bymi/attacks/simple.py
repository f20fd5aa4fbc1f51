"""Attacks on gradients that need nothing of other nodes, or only their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.attacks.base import VectorAttack
from bymi.core.errors import require
from bymi.core.streams import Stream


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
