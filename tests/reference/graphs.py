"""Weights, pruning, the largest component and its Perron vector, by loops and a general eigensolver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]


def metropolis(hears: Mask) -> Matrix:
    """W_ij = 1 / (1 + max(d_i, d_j)) where i hears j, W_ii = 1 - sum_j W_ij, with d_i the number of nodes that i hears."""
    size = len(hears)
    degree = [sum(1 for j in range(size) if hears[i, j]) for i in range(size)]
    weights = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            if hears[i, j]:
                weights[i, j] = 1 / (1 + max(degree[i], degree[j]))
        weights[i, i] = 1 - sum(weights[i, j] for j in range(size) if j != i)
    return weights


def prune(mixing: Matrix, flagged: Mask) -> Matrix:
    """eq:reassign: W_ij / sum of W_il over what i keeps, itself included; zero for what it cut."""
    size = len(mixing)
    pruned = np.zeros((size, size))
    for i in range(size):
        kept = [j for j in range(size) if j == i or not flagged[i, j]]
        total = sum(mixing[i, j] for j in kept)
        for j in kept:
            pruned[i, j] = mixing[i, j] / total
    return pruned


def reaches(hears: Mask, start: int) -> set[int]:
    """All nodes to which something said by `start` can travel, itself included."""
    reached, border = {start}, [start]
    while border:
        sender = border.pop()
        for receiver in range(len(hears)):
            if hears[receiver, sender] and receiver not in reached:
                reached.add(receiver)
                border.append(receiver)
    return reached


def largest_component(hears: Mask) -> set[int]:
    """The largest set of nodes that all reach each other; of equally large ones, the one with the smallest node."""
    reach = [reaches(hears, node) for node in range(len(hears))]
    best: set[int] = set()
    for node in range(len(hears)):
        component = {other for other in reach[node] if node in reach[other]}
        if len(component) > len(best):
            best = component
    return best


def is_closed(hears: Mask, component: set[int]) -> bool:
    """Nobody in the component hears anybody outside."""
    return not any(hears[i, j] for i in component for j in range(len(hears)) if j not in component)


def perron(mixing: Matrix, component: set[int]) -> Matrix:
    """Left eigenvector of the component's block for its largest eigenvalue, summing to one; zero outside."""
    inside = sorted(component)
    values, vectors = np.linalg.eig(mixing[np.ix_(inside, inside)].T)
    leading = np.real(vectors[:, np.argmax(np.real(values))])
    result = np.zeros(len(mixing))
    result[inside] = leading / leading.sum()
    return result


def prune_mutually(hears: Mask, flagged: Mask, exile: float | None) -> tuple[Mask, Matrix]:
    """Edges that neither end flags, with Metropolis weights; whom most have flagged listens to all it does not flag.

    Whoever hears is heard.
    """
    size = len(hears)
    kept = np.zeros_like(hears)
    for i in range(size):
        for j in range(size):
            kept[i, j] = hears[i, j] and not flagged[i, j] and not flagged[j, i]
    mixing = metropolis(kept)
    listening = kept.copy()
    for i in range(size):
        could = [j for j in range(size) if hears[j, i]]
        if exile is None or sum(1 for j in could if flagged[j, i]) <= exile * len(could):
            continue
        trusted = [j for j in range(size) if hears[i, j] and not flagged[i, j]]
        listening[i], mixing[i] = False, 0.0
        listening[i, trusted] = True
        mixing[i, [*trusted, i]] = 1 / (1 + len(trusted))
    return listening, mixing
