"""Inner products of the two halves and the centre, from which scores are computed in any dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, SetRule
from bymi.core.linalg import VectorStack, inner, inner_of_sets

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
