"""What the algorithm needs of a learning problem: losses and gradients of many nodes, each on its own samples."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
