"""Who sits before whom, what is held against them, and the whole bench: seats, evidence, verdicts, fresh halves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Graph, InputError, LocalNetwork
from bymi.attacks import Adversary, SignFlip
from bymi.core.network import read_together
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, PARAMETERS, SECOND_HALF, Topic
from bymi.core.topology import Complete, ErdosRenyi
from bymi.detection import (
    Detector,
    Panel,
    QueriedHalfGradients,
    UpdateHistory,
    Verdict,
    Watch,
    judge_neighbours,
)
from bymi.detection import (
    hardened_detection as tribunal,
)
from bymi.detection import (
    neighbour_half_gradients as half_gradients,
)
from bymi.detection.clip_parameter_messages import shorten
from bymi.detection.half_gradient_products import Evidence, NeighbourIndex
from bymi.detection.verdict import REASONS
from bymi.runs.simulate import local_network
from bymi.training.samples import fresh_halves
from tests.detection_fixtures import claims_of, halves_of, parameters, verdict_of
from tests.inbox_fixtures import Tampering, network_of
from tests.neighbourhood_fixtures import found_in
from tests.reference.scenes import draw_scene

# Seats and evidence


def two_faced(size: int, seed: int) -> tuple[Any, Adversary]:
    members = torch.arange(size) % 4 == 1
    adversary = Adversary(members, SignFlip(), faces="two", seed=seed)
    return local_network(ErdosRenyi(0.6).draw(size, seed=seed), adversary), adversary


def directed(size: int, seed: int) -> Graph:
    return Graph.from_hears(torch.from_numpy(draw_scene(nodes=size, dim=1, directed=True, losses=False, seed=seed).hears))


@pytest.mark.parametrize("seed", range(4))
def test_seats(seed: int) -> None:
    """Neighbours in order of their numbers, then the receiver, then nobody; for any choice of receivers."""
    graph, nodes = directed(11, seed), torch.arange(11)
    receivers = torch.tensor([7, 0, 4])
    seats = NeighbourIndex.of(graph.hears, nodes, receivers)
    for place, receiver in enumerate(receivers.tolist()):
        neighbours = graph.hears[receiver].nonzero().flatten().tolist()
        taken = [*neighbours, receiver]
        assert seats.nodes[place, : len(taken)].tolist() == taken
        assert seats.taken[place].tolist() == [seat < len(taken) for seat in range(seats.taken.shape[1])]
        assert seats.judged[place].tolist() == [seat < len(neighbours) for seat in range(seats.taken.shape[1])]
    into = torch.full((11, 11), -1.0, dtype=torch.float64)
    values = stream(0, "values").normal(*seats.taken.shape)
    seats.spread(values, into)
    for place, receiver in enumerate(receivers.tolist()):
        neighbours = graph.hears[receiver].nonzero().flatten().tolist()
        assert into[receiver, neighbours].tolist() == values[place, : len(neighbours)].tolist()
    assert int((into != -1).sum()) == int(graph.hears[receivers].sum())


@pytest.mark.parametrize("seed", range(4))
def test_seats_find_the_message_meant_for_the_receiver(seed: int) -> None:
    network, _ = two_faced(12, seed)
    vectors = stream(seed, "vectors").normal(12, 3)
    (inbox,) = network.exchange(0, {PARAMETERS: vectors})
    assert inbox.senders is not None
    assert len(inbox.messages) > 12
    seats = NeighbourIndex.of(network.arcs, network.nodes, torch.arange(12))
    columns = seats.columns(inbox)
    rows, there = seats.rows(inbox)
    for receiver in range(12):
        for seat in range(seats.taken.shape[1]):
            if bool(seats.judged[receiver, seat]):
                sender, column = int(seats.nodes[receiver, seat]), int(columns[receiver, seat])
                assert int(inbox.senders[column]) == sender
                assert bool(inbox.expected[receiver, column])
                assert int(rows[receiver, seat]) == column
            elif bool(seats.taken[receiver, seat]):
                assert torch.equal(inbox.rows.vectors[rows[receiver, seat]], vectors[receiver])
            assert bool(there[receiver, seat]) == bool(seats.taken[receiver, seat])


def assert_evidence(evidence: Evidence, place: int, first: list[Tensor | None], second: list[Tensor | None]) -> None:
    """Products are those of the vectors about one origin: of all differences between rows and between halves."""
    rows = [row for row, half in enumerate(first) if half is not None]
    assert evidence.valid[place].nonzero().flatten().tolist() == rows
    one, two = (torch.stack([half[row] for row in rows]) for half in (first, second))  # type: ignore[misc]
    pick = (place, torch.tensor(rows)[:, None], torch.tensor(rows)[None, :])
    about = torch.eye(len(rows), dtype=torch.float64) - 1 / len(rows)
    for got, left, right in ((evidence.first, one, one), (evidence.second, two, two), (evidence.cross, one, two)):
        assert torch.allclose(about @ got[pick] @ about, (about @ left) @ (about @ right).T, rtol=0, atol=1e-10)
    assert torch.allclose(evidence.difference2[place, rows], (one - two).square().sum(1), rtol=1e-10)
    if evidence.points is not None:
        origin = one[0] - evidence.points[0][place, rows[0]]
        assert torch.allclose(evidence.points[0][place, rows], one - origin, rtol=0, atol=1e-12)
        assert torch.allclose(evidence.points[1][place, rows], two - origin, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [5, 80])
@pytest.mark.parametrize("seed", range(3))
def test_claims(dim: int, seed: int) -> None:
    """The same halves to all, some lost on the way; points only where dimensions are few."""
    scene = draw_scene(nodes=12, dim=dim, directed=True, losses=True, seed=seed)
    network, graph = network_of(scene), Graph.from_hears(torch.from_numpy(scene.hears))
    first, second = torch.from_numpy(scene.vectors), torch.from_numpy(scene.second)
    inboxes = network.exchange(0, {FIRST_HALF: first, SECOND_HALF: second})
    receivers = torch.tensor([3, 8, 1])
    seats = NeighbourIndex.of(graph.hears, network.nodes, receivers)
    deeds = stream(seed, "deeds").normal(24, 2 * dim)  # of twelve columns and twelve receivers, in two kinds
    own = seats.taken & ~seats.judged
    rows = torch.where(own, 12 + receivers[:, None], seats.nodes)
    evidence, origin, crossed, _ = claims_of(inboxes, deeds).before(seats, rows)
    assert (evidence.points is None) == (dim == 80)
    assert crossed is not None
    for place, receiver in enumerate(receivers.tolist()):
        order = [*np.flatnonzero(scene.hears[receiver]).tolist(), receiver]
        gone = [sender in scene.lost and sender != receiver for sender in order]
        halves = [[None if out else half[node] for node, out in zip(order, gone, strict=True)] for half in (first, second)]
        assert_evidence(evidence, place, *halves)
        assert bool((evidence.judged[place] == (evidence.valid[place] & seats.judged[place])).all())
        for seat, node in enumerate(order):
            for other, claimant in enumerate(order):
                if not gone[other]:
                    deed = deeds[12 + node] if node == receiver else deeds[node]
                    for kind in range(2):
                        part = deed[kind * dim : (kind + 1) * dim]
                        expected = float(part @ (first[claimant] + second[claimant]) / 2)
                        assert float(crossed[kind][place, seat, other]) == pytest.approx(expected, abs=1e-9)
        assert origin.shape == (3, seats.taken.shape[1] + 1)


def test_claims_of_two_faces() -> None:
    """Each receiver's evidence is about what it was told itself."""
    network, adversary = two_faced(13, 2)
    first, second = stream(0, "first").normal(13, 4), stream(0, "second").normal(13, 4)
    inboxes = network.exchange(0, {FIRST_HALF: first, SECOND_HALF: second})
    receivers = torch.arange(13)
    seats = NeighbourIndex.of(network.arcs, network.nodes, receivers)
    evidence, *_ = claims_of(inboxes).before(seats, None)
    for receiver in range(13):
        order = [*network.arcs[receiver].nonzero().flatten().tolist(), receiver]
        lied = [bool(adversary.members[node] & adversary.fooled[receiver]) and node != receiver for node in order]
        halves = [
            [-half[node] if lie else half[node] for node, lie in zip(order, lied, strict=True)] for half in (first, second)
        ]
        assert_evidence(evidence, receiver, *halves)


