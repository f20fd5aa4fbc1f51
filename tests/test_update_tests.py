"""Update tests, update history, clipping and record against their transcriptions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import GeometricMedian, Graph, Inbox, LocalNetwork, Mean, SetRule
from bymi.core.random_streams import stream
from bymi.core.topic import PARAMETERS, Topic
from bymi.core.topology import Complete
from bymi.detection import Suspensions, UpdateHistory, Verdict
from bymi.detection.clip_parameter_messages import fused, shorten
from bymi.detection.duplicates import repeats
from bymi.detection.hardened_detection import claim_mismatch, drift_test, joint_test
from bymi.detection.update_history import by_kind
from bymi.detection.verdict import MILD, REASONS, SEVERE
from tests.detection_fixtures import halves_of, parameters, verdict_of
from tests.inbox_fixtures import Tampering, network_of
from tests.neighbourhood_fixtures import found_in
from tests.reference import panel as by_definition
from tests.reference.panel import REACH
from tests.reference.receiver import centre_of, weights_of
from tests.reference.scenes import draw_scene

MEDIAN = GeometricMedian(iterations=3000, tolerance=1e-15)
ONE = torch.ones(1, 1, dtype=torch.float64)
SETTINGS = {"smoothing": 1e-6, "iterations": 3000, "tolerance": 1e-15}


def centre_by(name: str) -> tuple[SetRule, by_definition.Centre]:
    if name == "mean":
        return Mean(), lambda points: points.mean(0)
    return MEDIAN, lambda points: centre_of(list(points), "geometric-median", SETTINGS)


def histories(count: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Deeds and claims: honest nodes stand off by minus their gradient and some noise; the first rows do as they like."""
    random = np.random.default_rng(seed)
    claims = random.standard_normal((count, dim))
    deeds = 300 - claims * random.uniform(0.6, 2.2, (count, 1)) + 0.3 * random.standard_normal((count, dim))
    deeds[0] += 20
    deeds[1:4] += 4 * random.standard_normal(dim)
    return deeds, claims


# Deeds


@pytest.mark.parametrize("name", ["mean", "geometric-median"])
@pytest.mark.parametrize("seed", range(6))
def test_drift(name: str, seed: int) -> None:
    """Rows of different number in one batch, one of them flagged before."""
    rule, centre = centre_by(name)
    counts, size, dim = (17, 24, 31), 33, 5 + seed
    rooms = [histories(count, dim, seed + count)[0] for count in counts]
    gram = torch.zeros(len(counts), size, size, dtype=torch.float64)
    valid = torch.zeros(len(counts), size, dtype=torch.bool)
    for place, deeds in enumerate(rooms):
        about = torch.from_numpy(deeds - deeds[5])
        gram[place, : len(deeds), : len(deeds)] = about @ about.T
        valid[place, : len(deeds)] = True
    valid[:, 6] = False
    judged = valid.clone()
    judged[:, 7] = False
    found, _ = drift_test(gram, valid, judged, rule, torch.full((len(counts), 1), 4.0, dtype=torch.float64))
    for deeds, rows in zip(rooms, found_in(found), strict=True):
        left = [row for row in range(len(deeds)) if row != 6]
        places = {place for place, row in enumerate(left) if row != 7}
        expected = by_definition.drift_test(deeds[left], places, centre, 4.0)
        assert rows == {left[place] for place in expected}
    assert bool(found.any())


def test_a_pass_that_would_flag_too_many_counts_for_nothing() -> None:
    """Ten far off, then two more beside the rest: of eleven places the ten have theirs, of nine none, of twelve all."""
    random = np.random.default_rng(0)
    deeds = random.standard_normal((30, 20))
    deeds[:10] += 1e4 * random.standard_normal((10, 20))
    deeds[10:12] *= 2.5
    gram, valid = torch.from_numpy(deeds @ deeds.T)[None], torch.ones(1, 30, dtype=torch.bool)
    found = {}
    for most in (9, 11, 12):
        limits = torch.full((1, 1), 5.0, dtype=torch.float64), torch.full((1, 1), float(most), dtype=torch.float64)
        found[most] = found_in(drift_test(gram, valid, valid, MEDIAN, *limits)[0])[0]
    assert found == {9: set(), 11: set(range(10)), 12: set(range(12))}


