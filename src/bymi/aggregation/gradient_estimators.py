"""Local gradients: what a node steps along, with what it remembers between rounds as explicit state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.named_parts import Checked, bounded
from bymi.core.random_streams import stream

Memory = dict[str, Tensor]
"""What nodes remember between rounds, by name, [B, ...] each. Estimators may change it in place."""

_LARGEST = 1 << 32  # bytes of a gradient table


@dataclass(frozen=True, eq=False)
class LocalSamples:
    """Access of B nodes to gradients on their own samples, in one round.

    `gradient(theta [b, D], nodes [b], chosen [b, s])` is the mean gradient over the chosen samples. `pool` [B, P]: indices of
    the samples of each node, of which the first `sizes` [B] are valid.
    """

    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
    nodes: Tensor  # [B]
    pool: Tensor
    sizes: Tensor | None
    seed: int
    step: int

    def blocks(self, batch: int) -> Tensor:
        """Number of blocks per node [B]: consecutive runs of `batch` samples, cyclically, until all are covered equally often.

        The mean over the blocks of a node is the mean over its samples, whatever their number.
        """
        count = self.pool.shape[1]
        sizes = [count] * len(self.nodes) if self.sizes is None else self.sizes.tolist()
        return torch.tensor([size // math.gcd(size, batch) for size in sizes], device=self.pool.device)

    def block(self, number: Tensor, batch: int) -> Tensor:
        """Samples [B, batch] of each node's block `number` [B]."""
        size = torch.full_like(number, self.pool.shape[1]) if self.sizes is None else self.sizes.to(number)
        place = (number[:, None] * batch + torch.arange(batch, device=number.device)) % size[:, None]
        return self.pool.gather(1, place)

    def block_gradients(self, theta: Tensor, counts: Tensor, batch: int, rows: Tensor) -> Iterator[Tensor]:
        """Gradients [b, D] of the nodes `rows` [b] on block 0, 1, ... of their `counts` [B]; zero for nodes that have fewer."""
        for number in range(int(counts[rows].max())):
            # Nodes with fewer blocks compute their last one again, which is not kept.
            block = self.block(torch.full_like(counts, number).minimum(counts - 1), batch)[rows]
            gradient = self.gradient(theta[rows], self.nodes[rows], block)
            yield torch.where((number < counts[rows])[:, None], gradient, torch.zeros_like(gradient))


class LocalGradient(Checked, ABC):
    """An estimate of each node's gradient [B, D], and what it remembers for the next round."""

    names: tuple[str, ...] = ()  # of its memory; tensors [B, ..., D] of the type of the parameters

    @abstractmethod
    def estimate(self, samples: LocalSamples, theta: Tensor, chosen: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Estimate at `theta` [B, D], `chosen` [B, s] being a mini-batch; an empty `memory` is that of the first round."""


@dataclass(frozen=True)
class MiniBatch(LocalGradient):
    """The mean gradient over a mini-batch."""

    def estimate(self, samples: LocalSamples, theta: Tensor, chosen: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return samples.gradient(theta, samples.nodes, chosen), memory


@dataclass(frozen=True)
class WithMomentum(LocalGradient):
    """m <- beta m + (1 - beta) g, from m = g in the first round; g is another estimate."""

    inner: LocalGradient
    beta: float

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.inner.names, "momentum")

    def estimate(self, samples: LocalSamples, theta: Tensor, chosen: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        gradient, after = self.inner.estimate(samples, theta, chosen, memory)
        if "momentum" in memory:
            gradient = self.beta * memory["momentum"] + (1 - self.beta) * gradient
        return gradient, {**after, "momentum": gradient}


@dataclass(frozen=True)
class SAGA(LocalGradient):
    """g = grad f_s(x) - table[s] + mean(table) for a random block s of samples, whose entry then is grad f_s(x).

    The first round fills the table and takes the full gradient. Memory: a gradient per block, so n / gcd(n, batch) times D
    numbers per node with n samples; more than 4 GiB in all are refused.
    """

    batch: int = bounded(32, ge=1)
    names = ("table", "table mean")

    def estimate(self, samples: LocalSamples, theta: Tensor, chosen: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        counts = samples.blocks(self.batch)
        if not memory:
            table = self._fill(samples, theta, counts)
            mean = table.sum(1) / counts.to(theta.dtype)[:, None]
            return mean, {"table": table, "table mean": mean}
        table, mean = memory["table"], memory["table mean"]
        drawn = stream(samples.seed, "saga", node=samples.nodes, step=samples.step, device=theta.device).integers(counts)
        gradient = samples.gradient(theta, samples.nodes, samples.block(drawn, self.batch))
        rows = torch.arange(len(theta), device=theta.device)
        change = gradient - table[rows, drawn]
        table[rows, drawn] = gradient
        return change + mean, {**memory, "table mean": mean + change / counts.to(theta.dtype)[:, None]}

    def _fill(self, samples: LocalSamples, theta: Tensor, counts: Tensor) -> Tensor:
        most = int(counts.max())
        size = len(theta) * most * theta.shape[1] * theta.element_size()
        allowed = f"at most {_LARGEST >> 30} GiB: a larger batch, fewer coordinates, or bravo-lsvrg, which has no table"
        require(size <= _LARGEST, "saga", f"a table of {size / 2**30:.1f} GiB", allowed)
        table = theta.new_zeros(len(theta), most, theta.shape[1])
        everybody = torch.arange(len(theta), device=theta.device)
        for number, gradient in enumerate(samples.block_gradients(theta, counts, self.batch, everybody)):
            table[:, number] = gradient
        return table


@dataclass(frozen=True)
class LSVRG(LocalGradient):
    """g = grad f_s(x) - grad f_s(z) + grad f(z) for a random block s of samples; z <- x with probability 1 / number of blocks.

    Memory: two vectors per node, z and its full gradient.
    """

    batch: int = bounded(32, ge=1)
    names = ("snapshot", "snapshot gradient")

    def estimate(self, samples: LocalSamples, theta: Tensor, chosen: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        counts = samples.blocks(self.batch)
        if not memory:
            full = self._full(samples, theta, counts, torch.arange(len(theta), device=theta.device))
            return full, {"snapshot": theta, "snapshot gradient": full}
        point, full = memory["snapshot"], memory["snapshot gradient"]
        draws = stream(samples.seed, "lsvrg", node=samples.nodes, step=samples.step, device=theta.device)
        words = draws.uniform(2)
        renewed = (words[:, 0] * counts < 1).nonzero().flatten()
        if len(renewed):
            point = point.index_copy(0, renewed, theta[renewed])
            full = full.index_copy(0, renewed, self._full(samples, theta, counts, renewed))
        chosen = samples.block((words[:, 1] * counts).long(), self.batch)
        change = samples.gradient(theta, samples.nodes, chosen) - samples.gradient(point, samples.nodes, chosen)
        return change + full, {"snapshot": point, "snapshot gradient": full}

    def _full(self, samples: LocalSamples, theta: Tensor, counts: Tensor, rows: Tensor) -> Tensor:
        """Full gradients [b, D] of the nodes `rows` [b], as means over their blocks."""
        total = torch.zeros_like(theta[rows])
        for gradient in samples.block_gradients(theta, counts, self.batch, rows):
            total += gradient
        return total / counts[rows].to(theta.dtype)[:, None]
