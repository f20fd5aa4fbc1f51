"""Thresholds on scores. In the published one, negative scores estimate how many positive ones are false."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.core.linalg import ascending
from bymi.core.named_parts import Checked


class Threshold(Checked, ABC):
    """The smallest score at which a receiver flags a neighbour. To add one, write a class and list it in THRESHOLDS."""

    @abstractmethod
    def __call__(self, scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
        """Thresholds [B], float64, for rows of scores [B, n]; +inf flags none. `scored` [B, n] marks valid entries."""


@dataclass(frozen=True)
class PublishedThreshold(Threshold):
    """The data-driven threshold of the paper: see `threshold`. Paper: eq:thold."""

    def __call__(self, scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
        return threshold(scores, scored, fdr_level=fdr_level, offset=offset)


def threshold(scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
    """R = inf{r > 0: (offset + #{S <= -r}) / max(1, #{S >= r}) <= fdr_level} for each row of scores [B, n], as [B].

    The smallest |S| > 0 that qualifies, +inf if none does. `scored` [B, n] marks valid entries. Without ties and zeros the
    flagged set is that of the infimum; with them the infimum may flag scores of just its size, for which the ratio exceeds the
    level, ADR 0006. `offset` 0 is the paper's, 1 the knockoff+ variant, which controls the rate exactly under symmetry but
    flags at least 1 / fdr_level nodes or none. Paper: eq:thold.
    """
    size = scores.shape[1]
    if size == 0:
        return torch.full((len(scores),), torch.inf, dtype=torch.float64, device=scores.device)
    candidates = ascending(torch.where(scored, scores.abs(), 0.0))
    upward = ascending(torch.where(scored, scores, -torch.inf))
    downward = ascending(torch.where(scored, -scores, -torch.inf))
    positive = size - torch.searchsorted(upward, candidates)
    negative = size - torch.searchsorted(downward, candidates)
    qualifies = (candidates > 0) & ((offset + negative) / positive.clamp_min(1).to(torch.float64) <= fdr_level)
    lowest: Tensor = torch.where(qualifies, candidates, torch.inf).amin(1)
    return lowest
