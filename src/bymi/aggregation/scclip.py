"""Self-centred clipping, ClippedGossip (He, Karimireddy, Jaggi 2022): gossip of messages clipped about the own vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import Around, DistanceRule, ranks
from bymi.core.inbox import Round
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class SCCLIP(DistanceRule):
    """x_i <- sum_j W_ij (x_i + clip(x_j - x_i, tau_i)), clip(v, tau) = v min(1, tau / |v|).

    `tau` = None is the adaptive radius tau_i = sqrt((1 / delta_i) sum W_ij |x_i - x_j|^2) over the neighbours without the
    farthest of total weight delta_i = `share` of the neighbours' weight. Published constants: 1 and 0.1 (MNIST), 10 (CIFAR-10).
    The published method steps along a momentum of 0.9: `momentum+scclip`.
    """

    tau: float | None = bounded(None, ge=0)
    share: float = bounded(0.35, ge=0, lt=1)

    def choose(self, around: Around, round: Round) -> Tensor:
        if self.tau is None:
            _, radius2 = adaptive_radius(around, self.share)
        else:
            radius2 = torch.full_like(around.dist2[:, :1], self.tau**2)
        return around.weight * clipped(around.dist2, radius2)


def clipped(dist2: Tensor, radius2: Tensor) -> Tensor:
    """Factors min(1, tau / |v|) [b, n], from squares; 1 for a radius that is not a number: nothing to clip."""
    factor = (radius2 / torch.where(dist2 > 0, dist2, 1.0)).sqrt()
    return torch.where(dist2 > 0, factor.nan_to_num(1.0, posinf=1.0).clamp_max(1.0), 1.0)


def adaptive_radius(around: Around, share: float) -> tuple[Tensor, Tensor]:
    """Mask [b, n] of messages left when the farthest of total weight at most delta are removed, and tau^2 [b, 1] from these."""
    delta = share * around.weight.sum(1, keepdim=True)
    order = ranks(torch.where(around.heard, -around.dist2, torch.inf)).argsort(1)  # the farthest first
    removed = around.weight.gather(1, order).cumsum(1) <= delta * (1 + 1e-9)
    near = around.heard & ~torch.zeros_like(around.heard).scatter(1, order, removed)
    return near, (around.weight * near * around.dist2).sum(1, keepdim=True) / delta
