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
    order: str = "combine-then-adapt",
) -> tuple[Matrix, Matrix]:
    """eq:eupdate, then eq:local_dsgdrs with the new tracker: parameters and trackers after the round.

    The other order takes the step first, with the tracker at hand, and sends where it led.
    """
    nodes = len(mixing)

    def steps(trackers: Matrix) -> Matrix:
        limits = {"min_weight": min_weight, "max_local_step": max_local_step}
        each = [local_step(trackers[i, i], rate, nodes=nodes, convention=convention, **limits) for i in range(nodes)]
        return np.array(each)[:, None] * gradients

    mixed_trackers = mix(mixing, trackers)
    if order == "adapt-then-combine":
        return mix(mixing, theta - steps(trackers)), mixed_trackers
    return mix(mixing, theta) - steps(mixed_trackers), mixed_trackers


def dgd_rs_round(theta: Matrix, trackers: Matrix, gradients: Matrix, mixing: Matrix, rate: float) -> tuple[Matrix, Matrix]:
    """eq:DGDRS node by node and coordinate by coordinate: the step is divided by [y_{i,k}]_i, the tracker before the round."""
    nodes, dim = theta.shape
    after, tracked = np.zeros_like(theta), np.zeros_like(trackers)
    for i in range(nodes):
        for c in range(dim):
            mixed = sum(mixing[i, j] * theta[j, c] for j in range(nodes))
            after[i, c] = mixed - rate * gradients[i, c] / trackers[i, i]
        for c in range(nodes):
            tracked[i, c] = sum(mixing[i, j] * trackers[j, c] for j in range(nodes))
    return after, tracked
