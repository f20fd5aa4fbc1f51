"""Ways to partition the samples of a labelled set among nodes. To add one: write it and list it in PARTITIONS."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.named_parts import Checked, Table, bounded
from bymi.core.random_streams import stream


def apportion(weights: Tensor, totals: Tensor) -> Tensor:
    """Integers in proportion to `weights` [R, C] whose rows sum to `totals` [R] (largest remainders).

    Weights are non-negative integers with a positive sum in each row; the arithmetic is exact. No result exceeds its weight
    where the total does not exceed the sum of the weights.

    >>> apportion(torch.tensor([[5, 3, 1]]), torch.tensor([4]))
    tensor([[2, 1, 1]])
    """
    exact = weights * totals[:, None]
    sums = weights.sum(1, keepdim=True)
    whole = exact // sums
    rank = torch.argsort(torch.argsort(exact % sums, dim=1, descending=True, stable=True), dim=1)
    return whole + (rank < (totals - whole.sum(1))[:, None])


def deal(labels: Tensor, counts: Tensor, *, seed: int) -> Tensor:
    """Random distinct sample numbers [M, n], `counts[m, c]` of label c for node m, in order of the labels.

    `labels` [N] are 0..C-1, the rows of `counts` [M, C] have the same sum n, and no column exceeds the number of samples of its
    label.
    """
    nodes, device = len(counts), labels.device
    shuffled = stream(seed, "deal", device=device).permutation(len(labels))
    by_label = shuffled[torch.argsort(labels[shuffled], stable=True)]
    available = torch.bincount(labels, minlength=counts.shape[1])
    # One owner per sample of the pool in order of the labels; the last owner, `nodes`, stands for unused samples.
    owners = torch.cat([counts, (available - counts.sum(0))[None]])
    owner = torch.arange(nodes + 1, device=device).repeat(counts.shape[1]).repeat_interleave(owners.T.reshape(-1))
    return by_label[torch.argsort(owner, stable=True)][: int(counts.sum())].reshape(nodes, -1)


class Partition(Checked, ABC):
    """Gives each node the same number of samples, and no sample to two nodes."""

    def split(self, labels: Tensor, nodes: int, *, samples: int | None = None, seed: int) -> Tensor:
        """Sample numbers [M, n] of the nodes, each row in random order; n is `samples`, or all that equal sizes allow.

        `labels` [N] are any integers.
        """
        require(labels.dim() == 1 and len(labels) > 0, "labels", tuple(labels.shape), "the shape (N,) with N of 1 or more")
        classes = (
            "integers, since partitions go by class; targets of other kinds: a pair of tensors per node instead of a Dataset"
        )
        require(not labels.is_floating_point(), "labels", labels.dtype, classes)
        require(1 <= nodes <= len(labels), "nodes", nodes, f"1 to {len(labels)}, the number of samples")
        size = self._size(len(labels), nodes) if samples is None else samples
        require(1 <= size <= len(labels) // nodes, "samples", size, f"1 to {len(labels) // nodes} for {nodes} nodes")
        ordered = torch.unique(labels, return_inverse=True)[1]
        rows = self.rows(ordered, nodes, size, seed)
        all_nodes = torch.arange(nodes, device=labels.device)
        shuffle = stream(seed, "partition-order", node=all_nodes, device=labels.device).permutation(size)
        return rows.gather(1, shuffle)

    def _size(self, total: int, nodes: int) -> int:
        return total // nodes

    @abstractmethod
    def rows(self, labels: Tensor, nodes: int, size: int, seed: int) -> Tensor:
        """Sample numbers [M, n] for labels [N] in 0..C-1 that all occur; the order within a row does not matter."""


@dataclass(frozen=True)
class Stratified(Partition):
    """Every node has the label proportions of the whole set: of each label, any two nodes' counts differ by at most 1."""

    def rows(self, labels: Tensor, nodes: int, size: int, seed: int) -> Tensor:
        used = apportion(torch.bincount(labels)[None], torch.tensor([nodes * size], device=labels.device))[0]
        # The used samples in order of the labels are dealt in turn: node m gets positions m, m + M, m + 2M, ...
        ends = used.cumsum(0)
        node = stream(seed, "stratified", device=labels.device).permutation(nodes)[:, None]
        counts = (ends - node + nodes - 1) // nodes - (ends - used - node + nodes - 1) // nodes
        return deal(labels, counts, seed=seed)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each node's label proportions are a draw from the symmetric Dirichlet(`dirichlet_alpha`), rounded to whole samples.

    Small alpha: a node has few labels; large alpha: all in equal parts. Samples are drawn without replacement. Where a label is
    requested more often than it occurs, all requests for it are reduced in proportion, and filled up from the remaining labels
    in proportion to the node's own draw. So the draws are met exactly only while every label suffices: use `samples` well below
    N / M to stay close to them. With all samples given out, the counts over nodes are those of the whole set.
    """

    dirichlet_alpha: float = bounded(0.5, gt=0, le=1e300)

    def rows(self, labels: Tensor, nodes: int, size: int, seed: int) -> Tensor:
        left = torch.bincount(labels)
        wanted = self._proportions(nodes, len(left), seed).to(left.device)
        counts = torch.zeros_like(wanted)
        while bool((need := size - counts.sum(1)).any()):
            weights = wanted * (left > 0)
            # A node that wants none of the remaining labels takes of all of them.
            asked = apportion(torch.where(weights.sum(1, keepdim=True) > 0, weights, left), need)
            scarce = asked.sum(0) > left  # each pass but the last exhausts at least one label
            if bool(scarce.any()):
                asked[:, scarce] = apportion(asked[:, scarce].T, left[scarce]).T
            counts, left = counts + asked, left - asked.sum(0)
        return deal(labels, counts, seed=seed)

    def _proportions(self, nodes: int, labels: int, seed: int) -> Tensor:
        """[M, C] integers in proportion to the draws. A node's draw does not depend on the number of nodes."""
        words = stream(seed, "dirichlet", node=torch.arange(nodes)).bits(4).numpy().view(np.uint64)
        alphas = np.full(labels, self.dirichlet_alpha)
        draws = np.stack([np.random.Generator(np.random.PCG64(word.tolist())).dirichlet(alphas) for word in words])
        return torch.from_numpy(np.rint(draws * 2.0**31).astype(np.int64))


