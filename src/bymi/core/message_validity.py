"""Which messages count as heard, by their lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.neighbour_lists import NeighbourLists

MAX_NORM_RATIO = 1e6
"""A message longer than ABSURD x max(1, length of the receiver's own vector) is not heard."""

OVERFLOW = 1e100
"""A node whose own vector is longer than this has diverged: it hears nobody and takes part in nothing. Squares stay finite."""


def usable(length: Tensor, own_length: Tensor) -> Tensor | None:
    """Messages [J], by their lengths, NaN for none, that any receiver can use, by the lengths of all own vectors [M].

    None if everybody can use all of them.
    """
    reach = MAX_NORM_RATIO * own_length.clamp_min(1.0)
    if len(length) and bool((length.max() <= reach.min()) & (own_length.max() < OVERFLOW)):
        return None
    sane = own_length < OVERFLOW  # NaN compares false
    return length <= (torch.where(sane, reach, -torch.inf).amax() if len(reach) else -torch.inf)


def heard(length: Tensor, own_length: Tensor, expected: Tensor, lists: NeighbourLists | None) -> Tensor:
    """Who of those expected is heard [B, J], by the lengths of messages [J] and own vectors [B]; with lists [B, n]."""
    reach, sane = MAX_NORM_RATIO * own_length.clamp_min(1.0), own_length < OVERFLOW
    length = length[None, :] if lists is None else lists.look(length)
    return expected & (length <= reach[:, None]) & sane[:, None]
