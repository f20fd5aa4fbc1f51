"""Attacks on the wire: a node holds one thing and sends another, or nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class MessageAttack(ABC):
    """What an attacker that holds `vector` [D] puts on the wire, under every topic; None is silence."""

    @abstractmethod
    def __call__(self, vector: Tensor) -> Tensor | None: ...


@dataclass(frozen=True)
class NaN(MessageAttack):
    """All entries NaN."""

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, torch.nan)


@dataclass(frozen=True)
class Inf(MessageAttack):
    """All entries plus infinity."""

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, torch.inf)


@dataclass(frozen=True)
class Huge(MessageAttack):
    """All entries `value`, finite and absurd."""

    value: float = 1e30

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, self.value)


@dataclass(frozen=True)
class Misshapen(MessageAttack):
    """One coordinate too many."""

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.cat([vector, vector[:1]])


@dataclass(frozen=True)
class Silent(MessageAttack):
    """Nothing is sent: a crashed node."""

    def __call__(self, vector: Tensor) -> None:
        return None
