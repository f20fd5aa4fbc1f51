"""Centred clipping (Karimireddy, He, Jaggi 2021): a mean whose terms are clipped about the current estimate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import NeighbourhoodRule, dist2_to_mean
from bymi.core.cuda_graphs import captured
from bymi.core.inbox import Round
from bymi.core.linalg import lower_median
from bymi.core.named_parts import bounded
from bymi.core.neighbourhoods import Neighbourhoods


@dataclass(frozen=True)
class CenteredClipping(NeighbourhoodRule):
    """v <- v + (1 / n) sum_j (x_j - v) min(1, tau / |x_j - v|) over N_i and i, `iterations` times from v = x_i.

    `tau` = None takes the median distance of the messages to x_i, so that the result does not depend on units; published radii
    are 10 to 100 for gradients, 0.1 and 0.3 for models. The published start is the previous output, which a node holds but for
    its last gradient step: x_i.
    """

    tau: float | None = bounded(None, ge=0)
    iterations: int = bounded(1, ge=1)

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        assert hood.gram is not None
        assert hood.own is not None
        return captured(self._weights, hood.gram, hood.valid, hood.own)

    def _weights(self, gram: Tensor, valid: Tensor, own: Tensor) -> Tensor:
        weight = torch.zeros_like(valid, dtype=torch.float64).scatter(1, own, 1.0)
        radius: Tensor | None = None
        for _ in range(self.iterations):
            distance = dist2_to_mean(weight, gram).sqrt()
            if radius is None:
                given = None if self.tau is None else torch.full_like(distance[:, 0], self.tau)
                radius = lower_median(distance, valid.scatter(1, own, False)).nan_to_num(0.0) if given is None else given
            factor = valid * (radius[:, None] / torch.where(distance > 0, distance, 1.0)).clamp_max(1.0)
            factor = torch.where(distance > 0, factor, valid.to(torch.float64)) / valid.sum(1, keepdim=True)
            weight = weight * (1 - factor.sum(1, keepdim=True)) + factor
        return weight
