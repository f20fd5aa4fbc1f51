"""The interface of topologies, and the check of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bymi.core.errors import is_integer, require
from bymi.core.graph import Graph
from bymi.core.named_parts import Checked


class Topology(Checked, ABC):
    """A method to draw a graph of a given size."""

    @abstractmethod
    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        """A graph of `nodes` nodes. `must_connect` [M] bool marks a subset that must be connected on its own."""


def check_draw(nodes: int, seed: int, must_connect: Tensor | None) -> None:
    """Raise an InputError unless these are arguments of `draw`."""
    require(is_integer(nodes) and nodes >= 1, "nodes", nodes, "an integer, 1 or more")
    require(is_integer(seed), "seed", seed, "an integer")
    if must_connect is not None:
        mask = isinstance(must_connect, Tensor) and must_connect.dtype == torch.bool and must_connect.shape == (nodes,)
        require(mask, "must_connect", must_connect, f"a mask [{nodes}] of torch.bool, or None")
