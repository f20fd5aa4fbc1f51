"""A rule that looks at vectors: the mean of the middle half of each coordinate. `rule = "middle_rule:Middle"`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi import CoordinateRule


@dataclass(frozen=True)
class Middle(CoordinateRule):
    """Mean of each coordinate over the own vector and all messages, without the `share` largest and smallest values."""

    share: float = 0.25

    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        place = torch.arange(ordered.shape[1], device=ordered.device)
        cut = torch.floor(self.share * count)
        inside = ((place >= cut) & (place < count - cut))[:, :, None]
        return torch.where(inside, ordered, 0.0).sum(1) / inside.sum(1)
