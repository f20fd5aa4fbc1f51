"""Detection at the receiver's point: neighbours answer at its parameter, on their own samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Adversary, Detector, Graph, Identity, LocalNetwork, Plan, Principal
from bymi.attacks import ATTACKS, GradientAttack, InnerProductManipulation, SimulatedAdversary
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.network import NeighbourhoodReply
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import FIRST_HALF, SECOND_HALF, Topic
from bymi.detection import CENTRES, REASONS, SCALES, Verdict, identify, identify_neighbours, judge_replies
from bymi.detection.published_score import weigh
from bymi.experiment import load, run
from bymi.problems import LinearProblem, LinearShard, linear_problem, linear_shard
from bymi.runs.simulate import local_network
from bymi.training import phases
from bymi.training.phases import detect_published
from bymi.training.samples import Split, split_samples
from bymi.training.state import Snapshot
from tests.detection_fixtures import NETWORK_SCALES
from tests.reference import receiver as by_definition
from tests.reference.scenes import draw_scene

# Until it stands still, as its transcription does.
SETTINGS: dict[str, dict[str, Any]] = {"geometric-median": {"iterations": 3000, "tolerance": 1e-15}}
WEIGHTED = ["filtering", "geometric-median", "mean"]
SAMPLES, IDENTIFICATION = 40, 24
BYZANTINE = (0, 5, 9)


@dataclass(frozen=True)
class Room:
    """A linear problem on a graph with models that disagree; some nodes hold wrong data."""

    hears: Tensor
    problem: LinearProblem
    split: Split
    theta: Tensor

    @property
    def size(self) -> int:
        return len(self.hears)

    def data(self) -> by_definition.Data:
        values = (self.problem.features, self.problem.targets, self.split.first, self.split.second)
        return by_definition.Data(*(value.numpy() for value in values))

    def neighbours(self, node: int) -> list[int]:
        return self.hears[node].nonzero().flatten().tolist()


def room(*, nodes: int, dim: int, seed: int = 0, directed: bool = False) -> Room:
    """Half of all arcs; models two apart from each other; Byzantine nodes have data from a parameter far away."""
    hears = torch.from_numpy(draw_scene(nodes=nodes, dim=1, directed=directed, losses=False, seed=seed).hears)
    shard = linear_shard(torch.arange(nodes), dim=dim, samples=SAMPLES, seed=seed)
    targets = shard.targets.clone()
    for attacker in BYZANTINE:
        targets[attacker] += 3 * shard.features[attacker, :, 0]
    problem = linear_problem(LinearShard(shard.features, targets, shard.parameter), seed=seed)
    random = torch.from_numpy(np.random.default_rng(seed).standard_normal((nodes, dim)))
    split = split_samples(torch.arange(nodes), samples=SAMPLES, identification=IDENTIFICATION, seed=seed)
    return Room(hears, problem, split, problem.parameter + random * (2 / dim) ** 0.5)


@dataclass(frozen=True)
class Judged:
    snapshot: Snapshot
    verdict: Verdict
    replies: dict[int, NeighbourhoodReply]

    def halves(self, receiver: int) -> tuple[Tensor, Tensor]:
        """What a receiver heard, a row a neighbour and its own last [J + 1, D] each."""
        first, second = self.replies[receiver].read()
        return torch.cat([first.messages, first.own]), torch.cat([second.messages, second.own])


def judge(room: Room, detector: Detector, monkeypatch: pytest.MonkeyPatch, adversary: Adversary | None = None) -> Judged:
    """One detection, with a copy of every answer."""
    kept: list[NeighbourhoodReply] = []

    def listen(replies: Iterable[NeighbourhoodReply], detector: Detector, arcs: Tensor) -> Verdict:
        kept.extend(replies)
        return judge_replies(iter(kept), detector, arcs)

    network = local_network(Graph.from_hears(room.hears), adversary)
    plan = Plan(steps=3, warm_up_steps=2, detector=detector, identification=IDENTIFICATION)
    with monkeypatch.context() as patch:
        patch.setattr(phases, "judge_replies", listen)
        snapshot = detect_published(room.problem, network, plan, room.split, room.theta, adversary or FollowsProtocol())
    assert snapshot.verdict is not None
    return Judged(snapshot, snapshot.verdict, {reply.receiver: reply for reply in kept})


def detector_of(centre: str = "filtering", scale: str = "identity", **how: Any) -> Detector:
    rule = CENTRES[centre](**SETTINGS.get(centre, {}))
    return Detector(centre=rule, scale=SCALES[scale](), point="receiver", **how)


def byzantine(room: Room, attack: Any, **how: Any) -> Adversary:
    members = torch.zeros(room.size, dtype=torch.bool)
    members[list(BYZANTINE)] = True
    return Adversary(members, attack, **how)


# Weights can be told from a cross-fitted centre when there are no more nodes than dimensions.
CASES = [
    (centre, cross_fit, *sizes)
    for centre, weighted in [*((name, True) for name in WEIGHTED), ("median", False), ("trimmed-mean", False)]
    for cross_fit in (False, True)[: 1 + weighted]
    for sizes in [(12, 30, False), (16, 25, True), (20, 4, False)][: 2 if cross_fit else 3]
]


@pytest.mark.parametrize(("centre", "cross_fit", "nodes", "dim", "directed"), CASES)
@pytest.mark.parametrize("scale", NETWORK_SCALES)
def test_verdicts(
    centre: str, scale: str, cross_fit: bool, nodes: int, dim: int, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, thresholds and flags of every receiver are those of the transcription."""
    place, offset, level = room(nodes=nodes, dim=dim, directed=directed, seed=nodes), nodes % 2, 0.25
    detector = detector_of(centre, scale, cross_fit=cross_fit, offset=offset, fdr_level=level)
    verdict = judge(place, detector, monkeypatch).verdict
    data, flags = place.data(), 0
    for i in range(nodes):
        point = place.theta[i].numpy()
        others = {j: data.answer(j, point) for j in place.neighbours(i)}
        scores, limit, flagged = by_definition.verdict(
            data.answer(i, point),
            others,
            level=level,
            offset=offset,
            centre=centre,
            settings=asdict(detector.centre),  # type: ignore[call-overload]
            omega=scale,
            cross_fit=cross_fit,
        )
        expected = np.full(nodes, np.nan)
        expected[list(scores)] = list(scores.values())
        np.testing.assert_allclose(verdict.scores[i].numpy(), expected, rtol=0, atol=1e-9)
        assert float(verdict.threshold[i]) == pytest.approx(limit, abs=1e-9)
        assert set(verdict.flagged[i].nonzero().flatten().tolist()) == flagged
        assert verdict.reason[i].tolist() == [int(j in flagged) for j in range(nodes)]
        flags += len(flagged)
    assert 0 < flags < place.hears.sum()


