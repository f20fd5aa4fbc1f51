"""Where the filter's steps start from decides how many far Byzantine nodes it survives."""

from __future__ import annotations

import pytest
import torch

from bymi.aggregation import Filtering
from bymi.core.random_streams import stream

POINTS, DIM = 75, 30


def weight_of_byzantine_nodes(share: float, about: str) -> float:
    """What is left on Byzantine nodes who all stand 20 standard deviations off, in one direction."""
    points = stream(0, "points").normal(POINTS, DIM)
    byzantine = int(share * POINTS)
    points[:byzantine] += 20 * stream(0, "direction").normal(DIM)
    weights = Filtering(about=about).weights((points @ points.T)[None], torch.ones(1, POINTS, dtype=torch.bool))  # type: ignore[arg-type]
    return float(weights[0, :byzantine].sum())


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.35, 0.4, 0.45])
def test_about_the_median_all_far_byzantine_nodes_go(share: float) -> None:
    assert weight_of_byzantine_nodes(share, "median") < 1e-4


@pytest.mark.parametrize(("share", "left"), [(0.3, 0.0), (0.35, 0.10), (0.4, 0.24), (0.45, 0.34)])
def test_about_the_mean_a_third_of_byzantine_nodes_uses_up_the_share(share: float, left: float) -> None:
    """Known weakness of the published step, and the figures of docs/adr/0003."""
    assert weight_of_byzantine_nodes(share, "mean") == pytest.approx(left, abs=0.01)


def test_without_byzantine_nodes_both_keep_the_same_share_and_stay_near_the_mean() -> None:
    points = stream(1, "points").normal(POINTS, DIM)
    for about in ("mean", "median"):
        weights = Filtering(about=about).weights((points @ points.T)[None], torch.ones(1, POINTS, dtype=torch.bool))  # type: ignore[arg-type]
        # |mean of 41 kept points|^2 / dim is about 1 / 41; four times that has probability below 1e-6.
        assert float((weights[0] @ points).square().mean()) < 4 / 41
