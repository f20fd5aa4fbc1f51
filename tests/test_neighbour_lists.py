"""Large graphs by lists: every rule, detector, cut and count gives what matrices give."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from bymi import RULES, Graph, Inbox, LocalNetwork, MatrixGraph, Round, Rule
from bymi.attacks import Adversary, Dissensus, Huge, Poison, SignFlip, Silent
from bymi.attacks.placement import PLACEMENTS, place
from bymi.core import linalg as vectors
from bymi.core import list_graph as sparse
from bymi.core.errors import GraphError
from bymi.core.graph import connected, perron_vector
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists, median_by_number
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, PARAMETERS, PREMIX, SECOND_HALF, Topic
from bymi.core.topology import ErdosRenyi, Regular, Ring
from bymi.detection import CENTRES, SCALES, Detector, Suspensions, Verdict, identify_neighbours, judge_replies
from bymi.detection.clip_parameter_messages import fused, shorten
from bymi.detection.update_history import UpdateHistory
from bymi.runs.simulate import local_network
from bymi.training.phases import premix
from bymi.training.plan import Optimisation
from tests.detection_fixtures import NETWORK_SCALES
from tests.reference import graphs as plain
from tests.rule_kinds import KINDS

NODES, DIM = 70, 6
MEMBERS = torch.arange(NODES) % 6 == 2


def drawn(seed: int, *, nodes: int = NODES, directed: bool = False) -> tuple[Graph, ListGraph]:
    """One graph in both forms; directed: a fifth of the arcs missing one way."""
    graph = ErdosRenyi(0.15).draw(nodes, seed=seed)
    assert isinstance(graph, MatrixGraph)
    if directed:
        graph = graph.prune(stream(seed, "cut").uniform(nodes, nodes) < 0.2)
    return graph, ListGraph.of_graph(graph)


def at_places(values: Tensor, lists: NeighbourLists, fill: float) -> Tensor:
    """What matrices [M, M] have at each place of the lists [M, n]."""
    return torch.where(lists.mask, values.gather(1, lists.index), torch.tensor(fill, dtype=values.dtype))


def vectors_of(seed: int, dim: int = DIM) -> Tensor:
    """Vectors near one point, Byzantine nodes off, and one node that has diverged."""
    vectors = 3.0 + stream(seed, "vectors").normal(NODES, dim)
    vectors[MEMBERS] += 4.0
    vectors[11] = torch.nan
    return vectors


ADVERSARIES: dict[str, Adversary | None] = {
    "nobody": None,
    "silent": Adversary(MEMBERS, Silent()),
    "huge": Adversary(MEMBERS, Huge(1e8)),
    "two faces": Adversary(MEMBERS, SignFlip(), level="message", faces="two"),
    "dissensus": Adversary(MEMBERS, Dissensus()),
    "under the fuse": Adversary(MEMBERS, Poison("fuse")),
}


def networks(seed: int, how: str, *, directed: bool = False) -> tuple[Any, Any, ListGraph]:
    graph, by_lists = drawn(seed, directed=directed)
    adversary = ADVERSARIES[how]
    return local_network(graph, adversary), local_network(by_lists, adversary), by_lists


def close(one: Tensor, two: Tensor, scale: float = 1.0) -> None:
    assert torch.allclose(one, two, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


# The lists themselves


def test_lists_of_arcs() -> None:
    lists = NeighbourLists.of_arcs(torch.tensor([2, 0, 2, 0, 2]), torch.tensor([1, 3, 0, 1, 3]), 4)
    assert lists.index.tolist() == [[1, 3, 0], [0, 0, 0], [0, 1, 3], [0, 0, 0]]
    assert lists.mask.tolist() == [[True, True, False], [False] * 3, [True] * 3, [False] * 3]
    assert lists.count(torch.ones(4, 3, dtype=torch.bool), 5).tolist() == [1, 2, 0, 2, 0]
    values = torch.tensor([[5.0, 1.0, 9.0], [0.0, 0.0, 0.0], [7.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert median_by_number(lists.flat[1], lists.flatten(values), 5, -1.0).tolist() == [7.0, 2.0, -1.0, 1.0, -1.0]
    assert lists.of(torch.tensor([2, 1])).flat[1].tolist() == [0, 1, 3]


@pytest.mark.parametrize("seed", range(3))
def test_totals_and_medians_of_lists(seed: int) -> None:
    """Against loops over receivers and over numbers."""
    _, graph = drawn(seed, directed=True)
    lists, held = graph.lists, stream(seed, "x").normal(NODES, 3)
    weight = stream(seed, "weights").normal(*graph.weight.shape)
    total = lists.total(weight, held)
    heard: dict[int, list[float]] = {node: [] for node in range(NODES)}
    for receiver in range(NODES):
        expected = torch.zeros(3, dtype=torch.float64)
        for spot in lists.mask[receiver].nonzero().flatten().tolist():
            sender = int(lists.index[receiver, spot])
            expected += weight[receiver, spot] * held[sender]
            heard[sender].append(float(weight[receiver, spot]))
        close(total[receiver], expected)
    medians = median_by_number(lists.flat[1], lists.flatten(weight), NODES, 0.5)
    for sender, values in heard.items():
        assert float(medians[sender]) == (sorted(values)[(len(values) - 1) // 2] if values else 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_sets(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pair by pair, a few coordinates at a time."""
    monkeypatch.setattr(LIMITS, "set_products", 30)
    left, right = (stream(seed, "x").normal(9, 8).to(dtype) for seed in (1, 2))
    at, other = torch.tensor([[3, 0, 8], [1, 1, 2]]), torch.tensor([[4, 5], [6, 0]])
    origin = left[4]
    found = vectors.inner_of_sets(left, at, right, other, origin)
    assert found.dtype == torch.float64
    for row in range(2):
        for one in range(3):
            for two in range(2):
                away = left[at[row, one]].double() - origin.double(), right[other[row, two]].double() - origin.double()
                assert float(found[row, one, two]) == pytest.approx(float(away[0] @ away[1]), rel=1e-12, abs=1e-12)
    rows = vectors.VectorStack(left)
    close(rows.among(at), rows.gram[at[:, :, None], at[:, None, :]])
    close(rows.points(at) @ rows.points(at).mT, rows.among(at))


