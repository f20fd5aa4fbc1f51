"""Scores, the threshold and its error rates, straight from the definitions with d x d matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def identity(first_halves: list[Vector]) -> Matrix:
    return np.eye(len(first_halves[0]))


def principal(first_halves: list[Vector], variance: float = 0.95) -> Matrix:
    """Projector on as many principal components, about the plain mean, as first reach `variance` of all variance."""
    centre = np.mean(first_halves, axis=0)
    covariance = sum(np.outer(half - centre, half - centre) for half in first_halves) / len(first_halves)
    values, vectors = np.linalg.eigh(covariance)
    projector = np.zeros_like(covariance)
    explained = 0.0
    for place in reversed(range(len(values))):
        if explained >= variance * values.sum():
            break
        projector += np.outer(vectors[:, place], vectors[:, place])
        explained += values[place]
    return projector


def projected(first_halves: list[Vector], components: int = 5) -> Matrix:
    """Projector on the first principal components about the plain mean."""
    centre = np.mean(first_halves, axis=0)
    covariance = sum(np.outer(half - centre, half - centre) for half in first_halves) / len(first_halves)
    values, vectors = np.linalg.eigh(covariance)
    kept = [place for place in reversed(range(len(values))) if values[place] > 1e-10 * values[-1]][:components]
    return sum((np.outer(vectors[:, place], vectors[:, place]) for place in kept), np.zeros_like(covariance))


OMEGAS = {"identity": identity, "pca": principal, "projected": projected}
"""By the names of the library's table of scales."""


def score(first: Vector, second: Vector, centre: Vector, omega: Matrix) -> float:
    """eq:score: (g1 - c)' Omega (g2 - c)."""
    return float((first - centre) @ omega @ (second - centre))


def _qualifies(scores: list[float], limit: float, level: float, offset: int) -> bool:
    negative = sum(1 for value in scores if value <= -limit)
    positive = sum(1 for value in scores if value >= limit)
    return (offset + negative) / max(1, positive) <= level


def threshold(scores: list[float], level: float, offset: int) -> float:
    """The smallest |S| above zero that satisfies the inequality of eq:thold: its infimum but for ties, docs/adr/0006."""
    candidates = sorted({abs(value) for value in scores if value != 0})
    for candidate in candidates:
        if _qualifies(scores, candidate, level, offset):
            return candidate
    return np.inf


def infimum(scores: list[float], level: float, offset: int) -> float:
    """eq:thold as printed: the infimum over all r > 0 that satisfy the inequality; +inf if none does.

    Counts change only just above a |S|, so they are constant on each interval from one to the next, the right end included,
    and beyond the largest. The infimum is the left end of the first interval that satisfies the inequality, 0 for the first.
    """
    ends = [0.0, *sorted({abs(value) for value in scores if value != 0})]
    for left, inside in zip(ends, [*ends[1:], ends[-1] + 1], strict=True):
        if _qualifies(scores, inside, level, offset):
            return left
    return np.inf


def threshold_by_scan(scores: list[float], level: float, offset: int, step: float) -> float:
    """eq:thold as printed: the infimum over all r > 0, found on a grid that runs past the largest |S|.

    The grid must be finer than the gaps between scores and hit them exactly. Counts only change just above a score, so
    the first r that qualifies lies one step above the infimum.
    """
    largest = max(abs(value) for value in scores)
    for number in range(1, int(largest / step) + 3):
        if _qualifies(scores, number * step, level, offset):
            return (number - 1) * step
    return np.inf


def false_discovery_proportion(flagged: list[set[int]], byzantine: set[int]) -> float:
    """|flagged by i and honest| / max(1, |flagged by i|), averaged over honest i."""
    honest = [node for node in range(len(flagged)) if node not in byzantine]
    return sum(len(flagged[i] - byzantine) / max(1, len(flagged[i])) for i in honest) / len(honest)


def sure_detection(flagged: list[set[int]], neighbours: list[set[int]], byzantine: set[int]) -> float:
    """The share of honest i that flagged all of their Byzantine neighbours."""
    honest = [node for node in range(len(flagged)) if node not in byzantine]
    return sum(1 for i in honest if neighbours[i] & byzantine <= flagged[i]) / len(honest)
