"""The published score of a neighbour, (x1 - c1)' Omega (x2 - c2), and the threshold on scores. Paper: eq:score, eq:thold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, SetRule
from bymi.core.errors import require
from bymi.core.linalg import VectorStack, ascending, inner, inner_of_sets
from bymi.core.named_parts import Checked, bounded
from bymi.core.neighbourhoods import padded

_SMALLEST = 1e-10  # eigenvalues below this share of the largest are rounding

Centre = SetRule | CoordinateRule
"""A robust mean: a rule that treats the own vector as one of the set."""


@dataclass(frozen=True, eq=False)
class Products:
    """Float64 inner products about one origin: first halves x1 [R], second halves x2 [R], centres c1 and c2 [B].

    c1 is what first halves are compared with, c2 what second halves are compared with; in the paper c2 is c1. Where each
    receiver has its own rows, [R, R] is [B, R, R].
    """

    first_first: Tensor  # [R, R]
    first_second: Tensor  # [R, R], <x1_r, x2_s>
    first_c1: Tensor  # [B, R]
    first_c2: Tensor  # [B, R]
    second_c1: Tensor  # [B, R]
    c1_c2: Tensor  # [B]


def multiply(first: VectorStack, second: VectorStack, member: Tensor, centre: Centre, *, cross_fit: bool) -> Products:
    """Products with each receiver's centre, which is estimated from the first halves of its members [B, R].

    A centre that is not a weighted mean has no weights to apply to second halves: cross-fitted, c2 is its value for these.
    """
    origin, gram = first.origin, first.gram
    cross = inner(first.vectors, second.vectors, origin)
    if isinstance(centre, SetRule):
        return weigh(gram, cross, centre.coefficients(first, member), cross_fit=cross_fit)
    points = centre.centre(first, member)
    shifted = points.to(torch.float64) - origin.to(torch.float64)
    with_first = inner(points, first.vectors, origin)
    with_second = inner(points, second.vectors, origin)
    if cross_fit:
        others = centre.centre(second, member)
        with_others = inner(others, first.vectors, origin)
        both = (shifted * (others.to(torch.float64) - origin.to(torch.float64))).sum(1)
        return Products(gram, cross, with_first, with_others, with_second, both)
    return Products(gram, cross, with_first, with_first, with_second, shifted.square().sum(1))


def weigh(gram: Tensor, cross: Tensor, weights: Tensor, *, cross_fit: bool) -> Products:
    """Products for centres that are weighted means [B, R]: c1 of first halves; c2 is c1 or, cross-fitted, of second halves.

    A cross-fitted c2 applies the weights found on first halves to second ones, so that the noise of a centre is on one side of
    a score only: scores of honest nodes are then symmetric around zero, not shifted up by |c1 - mean|^2.
    """
    first_c1, second_c1 = _combine(weights, gram), _combine(weights, cross)
    first_c2 = _combine(weights, cross.mT) if cross_fit else first_c1
    return Products(gram, cross, first_c1, first_c2, second_c1, (weights * first_c2).sum(1))


def multiply_sets(
    first: VectorStack, second: VectorStack, at: Tensor, valid: Tensor, centre: Centre, *, cross_fit: bool
) -> Products:
    """`multiply` for receivers that have few of the rows, `at` [b, n]."""
    origin, gram = first.origin, first.among(at)
    cross = inner_of_sets(first.vectors, at, second.vectors, at, origin)
    if isinstance(centre, SetRule):
        return weigh(gram, cross, centre.weights_of(first, at, valid) * valid, cross_fit=cross_fit)
    points = centre.centre_of(first, at, valid)
    numbers = torch.arange(len(at), device=at.device)[:, None]
    with_first = inner_of_sets(points, numbers, first.vectors, at, origin).squeeze(1)
    with_second = inner_of_sets(points, numbers, second.vectors, at, origin).squeeze(1)
    square = (points.to(torch.float64) - origin.to(torch.float64)).square().sum(1)
    return Products(gram, cross, with_first, with_first, with_second, square)


def _combine(weights: Tensor, products: Tensor) -> Tensor:
    """Products of weighted sums with rows [B, R]."""
    return weights @ products if products.ndim == 2 else (weights[:, None, :] @ products).squeeze(1)


# Omega, the matrix inside the score, which weights directions.


class Scale(Checked, ABC):
    """Scores from inner products of the halves. It may use first halves only, or the scores lose their symmetry."""

    arrays_only: ClassVar[bool] = False
    """Whether it changes the vectors themselves, which `identify` does on arrays and a detection in a network does not."""

    def rescale(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Halves [n, d] before products are taken."""
        return first, second

    @abstractmethod
    def scores(self, products: Products, member: Tensor) -> Tensor:
        """S[b, r] = (x1_r - c1_b)' Omega_b (x2_r - c2_b) for every row, [B, R]. Paper: eq:score."""


@dataclass(frozen=True)
class Identity(Scale):
    """Omega = I: every direction counts. The paper's choice for the linear model, and hard to exploit."""

    def scores(self, products: Products, member: Tensor) -> Tensor:
        both = products.first_second.diagonal(dim1=-2, dim2=-1)  # [R], or [B, R]
        return both - products.first_c2 - products.second_c1 + products.c1_c2[:, None]


