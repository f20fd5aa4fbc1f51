"""The plain mean of a neighbourhood, everybody alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.vectors import Rows


@dataclass(frozen=True)
class Mean(SetRule):
    """(1 / n) sum of N_i and i. Not robust: one liar moves it anywhere. For comparison, and for clean neighbourhoods."""

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        return valid / valid.sum(1, keepdim=True, dtype=torch.float64)

    def weights_of(self, rows: Rows, at: Tensor, valid: Tensor) -> Tensor:
        return valid / valid.sum(1, keepdim=True, dtype=torch.float64)

    def coefficients(self, rows: Rows, member: Tensor) -> Tensor:
        return member / member.sum(1, keepdim=True, dtype=torch.float64)