def test_a_row_of_totals_does_not_depend_on_the_others() -> None:
    _, graph = drawn(1)
    held = stream(0, "x").normal(NODES, 9)
    some = torch.tensor([5, 60, 2])
    alone = graph.lists.of(some).total(graph.weight[some], held)
    assert torch.equal(alone, graph.lists.total(graph.weight, held)[some])


# Graphs


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_graph_there_and_back(seed: int, directed: bool) -> None:
    graph, by_lists = drawn(seed, directed=directed)
    back = by_lists.dense()
    assert torch.equal(back.hears, graph.hears)
    assert torch.equal(back.mixing, graph.mixing)
    assert by_lists.symmetric == graph.symmetric == (not directed)
    assert nx.utils.graphs_equal(by_lists.to_networkx(), graph.to_networkx())
    arcs = ListGraph.of_arcs(*graph.hears.nonzero(as_tuple=True), NODES)
    close(arcs.dense().mixing, torch.from_numpy(plain.metropolis(graph.hears.numpy())))


@pytest.mark.parametrize("seed", range(4))
def test_pruning_by_lists(seed: int) -> None:
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < 0.25
    flagged[:, 5] = True
    marked = at_places(flagged, by_lists.lists, False)
    pairs = [(graph.prune(flagged), by_lists.prune(marked))]
    pairs += [(graph.prune_mutually(flagged, exile=e), by_lists.prune_mutually(marked, exile=e)) for e in (None, 0.3)]
    for matrices, lists in pairs:
        assert torch.equal(lists.dense().hears, matrices.hears)
        close(lists.dense().mixing, matrices.mixing)
        assert lists.lists is by_lists.lists
    close(pairs[0][1].dense().mixing, torch.from_numpy(plain.prune(graph.mixing.numpy(), (flagged & graph.hears).numpy())))
    with pytest.raises(GraphError, match="directed"):
        pairs[0][1].prune_mutually(marked)


