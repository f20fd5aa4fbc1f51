"""Base classes of attacks: where in the protocol an attack acts, what it knows, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.core.named_parts import Checked
from bymi.core.random_streams import Stream, stream
from bymi.core.topic import Part

Level = Literal["gradient", "training", "pair", "message", "tracker"]
"""gradient: gradients used in training and both detection halves; training: those of training alone, with true halves; pair:
detection halves alone; message: parameters, and directions of gradient tracking, as they are sent; tracker: tracker vectors as
they are sent.
"""

PARTS: dict[Level, frozenset[Part]] = {
    "gradient": frozenset({"training", "first half", "second half"}),
    "training": frozenset({"training"}),
    "pair": frozenset({"first half", "second half"}),
    "message": frozenset({"message"}),
    "tracker": frozenset({"tracker"}),
}


# When detections take place and how long steps are: public settings of a run, which attackers know.


@dataclass(frozen=True)
class Timetable:
    """Rounds before which a detection takes place, ascending, and the step size of every round of the run."""

    detections: tuple[int, ...]
    steps: tuple[float, ...]

    def window(self, step: int) -> int:
        """Number of the window that a round belongs to: window i follows detection i; -1 before the first detection."""
        return bisect_right(self.detections, step) - 1

    def is_late(self, step: int) -> bool:
        """Whether a round is in the second half of its window, by the sum of the step sizes."""
        number = self.window(step)
        start = self.detections[number] if number >= 0 else 0
        end = self.detections[number + 1] if number + 1 < len(self.detections) else len(self.steps)
        return 2 * (self._sums[step] - self._sums[start]) >= self._sums[end] - self._sums[start]

    @cached_property
    def _sums(self) -> list[float]:
        return list(accumulate(self.steps, initial=0.0))


@dataclass(frozen=True, eq=False)
class AttackContext:
    """What attackers know of a call beyond the vectors: the part of the protocol, and which nodes the vectors belong to."""

    part: Part
    honest: Tensor  # [h] node numbers
    own: Tensor  # [b] node numbers
    members: Tensor  # [M] bool: all attackers of the run, also those without a vector in this call
    seed: int = 0
    step: int = 0  # round
    timetable: Timetable | None = None  # None: unknown
    at_start: bool = False  # the vectors are gradients at the common start
    asker: int | None = None  # the only node that receives the vectors
    updates: Tensor | None = None  # [M, K D] update history of all nodes, K kinds of it; None before the first window
    first: Tensor | None = None  # [h, D] honest first halves for the same asker, when second halves are made

    @cached_property
    def lasting(self) -> Stream:
        """One key per attacker, the same in every round and half."""
        return stream(self.seed, "attack node", node=self.own, device=self.own.device)

    @property
    def paired(self) -> Stream:
        """One key per attacker and query, the same for both halves."""
        name = f"attack pair{' at the start' if self.at_start else ''}{'' if self.asker is None else f' for {self.asker}'}"
        return stream(self.seed, name, node=self.own, step=self.step, device=self.own.device)

    @property
    def ranks(self) -> Tensor:
        """Rank [b] of each of `own` among all attackers, from 0."""
        return (torch.cumsum(self.members, 0) - 1)[self.own]


class VectorAttack(Checked, ABC):
    """Omniscient attack: it knows every honest vector of the round [h, D] and what its own nodes would send [b, D].

    `shared` is one stream per run, common to all attackers; `fresh` has one key per attacker, new in each round and half.
    `level` says where the attack acts unless the adversary says otherwise, `sees` what it reads beyond its own nodes' vectors:
    with "mean" or "nothing", a single row, the mean of the honest ones, may be passed in their place.
    """

    level: ClassVar[Level] = "gradient"
    sees: ClassVar[Literal["all", "mean", "nothing"]] = "all"

    @property
    def reads_updates(self) -> bool:
        """Whether it uses `AttackContext.updates`, which have to be collected for it."""
        return False

    @abstractmethod
    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        """The vectors that the attackers use instead [b, D]."""

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        """The same, for attacks that depend on the context."""
        return self(honest, would_send, shared, fresh)


class RoleAttack(VectorAttack):
    """An attack with roles: what a node sends depends on its rank among the attackers and on the part of the protocol."""

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
    """Sends each honest receiver another message, the same from all attackers around that receiver."""

    level: ClassVar[Level] = "message"

    @property
    def tailored(self) -> bool:
        """Whether messages really differ by receiver: an attack may do so for some of its parameters only."""
        return True

    @abstractmethod
    def tailor(self, own: Tensor, within: Tensor, outside: Tensor, shared: Stream, others: Tensor | None = None) -> Tensor:
        """One message per receiver [h, D], from what the receivers hold [h, D].

        `within` [h, h]: mixing weights among them, zero without an arc; `outside` [h]: the weight that each gives to attackers,
        zero if there are none. With `others` [o, D] the weights are [h, o], on what these hold.
        """


def spread_of(vectors: Tensor) -> Tensor:
    """Root mean square distance of vectors [h, D] to their mean."""
    return (vectors - vectors.mean(0)).square().sum(1).mean().sqrt()


def directions(source: Stream, count: int, dim: int, like: Tensor) -> Tensor:
    """Random orthonormal vectors [*keys, count, dim]; beyond `dim` of them the rest are zero."""

    def draw(source: Stream) -> Tensor:
        basis: list[Tensor] = []
        for draw in source.normal(count, dim).unbind(-2):
            for other in basis:
                draw = draw - (draw * other).sum(-1, keepdim=True) * other
            length = torch.linalg.vector_norm(draw, dim=-1, keepdim=True)
            basis.append(torch.where(length > 1e-9, draw / length.clamp_min(1e-300), torch.zeros_like(draw)))
        return torch.stack(basis, -2)

    return source.once(("directions", count, dim), draw).to(like)


def is_finite_row(vectors: Tensor) -> Tensor:
    """Mask [R] of finite rows: an attacker ignores honest nodes that have diverged."""
    return torch.isfinite(vectors.sum(1, dtype=torch.float64))  # a finite sum has finite terms
