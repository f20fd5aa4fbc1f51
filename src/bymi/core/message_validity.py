"""Validation of messages by their norms."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.neighbour_lists import NeighbourLists

MAX_NORM_RATIO = 1e6
"""A message whose norm exceeds MAX_NORM_RATIO * max(1, norm of the receiver's own vector) is not heard."""

OVERFLOW = 1e100
"""A node whose own vector has a larger norm has diverged: it hears nothing, and its vector is not used. Squares are finite."""


def acceptable(length: Tensor, own_length: Tensor) -> Tensor | None:
    """Mask [J] of messages that at least one receiver may accept, from message norms (NaN = missing) and own norms [M].

    None if all receivers accept all messages.
    """
    reach = MAX_NORM_RATIO * own_length.clamp_min(1.0)
    if len(length) and bool((length.max() <= reach.min()) & (own_length.max() < OVERFLOW)):
        return None
    finite = own_length < OVERFLOW  # NaN compares false
    return length <= (torch.where(finite, reach, -torch.inf).amax() if len(reach) else -torch.inf)


def heard(length: Tensor, own_length: Tensor, expected: Tensor, lists: NeighbourLists | None) -> Tensor:
    """Mask of expected messages that are heard [B, J], from message norms [J] and own norms [B]; with lists [B, n]."""
    reach, finite = MAX_NORM_RATIO * own_length.clamp_min(1.0), own_length < OVERFLOW
    length = length[None, :] if lists is None else lists.at_places(length)
    return expected & (length <= reach[:, None]) & finite[:, None]
