"""Detectors that centralised ByMI was compared with, against loops over their definitions."""

from __future__ import annotations

import numpy as np
import torch

from bymi.core.random_streams import stream
from bymi.paper.centralised_detectors import farthest_from_krum, least_by_zeno, removed_by_faba, rmdp_bh


def rows(seed: int, bad: int = 4, shift: float = 6.0) -> torch.Tensor:
    points = stream(seed, "features").normal(25, 8)
    points[:bad] += shift
    return points


def test_masks_are_those_of_the_definitions() -> None:
    for seed in range(20):
        gradients = rows(seed, shift=float(seed % 3))
        points = gradients.numpy()
        n, count = len(points), 5
        far = [[float(np.sum((a - b) ** 2)) for b in points] for a in points]
        krum = [sum(sorted(far[j][k] for k in range(n) if k != j)[: n - count - 2]) for j in range(n)]
        point = int(np.argmin(krum))
        expected = set(sorted(range(n), key=lambda j: -far[point][j])[:count])
        assert set(farthest_from_krum(gradients, count).nonzero().flatten().tolist()) == expected

        left = list(range(n))
        for _ in range(count):
            mean = points[left].mean(0)
            left.remove(max(left, key=lambda j: float(np.sum((points[j] - mean) ** 2))))
        assert set((~removed_by_faba(gradients, count)).nonzero().flatten().tolist()) == set(left)

        scores = [float(points[j] @ points[0]) - 0.5 * float(points[j] @ points[j]) for j in range(n)]
        least = set(sorted(range(n), key=lambda j: scores[j])[:count])
        assert set(least_by_zeno(gradients, gradients[0], count).nonzero().flatten().tolist()) == least


def test_robust_distances_find_a_shift_and_few_others() -> None:
    for seed in range(5):
        flagged = rmdp_bh(rows(seed), 0.1)
        assert bool(flagged[:4].all())
        assert int(flagged[4:].sum()) <= 6
