"""Gross outliers: neighbours far too long, or copies of each other, as no honest node is."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.linalg import lower_median
from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import median

_CROWD = 5  # smallest group of copies that is flagged


def absurd(evidence: Evidence) -> Tensor:
    """|x1| + |x2| per row as a multiple of the neighbourhood's median [b, n], about a central point."""
    lengths = sum(p.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt() for p in (evidence.first, evidence.second))
    assert isinstance(lengths, Tensor)
    return lengths / median(lengths, evidence.valid)


def duplicates(evidence: Evidence, closeness: float) -> tuple[Tensor, Tensor]:
    """Rows [b, n] whose first half repeats that of several others, within `closeness` of the median distance.

    The own row is never one. Which of several copies is the original is unknown, except for copies of the receiver's own. A few
    do no harm, and cutting them would let every Byzantine node remove an honest one by copying it: so a group must have
    `_CROWD` members, and its first is kept. The second result is each row's distance to its nearest, over the usual one;
    infinite at receivers whose rows are all far apart.
    """
    distance = _distances(evidence)
    flagged, nearest = torch.zeros_like(evidence.valid), torch.full_like(distance[:, 0], torch.inf)
    # The usual distance is at most the longest: most receivers have no close pair and need no median.
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    candidates = (shortest < closeness**2 * longest).nonzero().flatten()
    if len(candidates):
        flagged[candidates], nearest[candidates] = _copies(
            distance[candidates], evidence.valid[candidates], evidence.judged[candidates], closeness
        )
    return flagged, nearest


def _distances(evidence: Evidence) -> Tensor:
    """Squared distances of first halves [b, n, n], NaN where there is no pair."""
    mask = torch.where(evidence.valid, 0.0, torch.nan).to(evidence.first)
    square = evidence.first.diagonal(dim1=1, dim2=2) + mask
    distance = torch.add(square[:, :, None], square[:, None, :]).sub_(evidence.first, alpha=2)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.nan)
    return distance


def _copies(distance: Tensor, valid: Tensor, judged: Tensor, closeness: float) -> tuple[Tensor, Tensor]:
    size, pairs = distance.shape[1], ~distance.isnan()
    usual = lower_median(distance.flatten(1), pairs.flatten(1))[:, None, None]
    same = pairs & (distance < closeness**2 * usual)
    # The receiver's own row ranks before all others: a row that repeats it is the copy.
    own = valid & ~judged
    position = torch.arange(size, device=pairs.device)
    rank = torch.where(own, -1, position)
    earlier = rank[:, None, :] < rank[:, :, None]
    nearest = torch.where(pairs, (distance / usual).clamp_min(0.0).sqrt(), torch.inf).amin(2)
    grouped = (same.sum(2) >= _CROWD - 1) | (same & own[:, None, :]).any(2)
    return grouped & (same & earlier).any(2) & judged, nearest
