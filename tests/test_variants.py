"""Messages that differ by receiver: every arc in exactly one column, the same columns in every round, answers likewise."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from bymi import Graph, Inbox, LocalNetwork
from bymi.attacks import ATTACKS, Adversary, Dissensus, Isolation, Poison, Shift, SignFlip, Silent, SimulatedAdversary
from bymi.core.inbox import fold
from bymi.core.neighbour_lists import PerArcLists
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, PARAMETERS, PREMIX, SECOND_HALF, TRACKER, Topic
from bymi.core.topology import ErdosRenyi
from bymi.experiment import load
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import local_network, simulate
from tests.inbox_fixtures import wide

NODES, DIM = 16, 5
MEMBERS = torch.tensor([number in (0, 3, 8, 9) for number in range(NODES)])
VECTORS = stream(0, "vectors").normal(NODES, DIM) + 1.0
GRAPH = ErdosRenyi(0.7).draw(NODES, seed=1, must_connect=~MEMBERS)


def network_of(adversary: Adversary, graph: Graph = GRAPH) -> SimulatedAdversary:
    return local_network(graph, adversary)


def by_column(inbox: Inbox, values: Tensor) -> Tensor:
    """Values for all messages [B, J], also where the inbox keeps them place by place."""
    return wide(inbox.lists, values, len(inbox.messages)) if isinstance(getattr(inbox, "lists", None), PerArcLists) else values


def assert_wired(inbox: Inbox, graph: Graph) -> None:
    """Each receiver expects exactly one column of each node it hears, with the weight of the arc."""
    assert inbox.senders is not None
    counts = torch.zeros(len(inbox.own), graph.size, dtype=torch.int64).index_add_(
        1, inbox.senders, by_column(inbox, inbox.expected).long()
    )
    assert torch.equal(counts, graph.hears.long())
    weights = torch.zeros(len(inbox.own), graph.size, dtype=torch.float64).index_add_(
        1, inbox.senders, by_column(inbox, inbox.weight)
    )
    assert torch.equal(weights, graph.mixing * graph.hears)
    assert inbox.senders[: graph.size].tolist() == list(range(graph.size))


def heard_from(inbox: Inbox, receiver: int, sender: int) -> Tensor:
    """The one message that a receiver heard of a sender."""
    assert inbox.senders is not None
    (column,) = (by_column(inbox, inbox.heard)[receiver] & (inbox.senders == sender)).nonzero().flatten().tolist()
    return inbox.messages[column]


def test_half_of_the_honest_nodes_are_fooled() -> None:
    fooled = Adversary(MEMBERS, SignFlip(), faces="two", seed=3).fooled
    assert int(fooled.sum()) == 6
    assert not bool((fooled & MEMBERS).any())
    others = [Adversary(MEMBERS, SignFlip(), faces="two", seed=seed).fooled for seed in range(5)]
    assert len({tuple(mask.tolist()) for mask in others}) > 1


@pytest.mark.parametrize("topic", [PARAMETERS, FIRST_HALF, SECOND_HALF])
def test_two_faces_on_the_wire(topic: Topic) -> None:
    adversary = Adversary(MEMBERS, SignFlip(), faces="two")
    network = network_of(adversary)
    assert torch.equal(adversary.gradients(VECTORS, torch.arange(NODES), FIRST_HALF, 0), VECTORS)
    (inbox,) = network.exchange(0, {topic: VECTORS})
    assert inbox.heard.shape == (NODES, NODES + 4)
    assert inbox.complete
    assert_wired(inbox, GRAPH)
    for receiver, sender in GRAPH.hears.nonzero().tolist():
        lies = bool(MEMBERS[sender] and adversary.fooled[receiver])
        assert torch.equal(heard_from(inbox, receiver, sender), -VECTORS[sender] if lies else VECTORS[sender])


def test_topics_that_are_alike_for_all_keep_their_columns() -> None:
    network = network_of(Adversary(MEMBERS, SignFlip(), faces="two"))
    (plain,) = network.exchange(0, {PREMIX: VECTORS})
    assert plain.senders is None
    assert plain.messages is VECTORS
    both = network.exchange(0, {PARAMETERS: VECTORS, TRACKER: VECTORS})
    assert [inbox.heard.shape[1] for inbox in both] == [NODES + 4] * 2
    assert torch.equal(both[1].messages[NODES:], VECTORS[MEMBERS])


def test_silence_to_one_half() -> None:
    adversary = Adversary(MEMBERS, Silent(), faces="two")
    (inbox,) = network_of(adversary).exchange(0, {PARAMETERS: VECTORS})
    assert torch.equal(inbox.by_sender(inbox.expected, NODES), GRAPH.hears)
    silent = inbox.by_sender(inbox.unheard, NODES)
    assert torch.equal(silent, GRAPH.hears & MEMBERS & adversary.fooled[:, None])


def test_columns_stay_the_same_after_pruning_and_before_waking() -> None:
    adversary = Adversary(MEMBERS, Dissensus(), start=3)
    network = network_of(adversary)
    (before,) = network.exchange(0, {PARAMETERS: VECTORS})
    (awake,) = network.exchange(3, {PARAMETERS: VECTORS})
    flagged = stream(0, "flags").uniform(NODES, NODES) < 0.3
    pruned = network.prune(flagged)
    (after,) = pruned.exchange(3, {PARAMETERS: VECTORS})
    for inbox in (awake, after):
        assert torch.equal(inbox.senders, before.senders)  # type: ignore[arg-type]
    assert_wired(awake, GRAPH)
    assert_wired(after, pruned.graph)
    assert torch.equal(before.messages, VECTORS[before.senders])
    assert torch.equal(
        SimulatedAdversary(pruned.network.over(GRAPH), adversary).exchange(3, {PARAMETERS: VECTORS})[0].expected, awake.expected
    )


def test_pruning_takes_verdicts_on_messages_and_on_senders() -> None:
    network = network_of(Adversary(MEMBERS, SignFlip(), faces="two"))
    (inbox,) = network.exchange(0, {PARAMETERS: VECTORS})
    flagged = inbox.expected & (stream(0, "flags").uniform(*inbox.expected.shape) < 0.2)
    by_sender = inbox.by_sender(flagged, NODES)
    assert torch.equal(network.prune(flagged).graph.hears, GRAPH.hears & ~by_sender)
    assert torch.equal(network.prune(by_sender).graph.hears, GRAPH.hears & ~by_sender)


def test_by_sender() -> None:
    mask = torch.tensor([[True, False, False, False], [False, False, False, True], [False, True, True, False]])
    senders = torch.tensor([0, 1, 2, 1])
    expected = [[True, False, False], [False, True, False], [False, True, True]]
    assert fold(mask, senders, 3).tolist() == expected
    (plain,) = LocalNetwork(GRAPH).exchange(0, {PARAMETERS: VECTORS})
    assert plain.by_sender(GRAPH.hears, NODES) is GRAPH.hears
    (inbox,) = network_of(Adversary(MEMBERS, SignFlip(), faces="two")).exchange(0, {PARAMETERS: VECTORS})
    some = inbox.of(torch.tensor([2, 5]))
    assert torch.equal(some.by_sender(some.expected, NODES), GRAPH.hears[[2, 5]])


@pytest.mark.parametrize("attack", [Dissensus(1.0), Isolation()])
def test_averaging_moves_nobody(attack: Dissensus | Isolation) -> None:
    adversary = Adversary(MEMBERS, attack)
    (inbox,) = network_of(adversary).exchange(0, {PARAMETERS: VECTORS})
    assert_wired(inbox, GRAPH)
    beside = ~MEMBERS & (GRAPH.hears & MEMBERS).any(1)
    average = inbox.mix(inbox.average())
    torch.testing.assert_close(average[beside], VECTORS[beside])


def test_all_attackers_around_a_receiver_say_the_same() -> None:
    (inbox,) = network_of(Adversary(MEMBERS, Poison("fuse"))).exchange(0, {PARAMETERS: VECTORS})
    for receiver in (~MEMBERS).nonzero().flatten().tolist():
        heard = [
            heard_from(inbox, receiver, sender) for sender in (GRAPH.hears[receiver] & MEMBERS).nonzero().flatten().tolist()
        ]
        assert all(torch.equal(message, heard[0]) for message in heard)
    for receiver in MEMBERS.nonzero().flatten().tolist():  # among themselves they do not lie
        for sender in (GRAPH.hears[receiver] & MEMBERS).nonzero().flatten().tolist():
            assert torch.equal(heard_from(inbox, receiver, sender), VECTORS[sender])


def test_distances_are_the_same_without_the_products_of_all_pairs() -> None:
    own, messages = VECTORS[:2], stream(0, "many").normal(12, DIM)
    expected = torch.ones(2, 12, dtype=torch.bool)
    weights = {"weight": torch.full((2, 12), 1 / 13, dtype=torch.float64), "self_weight": torch.full((2,), 1 / 13).double()}
    inbox = Inbox.receive(own, messages, expected=expected, **weights)
    torch.testing.assert_close(inbox.dist2_to_own(), torch.cdist(own, messages).square())
    assert "gram" not in inbox.rows.__dict__


def answers(adversary: Adversary, asker: int) -> tuple[Inbox, Tensor]:
    """What a node gets back at its own point, and whom it asked."""

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        return {FIRST_HALF: adversary.gradients(VECTORS[nodes], nodes, FIRST_HALF.to(asker), 0)}

    (reply,) = network_of(adversary).ask(0, VECTORS, answer, torch.arange(NODES) == asker)
    return reply.read()[0], reply.senders


@pytest.mark.parametrize("attack", ["sign-flip", "shift", "silent", "nan"])
def test_answers_follow_the_asker(attack: str) -> None:
    adversary = Adversary(MEMBERS, ATTACKS[attack](), faces="two")
    for asker in (~MEMBERS).nonzero().flatten().tolist():
        inbox, senders = answers(adversary, asker)
        true = (inbox.messages == VECTORS[senders]).all(1) & inbox.heard[0]
        assert torch.equal(~true, MEMBERS[senders] & bool(adversary.fooled[asker]))


@pytest.mark.parametrize("point", ["sender", "receiver"])
@pytest.mark.parametrize("attack", ["gaussian", "nan", "dissensus", "alie", "shift", "poison:how=fuse"])
def test_runs_with_two_faces(attack: str, point: str) -> None:
    words = ("nodes=20", "steps=20", "warm_up.steps=8", "data.dim=5", "data.samples=40", "method=drsgd-bymi")
    spec = load(None, [*words, f"attack={attack}", "byzantine_faces=two", f"detection.point={point}"])
    scene = set_up_run(spec.resolved)
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        assert bool(torch.isfinite(snapshot.theta[~scene.byzantine]).all())
        assert snapshot.network is None or snapshot.network.size == 20
    assert snapshot.step == 20


def test_faces_draw_nothing_else_anew() -> None:
    """The same training and the same lies, only not to everybody."""
    one, two = (Adversary(MEMBERS, Shift(), level="message", faces=faces) for faces in ("one", "two"))  # type: ignore[arg-type]
    (everybody,) = network_of(one).exchange(0, {PARAMETERS: VECTORS})
    (some,) = network_of(two).exchange(0, {PARAMETERS: VECTORS})
    assert torch.equal(some.messages[NODES:], everybody.messages[MEMBERS])


@pytest.mark.parametrize(("attack", "allowed"), [(Shift(), 0.02), (Dissensus(), 0.1)])
def test_a_round_of_150_nodes_stays_cheap(attack: Shift | Dissensus, allowed: float) -> None:
    """About one and three thousandths of a second; twenty times as many, or more, on a busy machine."""
    members = torch.arange(150) < 30
    graph, vectors = ErdosRenyi(0.5).draw(150, seed=0, must_connect=~members), stream(0, "vectors").normal(150, 30)
    network = network_of(Adversary(members, attack, faces="two" if isinstance(attack, Shift) else "one"), graph)
    network.exchange(0, {PARAMETERS: vectors})
    times = []
    for step in range(10):
        start = time.perf_counter()
        (inbox,) = network.exchange(step, {PARAMETERS: vectors})
        inbox.mix(inbox.average())
        times.append(time.perf_counter() - start)
    assert min(times) < allowed


@pytest.mark.parametrize("words", ["attack=dissensus", "attack=shift byzantine_faces=two", "attack=nan byzantine_faces=two"])
def test_faces_of_nobody(words: str) -> None:
    tiny = ("nodes=20", "steps=10", "data.dim=5", "data.samples=40", "method=drsgd-bymi", "byzantine_ratio=0.0")
    scene = set_up_run(load(None, [*tiny, *words.split()]).resolved)
    *_, last = simulate(scene.problem, scene.graph, scene.plan, scene.adversary)
    assert last.inbox.heard.shape == (20, 20)
