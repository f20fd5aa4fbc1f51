"""Where attackers stand: each placement by its own measure, and honest nodes that stay connected."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor

from bymi import Complete, Graph, Ring
from bymi.attacks import PLACEMENTS, Placement, place
from bymi.core.errors import GraphError
from bymi.core.random_streams import stream
from bymi.core.topology import ErdosRenyi
from bymi.experiment import load
from bymi.runs.run_setup import set_up_run

NAMES: list[Placement] = list(PLACEMENTS)


def rest_is_connected(graph: Graph, members: Tensor) -> bool:
    inside = graph.hears[~members][:, ~members]
    return nx.is_connected(nx.from_numpy_array(inside.numpy()))


@pytest.mark.parametrize("how", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_the_right_number_and_a_connected_rest(how: Placement, seed: int) -> None:
    graph = ErdosRenyi(0.25).draw(30, seed=seed)
    members = place(graph, 9, how, seed=seed)
    assert int(members.sum()) == 9
    assert rest_is_connected(graph, members)
    assert torch.equal(members, place(graph, 9, how, seed=seed))


def test_high_degree() -> None:
    graph = ErdosRenyi(0.4).draw(40, seed=1)
    members, degree = place(graph, 8, "high-degree", seed=0), graph.hears.sum(1)
    assert int(degree[members].min()) >= int(degree[~members].max())


def test_one_neighbourhood() -> None:
    graph = ErdosRenyi(0.4).draw(40, seed=1)
    members = place(graph, 8, "neighbourhood", seed=0)
    middle = int(stream(0, "roles").permutation(40)[0])
    assert not bool(members[middle])
    assert int((members & graph.hears[middle]).sum()) == 8


def test_one_neighbourhood_that_is_too_small_keeps_a_way_out() -> None:
    graph = Graph.from_networkx(nx.barbell_graph(6, 2))
    for seed in range(10):
        members, middle = place(graph, 6, "neighbourhood", seed=seed), int(stream(seed, "roles").permutation(14)[0])
        assert int(members.sum()) == 6
        assert rest_is_connected(graph, members)
        assert bool((graph.hears[middle] & ~members).any())


def test_betweenness() -> None:
    graph = ErdosRenyi(0.2).draw(40, seed=3)
    between = nx.betweenness_centrality(graph.to_networkx().to_undirected())
    largest = sorted(range(40), key=lambda node: -between[node])[:6]
    members = place(graph, 6, "cut-vertex", seed=0)
    assert rest_is_connected(graph, members)
    assert sorted(largest) == members.nonzero().flatten().tolist()


def test_a_cut_vertex_itself_is_passed_over() -> None:
    # Two triangles that share node 2: it has the largest betweenness, and without it the rest would fall apart.
    graph = Graph.from_networkx(nx.Graph([(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4)]))
    members = place(graph, 1, "cut-vertex", seed=0)
    assert not bool(members[2])
    assert rest_is_connected(graph, members)


@pytest.mark.parametrize("how", NAMES)
def test_rings_are_cut_at_one_place_only(how: Placement) -> None:
    graph = Ring().draw(12)
    assert rest_is_connected(graph, place(graph, 5, how, seed=2))


def test_a_graph_in_two_pieces_is_an_error_of_one_line() -> None:
    apart = Graph.from_networkx(nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4)))
    with pytest.raises(GraphError, match="byzantine_placement: got 'high-degree' on a graph that is not connected"):
        place(apart, 2, "high-degree", seed=0)


def test_random_is_as_before_and_the_graph_stays() -> None:
    words = ["nodes=20", "data.dim=3", "data.samples=20", "graph.p=0.6"]
    scenes = {how: set_up_run(load(None, [*words, f"byzantine_placement={how}"]).resolved) for how in NAMES}
    roles = torch.zeros(20, dtype=torch.bool)
    roles[stream(0, "roles").permutation(20)[:4]] = True
    assert torch.equal(scenes["random"].byzantine, roles)
    for how, scene in scenes.items():
        assert int(scene.byzantine.sum()) == 4, how
        assert torch.equal(scene.graph.hears, scenes["random"].graph.hears)
        assert torch.equal(scene.adversary.members, scene.byzantine)


def test_nobody_to_place() -> None:
    for how in NAMES:
        assert not bool(place(Complete().draw(5), 0, how, seed=0).any())
