"""Every test of the panel against its transcription, receiver by receiver, on the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Graph, LocalNetwork, Plan
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.detection import PANEL, Detector, Panel, Suspensions, UpdateHistory, Watch
from bymi.detection.duplicates import duplicates
from bymi.detection.half_gradient_tests import absurd, alike, inconsistent, outstanding, shifted, too_good
from bymi.detection.noise_bounded_mean import NoiseEdge
from bymi.detection.robust_statistics import centred_diagonal, directions, uniform, widest
from bymi.detection.verdict import REASONS
from bymi.problems import linear_problem, linear_shard
from bymi.training.phases import detect_hardened
from bymi.training.samples import fresh_halves
from tests.neighbourhood_fixtures import LEVEL, MIXED, Hall, draw_hall, evidence_of, found_in, heard, reasons_of
from tests.reference import panel as by_definition
from tests.reference.receiver import Data
from tests.reference.scenes import draw_scene

PLOTS: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "mixed": MIXED,
    "shift": ("shift",) * 5,
    "small shift": ("small shift",) * 6,
    "apart": ("apart",) * 4,
    "plan": ("plan",) * 7,
    "mean": ("mean",) * 5,
    "copy": ("copy", "copy", "mirror"),
    "exact": ("exact",),
}
DIMS = (3, 12, 40)


def halls_of(dim: int, plot: str = "mixed") -> list[Hall]:
    """Receivers with different numbers of neighbours, odd and even."""
    return [draw_hall(neighbours=count, dim=dim, seed=dim + count, byzantine=PLOTS[plot]) for count in (24, 31)]


def bounds(halls: list[Hall], value: float) -> Tensor:
    return torch.full((len(halls), 1), value, dtype=torch.float64)


def row_weights(halls: list[Hall]) -> list[np.ndarray]:
    """Some weights, not equal, one of them zero."""
    found = []
    for hall in halls:
        weights = np.random.default_rng(len(hall.first)).uniform(0.2, 1.0, len(hall.first))
        weights[2] = 0.0
        found.append(weights / weights.sum())
    return found


def padded(rows: list[np.ndarray], size: int) -> Tensor:
    return torch.stack([torch.from_numpy(np.pad(row, (0, size - len(row)))) for row in rows])


@pytest.mark.parametrize("host", [("cpu",), ()], ids=["host", "accelerator"])
@pytest.mark.parametrize("points", [True, False], ids=["points", "products"])
@pytest.mark.parametrize("dim", DIMS)
def test_widest_directions(dim: int, points: bool, host: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Variance, positions along the widest direction, and the three widest as combinations of rows, up to a sign."""
    monkeypatch.setattr(LIMITS, "looked_at", host)
    halls = halls_of(dim, "shift")
    evidence, each = evidence_of(halls, points=points, spare=2), row_weights(halls)
    weights = padded(each, evidence.valid.shape[1])
    cloud = None if evidence.points is None else evidence.points[0]
    value, along = widest(evidence.first, cloud, weights)
    combined = directions(evidence.first, cloud, weights, 3)
    assert len(combined) == 3
    for place, hall in enumerate(halls):
        variances, axes = by_definition.axes(hall.first, each[place])
        centre = by_definition.mean_of(hall.first, each[place])
        expected = (hall.first - centre) @ axes[:, -1]
        got = along[place, : len(expected)].numpy()
        assert float(value[place]) == pytest.approx(variances[-1], rel=1e-9)
        np.testing.assert_allclose(got * np.sign(got @ expected), expected, rtol=0, atol=1e-7)
        for number, (variance, combination) in enumerate(combined, start=1):
            direction = combination[place, : len(expected)].numpy() @ hall.first
            assert float(variance[place]) == pytest.approx(variances[-number], rel=1e-9)
            assert abs(float(combination[place].sum())) < 1e-9  # so that it does not matter where products are taken from
            sign = np.sign(direction @ axes[:, -number])
            np.testing.assert_allclose(sign * direction, axes[:, -number], rtol=0, atol=1e-7)


