"""Topologies by shape: their edges, node by node; weights and figures of a graph."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bymi import Graph, GraphError, InputError, ListGraph
from bymi.attacks import place
from bymi.cli import app
from bymi.core.mixing_weights import Weights, figures_of, weighted
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topology import (
    TOPOLOGIES,
    Chain,
    Circulant,
    DirectedErdosRenyi,
    Dumbbell,
    ErdosRenyi,
    Exponential,
    Geometric,
    Octopus,
    RingCastle,
    SmallWorld,
    Topology,
    Torus,
    TwoCliquesHub,
)
from bymi.experiment import load
from bymi.runs.run_setup import set_up_run

SHAPES = {
    name: entry for name, entry in TOPOLOGIES.items() if name not in ("erdos-renyi", "regular", "ring", "complete", "file")
}


def arcs(graph: Graph) -> set[tuple[int, int]]:
    """(receiver, sender) pairs."""
    return set(zip(*(ends.tolist() for ends in graph.arcs()), strict=True))


def literal(name: str, nodes: int) -> set[tuple[int, int]]:
    """Pairs i, j that are neighbours, from the definition of each shape."""
    half = nodes // 2

    def near(i: int, j: int) -> bool:
        low, high = min(i, j), max(i, j)
        circle = min(high - low, nodes - high + low)
        same_castle, next_castle = i // 4 == j // 4, (low // 4 + 1) % (nodes // 4) == high // 4
        last_castle = low // 4 == 0 and high // 4 == nodes // 4 - 1
        rows = next(r for r in (4, 3, 2) if nodes % r == 0)
        columns = nodes // rows
        (a, b), (c, d) = divmod(low, columns), divmod(high, columns)
        grid = (a == c and abs(b - d) in (1, columns - 1)) or (b == d and abs(a - c) in (1, rows - 1))
        leaves = {
            "chain": high - low == 1,
            "star": low == 0,
            "torus": grid,
            "circulant": circle <= 2,
            "binary-tree": high in (2 * low + 1, 2 * low + 2),
            "exponential": any((high - low) % nodes == 2**t or (low - high) % nodes == 2**t for t in range(5)),
            "hypercube": (low ^ high).bit_count() == 1,
            "two-castle": (low < half) == (high < half) or high - low != half,
            "ring-castle": same_castle
            or (next_castle and low % 4 >= 2 and high % 4 == low % 4 - 2)
            or (last_castle and high % 4 >= 2 and low % 4 == high % 4 - 2),
            "octopus": high < half or high - low == half,
            "dumbbell": (low < half) == (high < half) or (low, high) == (0, nodes - 1),
        }
        return leaves[name]

    return {(i, j) for i in range(nodes) for j in range(nodes) if i != j and near(i, j)}


@pytest.mark.parametrize(
    "name",
    [
        *("chain", "star", "torus", "circulant", "binary-tree", "exponential", "hypercube", "two-castle", "ring-castle"),
        *("octopus", "dumbbell"),
    ],
)
def test_a_shape_has_the_edges_of_its_definition(name: str) -> None:
    assert arcs(TOPOLOGIES[name]().draw(16)) == literal(name, 16)


def test_a_hub_joins_two_cliques_and_has_leaves() -> None:
    graph = TwoCliquesHub(leaves=3).draw(14)
    assert graph.hears.sum(1).tolist() == [5, 5, 4, 4, 4, 4, 5, 4, 4, 4, 4, 1, 1, 1]
    byzantine = place(graph, 3, "last", seed=0)
    assert byzantine.nonzero().flatten().tolist() == [11, 12, 13]
    ends = Dumbbell(leaves=2).draw(12).hears.sum(1)
    assert ends.tolist() == [3 + 1 + 2, 3, 3, 3, 3, 3, 3, 3 + 1 + 2, 1, 1, 1, 1]


def test_published_weights_of_dumbbell_and_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """He et al. 2022: 1 / (q + q_b + 1 + r) on every arc of a dumbbell with r random edges; delta / (b + 3) beside a hub."""
    recipes = Dumbbell(leaves=2, random_edges=3, equal_weights=True), TwoCliquesHub(leaves=3, delta=0.5)
    for size, name in ((None, "matrices"), (1, "lists")):
        if size is not None:
            monkeypatch.setattr(LIMITS, "lists_from", size)
            monkeypatch.setattr(LIMITS, "nodes_per_place", 0)
        drawn = recipes[0].draw(12, seed=4)
        mixing = (drawn.dense() if isinstance(drawn, ListGraph) else drawn).mixing.numpy()
        expected = np.zeros((12, 12))
        for i, j in arcs(drawn):
            expected[i, j] = 1 / (4 + 2 + 1 + 3)
        np.testing.assert_allclose(mixing, expected + np.diag(1 - expected.sum(1)), rtol=0, atol=1e-15, err_msg=name)
        added = arcs(drawn) - arcs(Dumbbell(leaves=2).draw(12))
        assert len(added) == 2 * 3
        assert all({i // 4, j // 4} == {0, 1} for i, j in added), "between the cliques"
        assert added != arcs(recipes[0].draw(12, seed=5)) - arcs(Dumbbell(leaves=2).draw(12))

        drawn = recipes[1].draw(14)
        mixing = (drawn.dense() if isinstance(drawn, ListGraph) else drawn).mixing.numpy()
        plain = TwoCliquesHub(leaves=3).draw(14)
        before = (plain.dense() if isinstance(plain, ListGraph) else plain).mixing.numpy()
        for leaf in (11, 12, 13):
            assert mixing[0, leaf] == mixing[leaf, 0] == pytest.approx(0.5 / 6)
        np.testing.assert_array_equal(
            mixing[1:11, 1:11] - np.diag(np.diag(mixing)[1:11]), before[1:11, 1:11] - np.diag(np.diag(before)[1:11])
        )
        np.testing.assert_allclose(mixing.sum(1), 1, rtol=0, atol=1e-15)
    with pytest.raises(InputError, match=r"^random_edges: got 16, allowed: fewer than 16"):
        Dumbbell(random_edges=16).draw(8)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_connected_the_same_for_a_seed_and_the_same_as_lists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe: Topology = {"geometric": Geometric(0.5), "two-cliques": TwoCliquesHub(3)}.get(name) or SHAPES[name]()
    dense = recipe.draw(16, seed=2)
    assert figures_of(dense).diameter is not None, "strongly connected"
    assert dense.symmetric == (name != "directed")
    assert torch.equal(recipe.draw(16, seed=2).hears, dense.hears)
    if name == "directed":
        return  # matrices only
    monkeypatch.setattr(LIMITS, "lists_from", 1)
    monkeypatch.setattr(LIMITS, "nodes_per_place", 0)
    lists = recipe.draw(16, seed=2)
    assert isinstance(lists, ListGraph)
    assert torch.equal(lists.dense().mixing, dense.mixing)


def test_random_shapes_are_those_of_their_parameters() -> None:
    lattice = SmallWorld(degree=4, rewire=0.0).draw(20, seed=1)
    assert arcs(lattice) == arcs(Circulant(4).draw(20))
    assert arcs(SmallWorld(degree=4, rewire=0.5).draw(20, seed=1)) != arcs(lattice)
    assert int(Geometric(1.5).draw(9).hears.sum()) == 72, "all pairs of the unit square are that near"
    part = torch.arange(30) < 20
    hears = DirectedErdosRenyi(0.2).draw(30, seed=3, must_connect=part).hears
    for block in (hears, hears[part][:, part]):
        assert nx.is_strongly_connected(nx.from_numpy_array(block.numpy(), create_using=nx.DiGraph))
    directed = Exponential(directed=True).draw(10)
    assert {sender for receiver, sender in arcs(directed) if receiver == 0} == {9, 8, 6, 2}


@pytest.mark.parametrize(
    ("recipe", "nodes", "key"),
    [
        *((Torus(), 13, "nodes"), (Torus(rows=5), 16, "rows"), (TOPOLOGIES["hypercube"](), 12, "nodes")),
        *((Circulant(3), 10, "degree"), (Octopus(), 7, "nodes"), (RingCastle(), 10, "nodes"), (Dumbbell(4), 10, "leaves")),
        *((TwoCliquesHub(2), 14, "leaves"), (Geometric(0.01), 30, "graph.radius"), (Chain(), 1, "nodes")),
    ],
)
def test_a_number_of_nodes_that_does_not_fit_is_one_line(recipe: Topology, nodes: int, key: str) -> None:
    with pytest.raises((InputError, GraphError)) as refused:
        recipe.draw(nodes)
    assert str(refused.value).startswith(f"{key}: got")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["metropolis", "max-degree", "uniform", "lazy"])
def test_weights_arc_by_arc(kind: Weights) -> None:
    graph = ErdosRenyi(0.4).draw(12, seed=4)
    degree = graph.hears.sum(1).tolist()
    expected = np.zeros((12, 12))
    for i in range(12):
        for j in range(12):
            if graph.hears[i, j]:
                metropolis = 1 / (1 + max(degree[i], degree[j]))
                values = {"metropolis": metropolis, "max-degree": 1 / (1 + max(degree)), "uniform": 1 / (1 + degree[i])}
                expected[i, j] = {**values, "lazy": metropolis / 2}[kind]
        expected[i, i] = 1 - expected[i].sum()
    found = weighted(graph, kind)
    np.testing.assert_allclose(found.mixing.numpy(), expected, rtol=0, atol=1e-15)
    lists = weighted(ListGraph.of_graph(graph), kind)
    assert isinstance(lists, ListGraph)
    assert torch.allclose(lists.dense().mixing, found.mixing, rtol=0, atol=1e-15)
    assert torch.allclose(found.mixing.sum(0), torch.ones(12, dtype=torch.float64)) == (kind != "uniform")


def test_a_spec_names_weights_and_older_specs_keep_their_digest() -> None:
    words = ["method=rule", "nodes=12", "data.samples=20"]
    plain, lazy = load(None, words), load(None, [*words, "weights=lazy"])
    assert "weights" not in plain.resolved.values
    assert plain.digest != lazy.digest
    graphs = [set_up_run(spec.resolved).graph for spec in (plain, lazy)]
    assert torch.allclose(graphs[1].self_weight, (1 + graphs[0].self_weight) / 2)


def test_figures_of_a_ring_are_known() -> None:
    """Metropolis weights of a ring are 1/3: eigenvalues (1 + 2 cos(2 pi k / n)) / 3."""
    figures = figures_of(TOPOLOGIES["ring"]().draw(12))
    assert (figures.least_degree, figures.largest_degree, figures.mean_degree, figures.diameter) == (2, 2, 2.0, 6)
    assert figures.spectral_gap == pytest.approx(1 - (1 + 2 * math.cos(2 * math.pi / 12)) / 3)


def test_the_list_of_topologies_shows_degree_gap_and_diameter() -> None:
    shown = CliRunner().invoke(app, ["list", "topologies", "--nodes", "12"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    lines = {line.split()[0]: line for line in shown.output.splitlines() if line.split()}
    assert lines["ring"].split()[1:4] == ["2", "0.089", "6"]
    assert "a power of two" in shown.output, "a hypercube of 12 nodes has none, and says why"
    assert set(TOPOLOGIES) - {"file"} <= set(lines)
