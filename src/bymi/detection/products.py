"""Inner products of the two halves and the centre: all that a score needs, in any dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import CoordinateRule, SetRule
from bymi.vectors import Rows, inner

Centre = SetRule | CoordinateRule
"""A robust mean is a rule that treats the own vector as one of the set."""


@dataclass(frozen=True, eq=False)
class Products:
    """Float64 inner products about one origin: first halves x1 [R], second halves x2 [R], centres c [B]."""

    first_first: Tensor  # [R, R]
    first_second: Tensor  # [R, R], <x1_r, x2_s>
    first_centre: Tensor  # [B, R]
    second_centre: Tensor  # [B, R]
    centre_centre: Tensor  # [B]


def multiply(first: Rows, second: Rows, member: Tensor, centre: Centre) -> Products:
    """Estimate each receiver's centre from the first halves of its members [B, R] and form the products."""
    origin, gram = first.origin, first.gram
    cross = inner(first.vectors, second.vectors, origin)
    if isinstance(centre, SetRule):
        weights = centre.coefficients(first, member)
        first_centre = weights @ gram
        return Products(gram, cross, first_centre, weights @ cross, (weights * first_centre).sum(1))
    points = centre.centre(first, member)
    shifted = points.to(torch.float64) - origin.to(torch.float64)
    return Products(
        gram,
        cross,
        inner(points, first.vectors, origin),
        inner(points, second.vectors, origin),
        shifted.square().sum(1),
    )
