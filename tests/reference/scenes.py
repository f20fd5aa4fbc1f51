"""Small random rounds to compare on: who hears whom, what everybody holds, whose messages get lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.reference.graphs import metropolis
from tests.reference.rules import Node

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RunSetup:
    """Rows of `hears` are receivers. A sender in `lost` brings nothing usable to anybody, but holds its vector all the same.

    Each node's loss is the squared distance to its row of `targets`.
    """

    hears: NDArray[np.bool_]  # [M, M]
    vectors: Vector  # [M, D]
    second: Vector  # [M, D]: other vectors about the same centres, as second halves of the first
    targets: Vector  # [M, D]
    lost: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.hears)

    def heard_by(self, receiver: int) -> list[int]:
        return [sender for sender in range(self.size) if self.hears[receiver, sender] and sender not in self.lost]

    def node(self, receiver: int, *, step: int = 0, steps: int = 1) -> Node:
        """The round as one node sees it."""
        mixing = metropolis(self.hears)
        heard = self.heard_by(receiver)
        return Node(
            own=self.vectors[receiver],
            heard=[self.vectors[sender] for sender in heard],
            weights=[float(mixing[receiver, sender]) for sender in heard],
            self_weight=float(mixing[receiver, receiver]),
            loss=lambda vector: float(np.sum((vector - self.targets[receiver]) ** 2)),
            step=step,
            steps=steps,
        )


def draw_scene(*, nodes: int, dim: int, directed: bool, losses: bool, seed: int) -> RunSetup:
    """Half of all arcs; lengths about 6 and distances about 1.3 in any dimension, but one node in five is 5 away."""
    random = np.random.default_rng(seed)
    hears = random.random((nodes, nodes)) < 0.5
    if not directed:
        hears = np.triu(hears, 1) | np.triu(hears, 1).T
    np.fill_diagonal(hears, False)
    centre, shift = random.standard_normal((2, dim))
    means = np.tile(6 * centre / np.linalg.norm(centre), (nodes, 1))
    means[: nodes // 5] += 5 * shift / np.linalg.norm(shift)
    first, second, targets = (means + 0.9 / np.sqrt(dim) * random.standard_normal((nodes, dim)) for _ in range(3))
    lost = tuple(sorted(random.choice(nodes, size=4, replace=False).tolist())) if losses else ()
    return RunSetup(hears, first, second, targets, lost)