@dataclass(frozen=True)
class Principal(Scale):
    """Omega = projector on the principal components of the first halves that explain a share `variance` of their variance.

    The paper's choice for images. Components of the first halves heard and the own one, centred at their plain mean. One far
    outlier can take all the variance and hide others orthogonal to it.
    """

    variance: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.variance <= 1, "variance", self.variance, "0 < variance <= 1")

    def scores(self, products: Products, member: Tensor) -> Tensor:
        gram, cross = products.first_first, products.first_second
        if gram.ndim == 3:
            basis = self._basis(gram, member)
            one, two = products.first_c1[:, :, None], products.first_c2[:, :, None]
            return ((basis @ (gram - one)) * (basis @ (cross - two))).sum(1)
        output = torch.empty(member.shape, dtype=torch.float64, device=gram.device)
        for receivers, index, valid in padded(member, width=len(gram)):
            basis = self._basis(gram[index[:, :, None], index[:, None, :]], valid)
            one, two = (torch.gather(c[receivers], 1, index)[:, :, None] for c in (products.first_c1, products.first_c2))
            output[receivers] = ((basis @ (gram[index] - one)) * (basis @ (cross[index] - two))).sum(1)
        return output

    def _basis(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Rows b_k [b, n, n] such that sum_l b_k[l] x1_l is the k-th kept principal direction, zero for those not kept."""
        share = valid / valid.sum(1, keepdim=True, dtype=torch.float64)
        centring = torch.diag_embed(valid.to(torch.float64)) - valid[:, :, None] * share[:, None, :]
        values, vectors = torch.linalg.eigh(centring @ gram @ centring.mT)
        values, vectors = values.flip(1).clamp_min(0.0), vectors.flip(2)
        kept = self._kept(values) & (values > _SMALLEST * values[:, :1])
        inverse = torch.where(kept, values, 1.0).rsqrt() * kept
        basis: Tensor = inverse[:, :, None] * (vectors.mT @ centring)
        return basis

    def _kept(self, values: Tensor) -> Tensor:
        """Mask of the components to keep, from variances in descending order [b, n]."""
        # The fewest components that reach the share: keep one while those before it fall short.
        before = torch.cumsum(values, 1) - values
        return before < self.variance * values.sum(1, keepdim=True)


@dataclass(frozen=True)
class Projected(Principal):
    """Omega = projector on the first `components` principal components of the first halves (Qian et al. 2024).

    Components with more than a share `variance` of the variance before them are left out; 1 keeps all `components`.
    """

    variance: float = 1.0
    components: int = bounded(5, ge=1)

    def _kept(self, values: Tensor) -> Tensor:
        return super()._kept(values) & (torch.arange(values.shape[1], device=values.device) < self.components)


@dataclass(frozen=True)
class MedianDeviation(Identity):
    """Omega = diag(1 / MAD) over machines and both halves, per coordinate: the centralised method's (Qian et al. 2024).

    A MAD below `floor` times the median MAD is raised to that: many gradients of a neural network are zero. On arrays only.
    """

    arrays_only: ClassVar[bool] = True
    floor: float = bounded(0.01, gt=0, le=1)

    def rescale(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        full = (first.to(torch.float64) + second.to(torch.float64)) / 2
        middle = full.quantile(0.5, dim=0)
        deviation = (full - middle).abs().quantile(0.5, dim=0)
        deviation = deviation.clamp_min(self.floor * float(deviation.median()))
        root = torch.where(deviation > 0, deviation, 1.0).rsqrt()
        return first * root, second * root


# Thresholds. In the published one, negative scores estimate how many positive ones are false.


class Threshold(Checked, ABC):
    """The smallest score at which a receiver flags a neighbour. To add one, write a class and list it in THRESHOLDS."""

    @abstractmethod
    def __call__(self, scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
        """Thresholds [B], float64, for rows of scores [B, n]; +inf flags none. `scored` [B, n] marks valid entries."""


@dataclass(frozen=True)
class PublishedThreshold(Threshold):
    """The data-driven threshold of the paper: see `threshold`. Paper: eq:thold."""

    def __call__(self, scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
        return threshold(scores, scored, fdr_level=fdr_level, offset=offset)


def threshold(scores: Tensor, scored: Tensor, *, fdr_level: float, offset: int) -> Tensor:
    """R = inf{r > 0: (offset + #{S <= -r}) / max(1, #{S >= r}) <= fdr_level} for each row of scores [B, n], as [B].

    The smallest |S| > 0 that qualifies, +inf if none does. `scored` [B, n] marks valid entries. Without ties and zeros the
    flagged set is that of the infimum; with them the infimum may flag scores of just its size, for which the ratio exceeds the
    level, ADR 0006. `offset` 0 is the paper's, 1 the knockoff+ variant, which controls the rate exactly under symmetry but
    flags at least 1 / fdr_level nodes or none. Paper: eq:thold.
    """
    size = scores.shape[1]
    if size == 0:
        return torch.full((len(scores),), torch.inf, dtype=torch.float64, device=scores.device)
    candidates = ascending(torch.where(scored, scores.abs(), 0.0))
    upward = ascending(torch.where(scored, scores, -torch.inf))
    downward = ascending(torch.where(scored, -scores, -torch.inf))
    positive = size - torch.searchsorted(upward, candidates)
    negative = size - torch.searchsorted(downward, candidates)
    qualifies = (candidates > 0) & ((offset + negative) / positive.clamp_min(1).to(torch.float64) <= fdr_level)
    lowest: Tensor = torch.where(qualifies, candidates, torch.inf).amin(1)
    return lowest
