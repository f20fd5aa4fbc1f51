"""Dealing out samples by label: how many of each, in whole numbers, and then which."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.streams import stream


def apportion(weights: Tensor, totals: Tensor) -> Tensor:
    """Whole numbers in proportion to `weights` [R, C] that add up to `totals` [R] in each row (largest remainders).

    Weights are non-negative integers with a positive sum in each row; all of it is exact integer arithmetic. A result
    is never larger than its weight where the total is not larger than the sum of the weights.

    >>> apportion(torch.tensor([[5, 3, 1]]), torch.tensor([4]))
    tensor([[2, 1, 1]])
    """
    exact = weights * totals[:, None]
    sums = weights.sum(1, keepdim=True)
    whole = exact // sums
    rank = torch.argsort(torch.argsort(exact % sums, dim=1, descending=True, stable=True), dim=1)
    return whole + (rank < (totals - whole.sum(1))[:, None])


def deal(labels: Tensor, counts: Tensor, *, seed: int) -> Tensor:
    """Random distinct sample numbers, `counts[m, c]` of label c for node m; [M, n] in order of the labels.

    `labels` [N] are 0..C-1, the rows of `counts` [M, C] have the same sum n, and no column asks for more than there is.
    """
    nodes, device = len(counts), labels.device
    shuffled = stream(seed, "deal", device=device).permutation(len(labels))
    by_label = shuffled[torch.argsort(labels[shuffled], stable=True)]
    available = torch.bincount(labels, minlength=counts.shape[1])
    # One owner for each sample of the pool in order of the labels; the last owner, `nodes`, is nobody.
    owners = torch.cat([counts, (available - counts.sum(0))[None]])
    owner = torch.arange(nodes + 1, device=device).repeat(counts.shape[1]).repeat_interleave(owners.T.reshape(-1))
    return by_label[torch.argsort(owner, stable=True)][: int(counts.sum())].reshape(nodes, -1)
