"""Every aggregation rule as a map for one node, on vectors, with no inner-product shortcuts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_GONE = 1e-9  # a filter weight below this counts as none


@dataclass(frozen=True)
class Node:
    """One node in one round: its vector, what it heard, the mixing weights, a loss on own samples, the time."""

    own: Vector
    heard: list[Vector]
    weights: list[float]
    self_weight: float
    loss: Callable[[Vector], float]
    step: int
    steps: int
    step_size: float = 1.0

    @property
    def everybody(self) -> list[Vector]:
        return [self.own, *self.heard]


def part_of(share: float, count: int) -> Fraction:
    """`share` of `count`, exact for the decimal that was written: 0.3 of 50 is 15, with nothing behind the point."""
    return Fraction(str(share)) * count


def average(node: Node) -> Vector:
    """sum_j W_ij x_j with the weights of those heard and of itself shared out anew."""
    total = node.self_weight + sum(node.weights)
    result = node.self_weight / total * node.own
    for weight, vector in zip(node.weights, node.heard, strict=True):
        result = result + weight / total * vector
    return result


def ubar(node: Node, *, share: float, self_weight: float, f: int | None = None) -> Vector:
    """The nearest (1 - share) of the neighbours, of those the ones that do no worse on own samples, else the best one."""
    if not node.heard:
        return node.own
    keep = max(1, math.floor(len(node.heard) - (part_of(share, len(node.heard)) if f is None else f)))
    distances = [np.linalg.norm(vector - node.own) for vector in node.heard]
    near = [node.heard[place] for place in np.argsort(distances, kind="stable")[:keep]]
    own_loss, *losses = [math.inf if math.isnan(node.loss(vector)) else node.loss(vector) for vector in [node.own, *near]]
    chosen = [vector for vector, loss in zip(near, losses, strict=True) if loss <= own_loss]
    if not chosen:
        chosen = [near[losses.index(min(losses))]]
    return self_weight * node.own + (1 - self_weight) * sum(chosen) / len(chosen)


def ios(node: Node, *, share: float, f: int | None = None) -> Vector:
    """ceil(share |N|) times: mean of those left with their weights, then away with the neighbour farthest from it."""
    left = list(range(len(node.heard)))

    def mean() -> Vector:
        total = node.self_weight + sum(node.weights[j] for j in left)
        return (node.self_weight * node.own + sum(node.weights[j] * node.heard[j] for j in left)) / total

    quota = math.ceil(part_of(share, len(node.heard))) if f is None else f
    for _ in range(min(quota, len(node.heard) - 1)):
        centre = mean()
        left.remove(max(left, key=lambda j: np.linalg.norm(node.heard[j] - centre)))
    return mean()


def balance(node: Node, *, gamma: float, kappa: float, self_weight: float, absolute: float) -> Vector:
    """The mean of those within gamma exp(-kappa t / T) |x_i| + absolute of the own vector, mixed with the own vector."""
    bound = gamma * math.exp(-kappa * node.step / node.steps) * np.linalg.norm(node.own) + absolute
    accepted = [vector for vector in node.heard if np.linalg.norm(node.own - vector) <= bound]
    if not accepted:
        return node.own
    return self_weight * node.own + (1 - self_weight) * sum(accepted) / len(accepted)


def mean(node: Node) -> Vector:
    return np.mean(node.everybody, axis=0)


def median(node: Node) -> Vector:
    """Middle value of each coordinate, the mean of the middle two for an even number."""
    count = len(node.everybody)
    result = np.zeros_like(node.own)
    for coordinate in range(len(node.own)):
        values = sorted(vector[coordinate] for vector in node.everybody)
        result[coordinate] = (values[(count - 1) // 2] + values[count // 2]) / 2
    return result


def trimmed_mean(node: Node, *, share: float, f: int | None = None) -> Vector:
    """Mean of each coordinate without its floor(share n) smallest and largest values."""
    count = len(node.everybody)
    trim = min(math.floor(part_of(share, count)) if f is None else f, (count - 1) // 2)
    result = np.zeros_like(node.own)
    for coordinate in range(len(node.own)):
        values = sorted(vector[coordinate] for vector in node.everybody)[trim : count - trim]
        result[coordinate] = sum(values) / len(values)
    return result


def lower_median(values: list[float]) -> float:
    """The middle value, the lower of the middle two for an even number."""
    return sorted(values)[(len(values) - 1) // 2]


def typical_distance(points: list[Vector]) -> float:
    """The median over points of their median distance to the others: Byzantine nodes do not set it."""
    each = []
    for i, point in enumerate(points):
        distances = [float(np.linalg.norm(point - other)) for j, other in enumerate(points) if j != i]
        each.append(lower_median(distances))
    return lower_median(each)


def geometric_median(node: Node, *, smoothing: float, iterations: int, tolerance: float) -> Vector:
    """Weiszfeld's iteration until the point stands still; `iterations` and `tolerance` of a faster code are not used."""
    points = node.everybody
    centre = np.mean(points, axis=0)
    usual = math.sqrt(np.mean([np.sum((point - centre) ** 2) for point in points]))
    if usual == 0:
        return centre
    spread = typical_distance(points) or usual
    for _ in range(20_000):
        pulls = [1 / max(smoothing * spread, float(np.linalg.norm(point - centre))) for point in points]
        moved = sum(pull * point for pull, point in zip(pulls, points, strict=True)) / sum(pulls)
        done = np.linalg.norm(moved - centre) <= 1e-15 * (spread + np.linalg.norm(centre))
        centre = moved
        if done:
            break
    return centre


def filtering(node: Node, *, share: float, about: str = "mean") -> Vector:
    """Take weight from what sticks out along the top eigenvector of the weighted covariance, until `share` is gone."""
    points = np.array(node.everybody)
    count = len(points)
    weights = np.ones(count)
    goal = (1 - share) * count
    while weights.sum() > goal * (1 + 1e-12):
        centre = sum(weights[j] * points[j] for j in range(count)) / weights.sum()
        covariance = np.zeros((points.shape[1], points.shape[1]))
        for j in range(count):
            covariance += weights[j] / weights.sum() * np.outer(points[j] - centre, points[j] - centre)
        direction = np.linalg.eigh(covariance).eigenvectors[:, -1]
        along = [float(direction @ (points[j] - centre)) for j in range(count)]
        middle = float(np.median([along[j] for j in range(count) if weights[j] > 0])) if about == "median" else 0.0
        spread = np.array([(along[j] - middle) ** 2 if weights[j] > 0 else 0.0 for j in range(count)])
        if spread.max() == 0:
            break
        step = weights * spread / spread.max()
        part = min(1.0, (weights.sum() - goal) / step.sum())  # the last step ends exactly at the goal
        weights = weights - part * step
        weights[weights <= _GONE] = 0.0
    return sum(weights[j] * points[j] for j in range(count)) / weights.sum()


TRANSCRIPTIONS: dict[str, Callable[..., Any]] = {
    "average": average,
    "ubar": ubar,
    "ios": ios,
    "balance": balance,
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "geometric-median": geometric_median,
    "filtering": filtering,
}
"""By the names of the library's table of rules."""
