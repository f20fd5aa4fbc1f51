"""When a run comes to rest, node by node, from its parameters after every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def first_rest(
    thetas: Sequence[Matrix], rates: Sequence[float], *, on: str, tolerance: float, patience: int
) -> tuple[int | None, list[int]]:
    """The first multiple of `patience` at which more than half of the nodes rest, None for never; and how many did each time.

    thetas[k] [M, D] are the parameters after k rounds, rates[k] is the step size of round k (the first is 0).
    """
    counts = []
    for end in range(patience, len(thetas), patience):
        resting = 0
        for now, before in zip(thetas[end], thetas[end - patience], strict=True):
            distance = float(np.sqrt(sum((a - b) ** 2 for a, b in zip(now, before, strict=True))))
            if on == "movement":
                value = distance / (1 + float(np.sqrt(sum(a**2 for a in now))))
            else:
                value = distance / sum(rates[end - patience : end])
            resting += value <= tolerance
        counts.append(resting)
        if resting > len(thetas[end]) / 2:
            return end, counts
    return None, counts
