"""Rows that repeat each other, as those of honest nodes do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from bymi.core.linalg import lower_median
from bymi.detection.half_gradient_products import Evidence

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
    some = _with_close_pairs(distance, closeness)
    if len(some):
        distance, judged = distance[some], evidence.judged[some]
        own = evidence.valid[some] & ~judged
        same, earlier, usual = _equal_pairs(distance, own, closeness)
        nearest[some] = torch.where(distance.isnan(), torch.inf, (distance / usual).clamp_min(0.0).sqrt()).amin(2)
        grouped = (same.sum(2) >= _CROWD - 1) | (same & own[:, None, :]).any(2)
        flagged[some] = grouped & (same & earlier).any(2) & judged
    return flagged, nearest


def repeats(products: Sequence[Tensor], valid: Tensor, judged: Tensor, closeness: float) -> tuple[Tensor, Tensor]:
    """Rows that repeat an earlier one by all of these products [b, n, n], and the row that each repeats, both [b, n].

    The own row is the earliest. A neighbour that answers each receiver separately can repeat whom it likes, and any of the two
    may then be called the copy: so a copy should add nothing to an estimate and share the verdict on the row that it repeats,
    but only a copy of the own row is sure to be one.
    """
    copies = torch.zeros_like(valid)
    original = torch.arange(valid.shape[1], device=valid.device).expand(valid.shape).clone()
    some = _with_near_pairs(products, valid, closeness)
    if len(some):
        distance = reduce(torch.maximum, [_distances(each[some], valid[some]) for each in products])
        close = _with_close_pairs(distance, closeness)
        some = some[close]
        same, earlier, _ = _equal_pairs(distance[close], (valid & ~judged)[some], closeness)
        copies[some] = (same & earlier).any(2) & judged[some]
        # No row is earlier than the first one that equals a copy: the own row, or that with the smallest number.
        own = same & (valid & ~judged)[some][:, None, :]
        first = torch.where(own.any(2), own.int().argmax(2), same.int().argmax(2))
        original[some] = torch.where(copies[some], first, original[some])
    return copies, original


def _distances(products: Tensor, valid: Tensor) -> Tensor:
    """Squared distances of rows with these products [b, n, n], NaN where there is no pair."""
    mask = torch.where(valid, 0.0, torch.nan).to(products)
    square = products.diagonal(dim1=1, dim2=2) + mask
    distance = torch.add(square[:, :, None], square[:, None, :]).sub_(products, alpha=2)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.nan)
    return distance


def _with_near_pairs(products: Sequence[Tensor], valid: Tensor, closeness: float) -> Tensor:
    """Receivers that may have close pairs, by the first products alone: no distance is above twice the longest row."""
    lengths = [torch.where(valid, each.diagonal(dim1=1, dim2=2), 0.0) for each in products]
    longest = torch.stack(lengths).amax((0, 2))
    square = torch.where(valid, lengths[0], torch.inf)
    distance = torch.add(square[:, :, None], square[:, None, :]).sub_(products[0], alpha=2)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    return (~(distance.amin((1, 2)) >= 5 * closeness**2 * longest)).nonzero().flatten()  # NaN: perhaps


def _with_close_pairs(distance: Tensor, closeness: float) -> Tensor:
    """Receivers that may have equal rows: the usual distance is at most the longest, and most need no median of all."""
    shortest, longest = distance.nan_to_num(torch.inf).amin((1, 2)), distance.nan_to_num(-torch.inf).amax((1, 2))
    return (shortest < closeness**2 * longest).nonzero().flatten()


def _equal_pairs(distance: Tensor, own: Tensor, closeness: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of equal rows [b, n, n], pairs of which the second is earlier [b, n, n], and the usual distance [b, 1, 1]."""
    size, pairs = distance.shape[1], ~distance.isnan()
    usual = lower_median(distance.flatten(1), pairs.flatten(1))[:, None, None]
    # The receiver's own row ranks before all others: a row that repeats it is the copy.
    rank = torch.where(own, -1, torch.arange(size, device=pairs.device))
    return pairs & (distance < closeness**2 * usual), rank[:, None, :] < rank[:, :, None], usual
