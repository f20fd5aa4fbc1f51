"""Rules of other methods as maps for one node, on vectors, by loops: as published, with the conventions of the library.

f is the number of vectors assumed to be Byzantine; a share is of the neighbours, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from tests.reference.rules import TRANSCRIPTIONS, Node, Vector, median, part_of

_EQUAL = 1e-9  # relative difference of scores that count as equal


def assumed(node: Node, share: float, f: int | None, most: int) -> int:
    number = math.ceil(part_of(share, len(node.heard))) if f is None else f
    return max(0, min(number, most))


def squared(one: Vector, other: Vector) -> float:
    return float(np.sum((one - other) ** 2))


def mean_of_least(scores: list[float], vectors: list[Vector], number: int) -> Vector:
    """Mean of the `number` vectors with the least scores; equal scores at the end of these share the last places."""
    last = sorted(scores)[number - 1]
    below = [k for k, score in enumerate(scores) if score < last - _EQUAL * abs(last)]
    equal = [k for k, score in enumerate(scores) if abs(score - last) <= _EQUAL * abs(last)]
    total = sum((vectors[k] for k in below), np.zeros_like(vectors[0]))
    return (total + (number - len(below)) * np.mean([vectors[k] for k in equal], axis=0)) / number


def shares(node: Node) -> tuple[float, list[float]]:
    """The own mixing weight and those of the messages heard, with sum one."""
    total = node.self_weight + sum(node.weights)
    return node.self_weight / total, [weight / total for weight in node.weights]


def clip(vector: Vector, radius: float) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector if length <= radius else vector * radius / length


def nearest_in_weight(node: Node, share: float) -> tuple[list[int], float]:
    """Neighbours left when the farthest are removed while the removed weigh at most delta in all, and delta."""
    _, weights = shares(node)
    delta, removed = share * sum(weights), 0.0
    left = sorted(range(len(node.heard)), key=lambda j: squared(node.heard[j], node.own))
    while left and removed + weights[left[-1]] <= delta * (1 + 1e-9):
        removed += weights[left.pop()]
    return left, delta


def radius_of(node: Node, left: list[int], delta: float) -> float:
    _, weights = shares(node)
    spread = sum(weights[j] * squared(node.heard[j], node.own) for j in left)
    return math.sqrt(spread / delta) if delta > 0 else math.inf


def scclip(node: Node, *, tau: float | None, share: float) -> Vector:
    """sum_j W_ij (x_i + clip(x_j - x_i, tau))."""
    own_weight, weights = shares(node)
    radius = radius_of(node, *nearest_in_weight(node, share)) if tau is None else tau
    result = own_weight * node.own
    for weight, vector in zip(weights, node.heard, strict=True):
        result = result + weight * (node.own + clip(vector - node.own, radius))
    return result


def rtc(node: Node, *, share: float, clip_power: int) -> Vector:
    """Remove the farthest, clip the others, put the removed weight on the own vector."""
    _, weights = shares(node)
    left, delta = nearest_in_weight(node, share)
    radius = radius_of(node, left, delta)
    result = (1 - sum(weights[j] for j in left)) * node.own
    for j in left:
        away = node.heard[j] - node.own
        length = float(np.linalg.norm(away))
        factor = 1.0 if length <= radius else (radius / length) ** clip_power
        result = result + weights[j] * (node.own + factor * away)
    return result


def drsa(node: Node, *, penalty: float, batch: int = 1) -> Vector:
    """x_i - eta lambda sum_j sign(x_i - x_j); `batch` is for gradients."""
    result = node.own.copy()
    for p in range(len(result)):
        for vector in node.heard:
            result[p] -= node.step_size * penalty * np.sign(node.own[p] - vector[p])
    return result


def bridge_t(node: Node, *, share: float, f: int | None) -> Vector:
    """Per coordinate: without the b smallest and largest neighbour values, the mean of the others and the own one."""
    trim = assumed(node, share, f, len(node.heard) // 2)
    result = np.zeros_like(node.own)
    for p in range(len(result)):
        values = sorted(vector[p] for vector in node.heard)
        left = [*values[trim : len(values) - trim], node.own[p]]
        result[p] = sum(left) / len(left)
    return result


def byrdie(node: Node, *, share: float, f: int | None, inner: int) -> Vector:
    """One coordinate is updated, the one whose turn it is."""
    turn = (node.step // inner) % len(node.own)
    result = node.own.copy()
    result[turn] = bridge_t(node, share=share, f=f)[turn]
    return result


def faba(node: Node, *, share: float, f: int | None) -> Vector:
    """f times away with the neighbour farthest from the neighbours' plain mean; then the mean with the own vector."""
    if not node.heard:
        return node.own
    left = list(node.heard)
    for _ in range(assumed(node, share, f, len(left) - 2)):
        centre = np.mean(left, axis=0)
        del left[int(np.argmax([squared(vector, centre) for vector in left]))]
    return (len(left) * np.mean(left, axis=0) + node.own) / (len(left) + 1)


def monna(node: Node, *, share: float, f: int | None) -> Vector:
    """Mean of the own vector and the n - f - 1 nearest to it."""
    if not node.heard:
        return node.own
    keep = len(node.heard) - assumed(node, share, f, len(node.heard) - 1)
    near = sorted(node.heard, key=lambda vector: squared(vector, node.own))[:keep]
    return np.mean([node.own, *near], axis=0)


