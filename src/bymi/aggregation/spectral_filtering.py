"""Filtering (Diakonikolas et al. 2017): remove weight from outliers along the direction of largest variance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule, iterate
from bymi.aggregation.spectral_filter_kernel import filtered
from bymi.core.linalg import gather_members, on_host
from bymi.core.named_parts import bounded
from bymi.core.neighbourhoods import Need, Neighbourhoods
from bymi.core.threaded_work import in_threads

_SQUARINGS = 30
_AT_A_TIME = 5  # squarings between two divisions: n^-32 is no underflow
_TINY = torch.finfo(torch.float64).tiny
_MANY = 32  # points from which a set is worth a second look at its size; below, all eigenvectors are as fast as one
_TOGETHER = 16  # sets per batch, which fit a CPU's cache
_RESIDUAL = 1e-13  # relative error of A v = lambda v
Spread = Callable[[Tensor, Tensor], Tensor]
"""Projections [b, n] of a cloud with weights [b, n] about its mean on the direction of largest variance."""

_EMPTY = 1e-9  # of a point's initial weight: with less it counts as removed, and no longer sets the scale for others


@dataclass(frozen=True)
class Filtering(SetRule):
    """A robust mean of N_i and i whose error does not grow with the dimension. The paper's choice for detection.

    With weights c (initially 1), mean mu_c and top eigenvector v of the weighted covariance: tau_j = <x_j - mu_c, v>^2, c_j <-
    c_j (1 - tau_j / max tau), until `share` of all weight is removed; the last step is shortened to end there. Too small a
    share leaves Byzantine points in, too large a one costs little. Paper: prop:robust_est.

    `about`: "median" takes tau from the median of the projections instead of mu_c. With a third of the points Byzantine and
    far, mu_c moves so far that honest points lose weight as well, `share` is used up, and the remaining Byzantine points
    dominate the mean.
    """

    need: ClassVar[Need] = "cloud"
    # Paper gap: the share is not stated and the printed feasible set has a typo, docs/adr/0003-filtering.md.
    share: float = bounded(0.45, ge=0, lt=0.5)
    about: Literal["mean", "median"] = "mean"

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        goal = (1 - self.share) * valid.sum(1, dtype=torch.float64)
        found = filtered(gram, valid, goal, median=self.about == "median")
        if found is not None:
            return found
        kept = by_size(lambda some, mask: self._filter(spread_of_products, some, mask.to(torch.float64)), gram, valid)
        return kept / kept.sum(1, keepdim=True)

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        if hood.points is None:
            return super().weights_in(hood)
        return hood.normalise(self._filter(spread_of_points, hood.points, hood.valid.to(torch.float64)))

    def _filter(self, spread: Spread, cloud: Tensor, weight: Tensor) -> Tensor:
        """Weights [b, n] after filtering a cloud of n points with initial weights of 0 or 1 [b, n]."""
        start = weight.sum(1)
        goal = (1 - self.share) * start
        # Every full step removes at least one point.
        return iterate(self._step, (cloud, goal), (weight,), _above(start, goal), cloud.shape[1], spread=spread)[0]

    def _step(self, cloud: Tensor, goal: Tensor, weight: Tensor, spread: Spread) -> tuple[Tensor, Tensor]:
        """Weights [b, n] after one step, and which sets need another one [b]."""
        along = spread(cloud, weight)
        if self.about == "median":
            along = _from_median(along, weight > 0)
        tau = along.square()
        peak = tau.amax(1, keepdim=True)
        # tau / peak first: exactly 1 at the peak, so that the farthest point loses all of its weight.
        loss = weight * (tau / torch.where(peak > 0, peak, 1.0))
        taken = loss.sum(1)
        share = ((weight.sum(1) - goal) / torch.where(taken > 0, taken, 1.0)).clamp(0.0, 1.0)
        left = weight - share[:, None] * loss
        left = torch.where(left > _EMPTY, left, 0.0)
        return left, _above(left.sum(1), goal) & (taken > 0)  # nothing is taken where all points coincide


def _above(weight: Tensor, goal: Tensor) -> Tensor:
    return weight - goal > 1e-12 * goal


def by_size(work: Callable[[Tensor, Tensor], Tensor], gram: Tensor, valid: Tensor) -> Tensor:
    """Weights [b, n] that `work` computes from products and validity, in batches of sets of similar size on a CPU."""
    if not on_host(gram) or gram.shape[1] < _MANY:
        return work(gram, valid)

    def some(sets: Tensor) -> tuple[Tensor, Tensor]:
        index, mask = gather_members(valid[sets])
        return index, work(among(gram[sets], index), mask)

    batches = valid.sum(1).argsort(stable=True).split(_TOGETHER)
    output = torch.zeros_like(gram[:, 0])
    for sets, (index, found) in zip(batches, in_threads(some, batches), strict=True):
        output[sets] = output[sets].scatter(1, index, found)
    return output


def among(gram: Tensor, index: Tensor) -> Tensor:
    """Products [b, k, k] of the points `index` [b, k], from those of all points of each set [b, n, n]."""
    rows = gram.gather(1, index[:, :, None].expand(-1, -1, gram.shape[2]))
    return rows.gather(2, index[:, None, :].expand(-1, index.shape[1], -1))


def _from_median(along: Tensor, valid: Tensor) -> Tensor:
    """Values [b, n] minus the median of the valid ones, which does not depend on the sign of an eigenvector."""
    masked = torch.where(valid, along, torch.nan)
    lower, upper = masked.nanmedian(1, keepdim=True).values, -(-masked).nanmedian(1, keepdim=True).values
    return torch.where(valid, along - (lower + upper) / 2, 0.0)


def spread_of_points(points: Tensor, weight: Tensor) -> Tensor:
    """Projections [b, n] of points [b, n, d] about their mean on their covariance's top eigenvector; 0 without weight."""
    share = weight / weight.sum(1, keepdim=True)
    centred = points - share[:, None, :] @ points
    scaled = share.sqrt()[:, :, None] * centred
    covariance = scaled.mT @ scaled
    if on_host(points):
        direction = torch.linalg.eigh(covariance).eigenvectors[:, :, -1:]
    else:  # where a decomposition takes long and cannot be recorded
        direction = squared_eigenpair(covariance)[1][:, :, None]
    return torch.where(weight > 0, (centred @ direction).squeeze(2), 0.0)


