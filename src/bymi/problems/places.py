"""Where the data of a node stand in a problem that has those of some nodes alone."""

from __future__ import annotations

import torch
from torch import Tensor


def places_of(numbers: Tensor) -> Tensor:
    """Place of each node among the `numbers` [M] of those that are there; of others one behind all, an index out of bounds.

    >>> places_of(torch.tensor([4, 1]))
    tensor([2, 1, 2, 2, 0])
    """
    count, device = len(numbers), numbers.device
    nobody = torch.full((1 + int(numbers.max()),), count, device=device)
    return nobody.index_copy(0, numbers, torch.arange(count, device=device))