def test_models_that_disagree_are_no_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one point the answers of good nodes differ by noise only; each at its own point, most of them look shifted."""
    nodes, flags = torch.arange(20), [0, 0]
    good = [i for i in range(20) if i not in BYZANTINE]
    for seed in range(4):
        place = room(nodes=20, dim=8, seed=seed)
        apart = replace(place, theta=place.problem.parameter + torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None])
        flags[0] += int(judge(apart, detector_of(), monkeypatch).verdict.flagged[good][:, good].sum())
        halves = {topic: apart.problem.gradient(apart.theta, nodes, some) for topic, some in apart.split.halves.items()}
        first, second = LocalNetwork(Graph.from_hears(apart.hears)).exchange(0, halves)
        flags[1] += int(identify_neighbours(first, second, Detector()).flagged[good][:, good].sum())
    assert flags[0] < flags[1] / 3


# Who computes what, where


def changed(left: Tensor, right: Tensor) -> list[int]:
    """Rows that are not the same bits."""
    return (left != right).any(1).nonzero().flatten().tolist()


def test_a_neighbour_computes_on_its_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """New data of node 4 change what others hear from it, and its own answers, and nothing else."""
    before = room(nodes=14, dim=6)
    rows = before.problem.rows.clone()
    rows[4, :, :-1] += 1
    after = replace(before, problem=replace(before.problem, rows=rows))
    one, two = (judge(some, detector_of(), monkeypatch) for some in (before, after))
    for i in range(14):
        places = [*before.neighbours(i), i]
        expected = [places.index(4)] if 4 in places else []
        for half in (0, 1):
            assert changed(one.halves(i)[half], two.halves(i)[half]) == expected
        if 4 not in places:
            assert torch.equal(one.verdict.flagged[i], two.verdict.flagged[i])
            assert torch.allclose(one.verdict.scores[i], two.verdict.scores[i], rtol=1e-12, equal_nan=True)


def test_a_neighbours_own_model_does_not_enter_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of node 4 changes all answers to its own question, and none to those of others."""
    before = room(nodes=14, dim=6)
    theta = before.theta.clone()
    theta[4] -= 3
    one, two = (judge(some, detector_of(), monkeypatch) for some in (before, replace(before, theta=theta)))
    assert before.hears[:, 4].any()
    for i in range(14):
        places = [*before.neighbours(i), i]
        expected = list(range(len(places))) if i == 4 else []
        for half in (0, 1):
            assert changed(one.halves(i)[half], two.halves(i)[half]) == expected


