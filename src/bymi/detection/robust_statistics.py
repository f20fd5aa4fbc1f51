"""Medians and spreads over masked rows, which a Byzantine minority cannot move far."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.linalg import ascending_among

_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal variable
_TINY = torch.finfo(torch.float64).tiny


def median(values: Tensor, among: Tensor) -> Tensor:
    """Median of each row over the entries `among` [b, n], as [b, 1]; NaN for a row without any.

    For an even number it is the mean of the middle two: the signs of values along an eigenvector are arbitrary, and torch's
    lower median would depend on them.
    """
    ordered, count = ascending_among(values, among)
    lower, upper = (ordered.gather(1, index.clamp_min(0)) for index in ((count - 1) // 2, count // 2))
    return torch.where(count > 0, lower + (upper - lower) / 2, torch.nan)


def spread(values: Tensor, among: Tensor) -> Tensor:
    """Median absolute deviation of each row, scaled to a standard deviation [b, 1]."""
    return deviation(values - median(values, among), among)


def deviation(away: Tensor, among: Tensor) -> Tensor:
    """`spread` of values that are already relative to their median."""
    return _NORMAL * median(away.abs(), among)


def robust_z(values: Tensor, among: Tensor) -> Tensor:
    """Distance of each value from the median in spreads [b, n]; NaN where the spread is zero."""
    away = values - median(values, among)
    return away / deviation(away, among)


def robust_z_above(values: Tensor, among: Tensor, least: float = 0.0) -> Tensor:
    """`robust_z` with the spread of the values below the median only, for rows whose upper half may be largely Byzantine.

    The spread is at least `least`: Byzantine rows just below the median would shrink it at will.
    """
    middle = median(values, among)
    below = among & (values <= middle)
    return (values - middle) / (_NORMAL * median(middle - values, below)).clamp_min(least)


def log(values: Tensor) -> Tensor:
    """Logarithm of values that are non-negative up to rounding."""
    return values.clamp_min(_TINY).log()
