"""Graphs: weights, pruning, the core, and the ways to get one."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch

from bymi import Complete, EdgeFile, ErdosRenyi, Graph, GraphError, InputError, MatrixGraph, Ring
from bymi.core.graph import metropolis


def test_metropolis_on_a_ring_is_one_third() -> None:
    graph = Ring().draw(5)
    assert torch.allclose(graph.mixing[graph.hears], torch.tensor(1 / 3, dtype=torch.float64))
    assert torch.allclose(graph.mixing.diagonal(), torch.tensor(1 / 3, dtype=torch.float64))


def test_metropolis_of_a_star_by_hand() -> None:
    """Centre 0 of degree 3, leaves of degree 1: 1/4 on each edge, 1/4 left in the centre, 3/4 on a leaf."""
    weights = Graph.from_networkx(nx.star_graph(3)).mixing
    expected = torch.tensor([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]], dtype=torch.float64) / 4
    assert torch.allclose(weights, expected)


def test_metropolis_is_doubly_stochastic_on_undirected_and_row_stochastic_on_directed_graphs() -> None:
    undirected = ErdosRenyi(0.4).draw(20, seed=3).mixing
    assert torch.allclose(undirected, undirected.T)
    assert torch.allclose(undirected.sum(1), torch.ones(20, dtype=torch.float64))
    directed = metropolis(torch.tensor([[0, 1, 1], [0, 0, 1], [1, 0, 0]], dtype=torch.bool))
    assert torch.allclose(directed.sum(1), torch.ones(3, dtype=torch.float64))


def test_arcs_of_networkx_point_at_the_one_who_hears() -> None:
    graph = Graph.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    assert graph.hears.tolist() == [[False, False, True], [True, False, False], [False, True, False]]
    assert set(graph.to_networkx().edges) == {(0, 1), (1, 2), (2, 0)}


def test_labels_that_are_numbers_are_the_node_numbers() -> None:
    """In whatever order networkx has the nodes; other labels are numbered in that order."""
    path = nx.Graph([(0, 3), (3, 1), (1, 2)])
    assert Graph.from_networkx(path).hears.nonzero().tolist() == [[0, 3], [1, 2], [1, 3], [2, 1], [3, 0], [3, 1]]
    named = nx.relabel_nodes(path, dict(enumerate("abcd")))
    assert Graph.from_networkx(named).hears.nonzero().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]


def test_adjacency_rows_hear_columns_and_the_diagonal_is_dropped() -> None:
    graph = Graph.from_adjacency([[1, 1], [0, 1]])
    assert graph.hears.tolist() == [[False, True], [False, False]]


def test_pruning_by_hand() -> None:
    """Paper, eq:reassign: the weights that stay are shared in proportion, the own one among them."""
    graph = Graph.from_networkx(nx.star_graph(3))
    flagged = torch.zeros(4, 4, dtype=torch.bool)
    flagged[0, 1] = True
    pruned = graph.prune(flagged)
    assert torch.allclose(pruned.mixing[0], torch.tensor([1, 0, 1, 1], dtype=torch.float64) / 3)
    assert torch.equal(pruned.mixing[1:], graph.mixing[1:])
    assert not pruned.hears[0, 1]
    assert pruned.hears[1, 0]


def test_pruning_nothing_returns_the_same_bits() -> None:
    graph = ErdosRenyi(0.5).draw(12)
    assert torch.equal(graph.prune(torch.zeros_like(graph.hears)).mixing, graph.mixing)


def test_cutting_everything_leaves_the_own_weight() -> None:
    graph = Complete().draw(4)
    flagged = torch.zeros(4, 4, dtype=torch.bool)
    flagged[2] = True
    assert graph.prune(flagged).mixing[2].tolist() == [0, 0, 1, 0]


def test_the_core_of_a_chain_of_components() -> None:
    """0-1-2 hear each other; 3-4 hear each other and also 0: the core is 0-1-2 and hears nobody outside."""
    hears = torch.zeros(5, 5, dtype=torch.bool)
    for receiver, sender in [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3), (3, 0)]:
        hears[receiver, sender] = True
    core = Graph.from_hears(hears).core()
    assert core.members.tolist() == [True, True, True, False, False]
    assert core.closed
    hears[2, 3] = True
    hears[3, 0] = False
    assert not Graph.from_hears(hears).core().closed


def test_the_perron_vector_is_a_left_fixed_point() -> None:
    graph = ErdosRenyi(0.5).draw(15, seed=1)
    flagged = torch.rand(15, 15, generator=torch.Generator().manual_seed(0)) < 0.2
    pruned = graph.prune(flagged)
    core = pruned.core()
    block = pruned.mixing[core.members][:, core.members]
    vector = core.perron[core.members]
    assert core.closed
    assert torch.allclose(vector @ block, vector, atol=1e-12)
    assert vector.min() > 0
    assert abs(vector.sum() - 1) < 1e-12
    assert core.perron[~core.members].abs().sum() == 0


def test_erdos_renyi_draws_until_whole_and_marked_part_are_connected() -> None:
    """p = 0.12 on 24 nodes: most single draws are disconnected, so passing is the redraw's work."""
    part = torch.arange(24) % 3 != 0
    for seed in range(10):
        graph = ErdosRenyi(0.12).draw(24, seed=seed, must_connect=part)
        assert nx.is_connected(graph.to_networkx().to_undirected())
        inside = graph.to_networkx().subgraph(part.nonzero().flatten().tolist())
        assert nx.is_connected(inside.to_undirected())
        assert torch.equal(graph.hears, graph.hears.T)