@pytest.mark.parametrize("cut", [0.3, 0.8, 0.93])
@pytest.mark.parametrize("seed", range(3))
def test_the_core_by_lists(seed: int, cut: float) -> None:
    """From one component over some that hear others to crumbs."""
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < cut
    expected, got = graph.prune(flagged).core(), by_lists.prune(at_places(flagged, by_lists.lists, False)).core()
    assert torch.equal(got.members, expected.members)
    assert got.closed == expected.closed
    close(got.perron, expected.perron)


def test_connected_parts() -> None:
    ring = Ring().draw(40)
    everybody = torch.ones(40, dtype=torch.bool)
    for graph in (ring, ListGraph.of_graph(ring)):
        assert connected(graph, everybody)
        assert connected(graph, torch.arange(40) < 20)
        assert not connected(graph, torch.arange(40) % 20 < 5)
        assert not connected(graph, ~everybody)


# The tracker's limit


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.8, 0.93])
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_of_the_tracker_is_where_premixing_ends(seed: int, cut: float) -> None:
    """Also with several closed classes, with nodes on their way to zero, and with Byzantine nodes who are not heard in it."""
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < cut
    adversary = Adversary(MEMBERS, Silent()) if seed == 1 else None
    exact = local_network(graph.prune(flagged), adversary)
    short = local_network(by_lists.prune(at_places(flagged, by_lists.lists, False)), adversary)
    tracker, settled = premix(exact, Optimisation()) if cut < 0.5 else (None, False)  # more cuts, and it takes too long
    pair = [premix(network, Optimisation(premix_rounds=7))[0] for network in (exact, short)]
    close(pair[0], pair[1])
    (heard,) = exact.exchange(0, {PREMIX: torch.ones(NODES, 1, dtype=torch.float64)})
    mixture = heard.average()
    endless = mixture.weight + torch.diag(mixture.own)
    for _ in range(40):
        endless = endless @ endless
        endless = endless / endless.sum(1, keepdim=True)  # else rounding errors double every time
    if tracker is not None and settled:
        assert torch.allclose(endless.diagonal(), tracker.diagonal(), rtol=1e-9, atol=1e-9)
    entries, settled = premix(short, Optimisation())
    assert settled
    assert entries.shape == (NODES,)
    assert torch.allclose(entries, endless.diagonal(), rtol=1e-9, atol=1e-12)


def test_distances_of_pairs_leave_no_memory_behind() -> None:
    """Of 4,000 pairs two at a time: 2 GB in all, of which a few MB may be held at a time. In a process of its own."""
    program = """
import resource, torch
from bymi.core.neighbour_lists import dist2_of_pairs
own, pairs = torch.zeros(100, 61706), torch.arange(4000) % 100
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dist2_of_pairs(own, pairs, own, pairs.flip(0))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200


def test_the_limit_is_the_perron_vector_of_what_is_connected() -> None:
    graph, by_lists = drawn(4, directed=True)
    entries, _ = premix(LocalNetwork(by_lists), Optimisation())
    close(entries, perron_vector(graph.mixing))


@pytest.mark.parametrize("exile", [None, 0.4])
def test_a_large_graph_settles_in_few_steps(exile: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of thousands of entries are off by more than the change at which it stops: it must not go by them.

    Cut from their Byzantine nodes, and with equal weights in both directions, honest nodes are at the limit from the start.
    """
    graph = Regular(12).draw(3000, seed=0)
    assert isinstance(graph, ListGraph)
    byzantine = stream(0, "liars").uniform(3000) < 0.2
    flagged = graph.hears & graph.at_places(byzantine) & ~byzantine[:, None]
    steps = []
    nonzero = sparse._nonzero
    monkeypatch.setattr(sparse, "_nonzero", lambda divisors: steps.append(1) or nonzero(divisors))  # type: ignore[func-returns-value]
    core = graph.prune_mutually(flagged, exile=exile).core()
    assert torch.equal(core.members, ~byzantine)
    assert torch.allclose(core.perron, ~byzantine / (~byzantine).sum(dtype=torch.float64), rtol=1e-12, atol=0)
    assert len(steps) < 10


