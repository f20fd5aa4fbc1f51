"""Krum (Blanchard et al. 2017): the vector whose nearest others are nearest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, Tolerant, others, smallest, squared_distances
from bymi.core.linalg import ascending
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class Krum(Tolerant, SetRule):
    """argmin_j sum of the n - f - 2 smallest |x_j - x_k|^2 over the n vectors of N_i and i; of equal ones the mean.

    f = ceil(`share` |N_i|), or `f`, cut to n - 3: the original asks for n >= 2 f + 3. With fewer than three vectors it is their
    mean. Scores of copies are zero but for rounding, so that of several groups of copies one may be taken. Libraries that take
    the n - f - 1 nearest are this rule with f - 1.
    """

    share: float = bounded(0.35, ge=0, lt=0.5)
    recorded: ClassVar[bool] = True

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        score, _ = self.scores(gram, valid)
        return smallest(score, valid, torch.ones_like(valid[:, :1], dtype=torch.int64))

    def scores(self, gram: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [b, n], infinite at padding, and the assumed number f [b, 1]."""
        count = valid.sum(1, keepdim=True)
        assumed = self.assumed(count - 1, count - 3)
        return nearest_sums(squared_distances(gram), valid, count - assumed - 2), assumed


def nearest_sums(dist2: Tensor, valid: Tensor, number: Tensor) -> Tensor:
    """Sum [b, n] of the `number` [b, 1] smallest squared distances [b, n, n] of each valid point to others; inf at padding."""
    ordered = ascending(dist2.masked_fill(~others(valid), torch.inf))
    within = torch.arange(valid.shape[1], device=valid.device) < number[:, :, None]
    return torch.where(within, ordered, 0.0).sum(2).masked_fill(~valid, torch.inf)
