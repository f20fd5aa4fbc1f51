"""Attacks on the tracker of mixing weights, which sets the length of every local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from bymi.attacks.base import AttackContext, Level, RoleAttack
from bymi.core.errors import require
from bymi.core.random_streams import Stream

_Kind = Literal["invalid", "unit"]


@dataclass(frozen=True)
class TrackerPoison(RoleAttack):
    """Sends a wrong tracker: size times a random vector ("invalid", outside of [0, 1]) or always e_b ("unit", valid).

    The random vector of an attacker is the same in every round, so that premixing still converges.
    """

    level: ClassVar[Level] = "tracker"
    kind: Literal["invalid", "unit"] = "invalid"
    size: float = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kind in get_args(_Kind), "kind", self.kind, ", ".join(get_args(_Kind)))

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        if self.kind == "invalid":
            return self.size * moment.lasting.normal(would_send.shape[1]).to(would_send)
        return torch.nn.functional.one_hot(moment.own, would_send.shape[1]).to(would_send)