# Rounds


def assert_same_round(one: Inbox, two: Inbox) -> None:
    """The messages that each receiver hears from each node, and with which weight."""
    assert two.lists is not None
    assert one.complete == two.complete
    size = len(one.own)
    for receiver in range(size):
        by_node = {}
        for column in one.expected[receiver].nonzero().flatten().tolist():
            sender = column if one.senders is None else int(one.senders[column])
            by_node[sender] = (one.messages[column], one.heard[receiver, column], one.weight[receiver, column])
        seen = set()
        for spot in two.expected[receiver].nonzero().flatten().tolist():
            column = int(two.lists.index[receiver, spot])
            sender = column if two.senders is None else int(two.senders[column])
            message, heard, weight = by_node[sender]
            seen.add(sender)
            assert torch.equal(two.messages[column], message) or not bool(heard)
            assert bool(two.heard[receiver, spot]) == bool(heard)
            assert float(two.weight[receiver, spot]) == float(weight)
        assert seen == set(by_node)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("how", ADVERSARIES)
def test_the_same_messages_are_heard(how: str, directed: bool) -> None:
    exact, short, _ = networks(2, how, directed=directed)
    (one,), (two,) = (network.exchange(3, {PARAMETERS: vectors_of(2)}) for network in (exact, short))
    close(one.own, two.own)
    if how in ("nobody", "silent", "huge"):
        assert_same_round(one, two)
    else:
        assert one.senders is not None
        assert len(two.messages) == len(one.messages)
        close(one.mix(one.average())[~MEMBERS], two.mix(two.average())[~MEMBERS])


