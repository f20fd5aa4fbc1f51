"""A filter that needs no assumed share of Byzantine rows: the difference of the halves measures the noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.robust_statistics import median, uniform, variance, widest

_EMPTY = 1e-9  # share of a row's initial weight that counts as zero
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Centre:
    """A robust mean as weights of rows, with statistics of the filter."""

    weights: Tensor  # [b, n]
    filtered_weight: Tensor  # [b] share of all weight that was removed
    noise: Tensor  # [b, 1] largest variance of the noise
    stretched: Tensor  # [b] bool: a direction exceeded `edge` times that, before filtering


@dataclass(frozen=True)
class NoiseEdge:
    """A filter that removes weight from outlying rows until the largest variance is `edge` times that of noise.

    It removes a share `most` of all weight at most.
    """

    edge: float = 1.2
    most: float = 0.49

    def __post_init__(self) -> None:
        require(self.edge >= 1, "edge", self.edge, "1 or above")
        require(0 <= self.most < 0.5, "most", self.most, "0 <= most < 0.5")

    def noise(self, evidence: Evidence) -> Tensor:
        """Largest variance of the noise of one half [b, 1]: that of (x1 - x2) / sqrt 2, in which means cancel."""
        points = None if evidence.points is None else evidence.points[0] - evidence.points[1]
        products = evidence.difference if points is None else evidence.first  # not used where there are points
        return variance(products, points, uniform(evidence.valid)) / 2

    def weights(self, evidence: Evidence) -> Centre:
        """The robust mean as weights of rows, found on first halves."""
        kept = evidence.valid.to(torch.float64)
        points = None if evidence.points is None else evidence.points[0]
        total = kept.sum(1).clamp_min(1)
        noise = self.noise(evidence)
        bound = self.edge * noise.squeeze(1)
        active = torch.arange(len(kept), device=kept.device)
        stretched = torch.zeros_like(bound, dtype=torch.bool)
        for iteration in range(evidence.valid.shape[1]):
            weight = kept[active]
            share = weight / weight.sum(1, keepdim=True).clamp_min(_TINY)
            # Products are not used where there are points, and large: no copy.
            first = evidence.first[active] if points is None else evidence.first
            value, along = widest(first, None if points is None else points[active], share)
            value = value.squeeze(1)
            # From the median, not the mean: a large and far minority pulls the mean towards itself, and honest rows would
            # lose as much weight until `most` is reached.
            away = torch.where(share > 0, (along - median(along, share > 0)).square(), 0.0)
            room = weight.sum(1) - (1 - self.most) * total[active]
            filtering = (value > bound[active]) & (room > 1e-9 * total[active])
            if iteration == 0:
                stretched[active] = value > bound
            if not bool(filtering.any()):
                break
            active, weight, away, room = active[filtering], weight[filtering], away[filtering], room[filtering]
            # Divided by the peak first: exactly 1 there, so that the farthest row loses all of its weight.
            peak = away.amax(1, keepdim=True)
            loss = weight * (away / torch.where(peak > 0, peak, 1.0))
            part = (room / loss.sum(1).clamp_min(_TINY)).clamp_max(1.0)
            left = weight - part[:, None] * loss
            kept[active] = torch.where(left > _EMPTY, left, 0.0)
        weights = kept / kept.sum(1, keepdim=True).clamp_min(_TINY)
        return Centre(weights, 1 - kept.sum(1) / total, noise, stretched)
