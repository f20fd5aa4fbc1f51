"""BRIDGE (Fang, Yang, Bajwa 2022): screening of the neighbours' models, then a gradient step at the old model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import Order, OwnCoordinateRule, Tolerant
from bymi.aggregation.bulyan import Bulyan
from bymi.aggregation.krum import Krum
from bymi.aggregation.median import Median
from bymi.aggregation.trimmed_mean import trimmed
from bymi.core.inbox import Round
from bymi.core.linalg import ascending
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class BridgeT(Tolerant, OwnCoordinateRule):
    """BRIDGE-T: in each coordinate drop the b largest and b smallest neighbour values, average the others with the own value.

    b = ceil(`share` |N_i|), or `f`, at most |N_i| / 2: what then is left is the own value. The published code trims the own
    value as well; this is the paper's form.
    """

    order: ClassVar[Order] = "combine-then-adapt"
    share: float = bounded(0.35, ge=0, lt=0.5)

    def update(self, own: Tensor, messages: Tensor, heard: Tensor, round: Round) -> Tensor:
        ordered = ascending(torch.where(heard[:, :, None], messages, torch.inf), 1)
        count = heard.sum(1, keepdim=True)
        trim = self.assumed(count, count // 2)
        left = count - 2 * trim
        mean = trimmed(ordered, count, trim) if messages.shape[1] else own
        return torch.where(left > 0, (left * mean + own) / (left + 1), own)


@dataclass(frozen=True)
class BridgeM(Median):
    """BRIDGE-M: the median of each coordinate over N_i and i, before the gradient step."""

    order: ClassVar[Order] = "combine-then-adapt"


@dataclass(frozen=True)
class BridgeK(Krum):
    """BRIDGE-K: Krum over N_i and i, before the gradient step."""

    order: ClassVar[Order] = "combine-then-adapt"


@dataclass(frozen=True)
class BridgeB(Bulyan):
    """BRIDGE-B: Krum selects n - 2 b vectors of N_i and i one by one; then a trimmed mean without b values at either end."""

    order: ClassVar[Order] = "combine-then-adapt"

    def second_stage(self, ordered: Tensor, count: Tensor, assumed: Tensor) -> Tensor:
        return trimmed(ordered, count, assumed.minimum((count - 1) // 2))
