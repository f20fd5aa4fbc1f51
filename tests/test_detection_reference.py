"""Scores, thresholds, verdicts and error rates equal the literal transcriptions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Detector, Graph, identify
from bymi.core.topic import FIRST_HALF, SECOND_HALF, Topic
from bymi.detection import CENTRES, SCALES, identify_neighbours, threshold
from bymi.runs.metrics import false_discoveries, sure_detection
from tests.detection_fixtures import NETWORK_SCALES
from tests.inbox_fixtures import Tampering
from tests.reference import detection as by_definition
from tests.reference import robust_means
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS as TRANSCRIPTIONS
from tests.reference.scenes import RunSetup, draw_scene

# Until it stands still, as its transcription does.
SETTINGS: dict[str, dict[str, Any]] = {
    "geometric-median": {"iterations": 3000, "tolerance": 1e-15},
    # Later rounds amplify rounding.
    "spectral-solver": {"rounds": 4},
    "no-regret": {"rounds": 4},
}
# Others are compared on single sets, here and in tests/test_robust_means.py: their transcriptions take long.
BY_NODE = [name for name in CENTRES if name not in robust_means.MEANS]
SCENES = [(14, 3, False, False, 0), (16, 40, True, False, 1), (25, 3, True, True, 30), (25, 40, False, True, 3)]


def test_every_centre_and_scale_has_a_transcription() -> None:
    assert set(CENTRES) <= {*TRANSCRIPTIONS, *robust_means.MEANS}
    assert set(NETWORK_SCALES) == set(by_definition.OMEGAS)


def halves_through(scene: RunSetup, dtype: torch.dtype) -> Any:
    """Both inboxes. Some senders lose their first half only, some their second: neither half may then be used."""

    def lose(vectors: Tensor, senders: Tensor, topic: Topic, step: int) -> dict[int, None]:
        return dict.fromkeys(scene.lost[::2] if topic == FIRST_HALF else scene.lost[1::2])

    network = Tampering(Graph.from_hears(torch.from_numpy(scene.hears)), lose)
    first, second = torch.from_numpy(scene.vectors).to(dtype), torch.from_numpy(scene.second).to(dtype)
    return network.exchange(0, {FIRST_HALF: first, SECOND_HALF: second})


def scores_of(scene: RunSetup, receiver: int, centre: str, settings: dict[str, Any], scale: str) -> dict[int, float]:
    """What one node makes of each neighbour it heard, by definition."""
    node = scene.node(receiver)
    if centre in robust_means.MEANS:
        middle = robust_means.MEANS[centre](np.array(node.everybody), **{k: v for k, v in settings.items() if k != "sigma"})
    else:
        middle = TRANSCRIPTIONS[centre](node, **settings)
    omega = by_definition.OMEGAS[scale](node.everybody)
    heard = scene.heard_by(receiver)
    return {j: by_definition.score(scene.vectors[j], scene.second[j], middle, omega) for j in heard}


@pytest.mark.parametrize(("nodes", "dim", "directed", "losses", "seed"), SCENES)
@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", BY_NODE)
def test_verdicts(centre: str, scale: str, nodes: int, dim: int, directed: bool, losses: bool, seed: int) -> None:
    scene = draw_scene(nodes=nodes, dim=dim, directed=directed, losses=losses, seed=seed)
    rule = CENTRES[centre](**SETTINGS.get(centre, {}))
    detector = Detector(0.2, 0, rule, SCALES[scale]())
    verdict = identify_neighbours(*halves_through(scene, torch.float64), detector)
    flags = 0
    for i in range(nodes):
        expected = np.full(nodes, np.nan)
        for j, score in scores_of(scene, i, centre, asdict(rule), scale).items():
            expected[j] = score
        np.testing.assert_allclose(verdict.scores[i].numpy(), expected, rtol=0, atol=1e-9)
        scores = [score for score in expected.tolist() if not np.isnan(score)]
        limit = by_definition.threshold(scores, 0.2, 0) if scores else np.inf
        assert float(verdict.threshold[i]) == pytest.approx(limit, abs=1e-9)
        by_score = {j for j in range(nodes) if expected[j] >= limit}
        unheard = {j for j in scene.lost if scene.hears[i, j]}
        assert set(verdict.flagged[i].nonzero().flatten().tolist()) == by_score | unheard
        why = [2 if j in unheard else int(j in by_score) for j in range(nodes)]
        assert verdict.reason[i].tolist() == why
        flags += len(by_score)
    assert 0 < flags < scene.hears.sum()  # agreement on nobody, or on everybody, would say little


@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", BY_NODE)
def test_verdicts_on_single_precision(centre: str, scale: str) -> None:
    """Halves rounded to float32 give the scores of the rounded numbers; a centre kept in float32 costs a few 1e-6."""
    drawn = draw_scene(nodes=25, dim=40, directed=False, losses=True, seed=5)
    rounded = (half.astype(np.float32).astype(np.float64) for half in (drawn.vectors, drawn.second))
    scene = RunSetup(drawn.hears, *rounded, drawn.targets, drawn.lost)
    rule = CENTRES[centre](**SETTINGS.get(centre, {}))
    verdict = identify_neighbours(*halves_through(scene, torch.float32), Detector(0.2, 0, rule, SCALES[scale]()))
    assert verdict.scores.dtype == torch.float64
    for i in range(scene.size):
        scores = scores_of(scene, i, centre, asdict(rule), scale)
        np.testing.assert_allclose(verdict.scores[i, list(scores)].numpy(), list(scores.values()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("own", [None, 3])
@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_plain_matrices(centre: str, scale: str, own: int | None) -> None:
    """All rows of two matrices as one neighbourhood: everybody hears everybody, the own row is not judged."""
    drawn = draw_scene(nodes=18, dim=7, directed=False, losses=False, seed=11)
    scene = RunSetup(~np.eye(18, dtype=bool), drawn.vectors, drawn.second, drawn.targets, ())
    rule = CENTRES[centre](**SETTINGS.get(centre, {}))
    how: dict[str, Any] = {"profile": "published", "cross_fit": False, "centre": rule, "scale": SCALES[scale]()}
    verdict = identify(scene.vectors, scene.second, **how, own=own, fdr_level=0.3, offset=1)
    # A robust mean does not mind which of its rows is called the own one, so any node's view gives the scores of the others.
    expected = scores_of(scene, 17, centre, asdict(rule), scale) | scores_of(scene, 0, centre, asdict(rule), scale)
    judged = [row for row in range(18) if row != own]
    scores = [expected[row] for row in judged]
    np.testing.assert_allclose(verdict.scores[judged].numpy(), scores, rtol=0, atol=1e-9)
    limit = by_definition.threshold(scores, 0.3, 1)
    assert verdict.flagged.nonzero().flatten().tolist() == [row for row in judged if expected[row] >= limit]
    assert own is None or bool(verdict.scores[own].isnan())


def drawn_scores(count: int, seed: int) -> list[float]:
    """Whole numbers of distinct size with random signs, the larger ones more often positive."""
    random = np.random.default_rng(seed)
    sizes = random.choice(np.arange(1, 4 * count), size=count, replace=False)
    return np.where(random.random(count) < 0.4 + 0.5 * sizes / sizes.max(), sizes, -sizes).astype(float).tolist()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("level", [0.1, 0.2, 0.5])
def test_thresholds(level: float, offset: int) -> None:
    """Smallest candidate, infimum over a scan of all r, and the batched code: one flagged set, in 120 draws."""
    numbers = []
    for seed in range(120):
        scores = drawn_scores(2 + seed % 40, seed)
        limit = by_definition.threshold(scores, level, offset)
        scanned = by_definition.threshold_by_scan(scores, level, offset, step=0.25)
        assert scanned == by_definition.infimum(scores, level, offset)
        flagged = [score >= limit for score in scores]
        assert flagged == [score >= scanned for score in scores]
        # Two entries that do not count, however large, change nothing.
        row = torch.tensor([[*scores, 1e6, -1e6]], dtype=torch.float64)
        scored = torch.tensor([[True] * len(scores) + [False] * 2])
        assert threshold(row, scored, fdr_level=level, offset=offset).tolist() == [limit]
        numbers.append(sum(flagged))
    assert min(numbers) == 0
    assert max(numbers) > 5


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("level", [0.1, 0.25, 0.5])
def test_thresholds_with_ties_and_zeros(level: float, offset: int) -> None:
    """Scores from six values only, against the printed infimum: the set that we flag satisfies the level, theirs may not.

    The infimum may be the size of a negative score, and is zero where all r > 0 qualify: a positive score of just that size,
    or zeros, are then flagged by the paper and not here. Nothing else differs.
    """
    random = np.random.default_rng(0)
    rows = random.integers(-2, 4, size=(300, 12)).astype(float)
    rows[::3] += np.where(rows[::3] != 0, random.uniform(0, 0.4, size=(100, 12)), 0.0)  # zeros alone, or no ties at all
    limits = threshold(torch.from_numpy(rows), torch.ones(300, 12, dtype=torch.bool), fdr_level=level, offset=offset)
    differ = 0
    for row, limit in zip(rows.tolist(), limits.tolist(), strict=True):
        assert limit == by_definition.threshold(row, level, offset)
        printed = by_definition.infimum(row, level, offset)
        ours, theirs = ({at for at, score in enumerate(row) if score >= bound} for bound in (limit, printed))
        assert ours <= theirs
        assert {row[at] for at in theirs - ours} <= {printed}
        if theirs != ours:
            differ += 1
            assert printed == 0 or -printed in row
        if ours:
            assert (offset + sum(score <= -limit for score in row)) / len(ours) <= level
    assert differ > 0


@pytest.mark.parametrize(
    ("scores", "printed", "ours"),
    [
        ([2.0, -2.0], {0}, set()),  # beyond 2 nobody is left on either side: the infimum is 2, and 2 >= 2
        ([0.0, 3.0], {0, 1}, {1}),  # every r > 0 qualifies: the infimum is 0, and 0 >= 0
        ([5.0, 4.0, 1.0, -1.0], {0, 1, 2}, {0, 1}),
        ([-3.0, 1.0], set(), set()),  # the largest is negative: the infimum is 3, not infinite
    ],
)
def test_ties_by_hand(scores: list[float], printed: set[int], ours: set[int]) -> None:
    infimum = by_definition.infimum(scores, 0.2, 0)
    limit = float(
        threshold(torch.tensor([scores]).double(), torch.ones(1, len(scores), dtype=torch.bool), fdr_level=0.2, offset=0)
    )
    assert {at for at, score in enumerate(scores) if score >= infimum} == printed
    assert {at for at, score in enumerate(scores) if score >= limit} == ours


def test_error_rates() -> None:
    """FDP and P_a of random verdicts: a Byzantine neighbour is flagged most of the time, an honest one rarely."""
    sure = []
    for seed in range(8):
        random = np.random.default_rng(100 + seed)
        scene = draw_scene(nodes=15, dim=1, directed=True, losses=False, seed=seed)
        byzantine = np.arange(15) < 3
        flagged = scene.hears & (random.random((15, 15)) < np.where(byzantine, 0.8, 0.3))
        sets = [set(np.flatnonzero(row).tolist()) for row in flagged]
        neighbours = [set(np.flatnonzero(row).tolist()) for row in scene.hears]
        attackers = set(np.flatnonzero(byzantine).tolist())
        graph = Graph.from_hears(torch.from_numpy(scene.hears))
        tensors = torch.from_numpy(flagged), graph, torch.from_numpy(byzantine)
        expected = by_definition.false_discovery_proportion(sets, attackers)
        assert false_discoveries(*tensors) == pytest.approx(expected, abs=1e-12)
        expected = by_definition.sure_detection(sets, neighbours, attackers)
        assert sure_detection(*tensors) == pytest.approx(expected, abs=1e-12)
        sure.append(expected)
    assert 0 < min(sure) < max(sure)  # not the same answer every time
