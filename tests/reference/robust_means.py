"""Robust means of detection, point by point with d x d covariances. They return the mean, not weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def _widest(points: Matrix, weights: Vector) -> tuple[float, Vector]:
    """Largest variance, and projections of all points on its direction."""
    share = weights / weights.sum()
    mean = sum(share[j] * points[j] for j in range(len(points)))
    covariance = sum(share[j] * np.outer(points[j] - mean, points[j] - mean) for j in range(len(points)))
    values, vectors = np.linalg.eigh(covariance)
    return float(values[-1]), np.array([(point - mean) @ vectors[:, -1] for point in points])


def _mean(points: Matrix, weights: Vector) -> Vector:
    return weights @ points / weights.sum()


def _noise(points: Matrix) -> float:
    """The lower median of the positive eigenvalues of the covariance."""
    centred = points - points.mean(0)
    values = np.linalg.eigvalsh(centred @ centred.T / len(points))
    positive = sorted(value for value in values if value > 1e-10 * values[-1])
    return float(positive[(len(positive) - 1) // 2])


def budget_filter(points: Matrix, share: float = 0.24) -> Vector:
    n, w = len(points), np.ones(len(points))
    for number in range(math.floor(share * n + 1e-9)):
        if number and w.sum() / (n * w.max()) <= 1 - share:
            break
        tau = np.where(w > 0, _widest(points, w)[1] ** 2, 0.0)
        w = w * (1 - tau / tau.max())
    return _mean(points, w)


def stability_filter(points: Matrix, bound: float = 8.0) -> Vector:
    n, w, limit = len(points), np.ones(len(points)), bound * _noise(points)
    for _ in range(n):
        value, along = _widest(points, w)
        tau = np.where(w > 0, along**2, 0.0)
        lower = w * (1 - tau / tau.max())
        if value <= limit or lower.sum() < 0.51 * n:
            break
        w = lower
    return _mean(points, w)


def project(weights: Vector, cap: float) -> Vector:
    """KL projection on {w_j <= cap, sum w = 1}: the fewest largest weights at the cap, the others scaled."""
    order = np.argsort(-weights)
    for k in range(len(weights)):
        result = np.full(len(weights), cap)
        rest = order[k:]
        result[rest] = weights[rest] * (1 - k * cap) / weights[rest].sum()
        if result.max() <= cap * (1 + 1e-12):
            return result
    return np.full(len(weights), 1 / len(weights))


def spectral_solver(points: Matrix, share: float = 0.4, rounds: int = 100) -> Vector:
    n = len(points)
    w, best, least = np.full(n, 1 / n), None, math.inf
    for _ in range(rounds):
        value, along = _widest(points, w)
        if value < least:
            best, least = w, value
        tau = np.where(w > 0, along**2, 0.0)
        w = project(w * np.exp(-tau / (2 * tau.max())), 1 / ((1 - share) * n))
    assert best is not None
    return _mean(points, best)


def no_regret(points: Matrix, share: float = 1 / 12, bound: float = 20.0, rounds: int = 100) -> Vector:
    n, limit = len(points), bound * _noise(points)
    bad = math.ceil(share * n - 1e-9)
    far = np.array([[float(np.sum((one - two) ** 2)) for two in points] for one in points])
    scores = [sum(sorted(far[j][k] for k in range(n) if k != j)[: max(1, n - bad - 2)]) for j in range(n)]
    dropped = sorted(range(n), key=lambda j: -scores[j])[:bad]
    kept = [j for j in range(n) if j not in dropped]
    w = np.array([0.0 if j in dropped else 1 / len(kept) for j in range(n)])
    cap = 1 / ((1 - share) * n)
    step = 0.5 / max(far[i][j] for i in kept for j in kept)
    w[kept] = project(w[kept], cap)
    for _ in range(rounds):
        value, along = _widest(points, w)
        if value <= limit:
            break
        w[kept] = project(w[kept] * (1 - step * along[kept] ** 2), cap)
    return _mean(points, w)


def _agnostic(points: Matrix, variance: float, budget: float) -> list[int]:
    n, kept = len(points), list(range(len(points)))
    for _ in range(100):
        mask = np.array([1.0 if j in kept else 0.0 for j in range(n)])
        along = _widest(points, mask)[1]
        middle = float(np.median(along[kept]))
        order = sorted(kept, key=lambda j: (along[j] - middle) ** 2)
        total, still = 0.0, []
        for j in order:
            total += (along[j] - middle) ** 2
            if total > budget * n * variance * (1 + 1e-12) and still:
                break
            still.append(j)
        if sorted(still) == sorted(kept):
            break
        kept = still
    return kept


def agnostic_filter(points: Matrix, budget: float = 2.0, ratio: float = 1.1) -> Vector:
    largest = math.sqrt(_widest(points, np.ones(len(points)))[0])
    sigmas = [largest / ratio**power for power in range(1 + math.floor(math.log(20) / math.log(ratio)))]
    sets = [_agnostic(points, sigma**2, budget) for sigma in sigmas]
    means = [points[kept].mean(0) for kept in sets]
    chosen = means[0]
    for k in range(1, len(sigmas)):
        if 2 * len(sets[k]) < len(points):
            break
        if any(np.linalg.norm(means[k] - means[i]) > 4 * (sigmas[k] + sigmas[i]) for i in range(k)):
            break
        chosen = means[k]
    return chosen


MEANS: dict[str, Callable[..., Vector]] = {
    "budget-filter": budget_filter,
    "stability-filter": stability_filter,
    "spectral-solver": spectral_solver,
    "no-regret": no_regret,
    "agnostic-filter": agnostic_filter,
}
"""By the names of the library's table of centres."""
