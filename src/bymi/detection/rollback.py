"""Rollback: which nodes return to earlier parameters, since no rounds are left to recover, and to which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.detection.verdict import DEEDS, Verdict, reason_code

KEPT = 4
"""States that a node keeps for a rollback."""


def to_roll_back(verdict: Verdict, used: Tensor, share: float) -> Tensor:
    """Mask [B] of receivers that flag more than `share` of the nodes they used [B, M] for their updates.

    A share, not a number: the influence of Byzantine nodes grows with their weight, and one honest node flagged by chance is no
    reason.
    """
    codes = torch.tensor([reason_code(name) for name in DEEDS], dtype=verdict.reason.dtype, device=verdict.reason.device)
    deviating = used & torch.isin(verdict.reason, codes)
    return deviating.sum(1) > share * used.sum(1)


@dataclass(frozen=True, eq=False)
class KeptStates:
    """Parameters after the last detections, oldest first, and the length of the mean gradient that was claimed there."""

    theta: Tensor  # [B, k, D]
    mean_claim: Tensor  # [B, k]

    @staticmethod
    def blank(theta: Tensor) -> KeptStates:
        """None, before the first detection of nodes at theta [B, D]."""
        return KeptStates(theta[:, None][:, :0], theta.new_zeros(len(theta), 0, dtype=torch.float64))

    def add(self, theta: Tensor, mean_claim: Tensor, most: int = KEPT) -> KeptStates:
        """With one more state, theta [B, D] and mean_claim [B], and the last `most` of all."""
        states = torch.cat([self.theta, theta[:, None]], 1), torch.cat([self.mean_claim, mean_claim[:, None]], 1)
        return KeptStates(*(part[:, -most:] for part in states))

    @property
    def best(self) -> Tensor:
        """The state of each node with the shortest mean claim [B, D].

        Not simply the last one: attackers found in one window may have poisoned the state after it.
        """
        length = torch.where(torch.isfinite(self.mean_claim), self.mean_claim, torch.inf)
        # Of equal ones the latest.
        index = self.theta.shape[1] - 1 - length.flip(1).argmin(1)
        return self.theta[torch.arange(len(index), device=index.device), index]
