"""How long a flag lasts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.detection.detector import Verdict
from bymi.detection.reasons import REASONS, SEVERE


@dataclass(frozen=True, eq=False)
class Suspensions:
    """Of every neighbour [B, M]: for how many detections more it stays flagged, and how often it was severely flagged.

    A mild flag, which a good node may get by bad luck, is forgotten at the next detection. A severe one lasts 2, 4, 8, ...
    windows, up to `longest`.
    """

    left: Tensor  # [B, M] int64
    strikes: Tensor  # [B, M] int64
    longest: int = 16

    @property
    def suspended(self) -> Tensor:
        """Who is flagged whatever the next detection says [B, M]."""
        return self.left > 0

    @staticmethod
    def blank(arcs: Tensor, longest: int) -> Suspensions:
        nothing = torch.zeros(arcs.shape, dtype=torch.int64, device=arcs.device)
        return Suspensions(nothing, nothing, longest)

    def add(self, verdict: Verdict) -> tuple[Suspensions, Verdict]:
        """The record after one more detection, and the verdict with those who still serve time."""
        severe = torch.zeros_like(verdict.flagged)
        for name in SEVERE:
            severe |= verdict.why == REASONS.index(name)
        # One clean detection takes one strike back.
        clean = ~verdict.flagged & ~self.suspended
        strikes = (self.strikes + severe.to(torch.int64) - clean.to(torch.int64)).clamp_min(0)
        terms = (2 ** strikes.clamp_max(30)).clamp_max(self.longest)
        left = torch.where(severe, torch.maximum(terms, self.left), self.left)
        return Suspensions((left - 1).clamp_min(0), strikes, self.longest), verdict.keeping(left > 0)