@dataclass(frozen=True)
class LabelShards(Partition):
    """The samples in order of their labels are cut into M x `shards` pieces, and each node is dealt `shards` at random.

    With 2 shards a node has about two labels: the non-IID split of McMahan et al. (2017). `samples` must be a multiple of
    `shards`; by default n is the largest multiple. Of a piece with more samples than needed, random ones are taken.
    """

    shards: int = bounded(2, ge=1)

    def _size(self, total: int, nodes: int) -> int:
        require(nodes * self.shards <= total, "shards", self.shards, f"1 to {total // nodes} for {nodes} nodes")
        return total // (nodes * self.shards) * self.shards

    def rows(self, labels: Tensor, nodes: int, size: int, seed: int) -> Tensor:
        require(size % self.shards == 0, "samples", size, f"a multiple of shards, {self.shards}")
        pieces, total, device = nodes * self.shards, len(labels), labels.device
        shuffled = stream(seed, "shards", device=device).permutation(total)
        by_label = shuffled[torch.argsort(labels[shuffled], stable=True)]
        bounds = [piece * total // pieces for piece in range(pieces + 1)]
        taken = [
            by_label[start:end][
                stream(seed, "shard", step=piece, device=device).permutation(end - start)[: size // self.shards]
            ]
            for piece, (start, end) in enumerate(itertools.pairwise(bounds))
        ]
        dealt = stream(seed, "shards-dealt", device=device).permutation(pieces)
        return torch.stack(taken)[dealt].reshape(nodes, size)


_PARTITIONS: dict[str, type[Partition]] = {
    "stratified": Stratified,
    "dirichlet": Dirichlet,
    "label-shards": LabelShards,
}
PARTITIONS: Table[Partition] = Table(Partition, _PARTITIONS, "bymi.partitions")