def test_erdos_renyi_has_its_density() -> None:
    """11,175 pairs at p = 0.5: six standard deviations, false alarm 2e-9. At p = 0.5 a redraw is out of the question."""
    hears = ErdosRenyi(0.5).draw(150, seed=0).hears
    assert abs(float(hears.sum()) / 2 - 11175 / 2) < 6 * (11175 / 4) ** 0.5


def test_an_impossible_graph_is_refused() -> None:
    with pytest.raises(GraphError, match=r"graph\.p"):
        ErdosRenyi(0.001).draw(40)
    with pytest.raises(InputError, match="3 or more"):
        Ring().draw(2)
    with pytest.raises(InputError, match="0 < p <= 1"):
        ErdosRenyi(0.0)


def test_edge_files(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# a triangle with a tail\n0 1\n1,2\n2 0\n\n2 3  # tail\n")
    undirected = EdgeFile(str(path)).draw(4)
    assert undirected.hears.sum() == 8
    assert torch.equal(undirected.hears, undirected.hears.T)
    directed = Graph.read(path, directed=True)
    assert directed.hears.nonzero().tolist() == [[0, 2], [1, 0], [2, 1], [3, 2]]
    with pytest.raises(InputError, match="nodes: got 5"):
        EdgeFile(str(path)).draw(5)


@pytest.mark.parametrize("text", ["0 x\n", "0\n", "0 1 2\n", "-1 2\n", ""])
def test_a_bad_edge_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(GraphError, match=r"edges\.txt"):
        Graph.read(path)


@pytest.mark.parametrize(
    ("hears", "mixing"),
    [
        (torch.zeros(2, 3), torch.eye(2)),
        (torch.eye(2), torch.eye(2)),
        (torch.zeros(2, 2), torch.full((2, 2), 0.5)),
        (torch.tensor([[0, 1], [0, 0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])),
        (torch.tensor([[0, 1], [0, 0]]), torch.tensor([[0.5, 0.4], [0.0, 1.0]])),
    ],
    ids=["not square", "hears itself", "weight without arc", "no own weight", "row sum"],
)
def test_a_graph_that_breaks_its_contract_is_refused(hears: torch.Tensor, mixing: torch.Tensor) -> None:
    with pytest.raises(GraphError):
        MatrixGraph(hears.bool(), mixing.double())
