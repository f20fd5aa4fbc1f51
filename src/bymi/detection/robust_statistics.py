"""Medians and spreads over part of a row, which a minority of liars cannot move far."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.linalg import ascending_among

_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal variable
_TINY = torch.finfo(torch.float64).tiny


def median(values: Tensor, among: Tensor) -> Tensor:
    """Median of each row over the entries `among` [b, n], as [b, 1]; NaN for a row without any.

    Of an even number it is the mean of the middle two: the signs of values along an eigenvector are arbitrary, and torch's
    lower one would depend on them.
    """
    ordered, count = ascending_among(values, among)
    lower, upper = (ordered.gather(1, place.clamp_min(0)) for place in ((count - 1) // 2, count // 2))
    return torch.where(count > 0, lower + (upper - lower) / 2, torch.nan)


def spread(values: Tensor, among: Tensor) -> Tensor:
    """Median absolute deviation of each row as a standard deviation [b, 1]."""
    return deviation(values - median(values, among), among)


def deviation(away: Tensor, among: Tensor) -> Tensor:
    """The same of values about their median already."""
    return _NORMAL * median(away.abs(), among)


def robust_z(values: Tensor, among: Tensor) -> Tensor:
    """How many spreads above the median each value stands [b, n]; NaN where the spread is nothing."""
    away = values - median(values, among)
    return away / deviation(away, among)


def robust_z_above(values: Tensor, among: Tensor) -> Tensor:
    """The same with a spread taken below the median only, for rows whose upper half may be crowded with liars."""
    middle = median(values, among)
    below = among & (values <= middle)
    return (values - middle) / (_NORMAL * median(middle - values, below))


def log(values: Tensor) -> Tensor:
    """Logarithm of something that cannot be negative but for rounding."""
    return values.clamp_min(_TINY).log()
