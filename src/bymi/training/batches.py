"""Mini-batches: the samples that each node uses in each round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.streams import stream

_STEPS_AT_ONCE = 8  # steps per draw of mini-batches: affects time only, not the numbers


def draw_batches(
    pool: Tensor, sizes: Tensor | None, nodes: Tensor, batch: int | Literal["all"], seed: int, steps: range
) -> Iterator[tuple[int, Tensor]]:
    """Yield each step with one mini-batch per node [B, batch], drawn with replacement from its row of `pool` [B, P].

    `sizes` [B]: number of valid entries per row; None: all. `batch` "all": every sample once, for exact local gradients.
    """
    if batch == "all":
        require(sizes is None, "batch", batch, "a number, where nodes have different numbers of samples")
        yield from ((step, pool) for step in steps)
        return
    high = pool.shape[1] if sizes is None else sizes[:, None]
    whole_pool = torch.equal(pool, torch.arange(pool.shape[1], device=pool.device).expand_as(pool))
    for start in range(steps.start, steps.stop, _STEPS_AT_ONCE):
        chunk = range(start, min(start + _STEPS_AT_ONCE, steps.stop))
        step_column = torch.arange(chunk.start, chunk.stop, device=nodes.device)[:, None]
        positions = stream(seed, "batch", node=nodes, step=step_column, device=nodes.device).integers(high, batch)
        for step, row in zip(chunk, positions, strict=True):
            yield step, row if whole_pool else torch.gather(pool, 1, row)
