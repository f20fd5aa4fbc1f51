"""Index of each node's data in a problem that has those of some nodes only."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.errors import require


def check_numbers(name: str, numbers: object, count: int | None = None) -> None:
    """Raise InputError unless `numbers` is a tensor of distinct node numbers, `count` of them if given."""
    size = "nodes" if count is None else count
    fits = isinstance(numbers, Tensor) and numbers.ndim == 1 and numbers.dtype == torch.int64 and len(numbers) > 0
    if isinstance(numbers, Tensor) and fits:
        fits = count in (None, len(numbers)) and int(numbers.min()) >= 0 and len(numbers.unique()) == len(numbers)
    require(fits, name, numbers, f"node numbers from 0 up, each once: a tensor [{size}] of torch.int64")


def places_of(numbers: Tensor) -> Tensor:
    """Index of each node among `numbers` [M]; M, an index out of bounds, for nodes that are not there.

    >>> places_of(torch.tensor([4, 1]))
    tensor([2, 1, 2, 2, 0])
    """
    count, device = len(numbers), numbers.device
    missing = torch.full((1 + int(numbers.max()),), count, device=device)
    return missing.index_copy(0, numbers, torch.arange(count, device=device))
