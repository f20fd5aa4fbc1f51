"""Robust statistics of masked rows: medians, spreads, centred products and directions of largest variance."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation.spectral_filtering import top_eigenpair
from bymi.core.linalg import ascending_among, on_host

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


def robust_z_above(values: Tensor, among: Tensor, usual: Tensor, least: float) -> Tensor:
    """`robust_z` for rows whose upper half may be largely Byzantine: the spread is that of the `usual` rows below their median.

    It is at least `least`: Byzantine rows just below the median would shrink it at will.
    """
    middle = median(values, usual)
    spread_below = _NORMAL * median(middle - values, usual & (values <= middle))
    return (values - median(values, among)) / spread_below.clamp_min(least)


def log(values: Tensor) -> Tensor:
    """Logarithm of values that are non-negative up to rounding."""
    return values.clamp_min(_TINY).log()


# Directions of largest variance of a cloud, from its points in few dimensions and from their products elsewhere.

_ROUNDING = 1e-12  # of the largest variance


def uniform(valid: Tensor) -> Tensor:
    """Equal weights over the valid rows [b, n]."""
    return valid / valid.sum(1, keepdim=True, dtype=torch.float64).clamp_min(1)


def centred(products: Tensor, weights: Tensor) -> Tensor:
    """Products [b, n, n] about the weighted means of both sides; weights [b, n] sum to one."""
    right = (weights[:, None, :] @ products.mT).mT  # a quarter of the time of products @ weights
    left = weights[:, None, :] @ products
    return products - right - left + left @ weights[:, :, None]


def centred_diagonal(products: Tensor, weights: Tensor) -> Tensor:
    """Diagonal of `centred` [b, n]."""
    right = (weights[:, None, :] @ products.mT).squeeze(1)  # a quarter of the time of products @ weights
    left = (weights[:, None, :] @ products).squeeze(1)
    return products.diagonal(dim1=1, dim2=2) - right - left + (left * weights).sum(1, keepdim=True)


def widest(products: Tensor, points: Tensor | None, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Largest variance of weighted rows [b, 1], and coordinates of the rows along that direction, about the mean [b, n].

    `products` [b, n, n] and, in few dimensions, `points` [b, n, d] of the same rows.
    """
    if points is not None:
        about = points - weights[:, None, :] @ points
        scaled = weights.sqrt()[:, :, None] * about
        value, vector = top_eigenpair(scaled.mT @ scaled)
        return value, (about @ vector[:, :, None]).squeeze(2)
    about = centred(products, weights)
    root = weights.sqrt()
    value, vector = top_eigenpair(root[:, :, None] * about * root[:, None, :])
    return value, (about @ (root * vector)[:, :, None]).squeeze(2) / value.clamp_min(_TINY).sqrt()


def variance(products: Tensor, points: Tensor | None, weights: Tensor) -> Tensor:
    """Largest variance [b, 1]."""
    if points is None or points.device.type != "cpu":
        return widest(products, points, weights)[0]
    scaled = weights.sqrt()[:, :, None] * (points - weights[:, None, :] @ points)
    values: Tensor = torch.linalg.eigvalsh(scaled.mT @ scaled)
    return values[:, -1:]


def directions(products: Tensor, points: Tensor | None, weights: Tensor, most: int) -> list[tuple[Tensor, Tensor]]:
    """Directions of largest variance, each as its variance [b, 1] and coefficients a [b, n]: u = sum_r a_r x_r has length one.

    With fewer rows than directions, the remaining ones are rounding and have a = 0.
    """
    root = weights.sqrt()
    if points is not None:
        scaled = root[:, :, None] * (points - weights[:, None, :] @ points)
        values, vectors = _top_eigenpairs(scaled.mT @ scaled, most)
        lengths = values.clamp_min(_TINY).sqrt()
        left = scaled @ vectors / lengths[:, None, :]
    else:
        values, left = _top_eigenpairs(root[:, :, None] * centred(products, weights) * root[:, None, :], most)
        lengths = values.clamp_min(_TINY).sqrt()
    real = values > _ROUNDING * values[:, -1:]
    pairs = []
    for rank in range(1, min(most, values.shape[1]) + 1):
        coefficients = torch.where(real[:, -rank][:, None], root * left[:, :, -rank] / lengths[:, -rank][:, None], 0.0)
        # About the mean: sum_r a_r (x_r - mean) without touching the rows.
        pairs.append((values[:, -rank][:, None], coefficients - weights * coefficients.sum(1, keepdim=True)))
    return pairs


def _top_eigenpairs(matrices: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Largest eigenvalues [b, k] and their eigenvectors [b, n, k] of positive semidefinite matrices, ascending, k >= `most`.

    On an accelerator one after the other, each without those before it: a full decomposition of many small matrices takes far
    longer there.
    """
    if on_host(matrices) or matrices.shape[1] <= most:
        values, vectors = torch.linalg.eigh(matrices)
        return values, vectors
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(most):
        value, vector = top_eigenpair(matrices)
        # Exactly orthogonal to those before: what rounding leaves of them must not come back.
        for _, other in pairs:
            vector = vector - (vector * other).sum(1, keepdim=True) * other
        vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp_min(_TINY)
        pairs.insert(0, (value, vector))
        matrices = matrices - value[:, :, None] * vector[:, :, None] * vector[:, None, :]
    return torch.cat([value for value, _ in pairs], 1), torch.stack([vector for _, vector in pairs], 2)
