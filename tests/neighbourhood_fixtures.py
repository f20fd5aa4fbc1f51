"""Rooms for the tests of the panel: halves of some neighbours and of the receiver, as vectors and as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bymi import Filtering
from bymi.core.linalg import VectorStack
from bymi.detection import Panel
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.half_gradient_tests import Findings, hear
from bymi.detection.verdict import REASONS

Vector = NDArray[np.float64]
LEVEL = 0.2


@dataclass(frozen=True)
class Hall:
    """What one receiver has before it: halves [n, d] of its neighbours and, last, of itself."""

    first: Vector
    second: Vector

    @property
    def own(self) -> int:
        return len(self.first) - 1

    @property
    def origin(self) -> Vector:
        """Where the library counts lengths from."""
        return VectorStack(torch.from_numpy(self.first)).origin.numpy()

    def chosen(self, rows: Sequence[int]) -> Hall:
        return Hall(self.first[list(rows)], self.second[list(rows)])

    def turned(self, rotation: Vector, scale: float = 1.0) -> Hall:
        return Hall(scale * self.first @ rotation, scale * self.second @ rotation)

    def joined(self, first: Vector, second: Vector) -> Hall:
        """With one more neighbour, before all others."""
        return Hall(np.vstack([first, self.first]), np.vstack([second, self.second]))


def draw_hall(
    *, neighbours: int, dim: int, seed: int, byzantine: Sequence[str] = (), noise: float = 1.0, spread: float = 0.0
) -> Hall:
    """Honest halves about one mean, or about means with a `spread` from row to row; the first rows lie in the ways named."""
    random = np.random.default_rng(seed)
    mean, direction = random.standard_normal((2, dim))
    mean = mean * (1 + spread / 2)
    direction = direction / np.linalg.norm(direction)
    first, second = (mean + noise * random.standard_normal((neighbours + 1, dim)) for _ in range(2))
    plan = random.standard_normal((2, dim))
    if spread:
        own = spread * np.random.default_rng(seed + 1).standard_normal(first.shape)
        first, second = first + own, second + own
    usual = noise * np.sqrt(dim)
    for row, how in enumerate(byzantine):
        other = random.standard_normal((2, dim)) / np.sqrt(dim)
        if how == "shift":
            first[row] += 3 * usual * direction
            second[row] += 3 * usual * direction
        elif how == "small shift":
            first[row] += 4 * noise * direction
            second[row] += 4 * noise * direction
        elif how == "apart":
            first[row], second[row] = mean + 10 * usual * other
        elif how == "same":
            first[row] = second[row] = mean + usual * other[0]
        elif how == "mean":
            first[row], second[row] = mean + 1e-3 * noise * random.standard_normal((2, dim))
        elif how == "exact":
            first[row] = mean + 1e-3 * usual * other[0]
            second[row] = first[row] + noise * random.standard_normal(dim) * np.sqrt(2)
        elif how == "copy":
            first[row] = first[neighbours - 1]
        elif how == "mirror":
            first[row] = first[neighbours]
        elif how == "plan":
            first[row], second[row] = mean + noise * (plan + 0.2 * random.standard_normal((2, dim)))
        elif how == "huge":
            first[row] *= 1e5
            second[row] *= 1e5
        else:
            raise ValueError(how)
    return Hall(first, second)


MIXED = ("huge", "copy", "apart", "mean", "shift", "shift", "exact", "mirror", "same")


def evidence_of(halls: Sequence[Hall], *, points: bool, spare: int = 0) -> Evidence:
    """Several halls as one batch, each about its own origin, with `spare` more seats than any of them needs."""
    size = spare + max(len(hall.first) for hall in halls)
    firsts, seconds, valid, judged = [], [], [], []
    for hall in halls:
        origin = hall.origin
        empty = torch.zeros(size - len(hall.first), hall.first.shape[1], dtype=torch.float64)
        firsts.append(torch.cat([torch.from_numpy(hall.first - origin), empty]))
        seconds.append(torch.cat([torch.from_numpy(hall.second - origin), empty]))
        seats = torch.arange(size)
        valid.append(seats <= hall.own)
        judged.append(seats < hall.own)
    first, second = torch.stack(firsts), torch.stack(seconds)
    products = (first @ first.mT, second @ second.mT, first @ second.mT)
    evidence = Evidence(*products, torch.stack(valid), torch.stack(judged))
    return replace(evidence, points=(first, second)) if points else evidence


def found_in(mask: Tensor) -> list[set[int]]:
    """Rows marked, receiver by receiver."""
    return [set(row.nonzero().flatten().tolist()) for row in mask]


def heard(
    halls: Sequence[Hall],
    panel: Panel | None = None,
    *,
    points: bool = False,
    spare: int = 0,
    **how: Any,
) -> Findings:
    """What the panel finds in these halls."""
    settings = {"fdr_level": LEVEL, "offset": 1, "centre": Filtering(), "cross_fit": True} | how
    return hear(evidence_of(halls, points=points, spare=spare), panel or Panel(), **settings)


def reasons_of(findings: Findings, hall: Hall, place: int = 0) -> list[str]:
    """The words for each row of one hall."""
    return [REASONS[code] for code in findings.code[place, : len(hall.first)].tolist()]
