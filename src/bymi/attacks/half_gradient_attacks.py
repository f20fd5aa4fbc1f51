"""Attacks on the two halves of a detection: scores are products of the halves, so these attacks make the halves disagree.

s is the root mean square distance of the honest vectors to their mean c, in the half or round in question.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.attacks.base import AttackContext, RoleAttack, directions, spread_of
from bymi.core.errors import require
from bymi.core.random_streams import Stream


@dataclass(frozen=True)
class NegativeInjection(RoleAttack):
    """Some attackers send c + M v and c - M v as halves, M = strength s: their negative scores raise the threshold for all.

    A share `injectors` of the attackers does so, each in its own direction v. The others, and all of them in training, use own
    + body s u with one u per run.
    """

    injectors: float = 4 / 15
    strength: float = 10.0
    body: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.injectors <= 1, "injectors", self.injectors, "0 to 1")
        require(self.strength >= 0, "strength", self.strength, "0 or above")
        require(self.body >= 0, "body", self.body, "0 or above")

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        pushed = _push(honest, would_send, shared, self.body)
        if moment.part not in ("first half", "second half"):
            return pushed
        sign = 1.0 if moment.part == "first half" else -1.0
        own = directions(moment.lasting, 1, honest.shape[1], honest)[:, 0]
        injected = honest.mean(0) + sign * self.strength * spread_of(honest) * own
        injects = moment.ranks < round(self.injectors * int(moment.members.sum()))
        return torch.where(injects[:, None], injected, pushed)


@dataclass(frozen=True)
class Decorrelated(RoleAttack):
    """Halves c + strength s v and c + strength s w with v and w orthogonal: far out, yet with scores around zero.

    Each attacker has its own pair of directions. In training all use own + body s u with one u per run.
    """

    strength: float = 10.0
    body: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.strength >= 0, "strength", self.strength, "0 or above")
        require(self.body >= 0, "body", self.body, "0 or above")

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        if moment.part not in ("first half", "second half"):
            return _push(honest, would_send, shared, self.body)
        own = directions(moment.lasting, 2, honest.shape[1], honest)
        return honest.mean(0) + self.strength * spread_of(honest) * own[:, 0 if moment.part == "first half" else 1]


@dataclass(frozen=True)
class Decoy(RoleAttack):
    """One attacker sends halves c + size s v, so far out that a projector keeps nothing else; the others push across v.

    The others, and the decoy in training, use own + body s u with u orthogonal to v, both drawn once per run.
    """

    size: float = 1000.0
    body: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 0, "size", self.size, "0 or above")
        require(self.body >= 0, "body", self.body, "0 or above")

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        pair = directions(shared, 2, honest.shape[1], honest)
        spread = spread_of(honest)
        pushed = would_send + self.body * spread * pair[1]
        if moment.part not in ("first half", "second half"):
            return pushed
        return torch.where((moment.ranks == 0)[:, None], honest.mean(0) + self.size * spread * pair[0], pushed)


def _push(honest: Tensor, would_send: Tensor, shared: Stream, size: float) -> Tensor:
    """What the attackers would send, all moved by the same vector."""
    return would_send + size * spread_of(honest) * directions(shared, 1, honest.shape[1], honest)[0]
