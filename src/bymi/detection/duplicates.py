"""Rows that repeat each other, as those of honest nodes do not."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.linalg import lower_median
from bymi.detection.evidence import Evidence

_CROWD = 5  # smallest group of copies that is flagged by itself


def duplicates(evidence: Evidence, closeness: float) -> tuple[Tensor, Tensor]:
    """Rows [b, n] whose first half repeats that of several others, within `closeness` of the median distance.

    The own row is never one. Which of several copies is the original is unknown, except for copies of the receiver's own. A few
    do no harm, and cutting them would let every Byzantine node remove an honest one by copying it: so a group must have
    `_CROWD` members, and its first is kept. The second result is each row's distance to its nearest, over the usual one;
    infinite at receivers whose rows are all far apart.
    """
    distance = _distances(evidence.first, evidence.valid)
    flagged, nearest = torch.zeros_like(evidence.valid), torch.full_like(distance[:, 0], torch.inf)
    # The usual distance is at most the longest: most receivers have no close pair and need no median.
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    candidates = (shortest < closeness**2 * longest).nonzero().flatten()
    if len(candidates):
        flagged[candidates], nearest[candidates] = _copies(
            distance[candidates], evidence.valid[candidates], evidence.judged[candidates], closeness
        )
    return flagged, nearest


def repeated(evidence: Evidence, closeness: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that repeat an earlier one in both halves [b, n], the row that each repeats [b, n], and copies to flag [b, n].

    A neighbour that answers each receiver separately can repeat whom it likes, and any of the two may then be called the copy:
    so a copy adds nothing to an estimate, and shares the verdict on the row that it repeats, but is flagged for being one only
    if it repeats the receiver's own row.
    """
    copies, flagged = torch.zeros_like(evidence.valid), torch.zeros_like(evidence.valid)
    original = torch.arange(copies.shape[1], device=copies.device).expand(copies.shape).clone()
    distance = torch.maximum(*(_distances(products, evidence.valid) for products in (evidence.first, evidence.second)))
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    candidates = (shortest < closeness**2 * longest).nonzero().flatten()
    if not len(candidates):
        return copies, original, flagged
    distance, judged, valid = distance[candidates], evidence.judged[candidates], evidence.valid[candidates]
    same, earlier, _ = _same(distance, valid, judged, closeness)
    copies[candidates] = (same & earlier).any(2) & judged
    rank = torch.where(valid & ~judged, -1, torch.arange(distance.shape[1], device=distance.device))
    first = torch.where(same, rank[:, None, :], distance.shape[1]).argmin(2)
    original[candidates] = torch.where(copies[candidates], first, original[candidates])
    own = (same & (valid & ~judged)[:, None, :]).any(2)
    flagged[candidates] = copies[candidates] & own
    return copies, original, flagged


def repeats(products: Tensor, valid: Tensor, judged: Tensor, closeness: float) -> Tensor:
    """Rows with these products [b, n, n] that repeat an earlier one [b, n]; the own row is the earliest."""
    distance, copies = _distances(products, valid), torch.zeros_like(valid)
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    candidates = (shortest < closeness**2 * longest).nonzero().flatten()
    if len(candidates):
        same, earlier, _ = _same(distance[candidates], valid[candidates], judged[candidates], closeness)
        copies[candidates] = (same & earlier).any(2) & judged[candidates]
    return copies


def _distances(products: Tensor, valid: Tensor) -> Tensor:
    """Squared distances of rows with these products [b, n, n], NaN where there is no pair."""
    mask = torch.where(valid, 0.0, torch.nan).to(products)
    square = products.diagonal(dim1=1, dim2=2) + mask
    distance = torch.add(square[:, :, None], square[:, None, :]).sub_(products, alpha=2)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.nan)
    return distance


def _copies(distance: Tensor, valid: Tensor, judged: Tensor, closeness: float) -> tuple[Tensor, Tensor]:
    same, earlier, usual = _same(distance, valid, judged, closeness)
    nearest = torch.where(distance.isnan(), torch.inf, (distance / usual).clamp_min(0.0).sqrt()).amin(2)
    grouped = (same.sum(2) >= _CROWD - 1) | (same & (valid & ~judged)[:, None, :]).any(2)
    return grouped & (same & earlier).any(2) & judged, nearest


def _same(distance: Tensor, valid: Tensor, judged: Tensor, closeness: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of equal rows [b, n, n], pairs of which the second is earlier [b, n, n], and the usual distance [b, 1, 1]."""
    size, pairs = distance.shape[1], ~distance.isnan()
    usual = lower_median(distance.flatten(1), pairs.flatten(1))[:, None, None]
    # The receiver's own row ranks before all others: a row that repeats it is the copy.
    rank = torch.where(valid & ~judged, -1, torch.arange(size, device=pairs.device))
    return pairs & (distance < closeness**2 * usual), rank[:, None, :] < rank[:, :, None], usual
