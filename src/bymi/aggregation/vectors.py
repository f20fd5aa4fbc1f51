"""Rules on plain vectors: a list, a tensor or an array in, the same type out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bymi.core.errors import InputError, require
from bymi.core.inbox import Inbox

Vectors = Tensor | NDArray[Any] | Sequence[Any]
"""n vectors: a tensor or array [n, d], or a list of n tensors or arrays [d]."""

_ALLOWED = "an Inbox with a Round; or vectors: a tensor or array [n, d], or a list of n tensors or arrays [d]"


def are_vectors(given: object) -> bool:
    """Whether a rule was called with vectors, not with an inbox."""
    return isinstance(given, (Tensor, np.ndarray, list, tuple))


def stacked(given: Vectors) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Vectors as one floating-point tensor [n, d], and a function that gives a result the type of what came in."""
    first = given[0] if isinstance(given, (list, tuple)) and len(given) else given
    try:
        if isinstance(given, Tensor):
            rows = given
        elif isinstance(first, Tensor):
            rows = torch.stack(list(given))
        else:
            rows = torch.from_numpy(np.array(given))
    except (ValueError, TypeError, RuntimeError) as problem:
        raise InputError(f"vectors: got {type(given).__name__} ({problem}), allowed: {_ALLOWED}") from None
    require(rows.ndim == 2 and len(rows) > 0, "vectors", rows, _ALLOWED)
    rows = rows.detach() if rows.is_floating_point() else rows.to(torch.float64)
    return rows, (lambda result: result) if isinstance(first, Tensor) else (lambda result: result.numpy())


def inbox_of(rows: Tensor) -> Inbox:
    """The inbox of one node that holds the first of n vectors and hears the others, with equal mixing weights."""
    share = torch.full((1, len(rows) - 1), 1 / len(rows), dtype=torch.float64, device=rows.device)
    own_share = torch.full((1,), 1 / len(rows), dtype=torch.float64, device=rows.device)
    expected = torch.ones_like(share, dtype=torch.bool)
    return Inbox.receive(rows[:1], rows[1:], expected=expected, weight=share, self_weight=own_share)
