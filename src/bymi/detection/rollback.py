"""Who goes back to where it stood one detection ago: what it heard since then cannot be healed any more."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.detector import Verdict
from bymi.detection.reasons import DEEDS, reason_code


def to_roll_back(verdict: Verdict, used: Tensor, share: float) -> Tensor:
    """Receivers [B] that flag more than `share` of those they listened to, `used` [B, M], for what these did.

    A share, not a number: what liars can do grows with their weight, and one good node flagged by bad luck is no reason.
    """
    codes = torch.tensor([reason_code(name) for name in DEEDS], dtype=verdict.why.dtype, device=verdict.why.device)
    liars = used & torch.isin(verdict.why, codes)
    return liars.sum(1) > share * used.sum(1)