@pytest.mark.parametrize("dim", DIMS)
def test_centred_diagonal_and_scores(dim: int) -> None:
    halls = halls_of(dim)
    evidence, each = evidence_of(halls, points=False), row_weights(halls)
    weights = padded(each, evidence.valid.shape[1])
    square = centred_diagonal(evidence.second, weights)
    both = {cross_fit: evidence.scores(weights, cross_fit=cross_fit) for cross_fit in (False, True)}
    for place, hall in enumerate(halls):
        count = len(hall.first)
        about = hall.second - by_definition.mean_of(hall.second, each[place])
        np.testing.assert_allclose(square[place, :count].numpy(), np.sum(about**2, axis=1), rtol=1e-9, atol=1e-7)
        for cross_fit, got in both.items():
            expected = np.array(by_definition.scores(hall.first, hall.second, each[place], cross_fit=cross_fit))
            scale = np.abs(expected).max()
            np.testing.assert_allclose(got[place, :count].numpy(), expected, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("dim", DIMS)
def test_derived_products(dim: int) -> None:
    """Differences and middles are those of the vectors."""
    halls = halls_of(dim, "shift")
    evidence = evidence_of(halls, points=True)
    for place, hall in enumerate(halls):
        count = len(hall.first)
        difference = hall.first - hall.second
        middle = (hall.first + hall.second) / 2 - hall.origin
        cut = (place, slice(count), slice(count))
        np.testing.assert_allclose(evidence.difference[cut].numpy(), difference @ difference.T, rtol=0, atol=1e-8)
        np.testing.assert_allclose(evidence.difference2[cut[:2]].numpy(), np.sum(difference**2, axis=1), rtol=1e-9)
        np.testing.assert_allclose(evidence.middle[cut].numpy(), middle @ middle.T, rtol=0, atol=1e-8)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_rejects(dim: int, plot: str) -> None:
    halls = halls_of(dim, plot)
    evidence = evidence_of(halls, points=False, spare=1)
    sizes = absurd(evidence)
    copies, nearest = duplicates(evidence, 1e-3)
    assert not bool((copies & ~evidence.judged).any())
    for place, (hall, found) in enumerate(zip(halls, found_in(copies), strict=True)):
        expected = by_definition.absurd(hall.first, hall.second, hall.origin)
        np.testing.assert_allclose(sizes[place, : len(expected)].numpy(), expected, rtol=1e-9)
        assert found == by_definition.duplicates(hall.first, hall.own, 1e-3)
        assert all(float(nearest[place, row]) < 1e-3 for row in found)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_screen(dim: int, plot: str) -> None:
    halls = halls_of(dim, plot)
    evidence, each = evidence_of(halls, points=False, spare=1), row_weights(halls)
    weights = padded(each, evidence.valid.shape[1])
    high, low = bounds(halls, 5.0), bounds(halls, 6.0)
    pairs, _ = inconsistent(evidence, high, low)
    close, _ = too_good(evidence, weights, low)
    kin, _ = alike(evidence, low)
    for place, hall in enumerate(halls):
        assert found_in(pairs)[place] == by_definition.inconsistent(hall.first, hall.second, hall.own, 5.0, 6.0)
        assert found_in(close)[place] == by_definition.too_good(hall.first, hall.second, hall.own, each[place], 6.0)
        if plot not in ("mixed", "same"):  # no difference has no direction
            assert found_in(kin)[place] == by_definition.alike(hall.first, hall.second, hall.own, 6.0)


@pytest.mark.parametrize("test", ["apart", "mean", "plan", "exact"])
def test_the_screen_finds_something(test: str) -> None:
    """The comparison above is not one of empty sets: in 40 dimensions each plot is seen by its own test."""
    halls = halls_of(40, test)
    evidence = evidence_of(halls, points=False)
    if test == "plan":
        found, _ = alike(evidence, bounds(halls, 6.0))
    elif test == "exact":
        found, _ = too_good(evidence, uniform(evidence.valid), bounds(halls, 6.0))
    else:
        found, _ = inconsistent(evidence, bounds(halls, 5.0), bounds(halls, 6.0))
    assert all(rows >= set(range(len(PLOTS[test]))) for rows in found_in(found))


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_noise_edge(dim: int, plot: str) -> None:
    """Weights, share taken and noise are those of the transcription, from points and from products."""
    halls = halls_of(dim, plot)
    transcribed = [by_definition.noise_edge(hall.first, hall.second, 1.2, 0.49) for hall in halls]
    for points in (False, True):
        centre = NoiseEdge().weights(evidence_of(halls, points=points, spare=2))
        for place, (hall, expected) in enumerate(zip(halls, transcribed, strict=True)):
            count = len(hall.first)
            np.testing.assert_allclose(centre.weights[place, :count].numpy(), expected.weights, rtol=0, atol=1e-7)
            assert bool((centre.weights[place, count:] == 0).all())
            assert float(centre.filtered_weight[place]) == pytest.approx(expected.taken, abs=1e-7)
            assert float(centre.noise[place]) == pytest.approx(expected.noise, rel=1e-9)
            assert bool(centre.stretched[place]) == expected.stretched


def test_noise_edge_takes_no_more_than_it_may() -> None:
    halls = [draw_hall(neighbours=30, dim=8, seed=1, byzantine=("shift",) * 14)]
    for most in (0.0, 0.2, 0.49):
        centre = NoiseEdge(most=most).weights(evidence_of(halls, points=True))
        assert float(centre.filtered_weight) <= most + 1e-12
        assert float(centre.weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(40))
def test_outstanding(seed: int) -> None:
    """Scores from three rows to forty, some rows without negative ones, ties included."""
    random = np.random.default_rng(seed)
    count, size = int(random.integers(3, 40)), 44
    values = random.standard_normal(count) + (seed % 4 == 0) * 10
    values[: count // 4] = random.choice([3.0, 6.0, 9.0, 12.0, 30.0], count // 4)
    scores = torch.full((1, size), 77.0, dtype=torch.float64)
    scores[0, :count] = torch.from_numpy(values)
    judged = torch.arange(size)[None] < count
    how = {"strong": torch.tensor([[8.0]]).double(), "weak": torch.tensor([[3.0]]).double()}
    sizes = np.abs(values) / random.uniform(0.05, 1.0, count)
    lengths = torch.full((1, size), 77.0, dtype=torch.float64)
    lengths[0, :count] = torch.from_numpy(sizes)
    for enough in (None, 0.9):
        bound = None if enough is None else torch.tensor([[enough]]).double()
        found, units = outstanding(scores, lengths, judged, fdr_level=LEVEL, **how, enough=bound)
        expected, per_unit = by_definition.outstanding(
            dict(enumerate(values.tolist())), dict(enumerate(sizes.tolist())), LEVEL, 8.0, 3.0, enough or np.inf
        )
        assert found_in(found)[0] == expected
    np.testing.assert_allclose(units[0, :count].numpy(), [per_unit[row] for row in range(count)], rtol=1e-12)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_shifted(dim: int, plot: str) -> None:
    halls = halls_of(dim, plot)
    transcribed = []
    for hall in halls:
        middle = by_definition.noise_edge(hall.first, hall.second, 1.2, 0.49)
        limits = {"edge": 1.2, "strong": 4.5, "weak": 2.5, "level": LEVEL}
        transcribed.append(by_definition.shifted(hall.first, hall.second, hall.own, middle, **limits))
    for points in (False, True):
        evidence = evidence_of(halls, points=points, spare=1)
        centre = NoiseEdge().weights(evidence)
        how = {"strong": bounds(halls, 4.5), "weak": bounds(halls, 2.5)}
        found, _ = shifted(evidence, centre, edge=1.2, fdr_level=LEVEL, **how)
        assert found_in(found) == transcribed
    assert any(transcribed) or plot not in ("shift", "small shift")


@pytest.mark.parametrize(("cross_fit", "panel"), [(True, Panel()), (False, Panel()), (True, PANEL)])
@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_the_whole_panel(dim: int, plot: str, cross_fit: bool, panel: Panel) -> None:
    """Who is flagged, and for which reason, whatever the others have been flagged for before."""
    halls = halls_of(dim, plot)
    transcribed = [
        by_definition.hear(hall.first, hall.second, hall.own, hall.origin, panel, LEVEL, cross_fit) for hall in halls
    ]
    for points in (False, True):
        findings = heard(halls, panel, points=points, spare=1, cross_fit=cross_fit)
        assert [reasons_of(findings, hall, place) for place, hall in enumerate(halls)] == transcribed


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("dim", DIMS)
def test_the_panel_where_answers_differ_by_receiver(dim: int, plot: str) -> None:
    """Groups of copies in one half, in both, of 12 % of the neighbours and of the own row, and kin, beside each plot."""
    halls, panel = halls_of(dim, plot), Panel()
    for hall in halls:
        first, second = hall.first, hall.second
        first[[3, 4, 5]] = first[2]  # one half only
        for group in ([6, 9, 10], [11, 12, 13, 14, 15]):
            first[group], second[group] = first[group[0]], second[group[0]]
        first[17], second[17] = first[hall.own], second[hall.own]
    transcribed = [
        by_definition.hear(hall.first, hall.second, hall.own, hall.origin, panel, LEVEL, True, answers_differ=True)
        for hall in halls
    ]
    for points in (False, True):
        findings = heard(halls, panel, points=points, spare=1, answers_differ=True)
        assert [reasons_of(findings, hall, place) for place, hall in enumerate(halls)] == transcribed
    assert any("duplicate" in words for words in transcribed)
    assert all(words[9] == words[6] for words in transcribed)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot != "nobody"])
