"""Neighbours that no good one can look like: far beyond everybody, or copies of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.linalg import lower_median
from bymi.detection.evidence import Evidence
from bymi.detection.robust_statistics import median

_CROWD = 5


def absurd(evidence: Evidence) -> Tensor:
    """|x1| + |x2| of each row as a multiple of its neighbourhood's median [b, n], about a point in the midst of it."""
    lengths = sum(p.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt() for p in (evidence.first, evidence.second))
    assert isinstance(lengths, Tensor)
    return lengths / median(lengths, evidence.valid)


def duplicates(evidence: Evidence, closeness: float) -> tuple[Tensor, Tensor]:
    """Rows [b, n] whose first half repeats that of several others, up to `closeness` of the median distance; own is never one.

    Nobody knows who copied whom, but for copies of oneself. A few do no harm, and to cut them would let every liar kill a good
    node by repeating it; so a group must have `_CROWD` members, and its first stays. Also each row's distance to its nearest,
    as a part of the usual one; infinite at receivers whose rows are all far apart.
    """
    distance = _distances(evidence)
    flagged, nearest = torch.zeros_like(evidence.valid), torch.full_like(distance[:, 0], torch.inf)
    # The usual distance is no longer than the longest: most receivers have no pair that could be close, and need no median.
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    at = (shortest < closeness**2 * longest).nonzero().flatten()
    if len(at):
        flagged[at], nearest[at] = _copies(distance[at], evidence.valid[at], evidence.judged[at], closeness)
    return flagged, nearest


def _distances(evidence: Evidence) -> Tensor:
    """Squared distances of first halves [b, n, n], NaN for what is no pair."""
    gone = torch.where(evidence.valid, 0.0, torch.nan).to(evidence.first)
    square = evidence.first.diagonal(dim1=1, dim2=2) + gone
    distance = torch.add(square[:, :, None], square[:, None, :]).sub_(evidence.first, alpha=2)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.nan)
    return distance


def _copies(distance: Tensor, valid: Tensor, judged: Tensor, closeness: float) -> tuple[Tensor, Tensor]:
    size, pairs = distance.shape[1], ~distance.isnan()
    usual = lower_median(distance.flatten(1), pairs.flatten(1))[:, None, None]
    same = pairs & (distance < closeness**2 * usual)
    # The receiver's own row comes before all others: whoever repeats it is the copy.
    own = valid & ~judged
    place = torch.arange(size, device=pairs.device)
    rank = torch.where(own, -1, place)
    earlier = rank[:, None, :] < rank[:, :, None]
    nearest = torch.where(pairs, (distance / usual).clamp_min(0.0).sqrt(), torch.inf).amin(2)
    receiver_group = (same.sum(2) >= _CROWD - 1) | (same & own[:, None, :]).any(2)
    return receiver_group & (same & earlier).any(2) & judged, nearest
