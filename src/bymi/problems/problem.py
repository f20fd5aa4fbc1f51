"""What the algorithm needs of a learning problem: losses and gradients of many nodes, each on its own samples."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bymi.core.errors import require


class Problem(Protocol):
    """One model, many nodes, each with `samples` local samples or more.

    `nodes` [B] are node numbers; `chosen` [B, s] are sample numbers of each of these nodes. Where nodes have different numbers
    of samples, `samples` is the smallest, an attribute `largest` the largest, and `sizes(nodes)` [B] those of some nodes.
    """

    @property
    def dim(self) -> int: ...

    @property
    def samples(self) -> int: ...

    def initial(self, nodes: Tensor) -> Tensor:
        """Starting point of each node [B, D]; the same model everywhere unless the problem says otherwise."""
        ...

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        """Mean gradient [B, D] of each node's loss at its own row of theta [B, D] over its chosen samples."""
        ...

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        """Mean losses [B, R] of vectors [R, D] on each node's chosen samples where wanted [B, R], +inf elsewhere."""
        ...


# Index of each node's data in a problem that has those of some nodes only.


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
