"""One round of the optimisation phase, node by node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def mix(mixing: Matrix, vectors: Matrix) -> Matrix:
    """sum_j W_ij x_j for every node i; for the trackers this is eq:eupdate."""
    return np.array([sum(mixing[i, j] * vectors[j] for j in range(len(mixing))) for i in range(len(mixing))])


def local_step(entry: float, rate: float, *, nodes: int, min_weight: float, max_local_step: float, convention: str) -> float:
    """rate / [y_i]_i, with the entry floored at min_weight / m and the step capped; "mean" divides by m as well."""
    step = rate / max(entry, min_weight / nodes)
    if convention == "mean":
        step = step / nodes
    return min(step, max_local_step)


def one_round(
    theta: Matrix,
    trackers: Matrix,
    gradients: Matrix,
    mixing: Matrix,
    rate: float,
    *,
    min_weight: float,
    max_local_step: float,
    convention: str,
) -> tuple[Matrix, Matrix]:
    """eq:eupdate, then eq:local_dsgdrs with the new tracker: parameters and trackers after the round."""
    nodes = len(mixing)
    trackers = mix(mixing, trackers)
    mixed = mix(mixing, theta)
    after = np.zeros_like(theta)
    for i in range(nodes):
        step = local_step(
            trackers[i, i],
            rate,
            nodes=nodes,
            min_weight=min_weight,
            max_local_step=max_local_step,
            convention=convention,
        )
        after[i] = mixed[i] - step * gradients[i]
    return after, trackers
