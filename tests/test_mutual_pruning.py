"""Mutual pruning: either end can cut an edge, weights stay doubly stochastic, exiles go on listening, all are still heard."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bymi import Graph, InputError, LocalNetwork, MatrixGraph, Plan
from bymi.attacks import Adversary, SignFlip
from bymi.core import graph as graph_module
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, PARAMETERS
from bymi.core.topology import Complete, ErdosRenyi
from bymi.detection import Detector, Panel, Watch
from bymi.detection.detection_settings import Pruning
from bymi.runs.simulate import local_network
from tests.reference.graphs import prune_mutually
from tests.reference.scenes import draw_scene


def flags(size: int, share: float, seed: int) -> Tensor:
    """Random ones, also where there is no arc; three nodes are flagged by most."""
    flagged = stream(seed, "flags").uniform(size, size) < share
    disliked = stream(seed, "disliked").uniform(size, 3) < 0.7
    return flagged.index_copy(1, torch.tensor([1, 4, size - 1]), disliked)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(6, 16),
    share=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    exile=st.sampled_from([None, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_against_the_transcription(size: int, share: float, exile: float | None, seed: int) -> None:
    hears = draw_scene(nodes=size, dim=1, directed=False, losses=False, seed=seed).hears
    flagged = flags(size, share, seed)
    pruned = Graph.from_hears(torch.from_numpy(hears)).prune_mutually(flagged, exile=exile)
    arcs, mixing = prune_mutually(hears, flagged.numpy(), exile)
    np.testing.assert_array_equal(pruned.hears.numpy(), arcs)
    np.testing.assert_allclose(pruned.mixing.numpy(), mixing, rtol=0, atol=1e-14)


def test_a_graph_in_which_not_all_who_are_heard_hear_is_refused() -> None:
    """A single arc without its way back is enough; cutting one way is possible there."""
    hears = draw_scene(nodes=10, dim=1, directed=False, losses=False, seed=1).hears.copy()
    receiver, sender = np.argwhere(hears)[0]
    hears[receiver, sender] = False
    graph, flagged = Graph.from_hears(torch.from_numpy(hears)), flags(10, 0.2, 1)
    with pytest.raises(graph_module.GraphError, match="directed"):
        graph.prune_mutually(flagged, exile=0.5)
    with pytest.raises(graph_module.GraphError, match="directed"):
        LocalNetwork(graph).reweight(flagged, mutual=True, exile=None)
    assert torch.equal(
        LocalNetwork(graph).reweight(flagged, mutual=False, exile=None).graph.mixing, graph.prune(flagged).mixing
    )


def exiles(graph: Graph, flagged: Tensor, exile: float) -> Tensor:
    return (flagged & graph.hears).sum(0) > exile * graph.hears.sum(0)


@pytest.mark.parametrize("seed", range(10))
def test_doubly_stochastic_outside_exiled_rows(seed: int) -> None:
    """With exiled rows taken as they would be without the rule, all columns sum to one; the other rows are the same bits."""
    graph, flagged = ErdosRenyi(0.5).draw(20, seed=seed), flags(20, 0.2, seed)
    plain, pruned = graph.prune_mutually(flagged), graph.prune_mutually(flagged, exile=0.5)
    assert torch.equal(plain.mixing, plain.mixing.T)
    assert torch.allclose(plain.mixing.sum(0), torch.ones(20, dtype=torch.float64), atol=1e-14)
    out = exiles(graph, flagged, 0.5)
    assert bool(out.any())
    assert torch.equal(pruned.mixing[~out], plain.mixing[~out])
    assert torch.allclose(pruned.mixing.sum(1), torch.ones(20, dtype=torch.float64), atol=1e-14)


def test_either_end_cuts() -> None:
    graph = Complete().draw(6)
    flagged = torch.zeros(6, 6, dtype=torch.bool)
    flagged[0, 1] = flagged[3, 2] = True
    pruned = graph.prune_mutually(flagged, exile=0.5)
    cut = graph.hears & ~pruned.hears
    assert sorted(map(tuple, cut.nonzero().tolist())) == [(0, 1), (1, 0), (2, 3), (3, 2)]


def test_an_exile_listens_to_those_it_trusts_and_is_heard_by_few() -> None:
    graph = Complete().draw(8)
    flagged = torch.zeros(8, 8, dtype=torch.bool)
    flagged[1:6, 0] = True  # five of seven cut node 0
    flagged[0, 7] = True  # it flags one in turn
    alone = graph.prune_mutually(flagged)
    assert alone.hears[0].nonzero().flatten().tolist() == [6]
    pruned = graph.prune_mutually(flagged, exile=0.5)
    assert pruned.hears[0].nonzero().flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert pruned.hears[:, 0].nonzero().flatten().tolist() == [6]
    assert pruned.mixing[0].tolist() == pytest.approx([1 / 7] * 7 + [0.0])


def test_exactly_the_share_is_no_exile() -> None:
    graph = Complete().draw(5)
    flagged = torch.zeros(5, 5, dtype=torch.bool)
    flagged[1:3, 0] = True  # two of four
    pruned = graph.prune_mutually(flagged, exile=0.5)
    assert pruned.hears[0].nonzero().flatten().tolist() == [3, 4]


def test_nobody_flagged_changes_nothing() -> None:
    graph = ErdosRenyi(0.5).draw(15, seed=1)
    pruned = graph.prune_mutually(torch.zeros(15, 15, dtype=torch.bool), exile=0.5)
    assert torch.equal(pruned.mixing, graph.mixing)
    assert torch.equal(pruned.hears, graph.hears)


def test_everybody_flagged() -> None:
    """Nobody is left to anybody, exiles included: own weight one, no exception."""
    graph = ErdosRenyi(0.5).draw(15, seed=1)
    pruned = graph.prune_mutually(torch.ones(15, 15, dtype=torch.bool), exile=0.5)
    assert torch.equal(pruned.mixing, torch.eye(15, dtype=torch.float64))


# On the network


def test_cut_messages_are_heard_and_weigh_nothing() -> None:
    graph = ErdosRenyi(0.6).draw(12, seed=2)
    flagged = flags(12, 0.2, 3)
    network = LocalNetwork(graph).reweight(flagged, mutual=True, exile=0.5)
    expected = graph.prune_mutually(flagged, exile=0.5)
    vectors = stream(0, "vectors").normal(12, 3)
    (inbox,) = network.exchange(0, {PARAMETERS: vectors})
    assert torch.equal(inbox.heard, graph.hears)
    assert torch.equal(network.arcs, graph.hears)
    assert torch.allclose(inbox.mix(inbox.average()), expected.mixing @ vectors, atol=1e-12)
    replies = list(network.ask(0, vectors, lambda points, nodes, askers: {"a": points}, torch.ones(12, dtype=torch.bool)))
    assert [reply.senders.tolist() for reply in replies] == [row.nonzero().flatten().tolist() for row in graph.hears]


def test_a_second_verdict_starts_from_all_arcs() -> None:
    """Whoever is not flagged again is back with its whole weight."""
    graph = ErdosRenyi(0.6).draw(12, seed=2)
    once = LocalNetwork(graph).reweight(flags(12, 0.3, 3), mutual=True, exile=0.5)
    back = once.reweight(torch.zeros(12, 12, dtype=torch.bool), mutual=True, exile=0.5)
    assert torch.equal(back.graph.mixing, graph.mixing)
    again = once.reweight(flags(12, 0.2, 9), mutual=True, exile=0.5)
    assert torch.equal(again.graph.mixing, graph.prune_mutually(flags(12, 0.2, 9), exile=0.5).mixing)


def test_cutting_one_way_keeps_the_weights_of_the_graph() -> None:
    """Whatever these are: weights of a graph that are not Metropolis are shared out over what is left of a row."""
    drawn = ErdosRenyi(0.6).draw(12, seed=2)
    own = torch.linspace(0.2, 0.8, 12, dtype=torch.float64)
    spread = (1 - own)[:, None] * drawn.hears / drawn.hears.sum(1, keepdim=True)
    graph = MatrixGraph(drawn.hears, spread + own.diag())
    once = LocalNetwork(graph).reweight(flags(12, 0.3, 3), mutual=False, exile=None)
    assert torch.equal(once.graph.mixing, graph.prune(flags(12, 0.3, 3)).mixing)
    assert torch.equal(once.arcs, graph.hears)
    again = once.reweight(flags(12, 0.2, 9), mutual=False, exile=None)
    assert torch.equal(again.graph.mixing, graph.prune(flags(12, 0.2, 9)).mixing)
    back = again.reweight(torch.zeros(12, 12, dtype=torch.bool), mutual=False, exile=None)
    assert torch.allclose(back.graph.mixing, graph.mixing, rtol=1e-14)


def test_faces_keep_their_columns() -> None:
    """Messages that differ by receiver: the weights of the pruned graph, one column an arc, cut ones included."""
    members = torch.arange(12) % 4 == 1
    adversary = Adversary(members, SignFlip(), faces="two")
    graph, flagged = ErdosRenyi(0.6).draw(12, seed=2), flags(12, 0.3, 3)
    network = local_network(graph, adversary).reweight(flagged, mutual=True, exile=0.5)
    (inbox,) = network.exchange(0, {FIRST_HALF: stream(0, "vectors").normal(12, 3)})
    assert inbox.senders is not None
    counts = torch.zeros(12, 12, dtype=torch.int64).index_add_(1, inbox.senders, inbox.expected.long())
    assert torch.equal(counts, graph.hears.long())
    weights = torch.zeros(12, 12, dtype=torch.float64).index_add_(1, inbox.senders, inbox.weight)
    pruned = graph.prune_mutually(flagged, exile=0.5)
    assert torch.equal(weights, pruned.mixing * pruned.hears)


# Plans


def test_watching_needs_a_panel() -> None:
    hardened = Detector(panel=Panel(), pruning="mutual")
    assert Plan(30, 10, detector=hardened, watch=Watch(every=None)).detections == [10]
    for detector in (None, Detector(), Detector(pruning="mutual")):
        with pytest.raises(InputError, match="watch"):
            Plan(30, 10, detector=detector, watch=Watch())


@pytest.mark.parametrize(
    ("steps", "every", "moments"),
    [
        (30, 5, [10, 11, 15, 20, 25, 29]),
        (30, 1, list(range(10, 30))),
        (31, 5, [10, 11, 15, 20, 25, 30]),
        (30, 100, [10, 20]),
        (18, 100, [10]),
        (310, 100, [10, 35, 110, 210, 300]),
        (220, 100, [10, 35, 110, 210]),
        (11, 300, [10]),
    ],
)
def test_one_more_detection_soon_after_the_first_and_one_before_the_end(steps: int, every: int, moments: list[int]) -> None:
    """A quarter of the usual distance after it, and a tenth before the end, one round at least."""
    hardened = Detector(panel=Panel(), pruning="mutual")
    assert Plan(steps, 10, detector=hardened, watch=Watch(every=every)).detections == moments


@pytest.mark.parametrize("pruning", ["directed", "mutual"])
def test_a_panel_without_watching_is_refused(pruning: Pruning) -> None:
    """It would be passed over in silence: the published phases do not know it."""
    with pytest.raises(InputError, match="watch"):
        Plan(30, 10, detector=Detector(panel=Panel(), pruning=pruning))


def test_mutual_pruning_without_watching_is_refused() -> None:
    """The published phases cut one way, and then a run without a tracker would not find the mean."""
    with pytest.raises(InputError, match="pruning"):
        Plan(30, 10, detector=Detector(pruning="mutual"))


@pytest.mark.parametrize(
    ("key", "value"), [("every", 0), ("fuse", 0.0), ("fuse_share", 1.0), ("longest", 0), ("drift", 0.0), ("retreat", 1.0)]
)
def test_refused_watches(key: str, value: float) -> None:
    with pytest.raises(InputError, match=key):
        Watch(**{key: value})  # type: ignore[arg-type]
