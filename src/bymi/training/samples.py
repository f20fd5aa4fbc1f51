"""Which samples a node uses: in warm-up, in detection, and in the mini-batch of each round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.core.errors import InputError, require
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import Stream, stream
from bymi.core.topic import FIRST_HALF, SECOND_HALF, Topic
from bymi.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class Split:
    """Sample numbers of each node: a warm-up set, and an identification set in two random halves of equal size."""

    warm_up: Tensor  # [B, N - n]
    first: Tensor  # [B, n / 2]
    second: Tensor  # [B, n / 2]
    sizes: Tensor | None = None  # [B] valid entries of each warm-up row; None: all

    @property
    def halves(self) -> dict[Topic, Tensor]:
        """The identification set by topic of the message that is made from it."""
        return {FIRST_HALF: self.first, SECOND_HALF: self.second}

    def again(self, nodes: Tensor, *, seed: int, step: int) -> Split:
        """The same sets with other random halves of the identification set, for a further detection before round `step`."""
        everything = torch.cat([self.first, self.second], 1)
        order = stream(seed, "halves again", node=nodes, step=step).permutation(everything.shape[1])
        first, second = torch.gather(everything, 1, order).split(self.first.shape[1], dim=1)
        return Split(self.warm_up, first, second, self.sizes)


def sizes_of(problem: Problem, nodes: Tensor) -> Tensor | None:
    """Numbers of samples [B] of these nodes; None where all nodes have `problem.samples`."""
    sizes = getattr(problem, "sizes", None)
    return None if sizes is None else sizes(nodes)


def all_samples(problem: Problem, nodes: Tensor) -> Split:
    """All samples of each node for warm-up, none for detection."""
    sizes = sizes_of(problem, nodes)
    most = problem.samples if sizes is None else int(sizes.max())
    everything = torch.arange(most, device=nodes.device).expand(len(nodes), -1)
    return Split(everything, everything[:, :0], everything[:, :0], sizes)


def split_samples(nodes: Tensor, *, samples: int, identification: int, seed: int, sizes: Tensor | None = None) -> Split:
    """Split `samples` at random: `identification` of them (rounded down to even) for detection, the rest for warm-up.

    The sets are disjoint, so that the models of the warm-up are independent of the halves. With `sizes` [B], nodes have these
    numbers of samples, and `samples` is the smallest of all nodes. Paper: eq:gradients.
    """
    half = identification // 2
    if half < 1 or 2 * half >= samples:
        raise InputError(
            f"identification: got {identification} of {samples} samples, need at least 2 and some left for warm-up"
        )
    order = _orders(stream(seed, "split", node=nodes), samples, sizes)
    left = None if sizes is None else sizes - 2 * half
    return Split(order[:, 2 * half :], order[:, :half], order[:, half : 2 * half], left)


def _orders(draws: Stream, samples: int, sizes: Tensor | None) -> Tensor:
    """A random order of each node's samples."""
    return draws.permutation(samples) if sizes is None else draws.permutations(sizes)


def fresh_halves(
    nodes: Tensor, *, samples: int, count: int, seed: int, step: int, sizes: Tensor | None = None
) -> dict[Topic, Tensor]:
    """`count` random samples of each node, drawn again for every step, as two halves [B, count / 2] by topic."""
    half = count // 2
    if half < 1 or count > samples:
        raise InputError(f"sample: got {count} of {samples} samples, need at least 2 and no more than there are")
    order = _orders(stream(seed, "fresh halves", node=nodes, step=step), samples, sizes)
    return {FIRST_HALF: order[:, :half], SECOND_HALF: order[:, half : 2 * half]}


# Mini-batches: the samples that each node uses in each round.


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
    for start in range(steps.start, steps.stop, LIMITS.drawn_rounds):
        chunk = range(start, min(start + LIMITS.drawn_rounds, steps.stop))
        step_column = torch.arange(chunk.start, chunk.stop, device=nodes.device)[:, None]
        positions = stream(seed, "batch", node=nodes, step=step_column, device=nodes.device).integers(high, batch)
        for step, row in zip(chunk, positions, strict=True):
            yield step, row if whole_pool else torch.gather(pool, 1, row)
