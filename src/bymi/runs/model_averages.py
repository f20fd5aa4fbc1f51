"""Averages of models and distances between models: all that metrics need of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bymi.distributed.gathered_rounds import Models


class Average(NamedTuple):
    """Average over the nodes in `members`, with equal or given weights."""

    members: Tensor  # [M] bool
    weights: Tensor | None = None  # [M]

    def of(self, theta: Tensor) -> Tensor:
        rows = theta[self.members]
        return rows.mean(0) if self.weights is None else self.weights[self.members].to(rows.dtype) @ rows


def look(
    models: Models, averages: Sequence[Average], among: Tensor, about: Average | None = None
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Averages of models [D] each, distances of the nodes in `among` [M] to their mean, and a mean squared distance.

    The last is that of the members of `about` to their average. One pass over all blocks of coordinates. Collective.
    """
    by_average: list[list[Tensor]] = [[] for _ in averages]
    distances: Tensor | None = None
    squares: Tensor | None = None
    for block in models.blocks():
        for parts, average in zip(by_average, averages, strict=True):
            parts.append(average.of(block))
        rows = block[among]
        partial = torch.linalg.vector_norm(rows - rows.mean(0), dim=1)
        distances = partial if distances is None else torch.hypot(distances, partial)
        if about is not None:
            square = (block[about.members] - about.of(block)).square().sum(1, dtype=torch.float64).mean()
            squares = square if squares is None else squares + square
    assert distances is not None
    return [torch.cat(parts) for parts in by_average], distances, squares
