"""MeaMed, mean around the median (Xie et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, Tolerant, first_least
from bymi.aggregation.median import middle
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class Meamed(Tolerant, CoordinateRule):
    """Mean of each coordinate over the n - f values of N_i and i nearest to their median.

    f = ceil(`share` |N_i|), or `f`, below n / 2.
    """

    share: float = bounded(0.35, ge=0, lt=0.5)

    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        number = count - self.assumed(count - 1, (count - 1) // 2)
        return mean_about(ordered, middle(ordered, count), count, number)


def mean_about(ordered: Tensor, centre: Tensor, count: Tensor, number: Tensor) -> Tensor:
    """Mean [b, c] of the `number` [b, 1] values nearest to `centre` [b, c], of sorted ones [b, n, c], the first `count` valid.

    They are consecutive: of all windows of that length, the one whose farther end is nearest.
    """
    places = torch.arange(ordered.shape[1], device=ordered.device)
    starts = places[: 1 + int((count - number).max())]
    first = ordered[:, : len(starts)]
    ends = (starts + number - 1)[:, :, None].expand_as(first)
    reach = torch.maximum(centre[:, None] - first, ordered.gather(1, ends.clamp_max(len(places) - 1)) - centre[:, None])
    reach = reach.masked_fill((starts + number > count)[:, :, None], torch.inf)
    rounding = 8 * torch.finfo(centre.dtype).eps * (centre.abs()[:, None] + reach.amin(1, keepdim=True))
    start = first_least(reach, rounding)
    chosen = (places[:, None] >= start) & (places[:, None] < start + number[:, :, None])
    return torch.where(chosen, ordered, torch.zeros_like(ordered)).sum(1) / number
