"""Rollback: which nodes return to their parameters of one detection ago, since no rounds are left to recover."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.detector import Verdict
from bymi.detection.reasons import DEEDS, reason_code


def to_roll_back(verdict: Verdict, used: Tensor, share: float) -> Tensor:
    """Mask [B] of receivers that flag more than `share` of the nodes they used [B, M] for their updates.

    A share, not a number: the influence of Byzantine nodes grows with their weight, and one honest node flagged by chance is no
    reason.
    """
    codes = torch.tensor([reason_code(name) for name in DEEDS], dtype=verdict.reason.dtype, device=verdict.reason.device)
    deviating = used & torch.isin(verdict.reason, codes)
    return deviating.sum(1) > share * used.sum(1)
