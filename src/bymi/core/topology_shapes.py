"""Topologies by shape: edges follow from the number of nodes, or are drawn until the graph is connected."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import torch
from torch import Tensor

from bymi.core.errors import GraphError, require
from bymi.core.graph import Graph
from bymi.core.list_graph import ListGraph, connected, lists_pay
from bymi.core.named_parts import bounded
from bymi.core.random_streams import Stream, stream
from bymi.core.topology_base import Topology, check_draw

_DRAWS = 1000

Edges = list[tuple[int, int]]


class Shape(Topology):
    """A topology whose edges are listed by a function of the number of nodes."""

    @abstractmethod
    def edges(self, nodes: int) -> Edges:
        """Edges {i, j}; an edge may be listed twice."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        return graph_of(self.edges(nodes), nodes)


class DrawnShape(Topology):
    """A topology with random edges, drawn again until the graph and the `must_connect` subset are both connected."""

    @abstractmethod
    def drawn_edges(self, nodes: int, draws: Stream) -> Edges:
        """Edges {i, j}; an edge may be listed twice."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        everyone = torch.ones(nodes, dtype=torch.bool)
        for attempt in range(_DRAWS):
            edges = _tensor(self.drawn_edges(nodes, stream(seed, "graph", step=attempt)))
            graph = ListGraph.of_edges(edges, nodes)
            if connected(graph.lists, everyone) and (must_connect is None or connected(graph.lists, must_connect)):
                return graph if lists_pay(nodes, graph.lists.at.shape[1]) else graph.dense()
        raise GraphError(f"graph: got {self}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: more edges")


def graph_of(edges: Edges, nodes: int) -> Graph:
    """The graph with Metropolis weights, as lists where these are smaller."""
    graph = ListGraph.of_edges(_tensor(edges), nodes)
    return graph if lists_pay(nodes, graph.lists.at.shape[1]) else graph.dense()


def _tensor(edges: Edges) -> Tensor:
    """Edges [E, 2] in order, each once, without loops."""
    unique = sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]})
    return torch.tensor(unique, dtype=torch.int64).reshape(-1, 2)


def _clique(first: int, size: int) -> Edges:
    return list(combinations(range(first, first + size), 2))


@dataclass(frozen=True)
class Chain(Shape):
    """Nodes in a line: i - i + 1."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 2, "nodes", nodes, "2 or more in a chain")
        return [(node, node + 1) for node in range(nodes - 1)]


