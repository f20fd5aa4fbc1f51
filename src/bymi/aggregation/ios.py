"""IOS, iterative outlier scissor (Wu, Chen, Ling 2023): repeatedly drop the neighbour farthest from the weighted mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import NeighbourhoodRule, Tolerant
from bymi.core.cuda_graphs import captured
from bymi.core.inbox import Round
from bymi.core.linalg import on_host
from bymi.core.neighbourhoods import Neighbourhoods

_TURNS = 8  # turns of a recording are a multiple of this
_FAR = 1e4  # ratio of squared distances from which sums are recomputed: products have lost 4 of their 16 digits


@dataclass(frozen=True)
class IOS(Tolerant, NeighbourhoodRule):
    """Remove q_i = ceil(share |N_i|) neighbours, or `f`, one at a time, each time the farthest from the mean of those left.

    The mean uses the mixing weights, normalised over the remaining set; the own vector is part of it and is never removed.
    `share` must not be below the Byzantine share of any neighbourhood: with less, a Byzantine neighbour remains; more costs
    little when data are alike. At least one neighbour is kept.
    """

    common: ClassVar[bool] = True

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        heard = hood.neighbours.sum(1)
        weight = scissor(hood, mixing, self.assumed(heard, heard - 1))
        return weight / weight.sum(1, keepdim=True)


def scissor(hood: Neighbourhoods, mixing: Tensor, quota: Tensor) -> Tensor:
    """Weights of neighbourhoods [b, n] after the removal of `quota` [b] neighbours, from those before, `mixing` [b, n]."""
    assert hood.gram is not None
    if on_host(mixing):
        size = torch.where(hood.neighbours, hood.gram.diagonal(dim1=-2, dim2=-1), -torch.inf)
        return _remove(mixing.clone(), size, hood.gram, quota)
    turns = -(-int(quota.max()) // _TURNS) * _TURNS if len(quota) else 0  # one recording serves similar numbers
    return captured(_remove_afresh, mixing, hood.neighbours, hood.gram, quota, turns=turns)


def _remove_afresh(weight: Tensor, removable: Tensor, gram: Tensor, quota: Tensor, turns: int) -> Tensor:
    """`_remove` with sums computed in every one of `turns`, for an accelerator: few kernels, and no decision on the host.

    Of the members j with weights w, that farthest from their mean maximises sum_j w_j |x_r - x_j|^2, which is |x_r - mean|^2
    sum w up to a constant. Receivers that are done remove from an additional place, which is empty.
    """
    square = gram.diagonal(dim1=-2, dim2=-1)
    dist2 = torch.nn.functional.pad(square[..., :, None] + square[..., None, :] - 2 * gram, (0, 1, 0, 1))
    held = torch.nn.functional.pad(weight, (0, 1))
    barred = torch.nn.functional.pad(torch.where(removable, 0.0, -torch.inf).to(weight.dtype), (0, 1), value=-torch.inf)
    going = torch.arange(turns, device=weight.device)[:, None, None] < quota[:, None]
    for turn in range(turns):
        if gram.ndim == 2:
            farthest = torch.addmm(barred, held, dist2).argmax(1, keepdim=True)
        else:
            farthest = torch.baddbmm(barred[:, None], held[:, None], dist2).argmax(2)
        farthest = torch.where(going[turn], farthest, weight.shape[1])
        held.scatter_(1, farthest, 0.0)
        barred.scatter_(1, farthest, -torch.inf)
    return held[:, :-1]


def _remove(weight: Tensor, size: Tensor, gram: Tensor, quota: Tensor) -> Tensor:
    """Weights [B, R] after removal, from those before and |x_r|^2 of the removable rows, else -inf [B, R].

    Products are [R, R], or [B, R, R] where each receiver has its own rows; `quota` [B]: how many are removed.
    """
    receivers = torch.arange(len(weight))
    sums = _Sums(weight, gram)
    removed = torch.zeros_like(sums.total)  # squared distance of the farthest member removed
    for iteration in range(int(quota.max()) if len(quota) else 0):
        reach, farthest = sums.farthest(size)
        if bool((removed > _FAR * reach).any()):
            # The sums hold rounding errors of rows much farther than the remaining ones: compute them again.
            sums, removed = _Sums(weight, gram), torch.zeros_like(removed)
            reach, farthest = sums.farthest(size)
        removed = torch.maximum(removed, reach)
        leaving = weight[receivers, farthest] * (iteration < quota)
        sums.drop(farthest, leaving, gram)
        weight[receivers, farthest] -= leaving
        size[receivers, farthest] = torch.where(iteration < quota, -torch.inf, size[receivers, farthest])
    return weight


class _Sums:
    """Sums over each receiver's members with weights w: sum of w, <sum w x, x_r> and |sum w x|^2, updated as members leave."""

    def __init__(self, weight: Tensor, gram: Tensor) -> None:
        self.total = weight.sum(1)
        self.product = weight @ gram if gram.ndim == 2 else (weight[:, None, :] @ gram).squeeze(1)
        self.square = (weight * self.product).sum(1)

    def farthest(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance [B] and index [B] of the row farthest from the mean: |x_r|^2 - 2 <mean, x_r> + |mean|^2."""
        most, index = torch.addcmul(size, self.product, (2 / self.total)[:, None], value=-1).max(1)
        return (most + self.square / self.total**2).clamp_min(0.0), index

    def drop(self, place: Tensor, leaving: Tensor, gram: Tensor) -> None:
        """Subtract the weight `leaving` [B] of the rows `place` [B] from the sums."""
        before = self.product.gather(1, place[:, None]).squeeze(1)
        row = gram[place] if gram.ndim == 2 else gram[torch.arange(len(place)), place]
        square = row.gather(1, place[:, None]).squeeze(1)
        self.square += leaving * (leaving * square - 2 * before)
        self.product.addcmul_(row, leaving[:, None], value=-1)
        self.total = self.total - leaving
