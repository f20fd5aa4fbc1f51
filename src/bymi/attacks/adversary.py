"""The party behind all Byzantine nodes: who they are, what they lie about, and how they treat what they hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bymi.attacks.data import DataAttack
from bymi.attacks.gradient import VectorAttack, is_finite_row
from bymi.attacks.message import MessageAttack
from bymi.errors import require
from bymi.inbox import Inbox
from bymi.streams import stream

Attack = DataAttack | VectorAttack | MessageAttack
Mixing = Literal["plain", "none", "rule"]
Pruning = Literal["none", "all", "rule"]


@dataclass(frozen=True, eq=False)
class Adversary:
    """Serves as the `forge` of the algorithm and, through `tamper`, as the wire of its nodes.

    `mixing`: what its nodes keep after a round: the plain average of what they heard, their own vector, or the rule's
    output like everybody. `pruning`: which in-arcs they cut: none, all, or those the detector flagged.
    """

    members: Tensor  # [M] bool
    attack: Attack | None
    mixing: Mixing = "plain"
    pruning: Pruning = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.mixing in get_args(Mixing), "mixing", self.mixing, ", ".join(get_args(Mixing)))
        require(self.pruning in get_args(Pruning), "pruning", self.pruning, ", ".join(get_args(Pruning)))

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: str, step: int) -> Tensor:
        if not isinstance(self.attack, VectorAttack):
            return vectors
        under = self.members[nodes]
        mine, others = under.nonzero().flatten(), (~under).nonzero().flatten()
        if not len(mine):
            return vectors
        honest = vectors.index_select(0, others)
        sane = is_finite_row(honest)
        if not bool(sane.all()):
            honest = honest[sane]
        if not len(honest):
            return vectors
        device = vectors.device
        shared = stream(self.seed, "attack", device=device)
        fresh = stream(self.seed, f"attack {topic}", node=nodes[mine], step=step, device=device)
        return vectors.index_copy(0, mine, self.attack(honest, vectors.index_select(0, mine), shared, fresh))

    def keep(self, inbox: Inbox, mixed: Tensor, nodes: Tensor, *, averaged: bool = False) -> Tensor:
        if self.mixing == "rule" or (averaged and self.mixing == "plain"):
            return mixed
        mine = self.members[nodes].nonzero().flatten()
        ours = inbox.of(mine)
        kept = ours.own if self.mixing == "none" else ours.mix(ours.average())
        return mixed.index_copy(0, mine, kept)

    def asks(self, nodes: Tensor) -> Tensor:
        """Its nodes do not ask when they will not act on the answers."""
        return ~self.members[nodes] if self.pruning != "rule" else torch.ones_like(nodes, dtype=torch.bool)

    def prune(self, flagged: Tensor, nodes: Tensor) -> Tensor:
        if self.pruning == "rule":
            return flagged
        return torch.where(self.members[nodes][:, None], self.pruning == "all", flagged)

    def tamper(self, vectors: Tensor, senders: Tensor, topic: str, step: int) -> dict[int, Tensor | None]:
        if not isinstance(self.attack, MessageAttack):
            return {}
        return {row: self.attack(vectors[row]) for row in self.members[senders].nonzero().flatten().tolist()}
