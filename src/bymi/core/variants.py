"""Senders with more than one message per topic: which further messages there are, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Variants:
    """Further messages: number c comes from `senders[c]` for those in `audience[:, c]`, who hear this one of it only."""

    senders: Tensor  # [C]
    audience: Tensor  # [M, C] bool

    @cached_property
    def receivers(self) -> Tensor:
        """The first receiver in the audience of each [C]."""
        return self.audience.to(torch.uint8).argmax(0)


@dataclass(frozen=True, eq=False)
class ListedVariants:
    """The same by lists: which of the further messages stands at each place, -1 for none."""

    senders: Tensor  # [C]
    receivers: Tensor  # [C] somebody in the audience of each
    at: Tensor  # [M, n]
