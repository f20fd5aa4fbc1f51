"""Robust means of detection against their transcriptions, and what they are for: outliers that share a direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bymi import Detector, InputError, Plan
from bymi.detection import CENTRES, identify
from bymi.detection.published_score import MedianDeviation
from bymi.detection.robust_means import StabilityFilter, capped
from bymi.experiment import load
from tests.reference import robust_means


def cloud(n: int, dim: int, bad: int, shift: float, seed: int) -> np.ndarray:
    """Normal points, the first `bad` of them shifted along one direction."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((n, dim)) + 3.0
    way = random.standard_normal(dim)
    points[:bad] += shift * way / np.linalg.norm(way)
    return points


FEW = {"spectral-solver": {"rounds": 4}, "no-regret": {"rounds": 10}}
"""Fewer rounds than by default: later ones amplify rounding where two directions have almost the same variance."""


def found(name: str, points: np.ndarray, **options: Any) -> np.ndarray:
    """The library's mean, from products about an arbitrary origin, with two places of padding."""
    rows = torch.from_numpy(points - points[0])
    padded = torch.cat([rows, torch.zeros(2, rows.shape[1], dtype=torch.float64)])
    valid = torch.arange(len(padded)) < len(rows)
    rule = CENTRES[name](**options)
    weights = rule.weights((padded @ padded.T)[None], valid[None])[0]  # type: ignore[union-attr]
    assert bool((weights[-2:] == 0).all())
    assert float(weights.sum()) == pytest.approx(1)
    return weights[:-2].numpy() @ points


@pytest.mark.parametrize("name", robust_means.MEANS)
def test_a_mean_is_that_of_its_transcription(name: str) -> None:
    """On 200 clouds with and without outliers, of few and of many dimensions."""
    for number in range(200 if name != "agnostic-filter" else 20):
        n, dim, bad = 6 + number % 9, (3, 40)[number % 2], (0, 1, 3)[number % 3]
        points = cloud(n, dim, bad, (2.0, 30.0)[number % 4 // 2], number)
        few = FEW.get(name, {})
        # The solver makes the two largest variances equal, so their directions are known to few digits.
        near = 1e-6 if name == "spectral-solver" else 1e-9
        np.testing.assert_allclose(found(name, points, **few), robust_means.MEANS[name](points, **few), rtol=0, atol=near)


@pytest.mark.parametrize("name", robust_means.MEANS)
def test_a_fifth_of_far_points_hardly_moves_a_mean(name: str) -> None:
    """The plain mean of these clouds is off by 20; the noise of one of 40 points is about 7, of their mean about 1.2."""
    share = {"no-regret": 3}.get(name, 8)  # it is told a twelfth
    for seed in range(3):
        points = cloud(40, 50, share, 100.0, seed)
        assert np.linalg.norm(found(name, points) - 3.0) < 3.0


def test_equal_points_are_their_own_mean() -> None:
    for name in robust_means.MEANS:
        np.testing.assert_allclose(found(name, np.full((7, 3), 2.0)), np.full(3, 2.0))


def test_clean_points_are_left_alone_by_filters_with_a_bound() -> None:
    points = torch.from_numpy(cloud(30, 20, 0, 0.0, 1))
    weights = StabilityFilter().weights((points @ points.T)[None], torch.ones(1, 30, dtype=torch.bool))
    assert torch.allclose(weights, torch.full((1, 30), 1 / 30, dtype=torch.float64))


def test_weights_are_projected_on_the_capped_simplex() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.06, 0.04]], dtype=torch.float64)
    result = capped(weights, torch.tensor([[0.4]], dtype=torch.float64))
    np.testing.assert_allclose(result.numpy(), [robust_means.project(weights[0].numpy(), 0.4)])
    np.testing.assert_allclose(result.numpy(), [[0.4, 0.4, 0.12, 0.08]])


@pytest.mark.parametrize("name", [*robust_means.MEANS])
def test_detection_on_arrays_finds_a_planted_shift_with_each(name: str) -> None:
    points, second = cloud(40, 30, 3, 25.0, 5), cloud(40, 30, 3, 25.0, 5) + np.random.default_rng(6).standard_normal((40, 30))
    flagged = identify(points, second, profile="published", centre=CENTRES[name]()).flagged
    assert bool(flagged[:3].all())


def test_scales_of_the_centralised_method() -> None:
    """diag(1 / MAD) coordinate by coordinate; a projection on one component sees what lies along it and nothing else."""
    first, second = cloud(20, 6, 0, 0.0, 7) * np.arange(1, 7), cloud(20, 6, 0, 0.0, 8) * np.arange(1, 7)
    full = (first + second) / 2
    mad = np.array([np.median(np.abs(full[:, k] - np.median(full[:, k]))) for k in range(6)])
    scores = identify(first, second, profile="published", cross_fit=False, centre="mean", scale="mad").scores  # type: ignore[arg-type]
    mean = first.mean(0)
    expected = [sum((a[k] - mean[k]) * (b[k] - mean[k]) / mad[k] for k in range(6)) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match=r"scale: got .*MedianDeviation.*, allowed: identity, pca, projected in a network"):
        Plan(10, 2, detector=Detector(scale=MedianDeviation()))
    with pytest.raises(InputError, match=r"^detection.scale: got 'mad', allowed: identity, pca, projected; bymi detect"):
        load(None, ["detection.scale=mad", "profile=paper"])