def test_equal_histories_do_not_draw_the_centre() -> None:
    """30 of 62 neighbours stand at one point: as one row of the estimates they are found, as thirty they are the centre."""
    random = np.random.default_rng(3)
    deeds = 0.1 * random.standard_normal((63, 30))
    deeds[:30] = 1.7 * np.eye(30)[0]
    gram, valid = torch.from_numpy(deeds @ deeds.T)[None], torch.ones(1, 63, dtype=torch.bool)
    judged = valid.clone()
    judged[0, -1] = False
    copies, _ = repeats([gram], valid, judged, 1e-3)
    assert found_in(copies)[0] == set(range(1, 30))
    bound = torch.full((1, 1), 5.0, dtype=torch.float64)
    assert found_in(drift_test(gram, valid & ~copies, judged, MEDIAN, bound)[0])[0] >= set(range(30))


@pytest.mark.parametrize("different", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("name", ["mean", "geometric-median"])
@pytest.mark.parametrize("seed", range(6))
def test_deed_against_claim(name: str, seed: int, noisy: bool, different: bool) -> None:
    """Products of deeds and of claims may be about different origins."""
    rule, centre = centre_by(name)
    count, dim = 26, 40  # more dimensions than rows, so that the weights of a centre can be told from it
    deeds, claims = histories(count, dim, seed)
    q, g = torch.from_numpy(deeds - deeds[5])[None], torch.from_numpy(claims - claims[9])[None]
    valid = torch.ones(1, count, dtype=torch.bool)
    judged = valid.clone()
    judged[0, -1] = False
    noise = torch.zeros(1, count, dtype=torch.float64)
    noise[0, 2] = noisy * 1e6  # whose claim says nothing
    bounds = 3.3 * ONE, 1.95 * ONE
    differ = torch.tensor([[different]])
    found, _ = claim_mismatch(q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, judged, rule, *bounds, different=differ)

    def weigh(points: np.ndarray) -> np.ndarray:
        return weights_of(list(points), centre(points))

    assert found_in(found)[0] == by_definition.claim_mismatch(
        deeds, claims, noise[0].numpy(), set(range(count - 1)), weigh, 3.3, 1.95, different=different
    )
    assert found_in(found)[0] >= {0, 1, 3}
    assert (2 in found_in(found)[0]) is not noisy


def test_a_crowd_of_two_fifths_whose_updates_are_not_what_it_claims() -> None:
    """Ten of 26 pushed by less than gradients differ: they stand out about the majority, not about the centre of updates."""
    random = np.random.default_rng(3)
    claims = random.standard_normal((26, 40))
    deeds = -claims + 0.15 * random.standard_normal((26, 40))
    deeds[:10] += 4.0 * np.eye(40)[0]
    q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
    valid, noise = torch.ones(1, 26, dtype=torch.bool), torch.zeros(1, 26, dtype=torch.float64)
    found, _ = claim_mismatch(q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid, MEDIAN, 5 * ONE, 3.25 * ONE)
    assert found_in(found)[0] == set(range(10))
    _, centre = centre_by("geometric-median")

    def weigh(points: np.ndarray) -> np.ndarray:
        return weights_of(list(points), centre(points))

    assert by_definition.claim_mismatch(deeds, claims, noise[0].numpy(), set(range(26)), weigh, 5.0, 3.25) == set(range(10))


@pytest.mark.parametrize("attackers", [3, 9])
def test_where_data_differ_attackers_that_train_alone_are_a_crowd_by_their_long_updates(attackers: int) -> None:
    """Honest claims differ widely in length, and none is flagged; nine that go their own ways are, three are not.

    Long claims that no update follows, as those of nodes for whose data the receiver's model is bad, harm nobody. Where data
    are alike, the nine are a crowd since their updates do not follow their claims.
    """
    random = np.random.default_rng(4)
    claims = random.standard_normal((60, 200)) * random.uniform(0.8, 1.2, (60, 1))
    deeds = -claims + 0.4 * random.standard_normal((60, 200))
    deeds[:attackers] = 2 * random.standard_normal((attackers, 200))
    claims[50:] *= 4
    q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
    valid, noise = torch.ones(1, 60, dtype=torch.bool), torch.zeros(1, 60, dtype=torch.float64)
    bounds = 12 * ONE, 7.8 * ONE

    def found(different: bool) -> set[int]:
        matrices = q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid
        return found_in(claim_mismatch(*matrices, MEDIAN, *bounds, different=torch.tensor([[different]]))[0])[0]

    assert found(False) == found(True) == (set(range(9)) if attackers == 9 else set())


def test_honest_nodes_led_astray_one_by_one_are_no_crowd() -> None:
    """Ten of 60 beyond the bound of a crowd, each its own way, stay; pushed the same way as far, they go."""
    random = np.random.default_rng(3)
    claims = random.standard_normal((60, 200))
    push = random.standard_normal((10, 200))
    push /= np.linalg.norm(push, axis=1, keepdims=True)
    valid, noise = torch.ones(1, 60, dtype=torch.bool), torch.zeros(1, 60, dtype=torch.float64)
    for ways, flagged in ((push, set()), (push[:1], set(range(10)))):
        deeds = -claims + 0.3 * random.standard_normal((60, 200))
        deeds[:10] += 7.6 * ways
        q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
        found, _ = claim_mismatch(q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid, MEDIAN, 5 * ONE, 3.25 * ONE)
        assert found_in(found)[0] == flagged


def test_a_node_whose_messages_were_clipped_does_what_it_claims() -> None:
    """A long gradient of which a third was used: less than claimed, in the same direction, is no mismatch."""
    random = np.random.default_rng(4)
    claims = random.standard_normal((60, 30))
    claims[:3] *= 6
    deeds = -claims + 0.15 * random.standard_normal((60, 30))
    deeds[:3] = -claims[:3] / 3
    q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
    valid, noise = torch.ones(1, 60, dtype=torch.bool), torch.zeros(1, 60, dtype=torch.float64)
    found, _ = claim_mismatch(q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid, MEDIAN, 5 * ONE, 3.25 * ONE)
    assert not bool(found.any())


@pytest.mark.parametrize("different", [False, True])
@pytest.mark.parametrize(("idlers", "followed"), [(12, True), (3, True), (12, False)])
def test_nodes_that_claim_gradients_and_do_nothing(idlers: int, followed: bool, different: bool) -> None:
    """They are a crowd at the centre, where others do follow their claims and have the same data; three are too few for one."""
    random = np.random.default_rng(6)
    claims = random.standard_normal((60, 80))
    deeds = -claims * (1.0 if followed else 0.1) + 0.3 * random.standard_normal((60, 80))
    deeds[:idlers] = 0.1 * random.standard_normal((idlers, 80))
    q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
    valid, noise = torch.ones(1, 60, dtype=torch.bool), torch.zeros(1, 60, dtype=torch.float64)
    matrices, bounds = (q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid), (12 * ONE, 3.25 * ONE)
    found = found_in(claim_mismatch(*matrices, MEDIAN, *bounds, different=torch.tensor([[different]]))[0])[0]
    assert found == (set(range(12)) if idlers == 12 and followed and not different else set())
    _, centre = centre_by("geometric-median")

    def weigh(points: np.ndarray) -> np.ndarray:
        return weights_of(list(points), centre(points))

    everybody, levels = set(range(60)), (12.0, 3.25)
    assert found == by_definition.claim_mismatch(
        deeds, claims, noise[0].numpy(), everybody, weigh, *levels, different=different
    )


@pytest.mark.parametrize("points", [True, False], ids=["points", "products"])
@pytest.mark.parametrize("seed", range(6))
def test_joint_updates(seed: int, points: bool) -> None:
    """A crowd of eight shifted together, one row far off alone, and some on the other side; with 14 rows nobody is judged."""
    random = np.random.default_rng(seed)
    counts, size, dim = (14, 45, 60), 61, 7 + seed
    rooms = []
    for count in counts:
        deeds = 3 + random.standard_normal((count, dim))
        along = random.standard_normal(dim)
        along /= np.linalg.norm(along)
        deeds[:8] += (3.0 + seed / 2) * along
        deeds[8:10] -= 4.0 * along
        deeds[10] += 9.0 * along
        rooms.append(deeds)
    cloud = torch.zeros(len(counts), size, dim, dtype=torch.float64)
    valid = torch.zeros(len(counts), size, dtype=torch.bool)
    for place, deeds in enumerate(rooms):
        cloud[place, : len(deeds)] = torch.from_numpy(deeds - deeds[5])
        valid[place, : len(deeds)] = True
    judged = valid.clone()
    judged[:, 12] = False
    bound, wider = (torch.full((len(counts), 1), value, dtype=torch.float64) for value in (4.5, 1.1))
    found, z = joint_test(cloud @ cloud.mT, cloud if points else None, valid, judged, bound, wider)
    for place, deeds in enumerate(rooms):
        expected = by_definition.joint_test(deeds, set(range(len(deeds))) - {12}, 4.5, 1.1)
        assert found_in(found)[place] == expected
    assert found_in(found)[0] == set()
    assert len(found_in(found)[2]) >= 1
    assert float(z[~valid].abs().max()) >= 0
    assert not bool((found & ~judged).any())


def test_a_crowd_is_found_whose_members_are_not() -> None:
    """Twelve of sixty shifted by 3.5 deviations, less than the bound of one alone: all are found, in 30 dimensions."""
    random = np.random.default_rng(1)
    deeds = random.standard_normal((60, 30))
    deeds[:12] += 5.0 * np.eye(30)[0]
    gram = torch.from_numpy(deeds @ deeds.T)[None]
    valid = torch.ones(1, 60, dtype=torch.bool)
    one = torch.ones(1, 1, dtype=torch.float64)
    found, _ = joint_test(gram, None, valid, valid, 50 * one, one)
    assert found_in(found)[0] == set(range(12))


def test_a_group_at_the_median_does_not_shrink_the_spread_of_residuals() -> None:
    """Fifteen of 75 place their residual just below the median: next to no honest row stands out, without a floor many do."""
    random = np.random.default_rng(2)
    claims = random.standard_normal((75, 30))
    deeds = -claims + 0.2 * random.standard_normal((75, 30))
    usual = np.median(np.sum((deeds + claims)[15:] ** 2, 1))
    deeds[:15] = -claims[:15] + np.sqrt(0.95 * usual / 30) * random.choice([-1.0, 1.0], (15, 30))
    q, g = (torch.from_numpy(rows)[None] for rows in (deeds, claims))
    valid, noise = torch.ones(1, 75, dtype=torch.bool), torch.zeros(1, 75, dtype=torch.float64)
    found, _ = claim_mismatch(q @ q.mT, g @ g.mT, q @ g.mT, noise, valid, valid, MEDIAN, 5 * ONE, 3.25 * ONE)
    assert int(found[:, 15:].sum()) <= 1


# The update history


@pytest.mark.parametrize("fade", [0.0, 4.0])
def test_trail(fade: float) -> None:
    """Means of theta as used, of the rounds in which most could use it, over the mean step size; refusals by receiver.

    With fading, beside the plain means those in which late rounds count more.
    """
    scene = draw_scene(nodes=9, dim=4, directed=True, losses=False, seed=3)
    graph = Graph.from_hears(torch.from_numpy(scene.hears))
    lost = {1: 4, 2: 4, 3: 7}  # by round

    def tamper(vectors: Tensor, senders: Tensor, topic: Topic, step: int) -> dict[int, Tensor | None]:
        return {lost[step]: None} if step in lost else {}

    network, history = Tampering(graph, tamper), UpdateHistory((0.0, fade) if fade else (0.0,))
    thetas, rates = stream(1, "theta").normal(7, 9, 4), [0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.3]
    thetas[:, 8] += 20.0  # too far for all
    walked, shortened = [by_definition.Walked(4) for _ in range(9)], 0
    for step, (theta, rate) in enumerate(zip(thetas, rates, strict=True)):
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        if step == 6:  # one of those who expect node 1's message does not get it, and of node 3's all but one
            inbox = replace(inbox, heard=unheard_by(inbox.expected, {1: 1, 3: int(graph.hears[:, 3].sum()) - 1}))
        share, _ = shorten(inbox, 3.0)
        far_out = torch.zeros(9, 9, dtype=torch.bool)
        far_out[2, 8] = step == 4
        progress = sum(rates[: step + 1]) / sum(rates)
        history.see(inbox, rate, share, far_out & graph.hears, progress)
        for node in range(9):
            listeners = graph.hears[:, node].nonzero().flatten().tolist()
            heard = int(inbox.heard[:, node].sum())
            left = [float(share[listener, node]) for listener in listeners]
            shortened += any(part < 1 for part in left)
            away = [float(torch.linalg.vector_norm(own - inbox.rows.origin)) for own in theta]
            near = [away[listener] <= 3 * sorted(away)[4] for listener in listeners]
            own = [theta[listener].numpy() for listener in listeners]
            walked[node].add(theta[node].numpy(), rate, own, left, heard, near, np.exp(fade * progress))
    got, counted = by_kind(history.vectors(), 4)[-1], [step for step in range(7) if rates[step] > 0]
    counts = {step: float(np.exp(fade * sum(rates[: step + 1]) / sum(rates))) for step in counted}
    usual_step = sum(counts[step] * rates[step] for step in counted) / sum(counts.values())
    assert got.dtype == torch.float64
    assert history.rounds == len(counted) == 6
    assert walked[3].times < sum(counts.values())
    assert shortened > 7
    for node in range(9):
        own = sum(counts[step] * thetas[step, node] for step in counted) / sum(counts.values()) / usual_step
        if bool(graph.hears[:, node].any()):
            mean = walked[node].total / walked[node].times
            np.testing.assert_allclose(got[node].numpy(), mean / usual_step, rtol=1e-12)
        assert torch.allclose(got[9 + node], own, rtol=1e-12)
    assert history.refused is not None
    expected = torch.zeros(9, 9, dtype=torch.int32)
    expected[:, 4], expected[:, 7] = 2, 1
    expected[2, 8] = 1
    expected[graph.hears[:, 1].nonzero().flatten()[:1], 1] += 1
    expected[graph.hears[:, 3].nonzero().flatten()[:-1], 3] += 1
    assert torch.equal(history.refused, torch.where(graph.hears, expected, 0))


def unheard_by(expected: Tensor, counts: dict[int, int]) -> Tensor:
    """Who hears whom if the first so many of those who expect a sender's message do not get it."""
    heard = expected.clone()
    for sender, count in counts.items():
        heard[expected[:, sender].nonzero().flatten()[:count], sender] = False
    return heard


def test_a_far_message_does_not_pay_back_a_drift() -> None:
    """An attacker stands off in all rounds but one, in that one as far on the other side: the mean of what it sent is right.

    What was used of it is not. So it still stands off, and no honest node does.
    """
    size, dim, rounds, attacker, off = 40, 20, 60, 30, 0.01
    network = LocalNetwork(Complete().draw(size))
    history, sent = UpdateHistory(), torch.zeros(dim, dtype=torch.float64)
    for step, theta in enumerate(parameters(size, dim, rounds, noise=1e-2)):
        theta = theta.clone()
        theta[attacker] = theta[:attacker].mean(0) + (off if step != 13 else -off * (rounds - 1))
        sent += (theta[attacker] - theta[:attacker].mean(0)) / rounds
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        history.see(inbox, 1e-3, *shorten(inbox, 3.0))
    assert float(sent.norm()) < 1e-12
    verdict = verdict_of(network, torch.arange(size), *halves_of(size, dim), history)
    others = [node for node in range(size) if node != attacker]
    assert {REASONS[code] for code in verdict.reason[others, attacker].tolist()} == {"drift"}
    assert float((verdict.reason[others][:, others] != 0).double().mean()) < 0.03


def test_a_far_message_moves_no_mean() -> None:
    """One round of a hundred at any distance: q moves by no more than a few usual distances would."""
    size, rounds = 30, 100
    network = LocalNetwork(Complete().draw(size))
    moved = []
    for far in (0.0, 1.0, 1e3):
        history = UpdateHistory()
        for step, theta in enumerate(parameters(size, 6, rounds)):
            theta = theta.clone()
            theta[3] += far * (step == 50)
            (inbox,) = network.exchange(step, {PARAMETERS: theta})
            history.see(inbox, 1.0, *shorten(inbox, 3.0))
        moved.append(history.vectors()[3])
    usual = float(
        (torch.stack([history.vectors()[node] for node in range(10, 20)]) - history.vectors()[20]).norm(dim=1).median()
    )
    for after in moved[1:]:
        assert float((after - moved[0]).norm()) < 3 * usual / rounds


@pytest.mark.parametrize("far", [1e4, float("inf"), float("nan")])
def test_a_receiver_far_off_moves_nobodys_mean(far: float) -> None:
    """Of ten who hear a message that is too long for most, one holds a vector far away: that is its own affair."""
    moved = []
    for distance in (0.0, far):
        theta = stream(1, "theta").normal(11, 3)
        theta[0] *= 5
        theta[9] += distance
        (inbox,) = LocalNetwork(Complete().draw(11)).exchange(0, {PARAMETERS: theta})
        history = UpdateHistory()
        share, far_out = shorten(inbox, 3.0)
        assert float(share[1:9, 0].median()) < 1
        history.see(inbox, 1.0, share, far_out)
        moved.append(history.vectors()[:9])
    assert bool(torch.isfinite(moved[1]).all())
    assert float((moved[1] - moved[0]).norm(dim=1).max()) < 3


# The fuse


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("losses", [False, True])
def test_fuse(seed: int, losses: bool) -> None:
    scene = draw_scene(nodes=14, dim=3 + seed, directed=seed % 2 == 1, losses=losses, seed=seed)
    scene.vectors[:2] += 1000.0
    (inbox,) = network_of(scene).exchange(0, {PARAMETERS: torch.from_numpy(scene.vectors)})
    share, far_out = shorten(inbox, 1.3)
    mixture = fused(inbox, share)
    mixed = inbox.mix(mixture)
    assert torch.allclose(mixture.own + mixture.weight.sum(1), torch.ones(14, dtype=torch.float64))
    mixing = Graph.from_hears(torch.from_numpy(scene.hears)).mixing
    for receiver in range(14):
        heard = {sender: scene.vectors[sender] for sender in scene.heard_by(receiver)}
        weights = {sender: float(mixing[receiver, sender]) for sender in np.flatnonzero(scene.hears[receiver])}
        left, out = by_definition.shortened(scene.vectors[receiver], heard, weights, 1.3)
        expected = by_definition.fused(scene.vectors[receiver], heard, weights, left)
        assert found_in(far_out)[receiver] == out
        np.testing.assert_allclose(share[receiver, list(heard)].numpy(), list(left.values()), rtol=1e-9)
        np.testing.assert_allclose(mixed[receiver].numpy(), expected, rtol=0, atol=1e-9)
    assert 0 < int(far_out.sum()) < int(inbox.heard.sum())
    assert int(far_out.sum()) < int((share < 1)[inbox.heard].sum())


def test_fuse_measures_by_those_who_carry_weight() -> None:
    """Watched neighbours do not set the scale, and without any who carry weight there is none: nobody is left out."""
    own, messages = torch.zeros(1, 2), torch.tensor([[1.0, 0], [0, 1.1], [0, 9.0], [8.0, 0], [7.0, 0]])
    expected = torch.ones(1, 5, dtype=torch.bool)
    weight = torch.tensor([[0.25, 0.25, 0, 0, 0]], dtype=torch.float64)
    inbox = Inbox.receive(own, messages, expected=expected, weight=weight, self_weight=1 - weight.sum(1))
    share, far_out = shorten(inbox, 3.0)
    assert far_out.tolist() == [[False, False, True, True, True]]
    assert share.tolist() == [pytest.approx([1.0, 1.0, REACH / 9, REACH / 8, REACH / 7])]
    lonely = Inbox.receive(
        own, messages, expected=expected, weight=torch.zeros_like(weight), self_weight=torch.ones(1).double()
    )
    share, far_out = shorten(lonely, 3.0)
    assert not bool(far_out.any())
    assert bool((share == 1).all())
    assert torch.equal(lonely.mix(fused(lonely, share)), own)


@pytest.mark.parametrize(("near", "limit"), [(1.0, 3.0), (0.8, 1.25 ** (5 / 0.6745)), (0.5, 10.0), (0.0, 10.0)])
def test_beyond_what_a_message_is_blown(near: float, limit: float) -> None:
    """Three medians, or five spreads below the median of the logarithm; ten of them at most, however near some are."""
    for away, out in ((0.999 * limit, False), (1.001 * limit, True)):
        points = torch.tensor([[each, 0.0] for each in (near, near, 1.0, 1.0, away)], dtype=torch.float64)
        inbox = lone_inbox(torch.zeros(2).double(), points)
        assert shorten(inbox, 3.0)[1].tolist() == [[False] * 4 + [out]]
        assert not bool(shorten(inbox, 12.0)[1].any())


def lone_inbox(own: Tensor, messages: Tensor) -> Inbox:
    """One receiver with the same weight for everybody."""
    count = len(messages)
    weight = torch.full((1, count), 1 / (count + 1), dtype=torch.float64)
    expected = torch.ones(1, count, dtype=torch.bool)
    return Inbox.receive(own[None], messages, expected=expected, weight=weight, self_weight=1 - weight.sum(1))


def byzantine_at(how: str, own: Tensor, receiver_group: Tensor, count: int, seed: int) -> Tensor:
    """Where Byzantine nodes who want to drive a receiver off might sit."""
    away, radius = own - receiver_group, (own - receiver_group).norm()
    if how == "behind":
        return own + torch.linspace(0.2, 1e3, count).double()[:, None] * away
    if how == "at reach":
        return (own + REACH * away).expand(count, -1)
    if how == "on top and one far":
        return torch.cat([own.expand(count - 1, -1), (own + 1e5 * away)[None]])
    return own + radius * 10 ** (6 * stream(seed, "reach").uniform(count, 1) - 3) * stream(seed, "ways").normal(count, len(own))


@pytest.mark.parametrize("how", ["behind", "at reach", "on top and one far", "anywhere"])
@pytest.mark.parametrize("neighbours", [3, 20, 41])
@pytest.mark.parametrize("dim", [3, 80])
def test_byzantine_nodes_do_not_drive_a_receiver_off(how: str, neighbours: int, dim: int) -> None:
    """Up to 44 % of them: whoever stands off from a crowd of good nodes is never farther away after a round.

    Each pulls by REACH distances to the crowd at most, each good one by one: 1 / (1 + REACH) of all may lie.
    """
    byzantine = int(0.44 * neighbours)
    receiver_group = stream(1, "crowd").normal(dim)
    own = receiver_group + stream(2, "own").normal(dim)
    far = float((own - receiver_group).norm())
    for step in range(30):
        good = receiver_group.expand(neighbours - byzantine, -1)
        inbox = lone_inbox(own, torch.cat([byzantine_at(how, own, receiver_group, byzantine, step), good]))
        share, _ = shorten(inbox, 3.0)
        assert bool((share[0, byzantine:] > 1 - 1e-9).all())  # good ones pull with all their weight
        after = inbox.mix(fused(inbox, share))[0]
        step_length = float((after - own).norm())
        assert step_length <= REACH * far
        own, before, far = after, far, float((after - receiver_group).norm())
        assert far <= before * (1 + 1e-9)


def test_byzantine_nodes_close_by_do_not_let_one_pull_far() -> None:
    """Nine of twenty at the receiver's own vector, one far: it pulls no farther than the good ones do, and is blown."""
    own = torch.zeros(4, dtype=torch.float64)
    for near in (0.0, 1e-9, 0.05, 0.3):
        messages = torch.zeros(20, 4, dtype=torch.float64)
        messages[:8, 0], messages[8, 0], messages[9:, 1] = -near, -1e4, 1.0
        inbox = lone_inbox(own, messages)
        share, far_out = shorten(inbox, 3.0)
        assert found_in(far_out) == [{8}]
        after = inbox.mix(fused(inbox, share))[0]
        assert float(after[0].abs()) <= (REACH + 8 * near) / 21 + 1e-12
        assert float(after[1]) == pytest.approx(11 / 21)


# The record


@pytest.mark.parametrize("judged", [False, True], ids=["serving are spared", "any"])
@pytest.mark.parametrize("longest", [1, 3, 16])
def test_record(longest: int, judged: bool) -> None:
    """Flags over twelve detections: mild ones are forgiven once, severe ones last longer each time.

    Twice: with flags at any time, and as detections are, which do not judge whoever serves time.
    """
    random = np.random.default_rng(longest)
    size, moments = 12, 12
    record = Suspensions.blank(torch.ones(size, size, dtype=torch.bool), longest)
    served = [[by_definition.Served(longest) for _ in range(size)] for _ in range(size)]
    likely = [0.75] + [0.25 / (len(REASONS) - 2)] * (len(REASONS) - 2)
    names = [name for name in REASONS if name != "suspended"]
    longer = 0
    for _ in range(moments):
        words = random.choice(names, size=(size, size), p=likely)
        suspended = [[each.now < each.until for each in row] for row in served]
        assert record.suspended.tolist() == suspended
        if not judged:
            words = np.where(suspended, "kept", words)
        why = torch.tensor([[REASONS.index(word) for word in row] for row in words], dtype=torch.int8)
        blank = torch.zeros(size, size, dtype=torch.float64)
        record, told = record.add(Verdict(blank, blank[0], why != 0, why))
        expected = [[served[i][j].add(str(words[i, j]), SEVERE, MILD) for j in range(size)] for i in range(size)]
        assert [[REASONS[code] for code in row] for row in told.reason.tolist()] == expected
        assert torch.equal(told.flagged, told.reason != 0)
        assert told.reason.dtype == torch.int8
        longer += sum(row.count("suspended") for row in expected)
    assert (longer > 0) == (longest > 1)


@pytest.mark.parametrize(
    ("why", "clean", "windows"),
    [
        ("not heard", 0, [1, 1]),
        ("score", 1, [1, 4, 4]),
        ("alike", 0, [1, 4, 4]),
        ("joint update", 7, [1, 4, 4]),
        ("joint update", 8, [1, 1, 1]),
        ("extreme score", 0, [4, 8, 8]),
        ("extreme score", 1, [4, 4, 4]),
        ("fuse", 5, [4, 4]),
        ("drift", 5, [4, 4]),
    ],
)
def test_how_long_a_flag_lasts(why: str, clean: int, windows: list[int]) -> None:
    """Flagged again as soon as its time is over, or after some clean detections, of which each takes a strike back."""
    record = Suspensions.blank(torch.ones(1, 1, dtype=torch.bool), 8)
    nothing = torch.zeros(1, 1, dtype=torch.int8)

    def detect(code: Tensor) -> bool:
        nonlocal record
        record, told = record.add(Verdict(torch.zeros(1, 1), torch.zeros(1), code != 0, code))
        return bool(told.flagged)

    for expected in windows:
        assert detect(nothing + REASONS.index(why))
        lasted = 1
        while bool(record.suspended | record.held):
            assert detect(nothing)
            lasted += 1
        assert lasted == expected
        assert not any(detect(nothing) for _ in range(clean))


def test_mild_flags_last_one_window_where_data_differ() -> None:
    record, code = (
        Suspensions.blank(torch.ones(1, 1, dtype=torch.bool), 8),
        torch.full((1, 1), REASONS.index("far"), dtype=torch.int8),
    )
    for _ in range(3):
        verdict = Verdict(torch.zeros(1, 1), torch.zeros(1), code != 0, code, different=torch.tensor([True]))
        record, _ = record.add(verdict)
        assert not bool(record.suspended | record.held)


def test_who_is_held_is_judged() -> None:
    """A second mild flag keeps a node out, and in the evidence; a severe one takes it out of that, too."""
    blank = torch.zeros(1, 1)
    for name, suspended in (("score", False), ("drift", True)):
        record, code = (
            Suspensions.blank(torch.ones(1, 1, dtype=torch.bool), 8),
            torch.full((1, 1), REASONS.index(name)).to(torch.int8),
        )
        for _ in range(2):
            record, _ = record.add(Verdict(blank, blank[0], code != 0, code))
        assert (bool(record.suspended), bool(record.held)) == (suspended, not suspended)


def test_two_strikes_need_two_clean_detections() -> None:
    record = Suspensions.blank(torch.ones(1, 1, dtype=torch.bool), 16)
    nothing = torch.zeros(1, 1, dtype=torch.int8)
    severe, strikes = nothing + REASONS.index("absurd"), []
    for code in (severe, severe, *[nothing] * 10):
        record, _ = record.add(Verdict(torch.zeros(1, 1), torch.zeros(1), code != 0, code))
        strikes.append(int(record.strikes))
    assert strikes == [1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 0, 0]
