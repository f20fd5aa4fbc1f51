"""A gradient attack: the honest mean plus a constant. `attack = "push_attack:Push:size=2.0"`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi import Stream
from bymi.attacks import VectorAttack


@dataclass(frozen=True)
class Push(VectorAttack):
    """Byzantine nodes [b] use the mean of the honest gradients [h, D], shifted by `size` in every coordinate."""

    size: float = 2.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream) -> Tensor:
        return (honest.mean(0) + self.size).expand_as(would_send)