def meamed(node: Node, *, share: float, f: int | None) -> Vector:
    """Per coordinate the mean of the n - f values nearest to the median."""
    count = len(node.everybody)
    keep = count - assumed(node, share, f, (count - 1) // 2)
    return mean_near_median(node.everybody, keep)


def mean_near_median(vectors: list[Vector], keep: int) -> Vector:
    result = np.zeros_like(vectors[0])
    for p in range(len(result)):
        values = [float(vector[p]) for vector in vectors]
        middle = float(np.median(values))
        result[p] = sum(sorted(values, key=lambda value: (abs(value - middle), value))[:keep]) / keep
    return result


def krum_scores(vectors: list[Vector], number: int) -> list[float]:
    """For each vector the sum of its `number` smallest squared distances to others."""
    scores = []
    for k, vector in enumerate(vectors):
        others = sorted(squared(vector, other) for j, other in enumerate(vectors) if j != k)
        scores.append(sum(others[: max(0, number)]))
    return scores


def krum(node: Node, *, share: float, f: int | None) -> Vector:
    count = len(node.everybody)
    byzantine = assumed(node, share, f, count - 3)
    return mean_of_least(krum_scores(node.everybody, count - byzantine - 2), node.everybody, 1)


def multi_krum(node: Node, *, share: float, f: int | None) -> Vector:
    count = len(node.everybody)
    byzantine = assumed(node, share, f, count - 3)
    return mean_of_least(krum_scores(node.everybody, count - byzantine - 2), node.everybody, count - byzantine)


def selected_by_krum(node: Node, byzantine: int) -> list[Vector]:
    """n - 2 f vectors, each the Krum of those left; of equal ones that nearest to all others."""
    left, selected = list(node.everybody), []
    for _ in range(len(left) - 2 * byzantine):
        scores = krum_scores(left, max(1, len(left) - byzantine - 2))
        equal = [k for k, score in enumerate(scores) if score - min(scores) <= _EQUAL * min(scores)]
        best = min(equal, key=lambda k: sum(squared(left[k], other) for other in left))
        selected.append(left.pop(best))
    return selected


def bulyan(node: Node, *, share: float, f: int | None) -> Vector:
    byzantine = assumed(node, share, f, (len(node.everybody) - 3) // 4)
    selected = selected_by_krum(node, byzantine)
    return mean_near_median(selected, max(1, len(selected) - 2 * byzantine))


def bridge_b(node: Node, *, share: float, f: int | None) -> Vector:
    byzantine = assumed(node, share, f, (len(node.everybody) - 3) // 4)
    selected = selected_by_krum(node, byzantine)
    trim = min(byzantine, (len(selected) - 1) // 2)
    result = np.zeros_like(node.own)
    for p in range(len(result)):
        values = sorted(vector[p] for vector in selected)[trim : len(selected) - trim]
        result[p] = sum(values) / len(values)
    return result


def centered_clipping(node: Node, *, tau: float | None, iterations: int) -> Vector:
    """v <- v + mean of clip(x_j - v, tau), from the own vector."""
    distances = sorted(float(np.linalg.norm(vector - node.own)) for vector in node.heard)
    median_distance = distances[(len(distances) - 1) // 2] if distances else 0.0
    radius, centre = median_distance if tau is None else tau, node.own
    for _ in range(iterations):
        centre = centre + np.mean([clip(vector - centre, radius) for vector in node.everybody], axis=0)
    return centre


def cge(node: Node, *, share: float, f: int | None) -> Vector:
    if not node.heard:
        return node.own
    keep = len(node.everybody) - assumed(node, share, f, len(node.heard))
    return np.mean(sorted(node.everybody, key=lambda vector: float(np.linalg.norm(vector)))[:keep], axis=0)


def caf(node: Node, *, share: float, f: int | None) -> Vector:
    """Filter until at most n - 2 f of the weight is left; the mean of the least top eigenvalue on the way."""
    points = np.array(node.everybody)
    count = len(points)
    goal = count - 2 * assumed(node, share, f, (count - 1) // 2)
    weights, best, least = np.ones(count), np.mean(points, axis=0), math.inf
    while weights.sum() > goal:
        centre = weights @ points / weights.sum()
        covariance = sum(weights[j] * np.outer(points[j] - centre, points[j] - centre) for j in range(count)) / weights.sum()
        values, directions = np.linalg.eigh(covariance)
        if values[-1] < least:
            best, least = centre, values[-1]
        spread = np.array([float(directions[:, -1] @ (point - centre)) ** 2 for point in points]) * (weights > 0)
        if spread.max() == 0:
            break
        weights = weights * (1 - spread / spread.max())
    return best


def mda(node: Node, *, share: float, f: int | None) -> Vector:
    """Mean of the subset of n - f vectors whose farthest two are nearest; of equal ones that with the least sum."""
    vectors, count = node.everybody, len(node.everybody)
    keep = count - assumed(node, share, f, (count - 1) // 2)

    def diameter(subset: tuple[int, ...]) -> tuple[float, float]:
        distances = [squared(vectors[i], vectors[j]) for i, j in combinations(subset, 2)]
        return max(distances, default=0.0), sum(distances)

    return np.mean([vectors[k] for k in min(combinations(range(count), keep), key=diameter)], axis=0)


_OTHERS: dict[str, Callable[..., Any]] = {
    "scclip": scclip,
    "rtc": rtc,
    "drsa": drsa,
    "rsa": drsa,
    "bravo-saga": drsa,
    "bravo-lsvrg": drsa,
    "bridge-t": bridge_t,
    "bridge-m": median,
    "bridge-k": krum,
    "bridge-b": bridge_b,
    "byrdie": byrdie,
    "faba": faba,
    "monna": monna,
    "meamed": meamed,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "centered-clipping": centered_clipping,
    "cge": cge,
    "caf": caf,
    "mda": mda,
}
ALL_TRANSCRIPTIONS: dict[str, Callable[..., Any]] = {**TRANSCRIPTIONS, **_OTHERS}
"""By the names of the library's table of rules."""
