"""Directions of largest variance of a cloud, from its points in few dimensions and from their products elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation.filtering import top_eigenpair

_TINY = torch.finfo(torch.float64).tiny
_ROUNDING = 1e-12  # of the largest variance

FEW_DIMENSIONS = 64
"""Dimensions up to which the d x d covariance is decomposed, not the n x n products: the smaller problem at usual degrees."""


def uniform(valid: Tensor) -> Tensor:
    """Equal weights over the valid rows [b, n]."""
    return valid / valid.sum(1, keepdim=True, dtype=torch.float64).clamp_min(1)


def centred(products: Tensor, weights: Tensor) -> Tensor:
    """Products [b, n, n] about the weighted means of both sides; weights [b, n] sum to one."""
    right = products @ weights[:, :, None]
    left = weights[:, None, :] @ products
    return products - right - left + left @ weights[:, :, None]


def centred_diagonal(products: Tensor, weights: Tensor) -> Tensor:
    """Diagonal of `centred` [b, n]."""
    right = (products @ weights[:, :, None]).squeeze(2)
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
        values, vectors = torch.linalg.eigh(scaled.mT @ scaled)
        lengths = values.clamp_min(_TINY).sqrt()
        left = scaled @ vectors / lengths[:, None, :]
    else:
        values, left = torch.linalg.eigh(root[:, :, None] * centred(products, weights) * root[:, None, :])
        lengths = values.clamp_min(_TINY).sqrt()
    real = values > _ROUNDING * values[:, -1:]
    pairs = []
    for rank in range(1, min(most, values.shape[1]) + 1):
        coefficients = torch.where(real[:, -rank][:, None], root * left[:, :, -rank] / lengths[:, -rank][:, None], 0.0)
        # About the mean: sum_r a_r (x_r - mean) without touching the rows.
        pairs.append((values[:, -rank][:, None], coefficients - weights * coefficients.sum(1, keepdim=True)))
    return pairs
