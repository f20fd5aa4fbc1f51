"""The screen before scoring: two halves of one good sample differ by noise of the usual size, not more and not less."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import deviation, log, median, robust_z

_TINY = torch.finfo(torch.float64).tiny
_ALIKE, _EXCESS = 0.5, 2.5  # so six copies at least
_LEAST = math.log(2.5)  # halves that differ by less than 2.5 times more or less than usual hide nobody
_PASSES = 3  # whoever is found leaves the estimate, and others may stand out then


def inconsistent(evidence: Evidence, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose halves differ too much or too little [b, n], and how many spreads they are off (signed) [b, n].

    log |x1 - x2|^2 on both sides. Large: scores that push the count of negative ones up, halves turned away from each
    other. Small: a mean of many where the noise of one is due, as inner product manipulation and ALIE send it. `high` and
    `low` [b, 1] are the bounds.
    """
    return _screen(evidence, log(evidence.difference2), high, low)


def too_good(evidence: Evidence, weights: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows too close to the centres [b, n] to be a good sample's mean, and how many spreads they are off [b, n]."""
    nearest = [evidence.about(weights, half, half) for half in (0, 1)]
    return _screen(evidence, log(torch.minimum(*nearest)), torch.full_like(low, torch.inf), low)


def alike(evidence: Evidence, high: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose x1 - x2 resembles that of others [b, n], and by how many spreads they are off [b, n].

    Noise of different nodes is independent; colluders who follow one plan share it, also where their halves point apart so
    that no score can see them. Measured by the sum of squared cosines with all others, none counted above `_ALIKE`, and
    `_EXCESS` above the median at least: few liars who repeat the difference of a good node shall not have it flagged with them.
    """
    products = evidence.difference
    # Roots first: of two halves that do not differ, or of an empty seat, a product of squares would be nothing to divide by.
    length = products.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt()
    square = (products / (length[:, :, None] * length[:, None, :])).square().clamp_max(_ALIKE)
    gone = torch.zeros_like(evidence.valid)
    off = torch.zeros_like(length)
    for _ in range(_PASSES):
        left = evidence.valid & ~gone
        kinship = (square @ left.to(square)[:, :, None]).squeeze(2) - square.diagonal(dim1=1, dim2=2) * left
        off = robust_z(kinship, left)
        found = evidence.judged & (off > high) & (kinship - median(kinship, left) > _EXCESS) & ~gone
        if not bool(found.any()):
            break
        gone = gone | found
    return gone, off


def _screen(evidence: Evidence, values: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Whoever stands off by more than the bounds and by more than `_LEAST`.

    Without the latter liars who all differ by the same would make every good node stand out: a crowd at one value, which they
    place near the median, leaves next to no spread, and with each good node that goes they come closer to a majority.
    """
    gone = torch.zeros_like(evidence.valid)
    for _ in range(_PASSES):
        left = evidence.valid & ~gone
        away = values - median(values, left)
        off = away / deviation(away, left)
        found = evidence.judged & (((off > high) & (away > _LEAST)) | ((off < -low) & (away < -_LEAST))) & ~gone
        if not bool(found.any()):
            return gone, off
        gone = gone | found
    return gone, robust_z(values, evidence.valid & ~gone)
