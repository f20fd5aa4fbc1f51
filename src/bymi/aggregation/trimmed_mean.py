"""Coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, whole
from bymi.core.errors import require


@dataclass(frozen=True)
class TrMean(CoordinateRule):
    """Mean of each coordinate over N_i and i without the floor(share n) largest and smallest values.

    Requires share < 1/2. Its error grows with the square root of the dimension, like the median's.
    """

    share: float = 0.35

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.share < 0.5, "share", self.share, "0 <= share < 0.5")

    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        trim = torch.floor(whole(self.share, count)).minimum((count - 1) // 2)
        position = torch.arange(ordered.shape[1], device=ordered.device)[None, :]
        inside = ((position >= trim) & (position < count - trim))[:, :, None]
        kept = torch.where(inside, ordered, torch.zeros_like(ordered))
        return kept.sum(1) / (count - 2 * trim)
