"""ByRDiE (Yang and Bajwa 2019): coordinate descent with a trimmed mean of the neighbours' values. For few coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.bridge import BridgeT
from bymi.core.errors import require
from bymi.core.inbox import Inbox, Round
from bymi.core.named_parts import bounded

_COORDINATES = 1000


@dataclass(frozen=True)
class ByRDiE(BridgeT):
    """One coordinate per round, in turn, `inner` rounds each: [x_i]_p <- trimmed mean of neighbours and own - eta [g_i]_p.

    Trimming as in BRIDGE-T; all other coordinates stay. D rounds update each coordinate once, with a gradient at the current
    point, so models with more than 1,000 coordinates are refused.
    """

    inner: int = bounded(1, ge=1)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        allowed = f"at most {_COORDINATES:,}: it updates one of them per round"
        require(inbox.dim <= _COORDINATES, "byrdie", f"{inbox.dim:,} coordinates", allowed)
        return torch.where(self._turn(inbox.own, round), super().combine(inbox, round), inbox.own)

    def descent(self, gradient: Tensor, round: Round) -> Tensor:
        return torch.where(self._turn(gradient, round), gradient, torch.zeros_like(gradient))

    def _turn(self, vectors: Tensor, round: Round) -> Tensor:
        """Mask [D] of the coordinate whose turn it is."""
        numbers = torch.arange(vectors.shape[1], device=vectors.device)
        return numbers == round.step // self.inner % vectors.shape[1]