def test_samples_of_the_warm_up_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    before = room(nodes=12, dim=4)
    rows = before.problem.rows.clone()
    rows[:, :, -1].scatter_(1, before.split.warm_up, 1e9)
    after = replace(before, problem=replace(before.problem, rows=rows))
    one, two = (judge(some, detector_of(), monkeypatch) for some in (before, after))
    assert torch.equal(one.verdict.scores.nan_to_num(), two.verdict.scores.nan_to_num())


def test_everybody_is_asked_once_by_each_receiver() -> None:
    """The points, nodes and askers of all questions, and that replies name their receiver and senders."""
    hears = torch.from_numpy(draw_scene(nodes=9, dim=1, directed=True, losses=False, seed=2).hears)
    theta, seen = torch.arange(9.0).double()[:, None].expand(-1, 3), []

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[str, Tensor]:
        assert torch.equal(points, theta[askers])
        seen.extend(zip(askers.tolist(), nodes.tolist(), strict=True))
        return {"one": points + 100 * nodes[:, None], "two": -points}

    who = torch.tensor([True] * 6 + [False] + [True] * 2)
    replies = list(LocalNetwork(Graph.from_hears(hears)).ask(0, theta, answer, who))
    expected = [(i, j) for i in range(9) if i != 6 for j in [*hears[i].nonzero().flatten().tolist(), i]]
    assert sorted(seen) == sorted(expected)
    assert [reply.receiver for reply in replies] == [0, 1, 2, 3, 4, 5, 7, 8]
    for reply in replies:
        i, (one, two) = reply.receiver, reply.read()
        assert reply.senders.tolist() == hears[i].nonzero().flatten().tolist()
        assert one.messages[:, 0].tolist() == [i + 100 * j for j in reply.senders.tolist()]
        assert one.own.tolist() == [[i + 100.0 * i] * 3]
        assert two.messages.unique().tolist() == [-float(i)]
        assert one.expected.all()


