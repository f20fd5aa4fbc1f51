"""MDA, minimum diameter averaging (El Mhamdi et al. 2018): the mean of the closest n - f vectors. For small neighbourhoods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from bymi.aggregation.base import TIE, SetRule, Tolerant, first_least, squared_distances
from bymi.core.errors import require
from bymi.core.named_parts import bounded

_SUBSETS = 20_000  # subsets looked at per neighbourhood
_ENTRIES = 1 << 22  # distances gathered at a time


@dataclass(frozen=True)
class MDA(Tolerant, SetRule):
    """Mean of the n - f of the n vectors of N_i and i whose largest distance between two is least; of equals the closest.

    f = ceil(`share` |N_i|), or `f`, below n / 2. All subsets are looked at: neighbourhoods with more than 20,000 of them, such
    as 17 vectors with f = 6 or more, are refused.
    """

    share: float = bounded(0.35, ge=0, lt=0.5)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        count = valid.sum(1)
        kept = count - self.assumed(count - 1, (count - 1) // 2)
        dist2 = squared_distances(gram)
        weight = torch.zeros_like(valid, dtype=torch.float64)
        # Sets of one size at a time: their valid points are gathered first.
        for size, keep in {(int(n), int(k)) for n, k in zip(count, kept, strict=True)}:
            chosen = ((count == size) & (kept == keep)).nonzero().flatten()
            points = torch.argsort(~valid[chosen], dim=1, stable=True)[:, :size]
            within = dist2[chosen].gather(1, points[:, :, None].expand(-1, -1, dist2.shape[2]))
            within = within.gather(2, points[:, None, :].expand(-1, size, -1))
            best = _closest(within, _subsets(size, keep).to(valid.device))
            weight[chosen] = weight[chosen].scatter(1, points.gather(1, best), 1 / keep)
        return weight


@cache
def _subsets(size: int, keep: int) -> Tensor:
    """All subsets [s, keep] of 0..size-1."""
    number = math.comb(size, keep)
    allowed = f"a neighbourhood with at most {_SUBSETS:,} subsets: fewer neighbours, or a smaller f"
    require(number <= _SUBSETS, "mda", f"{size} vectors of which {keep} are kept", allowed)
    return torch.tensor(list(combinations(range(size), keep)))


def _closest(dist2: Tensor, subsets: Tensor) -> Tensor:
    """For each set, of the subsets [s, k] that of least diameter [b, k], from squared distances [b, n, n]."""
    diameters, sums = [], []
    for part in subsets.split(max(1, _ENTRIES // (len(dist2) * subsets.shape[1] ** 2))):
        block = dist2[:, part[:, :, None], part[:, None, :]].flatten(2)
        diameters.append(block.amax(2))
        sums.append(block.sum(2))
    diameter = torch.cat(diameters, 1)
    # Many subsets contain the two points that are farthest apart in the best one: of these the closest.
    equal = diameter <= diameter.amin(1, keepdim=True) * (1 + TIE)
    total = torch.cat(sums, 1).masked_fill(~equal, torch.inf)
    return subsets[first_least(total, TIE * total.amin(1, keepdim=True)).squeeze(1)]