@dataclass(frozen=True)
class Star(Shape):
    """Node 0 in the centre, all others connected to it alone."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 2, "nodes", nodes, "2 or more in a star")
        return [(0, node) for node in range(1, nodes)]


@dataclass(frozen=True)
class Torus(Shape):
    """A grid whose rows and columns are rings; `rows` divides the number of nodes, by default as near its root as possible."""

    rows: int | None = bounded(None, ge=2)

    def edges(self, nodes: int) -> Edges:
        rows = self.rows or max((r for r in range(2, math.isqrt(nodes) + 1) if nodes % r == 0), default=0)
        fits = rows >= 2 and nodes % rows == 0 and nodes // rows >= 2
        key, got = ("nodes", nodes) if self.rows is None else ("rows", self.rows)
        require(fits, key, got, f"rows x columns = {nodes} nodes, both 2 or more")
        columns = nodes // rows
        right = [(node, node - node % columns + (node + 1) % columns) for node in range(nodes)]
        return right + [(node, (node + columns) % nodes) for node in range(nodes)]


@dataclass(frozen=True)
class Circulant(Shape):
    """Each node has the `degree` nearest nodes on a circle as neighbours: i - i +- 1, ..., i +- degree / 2."""

    degree: int = bounded(4, ge=2)

    def edges(self, nodes: int) -> Edges:
        fits = self.degree % 2 == 0 and self.degree < nodes
        require(fits, "degree", self.degree, f"an even number below the number of nodes, {nodes}")
        return [(node, (node + hop) % nodes) for node in range(nodes) for hop in range(1, self.degree // 2 + 1)]


@dataclass(frozen=True)
class SmallWorld(DrawnShape):
    """A circulant graph of which each edge is rewired with probability `rewire` (Watts, Strogatz 1998)."""

    degree: int = bounded(6, ge=2)
    rewire: float = bounded(0.1, ge=0, le=1)

    def drawn_edges(self, nodes: int, draws: Stream) -> Edges:
        require(self.degree < nodes, "degree", self.degree, f"below the number of nodes, {nodes}")
        seed = int(draws.integers(1 << 32, 1))
        return list(nx.watts_strogatz_graph(nodes, self.degree, self.rewire, seed=seed).edges())


@dataclass(frozen=True)
class BinaryTree(Shape):
    """Node i has the children 2 i + 1 and 2 i + 2."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 2, "nodes", nodes, "2 or more in a tree")
        return [((node - 1) // 2, node) for node in range(1, nodes)]


@dataclass(frozen=True)
class Exponential(Shape):
    """Node i is connected to i + 1, i + 2, i + 4, ... around a circle; `directed`: it only hears the nodes behind it."""

    directed: bool = False

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 3, "nodes", nodes, "3 or more")
        hops = [1 << power for power in range((nodes - 1).bit_length())]
        return [(node, (node + hop) % nodes) for node in range(nodes) for hop in hops]

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        if not self.directed:
            return super().draw(nodes, seed=seed, must_connect=must_connect)
        check_draw(nodes, seed, must_connect)
        arcs = torch.tensor(sorted({(to, node) for node, to in self.edges(nodes)}))
        graph = ListGraph.of_arcs(arcs[:, 0], arcs[:, 1], nodes)
        return graph if lists_pay(nodes, graph.lists.at.shape[1]) else graph.dense()


@dataclass(frozen=True)
class Hypercube(Shape):
    """Nodes whose numbers differ in one binary digit are connected; the number of nodes is a power of two."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 2 and nodes & (nodes - 1) == 0, "nodes", nodes, "a power of two on a hypercube")
        return [(node, node ^ (1 << digit)) for node in range(nodes) for digit in range(nodes.bit_length() - 1)]


@dataclass(frozen=True)
class TwoCastle(Shape):
    """Two cliques of k nodes, and all edges between them but i - i + k (Wu, Chen, Ling 2023)."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 6 and nodes % 2 == 0, "nodes", nodes, "an even number, 6 or more, of a two-castle graph")
        k = nodes // 2
        return _clique(0, k) + _clique(k, k) + [(i, j + k) for i in range(k) for j in range(k) if i != j]


@dataclass(frozen=True)
class RingCastle(Shape):
    """Four-cliques on a ring: nodes 2 and 3 of each are connected to nodes 0 and 1 of the next (Wu, Chen, Ling 2023)."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 8 and nodes % 4 == 0, "nodes", nodes, "a multiple of 4, 8 or more, of a ring-castle graph")
        castles = [edge for first in range(0, nodes, 4) for edge in _clique(first, 4)]
        return castles + [(first + 2 + i, (first + 4 + i) % nodes) for first in range(0, nodes, 4) for i in (0, 1)]


@dataclass(frozen=True)
class Octopus(Shape):
    """A clique of half of the nodes, each with one further node of its own, numbered after them (Wu, Chen, Ling 2023)."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 4 and nodes % 2 == 0, "nodes", nodes, "an even number, 4 or more, of an octopus graph")
        head = nodes // 2
        return _clique(0, head) + [(node, head + node) for node in range(head)]


@dataclass(frozen=True)
class Dumbbell(Shape):
    """Two cliques and a bridge between one node of each; both of these have `leaves` further nodes (He et al. 2022).

    Leaves have the last numbers: `byzantine_placement` = "last" makes them Byzantine.
    """

    leaves: int = bounded(0, ge=0)

    def edges(self, nodes: int) -> Edges:
        q = (nodes - 2 * self.leaves) // 2
        require(nodes % 2 == 0 and q >= 2, "leaves", self.leaves, f"two equal cliques of 2 or more in {nodes} nodes")
        ends = (0, 2 * q - 1)
        leaves = [(ends[leaf % 2], 2 * q + leaf) for leaf in range(2 * self.leaves)]
        return _clique(0, q) + _clique(q, q) + [ends] + leaves


@dataclass(frozen=True)
class TwoCliquesHub(Shape):
    """Two cliques joined through one hub, node 0, which has `leaves` further nodes (He et al. 2022).

    The hub hears one node of each clique. Leaves have the last numbers: `byzantine_placement` = "last" makes them Byzantine.
    """

    leaves: int = bounded(1, ge=0)

    def edges(self, nodes: int) -> Edges:
        size = (nodes - 1 - self.leaves) // 2
        fits = size >= 2 and 2 * size + 1 + self.leaves == nodes
        require(fits, "leaves", self.leaves, f"a hub and two equal cliques of 2 or more in {nodes} nodes")
        leaves = [(0, 1 + 2 * size + leaf) for leaf in range(self.leaves)]
        return _clique(1, size) + _clique(1 + size, size) + [(0, 1), (0, 1 + size)] + leaves


@dataclass(frozen=True)
class Geometric(DrawnShape):
    """Nodes at random places in the unit square, connected up to a distance `radius`."""

    radius: float = bounded(0.25, gt=0, le=1.5)

    def drawn_edges(self, nodes: int, draws: Stream) -> Edges:
        places = draws.uniform(nodes, 2)
        near = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") <= self.radius
        return [(int(i), int(j)) for i, j in near.triu(1).nonzero().tolist()]


@dataclass(frozen=True)
class DirectedErdosRenyi(Topology):
    """Each node hears each other one with probability p; drawn again until all nodes hear each other over paths."""

    p: float = bounded(0.5, gt=0, le=1)

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        apart = ~torch.eye(nodes, dtype=torch.bool)
        for attempt in range(_DRAWS):
            hears = (stream(seed, "graph", step=attempt).uniform(nodes, nodes) < self.p) & apart
            part = None if must_connect is None else hears[must_connect][:, must_connect]
            if strongly_connected(hears) and (part is None or strongly_connected(part)):
                return Graph.from_hears(hears)
        raise GraphError(f"graph.p: got {self.p}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: a larger p")


def strongly_connected(hears: Tensor) -> bool:
    """Whether every node hears every other over a path, from a mask of arcs [M, M]."""
    return len(hears) > 0 and bool(Graph.from_hears(hears).core().members.all())
