"""Coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, Tolerant, whole
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class TrMean(Tolerant, CoordinateRule):
    """Mean of each coordinate over N_i and i without the floor(share n) largest and smallest values, or the `f` ones.

    From Yin et al. (2018). Requires share < 1/2. Its error grows with the square root of the dimension, like the median's.
    """

    share: float = bounded(0.35, ge=0, lt=0.5)

    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        trim = torch.floor(whole(self.share, count)) if self.f is None else torch.full_like(count, self.f)
        return trimmed(ordered, count, trim.minimum((count - 1) // 2))


def trimmed(ordered: Tensor, count: Tensor, trim: Tensor) -> Tensor:
    """Mean [b, c] of sorted values [b, n, c], the first `count` [b, 1] valid, without `trim` [b, 1] at either end."""
    position = torch.arange(ordered.shape[1], device=ordered.device)[None, :]
    outside = ((position < trim) | (position >= count - trim))[:, :, None]
    return ordered.masked_fill(outside, 0.0).sum(1) / (count - 2 * trim)