@pytest.mark.parametrize("centre", ["filtering", "median"])
def test_how_many_are_handled_at_a_time_does_not_matter(centre: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, detector = room(nodes=17, dim=6, directed=True), detector_of(centre, "pca")
    whole = judge(place, detector, monkeypatch).verdict
    for numbers, receivers, long in ((1, 1, 1 << 20), (6 * 18 * 3, 5, 1 << 20), (1 << 25, 16, 1 << 20), (1 << 25, 5, 1)):
        monkeypatch.setattr(LIMITS, "replies", numbers)
        monkeypatch.setattr(LIMITS, "replies_alone", long)
        monkeypatch.setattr(LIMITS, "published_receivers", receivers)
        parts = judge(place, detector, monkeypatch).verdict
        torch.testing.assert_close(parts.scores, whole.scores, rtol=0, atol=1e-10, equal_nan=True)
        assert torch.equal(parts.flagged, whole.flagged)


def test_a_receiver_that_hears_nobody_flags_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    place = room(nodes=12, dim=4)
    hears = place.hears.clone()
    hears[3], hears[:, 3] = False, False
    verdict = judge(replace(place, hears=hears), detector_of(), monkeypatch).verdict
    assert not verdict.flagged[3].any()
    assert verdict.threshold[3] == torch.inf
    assert verdict.scores[3].isnan().all()


@pytest.mark.parametrize("alone", [12, 1])
def test_receivers_of_which_none_hears_anybody(alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the network, or all of those who are handled at a time."""
    place = room(nodes=12, dim=4)
    hears = place.hears.clone()
    hears[:alone], hears[:, :alone] = False, False
    monkeypatch.setattr(LIMITS, "published_receivers", alone)
    verdict = judge(replace(place, hears=hears), detector_of(), monkeypatch).verdict
    assert not verdict.flagged[:alone].any()


# Attacks


@pytest.mark.parametrize("attack", ["nan", "inf", "silent", "huge", "misshapen"])
@pytest.mark.parametrize("centre", ["filtering", "median"])
def test_answers_that_are_none_are_flagged_and_do_not_matter(attack: str, centre: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byzantine nodes are flagged as not heard; the scores of the others are those in a graph without them."""
    place = room(nodes=16, dim=5, seed=1)
    found = judge(place, detector_of(centre, "pca"), monkeypatch, byzantine(place, ATTACKS[attack]())).verdict
    alone = place.hears.clone()
    alone[:, list(BYZANTINE)] = False
    expected = judge(replace(place, hears=alone), detector_of(centre, "pca"), monkeypatch).verdict
    good = [i for i in range(16) if i not in BYZANTINE]
    arcs = place.hears.clone()
    arcs[:, good] = False
    assert arcs[good].any()
    assert torch.equal(found.reason[good] == REASONS.index("not heard"), arcs[good])
    assert found.flagged[good][arcs[good]].all()
    assert found.scores[good][arcs[good]].isnan().all()
    torch.testing.assert_close(found.scores[good], expected.scores[good], rtol=0, atol=1e-10, equal_nan=True)
    assert torch.equal(found.flagged[good] & ~arcs[good], expected.flagged[good])
    torch.testing.assert_close(found.threshold[good], expected.threshold[good])


@pytest.mark.parametrize("lost", [FIRST_HALF, SECOND_HALF])
def test_who_answers_half_the_question_is_not_heard(lost: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    place = room(nodes=14, dim=5)
    adversary = byzantine(place, None)

    def tamper(self: Adversary, vectors: Tensor, senders: Tensor, topic: Topic, step: int) -> dict[int, None]:
        return {row: None for row in self.members[senders].nonzero().flatten().tolist() if topic == lost}

    monkeypatch.setattr(Adversary, "tamper", tamper)
    judged = judge(place, detector_of(), monkeypatch, adversary)
    found = judged.verdict
    for i in range(14):
        if i not in BYZANTINE:
            assert [j for j in range(14) if found.reason[i, j] == 2] == [j for j in BYZANTINE if place.hears[i, j]]
            # counted like any message that was not heard, although the parameters were
            assert judged.snapshot.inbox.unheard[i].nonzero().flatten().tolist() == [j for j in BYZANTINE if place.hears[i, j]]


def test_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    place = room(nodes=10, dim=3)
    nobody = torch.zeros(10, dtype=torch.bool)
    network = LocalNetwork(Graph.from_hears(place.hears))
    assert list(network.ask(0, place.theta, lambda points, nodes, askers: {}, nobody)) == []


def honest_answers(place: Room, asker: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both halves of all good nodes that hear a question, the asker among them."""
    data, point = place.data(), place.theta[asker].numpy()
    return [data.answer(j, point) for j in [*place.neighbours(asker), asker] if j not in BYZANTINE]


def test_byzantine_nodes_know_the_honest_answers_to_the_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPM: minus the mean of what good nodes answer to this asker, of the same half."""
    place = room(nodes=14, dim=5)
    found = judge(place, detector_of(), monkeypatch, byzantine(place, InnerProductManipulation(a=1.5)))
    told = 0
    for i in (i for i in range(14) if i not in BYZANTINE):
        answers = honest_answers(place, i)
        for row, j in enumerate(place.neighbours(i)):
            own = place.data().answer(j, place.theta[i].numpy())
            for half in (0, 1):
                lie = -1.5 * np.mean([answer[half] for answer in answers], axis=0)
                expected = lie if j in BYZANTINE else own[half]
                np.testing.assert_allclose(found.halves(i)[half][row].numpy(), expected, rtol=0, atol=1e-12)
            told += j in BYZANTINE
    assert told > 10


def test_the_gradient_attack_pushes_all_answers_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """(answer - mean / 2) / std = 20 z + e: z common to Byzantine nodes, halves and askers, e new in each.

    The mean square of 2000 differences of two e is 2 with a standard deviation of 2 sqrt(2 / 2000) = 0.063; it is off by
    0.5 in fewer than one of 1e12 cases, 1000 times over.
    """
    place = room(nodes=14, dim=2000)
    found = judge(place, detector_of("mean"), monkeypatch, byzantine(place, GradientAttack()))
    pushes = []
    for i in (i for i in range(14) if i not in BYZANTINE):
        answers = honest_answers(place, i)
        for half in (0, 1):
            honest = np.array([answer[half] for answer in answers])
            spread = np.sqrt(np.mean((honest - honest.mean(0)) ** 2))
            for row, j in enumerate(place.neighbours(i)):
                if j in BYZANTINE:
                    pushes.append((found.halves(i)[half][row].numpy() - honest.mean(0) / 2) / spread)
    assert len(pushes) > 20
    for place_of, push in enumerate(pushes):
        for other in pushes[:place_of]:
            assert np.mean((push - other) ** 2) == pytest.approx(2, abs=0.5)
    assert np.mean(pushes[0] ** 2) == pytest.approx(401, abs=401 * 8 * (2 / 2000) ** 0.5)


@pytest.mark.parametrize("pruning", ["none", "all", "rule"])
def test_byzantine_nodes_ask_only_if_they_act_on_the_answers(pruning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = room(nodes=14, dim=5)
    found = judge(place, detector_of(), monkeypatch, byzantine(place, InnerProductManipulation(), pruning=pruning))
    asked_by = set(found.replies)
    assert asked_by == (set(range(14)) if pruning == "rule" else set(range(14)) - set(BYZANTINE))
    for attacker in BYZANTINE:
        assert bool(found.verdict.scores[attacker].isnan().all()) == (pruning != "rule")
    network = found.snapshot.network
    assert isinstance(network, SimulatedAdversary)
    cut = place.hears & ~network.graph.hears
    for i in range(14):
        expected = {"none": torch.zeros(14, dtype=torch.bool), "all": place.hears[i], "rule": found.verdict.flagged[i]}
        assert torch.equal(cut[i], expected[pruning] if i in BYZANTINE else found.verdict.flagged[i])
    good = [i for i in range(14) if i not in BYZANTINE]
    reference = judge(place, detector_of(), monkeypatch, byzantine(place, InnerProductManipulation()))
    assert torch.equal(found.verdict.flagged[good], reference.verdict.flagged[good])


def test_the_snapshot_holds_the_models_that_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    place = room(nodes=12, dim=4)
    found = judge(place, detector_of(), monkeypatch)
    assert found.snapshot.theta is place.theta
    assert torch.equal(found.snapshot.inbox.own, place.theta)
    assert (found.snapshot.step, found.snapshot.phase) == (2, "detection")


# Cross-fitted centres


def test_centres_by_hand() -> None:
    """x1 = 1, 2, 6 and x2 = 2, 3, 5 with weights 1/2, 1/2, 0: c1 = 1.5, and c2 = 2.5 if cross-fitted."""
    first, second = torch.tensor([[1.0], [2.0], [6.0]]).double(), torch.tensor([[2.0], [3.0], [5.0]]).double()
    weights, member = torch.tensor([[0.5, 0.5, 0.0]]).double(), torch.ones(1, 3, dtype=torch.bool)
    for scale in (Identity(), Principal()):  # in one dimension there is one component
        by_paper = weigh(first @ first.T, first @ second.T, weights, cross_fit=False)
        torch.testing.assert_close(scale.scores(by_paper, member), torch.tensor([[-0.25, 0.75, 15.75]]).double())
        crossed = weigh(first @ first.T, first @ second.T, weights, cross_fit=True)
        torch.testing.assert_close(scale.scores(crossed, member), torch.tensor([[0.25, 0.25, 11.25]]).double())


@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", WEIGHTED)
def test_cross_fitted_scores_of_plain_matrices(centre: str, scale: str) -> None:
    drawn = draw_scene(nodes=18, dim=40, directed=False, losses=False, seed=11)
    rule = CENTRES[centre](**SETTINGS.get(centre, {}))
    found = identify(drawn.vectors, drawn.second, profile="published", own=0, centre=rule, scale=SCALES[scale]())
    halves = list(zip(drawn.vectors, drawn.second, strict=True))
    expected = by_definition.scores(halves[0], dict(enumerate(halves[1:])), centre, asdict(rule), scale, True)
    np.testing.assert_allclose(found.scores[1:].numpy(), list(expected.values()), rtol=0, atol=1e-9)


def test_cross_fitting_takes_the_noise_of_the_centre_out_of_the_scores() -> None:
    """Good nodes only, more dimensions than nodes, a filter that drops nearly half of them.

    A score has mean 0 given the first halves when c2 is a mean of second halves, whose noise is independent of them; with
    c1 on both sides it is shifted. Over 60 draws the mean of all scores is compared with the standard deviation of the
    draws' means: seven of them off is a false alarm of less than 1e-8 (t with 59 degrees of freedom).
    """
    means: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(60):
        random = np.random.default_rng(seed)
        halves = random.standard_normal((2, 25, 2000))
        for cross_fit, found in means.items():
            found.append(float(identify(*halves, profile="published", cross_fit=cross_fit).scores.mean()))
    shifts = {way: np.mean(found) / (np.std(found, ddof=1) / 60**0.5) for way, found in means.items()}
    assert abs(shifts[True]) < 7 < abs(shifts[False])


# What it is for


def test_the_receivers_point_sees_what_the_senders_point_is_blind_to(tmp_path: Path) -> None:
    """Scenario A with 80 % of the entries wrong; attackers that run the rule end among themselves, at their own optimum."""
    words = ["profile=paper", "method=drsgd-bymi", "steps=301", "warm_up.steps=300", "warm_up.step_size=0.5"]
    words += [
        "attack.share=0.8",
        "warm_up.rule=balance:gamma=1.0",
        "data.samples=1000",
        "data.identification=50",
        "byzantine_mixing=rule",
    ]
    found = {point: run(load(None, [*words, f"detection.point={point}"]), tmp_path)["pa"] for point in ("sender", "receiver")}
    assert found == {"sender": 0.0, "receiver": 1.0}