def rule_of(name: str) -> Rule:
    return RULES[name](**{"f": 2} if name == "mda" else {})  # all subsets of 20 vectors are too many


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in RULES for how in (ADVERSARIES if name in KINDS else ["two faces"])]
)
def test_every_rule_gives_the_same_vectors(name: str, how: str) -> None:
    vectors = vectors_of(5)
    targets = 3.0 + stream(5, "targets").normal(NODES, DIM)

    def losses(tried: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        own = targets if receivers is None else targets[receivers]
        return torch.where(wanted, torch.cdist(own, tried).square(), torch.inf)

    exact, short, _ = networks(5, how)
    rule = rule_of(name)
    moment = Round(3, 50, losses)
    (one,), (two,) = (network.exchange(3, {PARAMETERS: vectors}) for network in (exact, short))
    expected, got = rule(one, moment), rule(two, moment)
    assert bool(torch.isfinite(expected[12:]).all())
    close(got, expected, 10.0)
    some = torch.tensor([3, 40, 41])
    if name != "ubar":
        close(rule(two.of(some), moment), expected[some], 10.0)


@pytest.mark.parametrize("dim", [4, 200])
@pytest.mark.parametrize("name", RULES)
def test_rules_in_few_and_many_dimensions(name: str, dim: int) -> None:
    """Filtering decomposes points or products; products of sets are formed in pieces."""
    vectors = vectors_of(7, dim)
    exact, short, _ = networks(7, "nobody")

    def losses(tried: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        return torch.where(wanted, tried.square().sum(1), torch.inf)

    one, two = (rule_of(name)(network.exchange(0, {PARAMETERS: vectors})[0], Round(1, 9, losses)) for network in (exact, short))
    close(two, one, 10.0)


# Detection


def assert_same_verdict(one: Verdict, two: Verdict, lists: NeighbourLists, arcs: Tensor, *, times: float = 1.0) -> None:
    scale = times * float(one.scores[one.scores.isfinite()].abs().max())
    close(at_places(one.scores, lists, torch.nan), two.scores, scale)
    close(one.threshold, two.threshold, scale)
    assert torch.equal(at_places(one.flagged & arcs, lists, False), two.flagged)
    assert torch.equal(at_places(one.reason, lists, 0), two.reason)


@pytest.mark.parametrize("how", ["nobody", "silent"])
@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_verdicts_at_the_senders_point(centre: str, scale: str, how: str) -> None:
    exact, short, graph = networks(8, how, directed=True)
    halves = {topic: vectors_of(seed) for seed, topic in enumerate((FIRST_HALF, SECOND_HALF))}
    for cross_fit in (False, True) if centre not in ("median", "trimmed-mean") else (False,):
        # The solver makes the two largest eigenvalues equal, after which their eigenvectors depend on rounding.
        few = {"rounds": 4} if centre == "spectral-solver" else {}
        detector = Detector(centre=CENTRES[centre](**few), scale=SCALES[scale](), cross_fit=cross_fit)
        one, two = (identify_neighbours(*network.exchange(0, halves), detector) for network in (exact, short))
        assert bool(one.flagged.any())
        assert_same_verdict(one, two, graph.lists, exact.arcs, times=1e3 if few else 1.0)


@pytest.mark.parametrize("how", ["nobody", "silent"])
def test_verdicts_at_the_receivers_point(how: str) -> None:
    exact, short, graph = networks(9, how, directed=True)
    theta = vectors_of(9)
    theta[11] = 1.0
    own = vectors_of(10)

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        return {topic: points[:, :] * k + own[nodes] for k, topic in enumerate((FIRST_HALF, SECOND_HALF))}

    asks = torch.arange(NODES) != 4
    one, two = (judge_replies(network.ask(0, theta, answer, asks), Detector(), network.arcs) for network in (exact, short))
    assert_same_verdict(one, two, graph.lists, exact.arcs)


@pytest.mark.parametrize("dim", [DIM, 80])
@pytest.mark.parametrize("how", ADVERSARIES)
def test_the_fuse_and_the_trail(how: str, dim: int) -> None:
    exact, short, graph = networks(6, how)
    histories = UpdateHistory(), UpdateHistory()
    for step in range(4):
        vectors = vectors_of(20 + step, dim)
        vectors[11] = 1e3
        inboxes = [network.exchange(step, {PARAMETERS: vectors})[0] for network in (exact, short)]
        found = [shorten(inbox, 3.0) for inbox in inboxes]
        mixed = [inbox.mix(fused(inbox, share)) for inbox, (share, _) in zip(inboxes, found, strict=True)]
        close(mixed[0], mixed[1], 1e3)
        for inbox, history, (share, far_out) in zip(inboxes, histories, found, strict=True):
            history.see(inbox, 0.1, share, far_out)
        one, two = (inbox.by_sender(far_out, NODES) for inbox, (_, far_out) in zip(inboxes, found, strict=True))
        assert torch.equal(at_places(one & exact.arcs, graph.lists, False), two)
    close(histories[0].vectors(), histories[1].vectors(), 1e4)


def test_a_record_by_lists() -> None:
    graph, by_lists = drawn(3)
    lists, limits = by_lists.lists, torch.zeros(NODES, dtype=torch.float64)
    whole, short = Suspensions.blank(graph.hears, 16), Suspensions.blank(by_lists.hears, 16)
    for turn in range(6):
        why = (stream(turn, "why").integers(14, NODES, NODES) * graph.hears).to(torch.int8)
        few = at_places(why, lists, 0)
        whole, one = whole.add(Verdict(why.double(), limits, why > 0, why))
        short, two = short.add(Verdict(few.double(), limits, few > 0, few))
        assert torch.equal(at_places(one.reason, lists, 0), two.reason)
    assert bool(short.suspended.any())
    assert torch.equal(at_places(whole.left, lists, 0), short.left)


@pytest.mark.parametrize("how", PLACEMENTS)
def test_places_of_byzantine_nodes(how: str) -> None:
    graph, by_lists = drawn(2)
    assert torch.equal(place(graph, 12, how, seed=4), place(by_lists, 12, how, seed=4))  # type: ignore[arg-type]
