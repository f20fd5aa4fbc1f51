"""Another FDR threshold: Benjamini and Hochberg (1995) on p-values of a normal law. `threshold = "bh_threshold:Normal"`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.detection import Threshold


@dataclass(frozen=True)
class Normal(Threshold):
    """The smallest score whose p-value passes the step-up test; the spread of the scores is their median size."""

    def __call__(self, scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
        spread = torch.where(scored, scores.abs(), torch.nan).nanmedian(1, keepdim=True).values / 0.6745
        ordered = torch.where(scored, scores, -torch.inf).sort(1, descending=True).values
        rank = torch.arange(1, scores.shape[1] + 1, device=scores.device)
        passes = 1 - torch.special.ndtr(ordered / spread) <= fdr_level * rank / scored.sum(1, keepdim=True)
        return torch.where(passes & (ordered > 0), ordered, torch.inf).amin(1)
