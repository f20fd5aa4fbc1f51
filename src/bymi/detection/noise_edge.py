"""A filter that needs no stated share of liars: the halves' difference says how much spread is noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import median
from bymi.detection.spectrum import uniform, variance, widest

_EMPTY = 1e-9  # of a row's first weight: with so little left it counts as gone
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Centre:
    """A robust mean as weights of rows, and what was seen on the way to it."""

    weights: Tensor  # [b, n]
    taken: Tensor  # [b] share of all weight that was taken
    noise: Tensor  # [b, 1] largest variance of noise alone
    stretched: Tensor  # [b] bool: some direction had more, before anything was taken


@dataclass(frozen=True)
class NoiseEdge:
    """Takes weight from what sticks out until the largest variance is `edge` times the noise's, or `most` is taken."""

    edge: float = 1.2
    most: float = 0.49

    def __post_init__(self) -> None:
        require(self.edge >= 1, "edge", self.edge, "1 or above")
        require(0 <= self.most < 0.5, "most", self.most, "0 <= most < 0.5")

    def noise(self, evidence: Evidence) -> Tensor:
        """Largest variance that noise alone gives one half [b, 1]: that of (x1 - x2) / sqrt 2, where all means cancel."""
        points = evidence.difference_points
        products = evidence.difference if points is None else evidence.first  # not looked at beside points
        return variance(products, points, uniform(evidence.valid)) / 2

    def weights(self, evidence: Evidence) -> Centre:
        """Weights of the rows, found on first halves."""
        kept = evidence.valid.to(torch.float64)
        points = None if evidence.points is None else evidence.points[0]
        total = kept.sum(1).clamp_min(1)
        noise = self.noise(evidence)
        bound = self.edge * noise.squeeze(1)
        active = torch.arange(len(kept), device=kept.device)
        stretched = torch.zeros_like(bound, dtype=torch.bool)
        for turn in range(evidence.valid.shape[1]):
            some = kept[active]
            share = some / some.sum(1, keepdim=True).clamp_min(_TINY)
            # Products are not looked at beside points, and large.
            first = evidence.first[active] if points is None else evidence.first
            value, along = widest(first, None if points is None else points[active], share)
            value = value.squeeze(1)
            # From the median, not the mean: a large and far minority drags the mean towards itself, and the good rows would
            # lose weight with it until nothing more may be taken.
            away = torch.where(share > 0, (along - median(along, share > 0)).square(), 0.0)
            room = some.sum(1) - (1 - self.most) * total[active]
            on = (value > bound[active]) & (room > 1e-9 * total[active])
            if turn == 0:
                stretched[active] = value > bound
            if not bool(on.any()):
                break
            active, some, away, room = active[on], some[on], away[on], room[on]
            # Divided by the peak first: exactly 1 there, so that the farthest row loses exactly all of its weight.
            peak = away.amax(1, keepdim=True)
            loss = some * (away / torch.where(peak > 0, peak, 1.0))
            part = (room / loss.sum(1).clamp_min(_TINY)).clamp_max(1.0)
            left = some - part[:, None] * loss
            kept[active] = torch.where(left > _EMPTY, left, 0.0)
        weights = kept / kept.sum(1, keepdim=True).clamp_min(_TINY)
        return Centre(weights, 1 - kept.sum(1) / total, noise, stretched)
