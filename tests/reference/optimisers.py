"""Optimisers of the third phase, node by node, as their papers print them. `mixing` has rows that sum to one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Gradients = Callable[[Matrix], Matrix]
"""Gradient of each node's loss at its row."""


def _mix(weights: Matrix, vectors: Matrix) -> Matrix:
    return np.array([sum(weights[i, j] * vectors[j] for j in range(len(weights))) for i in range(len(weights))])


def dsgd(theta: Matrix, gradients: Gradients, mixing: Matrix, rates: list[float], momentum: float = 0.0) -> list[Matrix]:
    """x_i <- sum_j W_ij x_j - a d_i, d_i <- b d_i + (1 - b) g_i."""
    found, direction = [], None
    for rate in rates:
        slope = gradients(theta)
        direction = slope if direction is None else momentum * direction + (1 - momentum) * slope
        mixed = _mix(mixing, theta)
        theta = np.array([mixed[i] - rate * direction[i] for i in range(len(theta))])
        found.append(theta)
    return found


def dgd_rs(theta: Matrix, gradients: Gradients, mixing: Matrix, rates: list[float]) -> list[Matrix]:
    """x_i <- sum_j W_ij x_j - a g_i / [y_i]_i, then y_i <- sum_j W_ij y_j, from y_i = e_i."""
    found, y = [], np.eye(len(theta))
    for rate in rates:
        slope, mixed = gradients(theta), _mix(mixing, theta)
        theta = np.array([mixed[i] - rate * slope[i] / y[i, i] for i in range(len(theta))])
        y = _mix(mixing, y)
        found.append(theta)
    return found


def frost(
    theta: Matrix,
    gradients: Gradients,
    mixing: Matrix,
    rates: list[float],
    factors: list[float],
    heavy_ball: float = 0.0,
    adapt_first: bool = False,
) -> list[Matrix]:
    """FROST as printed, from y_i = e_i and z_i = g_i; node i takes the step rates[k] factors[i].

    x_i <- sum_j W_ij x_j - a_i z_i + b (x_i - its predecessor); y_i <- sum_j W_ij y_j;
    z_i <- sum_j W_ij z_j + g_i(new x_i) / [new y_i]_i - g_i(x_i) / [y_i]_i.
    """
    nodes = len(theta)
    y, z = np.eye(nodes), gradients(theta)
    found, previous = [], theta
    for rate in rates:
        local = np.array([rate * factors[i] * z[i] for i in range(nodes)])
        moved = _mix(mixing, theta - local) if adapt_first else _mix(mixing, theta) - local
        after = moved + heavy_ball * (theta - previous)
        new_y = _mix(mixing, y)
        mixed, old_slope, new_slope = _mix(mixing, z), gradients(theta), gradients(after)
        z = np.array([mixed[i] + new_slope[i] / new_y[i, i] - old_slope[i] / y[i, i] for i in range(nodes)])
        previous, theta, y = theta, after, new_y
        found.append(theta)
    return found


def ab(
    theta: Matrix, gradients: Gradients, mixing: Matrix, columns: Matrix, rates: list[float], adapt_first: bool = False
) -> list[Matrix]:
    """AB, or push-pull with `adapt_first`: x <- R x - a z, z <- C z + g(new x) - g(x), with columns of C that sum to one."""
    z, found = gradients(theta), []
    for rate in rates:
        after = _mix(mixing, theta - rate * z) if adapt_first else _mix(mixing, theta) - rate * z
        z = _mix(columns, z) + gradients(after) - gradients(theta)
        theta = after
        found.append(theta)
    return found


def push_weights(hears: NDArray[np.bool_]) -> Matrix:
    """C_ij = 1 / (1 + n_j) for the n_j nodes that hear j and that j hears, and for j itself."""
    nodes = len(hears)
    columns = np.zeros((nodes, nodes))
    for j in range(nodes):
        receivers = [i for i in range(nodes) if hears[i, j] and hears[j, i]]
        for i in (*receivers, j):
            columns[i, j] = 1 / (1 + len(receivers))
    return columns
