"""Honest nodes whose data differ: how much they do, and tests in units of the spread between nodes instead of noise.

Model: half gradients of node j are x_j = mu + b_j + noise, with b_j the same in both halves. For alike nodes b_j = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.core.linalg import ascending_among
from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import median, spread

_QUANTILE = 0.3  # with 40 % of Byzantine rows above it, it is the median of the honest ones
_ERRORS = 2.0
_ALIKE = 0.4  # least cosine of two halves
_CROWD, _CROWD_SHARE = 4, 0.08  # rows, and share of all, that make a crowd
_MIDDLE = GeometricMedian(iterations=100, tolerance=1e-9)
_NORMAL = 1.4826
_COMMON = 0.5  # usual cosine with the mean gradient from which there is a common direction
_BACK = 0.2  # share of the usual cosine, with the other sign, that counts as backward
_TINY = torch.finfo(torch.float64).tiny


def heterogeneity(evidence: Evidence, weights: Tensor, mixed: float) -> tuple[Tensor, Tensor]:
    """Degree of heterogeneity [b, 1], and weights [b, n] of the centre: `weights` [b, n], or a geometric median.

    The degree is the 30 % quantile over nodes of the cosine of x1 - c1 and x2 - c2, which estimates |b|^2 / (|b|^2 +
    |noise|^2), minus twice its error: zero or less for alike nodes, up to 1. It is the smaller of those about the centre of
    `weights` and about the geometric median, which is the centre where the degree exceeds `mixed`: a noise edge does not exist
    there.
    """
    degree = _quantile(evidence.cosines(weights), evidence.valid)
    active = (degree > 0).squeeze(1).nonzero().flatten()
    if len(active):
        part = evidence.of(active)
        middle = _MIDDLE.weights(part.first, part.valid)
        both = torch.minimum(degree[active], _quantile(part.cosines(middle), part.valid))
        degree = degree.index_copy(0, active, both)
        weights = weights.index_copy(0, active, torch.where(both > mixed, middle, weights[active]))
    return degree, weights


def _quantile(values: Tensor, among: Tensor) -> Tensor:
    """The lower 30 % quantile minus twice its error [b, 1]; 0 for a row without any."""
    ordered, count = ascending_among(values, among)
    at = (_QUANTILE * (count - 1)).floor().long().clamp_min(0)
    return torch.where(count > 0, ordered.gather(1, at) - _ERRORS * spread(values, among) / count.clamp_min(1).sqrt(), 0.0)


def farther(scores: Tensor, lengths: Tensor, judged: Tensor, alone: Tensor, together: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and each score in units of the usual |b|^2 [b, n]: the median score.

    Flagged: scores of `alone` units, and of `together` units if a crowd has them. Both halves must point the same way, by a
    cosine for vectors of these `lengths` |x1 - c1| |x2 - c2| [b, n].
    """
    units = scores / median(scores, judged).clamp_min(_TINY)
    far = judged & (scores >= _ALIKE * lengths)
    joint = far & (units >= together)
    return far & (units >= alone) | joint & _crowd(joint, judged), units


def backward(evidence: Evidence, among: Tensor, weights: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n] that point against the mean gradient, and how far each is below the usual cosine [b, n], in spreads.

    The cosine of a row with the centre of the others, about the zero vector and by products of different halves. Flagged are
    crowds only, where most rows agree on a direction; copies that were flagged as such count for a crowd, but only rows `among`
    [b, n] enter estimates. The spread is that above the median, where no backward row is.
    """
    cosines = evidence.cosines_with_others(weights)
    usual = median(cosines, among)
    z = (usual - cosines) / (_NORMAL * median(cosines - usual, among & (cosines >= usual))).clamp_min(_TINY)
    low = evidence.judged & (usual > _COMMON) & (cosines < -_BACK * usual) & (z > bound)
    return low & _crowd(low, evidence.judged), z


def _crowd(rows: Tensor, judged: Tensor) -> Tensor:
    """Whether so many rows are a crowd [b, 1]."""
    least = (_CROWD_SHARE * judged.sum(1, keepdim=True)).clamp_min(_CROWD)
    return rows.sum(1, keepdim=True) >= least