def test_the_guard(plot: str, share: float) -> None:
    """Shares so small that soft evidence falls, or the screen, or both."""
    halls, panel = halls_of(40, plot), Panel(guard=share)
    findings = heard(halls, panel, spare=1)
    free = heard(halls, Panel(guard=None), spare=1)
    for place, hall in enumerate(halls):
        expected = by_definition.hear(hall.first, hall.second, hall.own, hall.origin, panel, LEVEL, True)
        assert reasons_of(findings, hall, place) == expected
        assert bool(findings.guard_acted[place]) == (expected != reasons_of(free, hall, place))


@pytest.mark.parametrize("guard", [0.5, 0.1])
@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_whole_detection(seed: int, probe: bool, guard: float) -> None:
    """From samples to reasons: every receiver's question answered sample by sample, and a look at the common start."""
    nodes, dim, step = 36, 6, 7
    hears = torch.from_numpy(draw_scene(nodes=nodes, dim=1, directed=seed == 1, losses=False, seed=seed).hears)
    shard = linear_shard(torch.arange(nodes), dim=dim, samples=30, seed=seed)
    targets = shard.targets.clone()
    targets[:5] += 4 * shard.features[:5, :, 0]
    targets[5:7] = -targets[5:7]
    problem = linear_problem(shard._replace(targets=targets), seed=seed)
    theta = problem.parameter + 0.5 * stream(seed, "theta").normal(nodes, dim)
    how, panel = "directed" if seed == 1 else "mutual", Panel(guard=guard)
    detector = Detector(point="receiver", cross_fit=True, panel=panel, probe=probe, sample="all", pruning=how)
    plan = Plan(20, step, detector=detector, watch=Watch(), seed=seed)
    network = LocalNetwork(Graph.from_hears(hears))
    blank = Suspensions.blank(network.arcs, 16)
    snapshot, _ = detect_hardened(
        problem, network, plan, theta, FollowsProtocol(), step=step, history=UpdateHistory(), record=blank
    )
    assert snapshot.verdict is not None
    halves = fresh_halves(torch.arange(nodes), samples=30, count=30, seed=seed, step=step)
    data = Data(*(value.numpy() for value in (problem.features, problem.targets, *halves.values())))

    def reasons(receiver: int, point: np.ndarray) -> list[str]:
        order = [*hears[receiver].nonzero().flatten().tolist(), receiver]
        first, second = (np.array(half) for half in zip(*(data.answer(node, point) for node in order), strict=True))
        hall = Hall(first, second)
        how = {"answers_differ": True}
        return by_definition.hear(first, second, hall.own, hall.origin, panel, detector.fdr_level, True, **how)

    flags, start = 0, problem.start.numpy()
    for receiver in range(nodes):
        neighbours = hears[receiver].nonzero().flatten().tolist()
        words = reasons(receiver, theta[receiver].numpy())
        if probe:
            there = reasons(receiver, start)
            words = by_definition.at_both_points(words, there, list(range(len(neighbours))), guard)
        assert [REASONS[code] for code in snapshot.verdict.reason[receiver, neighbours].tolist()] == words[:-1]
        flags += sum(word != "kept" for word in words)
    assert 0 < flags < int(hears.sum()) / 2
    assert torch.equal(snapshot.verdict.flagged, snapshot.verdict.reason != 0)
    assert not bool((snapshot.verdict.flagged & ~hears).any())
