"""Attacks by a common small push: each attacker keeps the noise of its own data and moves with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.attacks.base import AttackContext, Level, RoleAttack, VectorAttack, directions, spread_of
from bymi.core.errors import require
from bymi.core.random_streams import Stream


@dataclass(frozen=True)
class Shift(VectorAttack):
    """g = own + size u with one unit vector u per run: not detectable below the noise of a gradient.

    `size` is absolute. Undetected, it moves the optimum by about the share of attackers times `size`.
    """

    sees: ClassVar[Literal["all", "mean", "nothing"]] = "nothing"

    size: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 0, "size", self.size, "0 or above")

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return would_send + self.size * directions(shared, 1, would_send.shape[1], would_send)[0]


@dataclass(frozen=True)
class TrainingShift(Shift):
    """Claims honest halves and trains with g = own + size u: tests of queried gradients alone do not detect it."""

    level: ClassVar[Level] = "training"
    size: float = 0.6


@dataclass(frozen=True)
class Steer(VectorAttack):
    """g = own + size s v along the direction v in which honest gradients spread most: it drags a filtered mean along.

    s is the root mean square distance of the honest gradients to their mean. Honest nodes on the other side look worse.
    """

    size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 0, "size", self.size, "0 or above")

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        push = self.size * spread_of(honest) * _widest(honest, shared).to(honest)
        return would_send + push


@dataclass(frozen=True)
class Victim(RoleAttack):
    """g = own + size s (unit vector from the mean to one honest node): makes that node look like an attacker.

    The victim is drawn once per run; in a call without it, the next honest node takes its place.
    """

    size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 0, "size", self.size, "0 or above")

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        candidates = (~moment.members).nonzero().flatten()
        drawn = candidates[shared.integers(len(candidates), 1)]
        chosen = ((moment.honest - drawn) % len(moment.members)).argmin()
        away = honest[chosen] - honest.mean(0)
        return would_send + self.size * spread_of(honest) * torch.nn.functional.normalize(away, dim=0)


def _widest(vectors: Tensor, shared: Stream) -> Tensor:
    """Unit eigenvector of the largest eigenvalue of the covariance, signed along a direction drawn once per run."""
    away = vectors.to(torch.float64) - vectors.mean(0).to(torch.float64)
    count, dim = away.shape
    if dim <= count:
        widest = torch.linalg.eigh(away.T @ away).eigenvectors[:, -1]
    else:
        # Fewer nodes than coordinates: the same vector from the smaller Gram matrix.
        widest = torch.nn.functional.normalize(torch.linalg.eigh(away @ away.T).eigenvectors[:, -1] @ away, dim=0)
    return torch.where(widest @ shared.normal(dim) < 0, -widest, widest)
