"""Equivocation: senders with several messages per topic, and the receivers of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Variants:
    """Further messages of equivocating senders: receivers `audience[:, c]` get variant c of `senders[c]` instead."""

    senders: Tensor  # [C]
    audience: Tensor  # [M, C] bool

    @cached_property
    def receivers(self) -> Tensor:
        """First receiver of each variant [C]."""
        return self.audience.to(torch.uint8).argmax(0)


@dataclass(frozen=True, eq=False)
class ListedVariants:
    """Variants over neighbour lists: `at` holds the variant at each place of a receiver's list, -1 for none."""

    senders: Tensor  # [C]
    receivers: Tensor  # [C] one receiver of each variant
    at: Tensor  # [M, n]
