"""The test on scores: strong outliers by themselves, weaker ones as far as the false discovery rate allows."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.robust_statistics import median
from bymi.detection.threshold import threshold

_FLOOR = 0.7  # least noise, as a share of that of all scores
_BOLD = 2.5  # times the usual cosine of two honest halves
_ALIKE = 0.4  # least cosine: below it a shift is smaller than the noise
_TINY = torch.finfo(torch.float64).tiny


def noise_of(scores: Tensor, judged: Tensor) -> Tensor:
    """Usual size of an honest score [b, 1], from the negative ones, which Byzantine nodes gain nothing by. NaN without any.

    At least `_FLOOR` of that of all scores, or tiny negative scores of Byzantine nodes would make every honest score look
    large.
    """
    negative = median(scores.abs(), judged & (scores < 0))
    return 1.4826 * torch.maximum(negative, _FLOOR * median(scores.abs(), judged))


def least_cosine(usual: Tensor, enough: Tensor | None) -> Tensor:
    """Cosine of two halves that a score needs [b, 1], from the `usual` one [b, 1]."""
    least = (_BOLD * usual).clamp_min(_ALIKE)
    return least if enough is None else torch.minimum(least, enough * usual)


def outstanding(
    scores: Tensor,
    lengths: Tensor,
    judged: Tensor,
    *,
    fdr_level: float,
    strong: Tensor,
    weak: Tensor,
    enough: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and each score in units of noise [b, n].

    Flagged: scores of `strong` [b, 1] units; and of `weak` units if they also pass the threshold with offset 1, which alone
    would flag honest nodes in every clean neighbourhood, and none where few are Byzantine. Paper: eq:thold.

    A score must also be large for vectors of its `lengths` |x1 - c1| |x2 - c2| [b, n]: late in training one hard sample makes
    an honest node's gradient many times longer than usual, and its score large with either sign, but its halves no more alike.
    That is a cosine of `_ALIKE` and of `_BOLD` times the usual one, or of `enough` [b, 1] times the usual one, if that is less:
    in d dimensions usual cosines are about 1 / sqrt(d), and shifts of many noise units have cosines below `_ALIKE`.
    """
    units = scores / noise_of(scores, judged)
    cosines = scores / lengths.clamp_min(_TINY)
    usual = noise_of(cosines, judged)
    bold = cosines >= least_cosine(usual, enough)
    limit = threshold(torch.where(judged, scores, 0.0), judged, fdr_level=fdr_level, offset=1)
    passed = (units >= strong) | ((units >= weak) & (scores >= limit[:, None]))
    return judged & passed & bold, units