@pytest.mark.parametrize("together", [1, 4, 11])
@pytest.mark.parametrize("dim", [5, 80, 1100])
def test_answers(dim: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every receiver's own point; two groups of receivers one after the other, some do not ask, one node is silent.

    Replies to several receivers at a time, as a GPU reads them, give the same products, also with the update history.
    """
    graph = directed(11, 5)
    if together > 1:
        monkeypatch.setattr(LIMITS, "looked_at", ())
        monkeypatch.setattr(LIMITS, "replies", together * dim * (1 + int(graph.hears.sum(1).max())))
    read: list[int] = []
    monkeypatch.setattr(half_gradients, "read_together", lambda some: read.append(len(some)) or read_together(some))  # type: ignore[func-returns-value]
    deeds = stream(5, "deeds").normal(22, 2 * dim)
    silent = 4
    asks = torch.ones(11, dtype=torch.bool)
    asks[2] = False
    data = stream(3, "data").normal(2, 11, dim)

    def tamper(vectors: Tensor, senders: Tensor, topic: Topic, step: int) -> dict[int, Tensor | None]:
        return {row: None for row, sender in enumerate(senders.tolist()) if sender == silent}

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        return {FIRST_HALF: points * 2 + data[0, nodes], SECOND_HALF: points * 2 + data[1, nodes]}

    network = Tampering(graph, tamper)
    theta = stream(4, "theta").normal(11, dim)
    claims = QueriedHalfGradients(network.ask(0, theta, answer, asks), deeds)
    for receivers in asks.nonzero().flatten().split(6):
        seats = NeighbourIndex.of(graph.hears, network.nodes, receivers)
        rows = torch.where(seats.judged, seats.nodes, 11 + receivers[:, None])
        evidence, origin, crossed, history = claims.before(seats, rows)
        assert crossed is not None
        assert history is None
        for place, receiver in enumerate(receivers.tolist()):
            order = [*graph.hears[receiver].nonzero().flatten().tolist(), receiver]
            halves = [
                [None if node == silent and node != receiver else 2 * theta[receiver] + half[node] for node in order]
                for half in data
            ]
            assert_evidence(evidence, place, *halves)
            heard = [position for position, half in enumerate(halves[0]) if half is not None]
            middle = [(halves[0][position] + halves[1][position]) / 2 for position in heard]  # type: ignore[operator]
            for kind, products in enumerate(crossed):
                for row, node in enumerate(order):
                    done = deeds[node + 11 * (node == receiver), kind * dim : (kind + 1) * dim]
                    expected = [float(done @ vector) for vector in middle]
                    assert products[place, row, heard].tolist() == pytest.approx(expected, abs=1e-10)
            lengths = origin[place, -1] + 2 * origin[place, heard] + evidence.middle[place].diagonal()[heard]
            assert lengths.tolist() == pytest.approx([float(vector @ vector) for vector in middle], rel=1e-10)
    assert sum(read) == int(asks.sum())
    assert (max(read) > 1) == (together > 1)


# The bench


def test_nobody_sits() -> None:
    """No receiver asks, as where a process holds Byzantine nodes only: an empty verdict, no exception."""
    network = LocalNetwork(Complete().draw(12))
    verdict = verdict_of(network, torch.arange(0), *halves_of(12), None)
    assert not bool(verdict.flagged.any())
    detector = Detector(panel=Panel(), point="receiver", cross_fit=True, pruning="mutual")
    empty = QueriedHalfGradients(network.ask(0, torch.zeros(12, 3), lambda *_: {}, torch.zeros(12, dtype=torch.bool)))
    nobody = torch.zeros_like(network.arcs)
    verdict = judge_neighbours(torch.arange(0), network.arcs, network.nodes, empty, None, None, nobody, detector, Watch())
    assert not bool(verdict.flagged.any())


def test_receivers_are_judges_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of any size, and for some of them only: each row of the verdict is the same."""
    size = 30
    first, second = halves_of(size)
    first[:4] += 6.0
    second[:4] += 6.0
    network, history = LocalNetwork(directed(size, 4)), UpdateHistory()
    for step, theta in enumerate(parameters(size, 6, 10)):
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        history.see(inbox, 1e-3, *shorten(inbox, 3.0))
    whole = verdict_of(network, torch.arange(size), first, second, history)
    assert 0 < int(whole.flagged.sum()) < size * size / 4
    monkeypatch.setattr(LIMITS, "hardened_receivers", 7)
    grouped = verdict_of(network, torch.arange(size), first, second, history)
    some = torch.tensor([3, 9, 20])
    part = verdict_of(network, some, first, second, history)
    assert torch.equal(grouped.reason, whole.reason)
    assert torch.allclose(grouped.scores, whole.scores, rtol=1e-9, equal_nan=True)
    assert torch.equal(part.reason[some], whole.reason[some])
    others = torch.ones(size, dtype=torch.bool).index_fill(0, some, False)
    assert not bool(part.flagged[others].any())


@pytest.mark.parametrize("far", [0.0, 1e6, 1e200, float("nan")])
@pytest.mark.parametrize("wild", [0, 17])
def test_a_wild_neighbour_does_not_blind_the_drift_test(far: float, wild: int) -> None:
    """A node far away, whatever its number, leaves the products of all others as exact as they were.

    It is far off as a receiver, too: how messages are used there does not matter to the others. So it is if its own parameters
    overflow, as those of a Byzantine node that trains alone may do.
    """
    size, dim, drifter = 40, 20, 30
    network, history = LocalNetwork(Complete().draw(size)), UpdateHistory()
    for step, theta in enumerate(parameters(size, dim, 60, noise=1e-2)):
        theta = theta.clone()
        theta[drifter] += 0.01
        theta[wild] += far
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        share, far_out = shorten(inbox, 3.0)
        history.see(inbox, 1e-3, share, far_out & (torch.arange(size) == wild))
    verdict = verdict_of(network, torch.arange(size), *halves_of(size, dim), history)
    others = [node for node in range(size) if node not in (drifter, wild)]
    assert {REASONS[code] for code in verdict.reason[others, drifter].tolist()} == {"drift"}
    assert float((verdict.reason[others][:, others] != 0).double().mean()) < 0.03
    if far:
        assert {REASONS[code] for code in verdict.reason[others, wild].tolist()} == {"fuse"}


@pytest.mark.parametrize("faces", [1, 2])
def test_deeds_of_each_seat(faces: int) -> None:
    """Neighbours' are what they sent to this receiver, its own are what it holds, also where it sends something else."""
    network, adversary = two_faced(12, 1)
    lied = adversary.members[None, :] & adversary.fooled[:, None]
    if faces == 1:
        lied = adversary.members.expand(12, -1)
        byzantine = adversary.members.nonzero().flatten().tolist()
        network = Tampering(network.graph, lambda vectors, *_: {node: -vectors[node] for node in byzantine})
    history = UpdateHistory()
    theta = stream(2, "theta").normal(12, 4)
    (inbox,) = network.exchange(0, {PARAMETERS: theta})
    history.see(inbox, 0.5, torch.ones_like(inbox.weight), torch.zeros_like(inbox.expected))
    seats = NeighbourIndex.of(network.arcs, network.nodes, torch.arange(12))
    deeds = tribunal._UpdateTests(history)
    rows = deeds.rows(seats)
    for receiver in range(12):
        for seat in seats.taken[receiver].nonzero().flatten().tolist():
            node = int(seats.nodes[receiver, seat])
            lies = bool(lied[receiver, node]) and node != receiver
            expected = theta[node] / 0.5
            assert torch.allclose(history.vectors()[rows[receiver, seat]], -expected if lies else expected, rtol=1e-12)


def test_a_silent_neighbour_is_flagged_by_its_refusals() -> None:
    """More than a share of the rounds refused: flagged; less: not."""
    size = 24
    network, history = LocalNetwork(Complete().draw(size)), UpdateHistory()
    for step, theta in enumerate(parameters(size, 6, 20)):
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        far_out = torch.zeros(size, size, dtype=torch.bool)
        far_out[:, 3] = step < 5  # a quarter
        far_out[:, 4] = step < 4  # a fifth, not more
        history.see(inbox, 0.01, torch.ones_like(inbox.weight), far_out & network.arcs)
    verdict = verdict_of(network, torch.arange(size), *halves_of(size), history)
    others = [node for node in range(size) if node not in (3, 4)]
    assert {REASONS[code] for code in verdict.reason[others, 3].tolist()} == {"fuse"}
    assert "fuse" not in {REASONS[code] for code in verdict.reason[others, 4].tolist()}


@pytest.mark.parametrize(
    ("rounds", "refused", "flagged"), [(1, 1, False), (5, 2, False), (5, 3, True), (10, 3, True), (10, 2, False)]
)
def test_few_rounds_count_as_ten(rounds: int, refused: int, flagged: bool) -> None:
    size = 24
    network, history = LocalNetwork(Complete().draw(size)), UpdateHistory()
    for step, theta in enumerate(parameters(size, 6, rounds)):
        (inbox,) = network.exchange(step, {PARAMETERS: theta})
        far_out = torch.zeros(size, size, dtype=torch.bool)
        far_out[:, 3] = step < refused
        history.see(inbox, 0.01, torch.ones_like(inbox.weight), far_out & network.arcs)
    verdict = verdict_of(network, torch.arange(size), *halves_of(size), history)
    others = [node for node in range(size) if node != 3]
    assert ("fuse" in {REASONS[code] for code in verdict.reason[others, 3].tolist()}) == flagged


def test_whoever_serves_time_is_in_no_estimate() -> None:
    """The verdict on all others is the one of a network without them, and on themselves there is none."""
    size, out = 30, [2, 3, 4, 5, 6, 7, 8, 9]
    first, second = halves_of(size)
    first[:10] += 6.0
    second[:10] += 6.0
    probed = (stream(5, "first").normal(size, 6), stream(5, "second").normal(size, 6))
    thetas = parameters(size, 6, 10)
    left = [node for node in range(size) if node not in out]

    def judged(nodes: list[int], suspended: list[int]) -> Verdict:
        network, history = LocalNetwork(Complete().draw(len(nodes))), UpdateHistory()
        for step, theta in enumerate(thetas):
            (inbox,) = network.exchange(step, {PARAMETERS: theta[nodes]})
            history.see(inbox, 1e-3, torch.ones_like(inbox.weight), torch.zeros_like(inbox.expected))
        some = torch.zeros_like(network.arcs)
        some[:, suspended] = network.arcs[:, suspended]
        halves = (first[nodes], second[nodes])
        there = (probed[0][nodes], probed[1][nodes])
        return verdict_of(network, torch.arange(len(nodes)), *halves, history, suspended=some, probed=there)

    whole, alone = judged(list(range(size)), out), judged(left, [])
    assert not bool(whole.flagged[:, out].any())
    assert bool((whole.reason[:, out] == 0).all())
    assert torch.equal(whole.reason[left][:, left], alone.reason)
    assert bool(alone.flagged[:, :2].any())
    assert torch.equal(whole.guard_acted[left], alone.guard_acted)
    assert torch.allclose(whole.scores[left][:, left], alone.scores, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_both_points_together_have_a_guard() -> None:
    """Seven of twenty at each of two points, different ones: each alone is a minority, both together are not."""
    size = 21
    network = LocalNetwork(Complete().draw(size))
    here, there = (stream(seed, "halves").normal(2, size, 6) for seed in (1, 2))
    here[:, :7] += 40.0
    there[:, 7:14] += 40.0
    others = torch.arange(14, size)
    for panel in (Panel(), Panel(guard=None)):
        for halves, found in ((here, range(7)), (there, range(7, 14))):
            verdict = verdict_of(network, others, *halves, None, panel=panel)
            assert all(rows >= set(found) for rows in found_in(verdict.flagged[others]))
            assert not bool(verdict.guard_acted.any())
    free = verdict_of(network, others, *here, None, probed=(there[0], there[1]), panel=Panel(guard=None))
    assert bool(free.flagged[others][:, :14].all())
    guarded = verdict_of(network, others, *here, None, probed=(there[0], there[1]))
    assert bool(guarded.guard_acted[others].all())
    kept = {"kept", "inconsistent", "alike", "too good", "absurd", "duplicate", "not heard"}
    assert {REASONS[code] for code in guarded.reason[others].unique().tolist()} <= kept
    assert not bool(guarded.flagged[others][:, :14].any())


def test_what_is_far_beyond_any_bound_outlasts_a_majority() -> None:
    """Codes of ten neighbours: in the first row both points flag six, of whom four by far; in the second, six by far."""
    names = [
        ["extreme score"] * 4 + ["alike", "score"] + ["kept"] * 4,
        ["extreme score"] * 5 + ["absurd", "alike", "direction"] + ["kept"] * 2,
        ["extreme score"] * 3 + ["alike", "score"] + ["kept"] * 5,
    ]
    code = torch.tensor([[REASONS.index(name) for name in row] for row in names], dtype=torch.int8)
    left, failed = tribunal._guard(code, torch.ones_like(code, dtype=torch.bool), 0.5)
    assert [[REASONS[place] for place in row] for row in left.tolist()] == [
        ["extreme score"] * 4 + ["kept"] * 6,
        ["kept"] * 5 + ["absurd", "alike"] + ["kept"] * 3,
        names[2],
    ]
    assert failed.tolist() == [True, True, False]


# Fresh halves


def test_fresh_halves() -> None:
    """Disjoint, all samples used, new for every step, and each node's own whoever else is asked."""
    nodes = torch.arange(6)
    seen = set()
    for step in range(4):
        halves = fresh_halves(nodes, samples=20, count=20, seed=1, step=step)
        first, second = halves[FIRST_HALF], halves[SECOND_HALF]
        assert first.shape == second.shape == (6, 10)
        for node in range(6):
            assert sorted([*first[node].tolist(), *second[node].tolist()]) == list(range(20))
            seen.add(tuple(first[node].tolist()))
        alone = fresh_halves(torch.tensor([4]), samples=20, count=20, seed=1, step=step)
        assert torch.equal(alone[FIRST_HALF][0], first[4])
        again = fresh_halves(nodes, samples=20, count=20, seed=1, step=step)
        assert torch.equal(again[SECOND_HALF], second)
    assert len(seen) == 24
    part = fresh_halves(nodes, samples=20, count=7, seed=1, step=0)
    assert part[FIRST_HALF].shape == (6, 3)
    assert all(len({*a.tolist(), *b.tolist()}) == 6 for a, b in zip(*part.values(), strict=True))
    for left, right in pairwise(fresh_halves(nodes, samples=20, count=20, seed=seed, step=0)[FIRST_HALF] for seed in (1, 2)):
        assert not torch.equal(left, right)


@pytest.mark.parametrize("count", [0, 1, 22])
def test_fresh_halves_refuses(count: int) -> None:
    with pytest.raises(InputError):
        fresh_halves(torch.arange(2), samples=20, count=count, seed=0, step=0)


def test_each_sample_is_as_often_in_a_first_half() -> None:
    """Over 4,000 draws of 10 from 20 each sample is in 2,000 +- 31.6; |z| > 6 in any of 20 has probability below 4e-8."""
    first = fresh_halves(torch.arange(4000), samples=20, count=20, seed=3, step=0)[FIRST_HALF]
    counts = torch.bincount(first.flatten(), minlength=20).double()
    assert float(((counts - 2000) / 1000**0.5).abs().max()) < 6
