"""The plain mean of a neighbourhood, with equal weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.core.neighbourhoods import Need, Neighbourhoods


@dataclass(frozen=True)
class Mean(SetRule):
    """(1 / n) sum of N_i and i. Not robust: one Byzantine node moves it anywhere. For comparison, and clean networks."""

    need: ClassVar[Need] = "nothing"

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        return valid / valid.sum(1, keepdim=True, dtype=torch.float64)

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        return hood.valid / hood.valid.sum(1, keepdim=True, dtype=torch.float64)
