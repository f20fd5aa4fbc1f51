"""Suspensions: how many detections a flag lasts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.detection.detector import Verdict
from bymi.detection.reasons import REASONS, SEVERE


@dataclass(frozen=True, eq=False)
class Suspensions:
    """Remaining windows of suspension and number of severe flags, per neighbour [B, M].

    A mild flag, which an honest node may get by chance, ends at the next detection. A severe one lasts 4, 8, ... windows, up to
    `longest`: with shorter terms teams of attackers could take turns.
    """

    left: Tensor  # [B, M] int64: detections for which the node stays flagged
    strikes: Tensor  # [B, M] int64: severe flags, less clean detections
    longest: int = 16

    @property
    def suspended(self) -> Tensor:
        """Mask [B, M] of nodes that stay flagged at the next detection in any case."""
        return self.left > 0

    @staticmethod
    def blank(arcs: Tensor, longest: int) -> Suspensions:
        """Suspensions before the first detection: none."""
        nothing = torch.zeros(arcs.shape, dtype=torch.int64, device=arcs.device)
        return Suspensions(nothing, nothing, longest)

    def add(self, verdict: Verdict) -> tuple[Suspensions, Verdict]:
        """The suspensions after one more detection, and the verdict with suspended nodes flagged."""
        severe = torch.zeros_like(verdict.flagged)
        for name in SEVERE:
            severe |= verdict.reason == REASONS.index(name)
        # A clean detection removes one strike.
        clean = ~verdict.flagged & ~self.suspended
        strikes = (self.strikes + severe.to(torch.int64) - clean.to(torch.int64)).clamp_min(0)
        terms = (2 ** (1 + strikes.clamp_max(30))).clamp_max(self.longest)
        left = torch.where(severe, torch.maximum(terms, self.left), self.left)
        return Suspensions((left - 1).clamp_min(0), strikes, self.longest), verdict.keeping(left > 0)
