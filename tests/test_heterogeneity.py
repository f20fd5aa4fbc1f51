"""Neighbourhoods whose nodes differ: the tests in units of the spread between nodes, against their transcription."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bymi.detection import Panel
from bymi.detection.half_gradient_tests import farther, heterogeneity, usual_distance
from bymi.detection.noise_bounded_mean import NoiseEdge
from bymi.detection.robust_statistics import uniform
from tests.neighbourhood_fixtures import LEVEL, Hall, draw_hall, evidence_of, found_in, heard, reasons_of
from tests.reference import panel as by_definition

DIMS = (12, 40)
ATTACKS: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "one far": ("shift",),
    "crowd": ("shift",) * 6,
    "copies": ("mean",) * 7,
}


def halls_of(dim: int, attack: str, spread: float = 1.2) -> list[Hall]:
    return [
        draw_hall(neighbours=count, dim=dim, seed=dim + count, byzantine=ATTACKS[attack], spread=spread) for count in (24, 31)
    ]


@pytest.mark.parametrize("points", [True, False], ids=["points", "products"])
@pytest.mark.parametrize("spread", [0.0, 0.3, 0.7, 2.0])
@pytest.mark.parametrize("dim", DIMS)
def test_the_degree_and_its_centre(dim: int, spread: float, points: bool) -> None:
    halls = halls_of(dim, "crowd", spread)
    evidence = evidence_of(halls, points=points, spare=1)
    centre = NoiseEdge().weights(evidence)
    degrees, weights = heterogeneity(evidence, centre.weights, 0.25)
    for place, hall in enumerate(halls):
        count = len(hall.first)
        edge = by_definition.noise_edge(hall.first, hall.second, 1.2, 0.49).weights
        middle = by_definition.median_weights(hall.first)
        expected = by_definition.degree(hall.first, hall.second, edge)
        if expected > 0:
            expected = min(expected, by_definition.degree(hall.first, hall.second, middle))
        assert float(degrees[place]) == pytest.approx(expected, abs=1e-6)
        np.testing.assert_allclose(weights[place, :count].numpy(), middle if expected > 0.25 else edge, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("dim", DIMS)
def test_the_whole_panel_where_nodes_differ(dim: int, attack: str) -> None:
    for spread in (0.4, 1.2):
        halls, panel = halls_of(dim, attack, spread), Panel(widen=2.0, mixed=0.25, far=12.0, far_joint=7.0)
        expected = [by_definition.hear(hall.first, hall.second, hall.own, hall.origin, panel, LEVEL, True) for hall in halls]
        for points in (False, True):
            findings = heard(halls, panel, points=points, spare=1)
            assert [reasons_of(findings, hall, place) for place, hall in enumerate(halls)] == expected


@pytest.mark.parametrize("known", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.4])
def test_data_that_are_known_to_differ_are_judged_so_where_it_does_not_show(known: float, spread: float) -> None:
    halls, panel = halls_of(40, "one far", spread), Panel(widen=2.0, mixed=0.25)
    expected = [
        by_definition.hear(hall.first, hall.second, hall.own, hall.origin, panel, LEVEL, True, known_degree=known)
        for hall in halls
    ]
    findings = heard(halls, panel, known_degree=torch.full((len(halls), 1), known, dtype=torch.float64))
    assert [reasons_of(findings, hall, place) for place, hall in enumerate(halls)] == expected
    assert (findings.degree >= known).all() or known == 0


def test_far_rows_are_found() -> None:
    """The comparison above is not one of empty sets."""
    hall = draw_hall(neighbours=60, dim=40, seed=5, spread=2.0)
    assert set(reasons_of(heard([hall]), hall)) == {"kept"}
    far = hall.chosen(range(6, 61))
    far.first[0] += 40
    far.second[0] += 40
    assert reasons_of(heard([far]), far)[0] in ("far", "extreme score")


def test_how_far_a_kept_neighbour_may_pull() -> None:
    """A shift a little longer than `pull` is flagged, one a little shorter is not, in both regimes.

    The row that is moved is at the centre in both halves, so that its score is the square of the shift.
    """
    for spread, dim in ((0.0, 200), (1.0, 200)):
        hall = draw_hall(neighbours=70, dim=dim, seed=9, spread=spread)
        first, second = hall.first.copy(), hall.second.copy()
        direction = np.random.default_rng(3).standard_normal(dim)
        direction /= np.linalg.norm(direction)
        panel = Panel(direction=None, low=None, high=None)
        pull = float(heard([hall], panel).pull)
        flagged = []
        for factor in (0.8, 1.25):
            for half in (first, second):
                half[0] = np.mean(half[1:], axis=0) + factor * pull * direction
            flagged.append(reasons_of(heard([Hall(first, second)], panel), hall)[0] != "kept")
        assert flagged == [False, True]


@pytest.mark.parametrize("seed", range(20))
def test_farther_on_its_own(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(6, 60))
    values = random.chisquare(3, count) * random.choice([1.0, 3.0, 12.0], count, p=[0.7, 0.2, 0.1])
    values -= random.choice([0.0, 1.0, 3.0])  # more of noise than of spread, for some seeds
    sizes = np.abs(values) / random.uniform(0.2, 1.0, count)
    scores, lengths = (torch.from_numpy(part)[None] for part in (values, sizes))
    judged = torch.ones(1, count, dtype=torch.bool)
    alone, together = (torch.tensor([[bound]], dtype=torch.float64) for bound in (8.0, 4.0))
    unit = usual_distance(scores, judged, 0.3)
    found = farther(scores, lengths, judged, unit, alone, together)
    expected, usual = by_definition.farther(dict(enumerate(values.tolist())), dict(enumerate(sizes.tolist())), 8.0, 4.0, 0.3)
    assert found_in(found)[0] == expected
    assert float(unit) == pytest.approx(usual, rel=1e-12)


def test_a_minority_cannot_switch_the_tests_of_alike_nodes_off() -> None:
    """40 % of rows with any shift, common or own, leave the degree of alike nodes below 0.25.

    The degree is then about the median cosine of 60 honest pairs in 60 dimensions, whose standard deviation is about 0.02.
    """
    for how in ("common", "own"):
        for size in (0.3, 1.0, 10.0):
            hall = draw_hall(neighbours=100, dim=60, seed=3)
            random = np.random.default_rng(4)
            shift = random.standard_normal((1 if how == "common" else 40, 60)) * size
            hall.first[:40] += shift
            hall.second[:40] += shift
            evidence = evidence_of([hall], points=False)
            degrees, _ = heterogeneity(evidence, NoiseEdge().weights(evidence).weights, 0.25)
            assert float(degrees) < 0.1
    assert float(heterogeneity(evidence, uniform(evidence.valid), 0.25)[0]) < 0.25
