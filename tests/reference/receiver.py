"""Detection at the receiver's point on least squares: one receiver, one neighbour, one half at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference import detection
from tests.reference.rules import TRANSCRIPTIONS, Node

Vector = NDArray[np.float64]
ArrayHalves = tuple[Vector, Vector]


@dataclass(frozen=True)
class Data:
    """Samples of every node, and which of them it keeps for the two halves."""

    features: NDArray[np.float64]  # [M, N, d]
    targets: NDArray[np.float64]  # [M, N]
    first: NDArray[np.int64]  # [M, n / 2]
    second: NDArray[np.int64]  # [M, n / 2]

    def answer(self, node: int, point: Vector) -> ArrayHalves:
        """What a node says of a point: the gradient of (y - x'theta)^2 / 2 over each half of its own samples."""
        return self._gradient(node, self.first[node], point), self._gradient(node, self.second[node], point)

    def _gradient(self, node: int, samples: NDArray[np.int64], point: Vector) -> Vector:
        total = np.zeros_like(point)
        for sample in samples:
            x, y = self.features[node, sample], self.targets[node, sample]
            total = total + (x @ point - y) * x
        return total / len(samples)


def centre_of(vectors: list[Vector], centre: str, settings: dict[str, Any]) -> Vector:
    """The robust mean of a set; none of the centres looks at weights, losses or the time."""
    own, *heard = vectors
    node = Node(own, heard, [0.0] * len(heard), 1.0, loss=lambda vector: 0.0, step=0, steps=1)
    return TRANSCRIPTIONS[centre](node, **settings)


def weights_of(vectors: list[Vector], middle: Vector) -> Vector:
    """The weights, summing to one, with which vectors in general position (no more than d + 1 of them) make a point."""
    system = np.vstack([np.array(vectors).T, np.ones(len(vectors))])
    assert np.linalg.matrix_rank(system) == len(vectors)
    return np.linalg.lstsq(system, np.append(middle, 1.0), rcond=None)[0]


def scores(
    own: ArrayHalves, others: dict[int, ArrayHalves], centre: str, settings: dict[str, Any], omega: str, cross_fit: bool
) -> Any:
    """(g1_j - c1)' Omega (g2_j - c2) for every neighbour j; c2 = c1, or the weights of c1 on the second halves."""
    first = [own[0], *(halves[0] for halves in others.values())]
    second = [own[1], *(halves[1] for halves in others.values())]
    c1 = centre_of(first, centre, settings)
    c2 = weights_of(first, c1) @ np.array(second) if cross_fit else c1
    matrix = detection.OMEGAS[omega](first)
    return {j: float((halves[0] - c1) @ matrix @ (halves[1] - c2)) for j, halves in others.items()}


def verdict(own: ArrayHalves, others: dict[int, ArrayHalves], *, level: float, offset: int, **how: Any) -> Any:
    """Scores, threshold and who is flagged, for one receiver."""
    found = scores(own, others, **how)
    limit = detection.threshold(list(found.values()), level, offset)
    return found, limit, {j for j, score in found.items() if score >= limit}
