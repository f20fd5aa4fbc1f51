"""Neighbours that no good one can look like: far beyond everybody, or copies of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.robust import median

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
    as a part of the usual one.
    """
    square = evidence.first.diagonal(dim1=1, dim2=2)
    distance = square[:, :, None] + square[:, None, :] - 2 * evidence.first
    pairs = evidence.valid[:, :, None] & evidence.valid[:, None, :]
    size = distance.shape[1]
    pairs = pairs & ~torch.eye(size, dtype=torch.bool, device=pairs.device)
    usual = torch.where(pairs, distance, torch.nan).flatten(1).nanmedian(1).values[:, None, None]
    same = pairs & (distance < closeness**2 * usual)
    # The receiver's own row comes before all others: whoever repeats it is the copy.
    own = evidence.valid & ~evidence.judged
    place = torch.arange(size, device=pairs.device)
    rank = torch.where(own, -1, place)
    earlier = rank[:, None, :] < rank[:, :, None]
    nearest = torch.where(pairs, (distance / usual).clamp_min(0.0).sqrt(), torch.inf).amin(2)
    crowd = (same.sum(2) >= _CROWD - 1) | (same & own[:, None, :]).any(2)
    return crowd & (same & earlier).any(2) & evidence.judged, nearest
