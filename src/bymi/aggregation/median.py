"""Coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule


@dataclass(frozen=True)
class Median(CoordinateRule):
    """Median of each coordinate over N_i and i, the mean of the middle two for an even number (Yin et al. 2018).

    No parameters; its error grows with the square root of the dimension.
    """

    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        return middle(ordered, count)


def middle(ordered: Tensor, count: Tensor) -> Tensor:
    """Median [b, c] of sorted values [b, n, c], of which the first `count` [b, 1] are valid."""
    low = ((count - 1) // 2)[:, :, None].expand(-1, -1, ordered.shape[2])
    high = (count // 2)[:, :, None].expand(-1, -1, ordered.shape[2])
    return ((torch.gather(ordered, 1, low) + torch.gather(ordered, 1, high)) / 2).squeeze(1)
