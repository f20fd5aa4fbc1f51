"""Dealing samples to nodes by label: how many of each, in integers, and then which."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.streams import stream


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
