"""What an attack on vectors is: alike for all receivers, with roles among the attackers, or one message a receiver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.attacks.levels import Level
from bymi.core.named_parts import Checked
from bymi.core.streams import Stream, stream
from bymi.core.topic import Part


@dataclass(frozen=True, eq=False)
class AttackContext:
    """What attackers know of a call beyond the vectors: the part of the protocol, and whose the vectors are."""

    part: Part
    honest: Tensor  # [h] node numbers
    own: Tensor  # [b] node numbers
    members: Tensor  # [M] bool: all attackers of the run, also those that have no say in this call
    seed: int = 0

    @cached_property
    def lasting(self) -> Stream:
        """One key an attacker, the same in every round and half."""
        return stream(self.seed, "attack node", node=self.own, device=self.own.device)

    @property
    def ranks(self) -> Tensor:
        """Which of all attackers each of `own` is [b], from 0."""
        return (torch.cumsum(self.members, 0) - 1)[self.own]


class VectorAttack(Checked, ABC):
    """Omniscient: sees every honest vector of the round [h, D] and what its own nodes would send [b, D].

    `shared` is one stream a run, common to all attackers; `fresh` has one key an attacker, new each round and each half.
    `level` says where the attack acts unless the adversary says otherwise, `sees` what it looks at beyond its own nodes'
    vectors: with "mean" or "nothing", one row that is the mean of the honest ones serves as well as all of them.
    """

    level: ClassVar[Level] = "gradient"
    sees: ClassVar[Literal["all", "mean", "nothing"]] = "all"

    @abstractmethod
    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        """The vectors that the attackers use instead [b, D]."""

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        """The same, for attacks to which the moment matters."""
        return self(honest, would_send, shared, fresh)


class RoleAttack(VectorAttack):
    """An attack with roles: what a node sends depends on who it is and on the part of the protocol."""

    @abstractmethod
    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor: ...

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        """As in training, with honest nodes 0, 1, ... and attackers after them."""
        count, device = len(honest), honest.device
        numbers = torch.arange(count + len(would_send), device=device)
        return self.act(
            honest, would_send, shared, fresh, AttackContext("training", numbers[:count], numbers[count:], numbers >= count)
        )


class PerReceiver(Checked, ABC):
    """Tells every honest receiver something else, and all attackers around one receiver tell it the same."""

    level: ClassVar[Level] = "message"

    @property
    def tailored(self) -> bool:
        """Whether messages really differ: an attack may do so with some of its parameters only."""
        return True

    @abstractmethod
    def tailor(self, own: Tensor, within: Tensor, outside: Tensor, shared: Stream, others: Tensor | None = None) -> Tensor:
        """One message a receiver [h, D], from what the receivers hold [h, D].

        `within` [h, h] are the mixing weights among them, zero without an arc, and `outside` [h] the weight that each gives
        to attackers, zero where there are none. With `others` [o, D] weights are [h, o], on what these hold.
        """


def spread_of(vectors: Tensor) -> Tensor:
    """Root mean square distance of vectors [h, D] to their mean."""
    return (vectors - vectors.mean(0)).square().sum(1).mean().sqrt()


def directions(source: Stream, count: int, dim: int, like: Tensor) -> Tensor:
    """Random unit vectors at right angles to each other [*keys, count, dim]; with more than `dim` of them some are zero."""

    def draw(source: Stream) -> Tensor:
        found: list[Tensor] = []
        for draw in source.normal(count, dim).unbind(-2):
            for other in found:
                draw = draw - (draw * other).sum(-1, keepdim=True) * other
            length = torch.linalg.vector_norm(draw, dim=-1, keepdim=True)
            found.append(torch.where(length > 1e-9, draw / length.clamp_min(1e-300), torch.zeros_like(draw)))
        return torch.stack(found, -2)

    return source.once(("directions", count, dim), draw).to(like)


def is_finite_row(vectors: Tensor) -> Tensor:
    """Which rows hold numbers only [R]: an attacker does not learn from honest nodes that have diverged."""
    return torch.isfinite(vectors).all(1)