def spread_of_products(gram: Tensor, weight: Tensor) -> Tensor:
    """`spread_of_points` from inner products [b, n, n], for many dimensions: an n x n eigenproblem instead.

    With K the products of the centred points and D the diagonal of the weights, D^1/2 K D^1/2 has the covariance's top
    eigenvalue; its eigenvector u gives the projections K D^1/2 u / sqrt(eigenvalue).
    """
    if not on_host(gram) or gram.shape[1] < _MANY:
        return _spread(gram, weight)
    # Without the points that have no weight left: the time grows with the cube of their number.
    index, _ = gather_members(weight > 0)
    found = _spread(among(gram, index), weight.gather(1, index))
    return torch.zeros_like(weight).scatter(1, index, found)


def _spread(gram: Tensor, weight: Tensor) -> Tensor:
    share = weight / weight.sum(1, keepdim=True)
    towards = gram @ share[:, :, None]
    centred = gram - towards - towards.mT + share[:, None, :] @ towards
    root = share.sqrt()[:, :, None]
    value, vector = top_eigenpair(root * centred * root.mT)
    projections = (centred @ (root * vector[:, :, None])).squeeze(2) / value.clamp_min(_TINY).sqrt()
    return torch.where((weight > 0) & (value > 0), projections, 0.0)


def top_eigenpair(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Largest eigenvalue [b, 1] and its eigenvector [b, n] of positive semidefinite matrices [b, n, n].

    On an accelerator by repeated squaring: a few products, where a full decomposition of many small matrices takes far longer.
    It does not separate eigenvalues closer than a relative 1e-8.
    """
    if not on_host(matrices):
        return squared_eigenpair(matrices)
    if matrices.shape[1] >= _MANY:
        return _inverse_eigenpair(matrices)
    values, vectors = torch.linalg.eigh(matrices)
    return values[:, -1:], vectors[:, :, -1]


def _inverse_eigenpair(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """`top_eigenpair` by inverse iteration from the top eigenvalue: half the time of all eigenvectors.

    Matrices whose vector does not satisfy the eigenvalue equation to the last digits are decomposed.
    """
    value = torch.linalg.eigvalsh(matrices)[:, -1:]
    shifted = matrices.clone()
    shifted.diagonal(dim1=1, dim2=2).sub_(value)
    factors, pivots, _ = torch.linalg.lu_factor_ex(shifted)
    vector = torch.linalg.vector_norm(matrices, dim=2, keepdim=True)
    for _ in range(3):
        vector = torch.linalg.lu_solve(factors, pivots, vector)
        vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    vector = vector.squeeze(2)
    residual = torch.linalg.vector_norm((matrices @ vector[:, :, None]).squeeze(2) - value * vector, dim=1, keepdim=True)
    wrong = (~(residual <= _RESIDUAL * value)).flatten()  # NaN where a factor is exactly singular
    if bool(wrong.any()):
        values, vectors = torch.linalg.eigh(matrices[wrong])
        value[wrong], vector[wrong] = values[:, -1:], vectors[:, :, -1]
    return value, vector


def squared_eigenpair(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """`top_eigenpair` by A^(2^k), whose columns all tend to the top eigenvector."""
    power = matrices
    for turn in range(_SQUARINGS):
        if turn % _AT_A_TIME == 0:
            power = power / power.diagonal(dim1=1, dim2=2).sum(1).clamp_min(_TINY)[:, None, None]
        power = power @ power
    longest = power.diagonal(dim1=1, dim2=2).argmax(1)
    vector = power[torch.arange(len(power), device=power.device), :, longest]
    for _ in range(2):  # power iterations correct the rounding of the squarings
        vector = (
            matrices @ (vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp_min(_TINY))[:, :, None]
        ).squeeze(2)
    value = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return value, vector / value.clamp_min(_TINY)
