"""Tests before scoring: two halves of one honest sample differ by noise of the usual size, neither more nor less."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import deviation, log, median, robust_z

_TINY = torch.finfo(torch.float64).tiny
_ALIKE, _EXCESS = 0.5, 2.5  # so at least six copies
_LEAST = math.log(2.5)  # differences within a factor of 2.5 of the usual are not flagged
_PASSES = 3  # flagged rows leave the estimate, after which others may stand out


def inconsistent(evidence: Evidence, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose halves differ too much or too little [b, n], and their signed robust z [b, n].

    A two-sided test on log |x1 - x2|^2. Large: halves in opposite directions, which inflate the count of negative scores.
    Small: a mean over many nodes in place of one node's noise, as inner product manipulation and ALIE send it. `high` and `low`
    [b, 1] are the bounds.
    """
    return _screen(evidence, log(evidence.difference2), high, low)


def too_good(evidence: Evidence, weights: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows too close to the centre [b, n] to be the mean of an honest sample, and their robust z [b, n]."""
    nearest = [evidence.about(weights, half, half) for half in (0, 1)]
    return _screen(evidence, log(torch.minimum(*nearest)), torch.full_like(low, torch.inf), low)


def alike(evidence: Evidence, high: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose x1 - x2 resembles that of others [b, n], and their robust z [b, n].

    Noise of different nodes is independent; colluding nodes share it, even where their halves point apart and no score reveals
    them. The statistic is the sum of squared cosines with all others, each at most `_ALIKE`, and must exceed the median by
    `_EXCESS`: a few Byzantine nodes that copy the difference of an honest node must not get it flagged with them.
    """
    products = evidence.difference
    # Roots first: for equal halves, or padding, a product of squares would underflow to zero.
    length = products.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt()
    square = (products / (length[:, :, None] * length[:, None, :])).square().clamp_max(_ALIKE)
    flagged = torch.zeros_like(evidence.valid)
    z = torch.zeros_like(length)
    for _ in range(_PASSES):
        remaining = evidence.valid & ~flagged
        kinship = (square @ remaining.to(square)[:, :, None]).squeeze(2) - square.diagonal(dim1=1, dim2=2) * remaining
        z = robust_z(kinship, remaining)
        new = evidence.judged & (z > high) & (kinship - median(kinship, remaining) > _EXCESS) & ~flagged
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


def _screen(evidence: Evidence, values: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows beyond the bounds and beyond `_LEAST`, and their robust z.

    Without `_LEAST`, Byzantine nodes with one common difference could make every honest node stand out: a group at one value
    near the median leaves almost no spread, and with each honest node flagged it comes closer to a majority.
    """
    flagged = torch.zeros_like(evidence.valid)
    for _ in range(_PASSES):
        remaining = evidence.valid & ~flagged
        difference = values - median(values, remaining)
        z = difference / deviation(difference, remaining)
        new = evidence.judged & (((z > high) & (difference > _LEAST)) | ((z < -low) & (difference < -_LEAST))) & ~flagged
        if not bool(new.any()):
            return flagged, z
        flagged = flagged | new
    return flagged, robust_z(values, evidence.valid & ~flagged)
