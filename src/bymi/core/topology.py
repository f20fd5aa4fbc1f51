"""Topologies: ways to draw a graph. To add one, write a class and list it in TOPOLOGIES."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import networkx as nx
import torch
from torch import Tensor

from bymi.core.errors import GraphError, is_integer, require
from bymi.core.graph import Graph, connected, read_edges
from bymi.core.list_graph import ListGraph, lists_pay
from bymi.core.named_parts import Checked, Table, bounded
from bymi.core.random_streams import Stream, stream

_DRAWS = 1000

Edges = list[tuple[int, int]]


class Topology(Checked, ABC):
    """A method to draw a graph of a given size."""

    @abstractmethod
    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        """A graph of `nodes` nodes. `must_connect` [M] bool marks a subset that must be connected on its own."""


def check_draw(nodes: int, seed: int, must_connect: Tensor | None) -> None:
    """Raise an InputError unless these are arguments of `draw`."""
    require(is_integer(nodes) and nodes >= 1, "nodes", nodes, "an integer, 1 or more")
    require(is_integer(seed), "seed", seed, "an integer")
    if must_connect is not None:
        mask = isinstance(must_connect, Tensor) and must_connect.dtype == torch.bool and must_connect.shape == (nodes,)
        require(mask, "must_connect", must_connect, f"a mask [{nodes}] of torch.bool, or None")


class Shape(Topology):
    """A topology whose edges follow from the number of nodes."""

    @abstractmethod
    def edges(self, nodes: int) -> Edges:
        """Edges {i, j}; an edge may be listed twice."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        return graph_of(self.edges(nodes), nodes)


class Drawn(Topology):
    """A random topology, drawn again until the graph and the `must_connect` subset are both connected.

    Paper: asp:scc_graph. `density` names the field with which the number of edges grows.
    """

    density: ClassVar[str]

    @abstractmethod
    def sample(self, nodes: int, draws: Stream) -> Graph:
        """One draw, connected or not."""

    def connects(self, graph: Graph, part: Tensor) -> bool:
        """Whether a drawn graph connects the nodes in `part` [M] bool among themselves."""
        return connected(graph, part)

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        everyone = torch.ones(nodes, dtype=torch.bool)
        for attempt in range(_DRAWS):
            graph = self.sample(nodes, stream(seed, "graph", step=attempt))
            if self.connects(graph, everyone) and (must_connect is None or self.connects(graph, must_connect)):
                return graph
        got = f"graph.{self.density}: got {getattr(self, self.density)}"
        raise GraphError(f"{got}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: more")


def graph_of(edges: Edges, nodes: int) -> Graph:
    """The undirected graph with Metropolis weights, as lists where these are smaller."""
    unique = sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]})
    return ListGraph.of_edges(torch.tensor(unique, dtype=torch.int64).reshape(-1, 2), nodes).compact()


def _clique(first: int, size: int) -> Edges:
    return list(combinations(range(first, first + size), 2))


@dataclass(frozen=True)
class ErdosRenyi(Drawn):
    """Each pair is joined with probability p."""

    density: ClassVar[str] = "p"

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.p <= 1, "p", self.p, "0 < p <= 1")

    def sample(self, nodes: int, draws: Stream) -> Graph:
        # The longest list is not known yet: estimated as 1.5 times the mean degree.
        if lists_pay(nodes, math.ceil(1.5 * self.p * nodes)):
            return ListGraph.of_edges(_pairs(draws, nodes, self.p), nodes)
        upper = (draws.uniform(nodes, nodes) < self.p).triu(1)
        return Graph.from_hears(upper | upper.T)


@dataclass(frozen=True)
class DirectedErdosRenyi(Drawn):
    """Each node hears each other one with probability p; drawn again until all nodes hear each other over paths."""

    density: ClassVar[str] = "p"
    directed: ClassVar[bool] = True

    p: float = bounded(0.5, gt=0, le=1)

    def sample(self, nodes: int, draws: Stream) -> Graph:
        return Graph.from_hears((draws.uniform(nodes, nodes) < self.p) & ~torch.eye(nodes, dtype=torch.bool))

    def connects(self, graph: Graph, part: Tensor) -> bool:
        hears = graph.hears[part][:, part]
        return len(hears) > 0 and bool(Graph.from_hears(hears).core().members.all())


@dataclass(frozen=True)
class Regular(Drawn):
    """Each node has `degree` neighbours, drawn at random."""

    density: ClassVar[str] = "degree"

    degree: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.degree >= 2, "degree", self.degree, "2 or more")

    def sample(self, nodes: int, draws: Stream) -> Graph:
        fits = self.degree < nodes and self.degree * nodes % 2 == 0
        require(fits, "degree", self.degree, f"below the number of nodes, {nodes}, and an even number of arcs in all")
        seed = int(draws.integers(1 << 32, 1))
        return graph_of(list(nx.random_regular_graph(self.degree, nodes, seed=seed).edges()), nodes)


@dataclass(frozen=True)
class Ring(Shape):
    """Each node hears its two neighbours on a circle."""

    def edges(self, nodes: int) -> Edges:
        require(nodes >= 3, "nodes", nodes, "3 or more on a ring")
        return [(node, (node + 1) % nodes) for node in range(nodes)]


@dataclass(frozen=True)
class Complete(Topology):
    """Every node hears every other node."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        require(nodes >= 2, "nodes", nodes, "2 or more")
        return Graph.from_hears(~torch.eye(nodes, dtype=torch.bool))


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
class SmallWorld(Drawn):
    """A circulant graph of which each edge is rewired with probability `rewire` (Watts, Strogatz 1998)."""

    density: ClassVar[str] = "degree"

    degree: int = bounded(6, ge=2)
    rewire: float = bounded(0.1, ge=0, le=1)

    def sample(self, nodes: int, draws: Stream) -> Graph:
        require(self.degree < nodes, "degree", self.degree, f"below the number of nodes, {nodes}")
        seed = int(draws.integers(1 << 32, 1))
        return graph_of(list(nx.watts_strogatz_graph(nodes, self.degree, self.rewire, seed=seed).edges()), nodes)


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
        return ListGraph.of_arcs(arcs[:, 0], arcs[:, 1], nodes).compact()


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

    Leaves have the last numbers: `byzantine_placement` = "last" makes them Byzantine. `random_edges`: further edges between
    the cliques. `equal_weights`: the published weights, 1 / (q + leaves + random_edges + 1) for every arc with cliques of q
    nodes, the rest on the own vector; else Metropolis weights.
    """

    leaves: int = bounded(0, ge=0)
    random_edges: int = bounded(0, ge=0)
    equal_weights: bool = False

    def edges(self, nodes: int) -> Edges:
        q = (nodes - 2 * self.leaves) // 2
        require(nodes % 2 == 0 and q >= 2, "leaves", self.leaves, f"two equal cliques of 2 or more in {nodes} nodes")
        ends = (0, 2 * q - 1)
        leaves = [(ends[leaf % 2], 2 * q + leaf) for leaf in range(2 * self.leaves)]
        return _clique(0, q) + _clique(q, q) + [ends] + leaves

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        edges, q = self.edges(nodes), (nodes - 2 * self.leaves) // 2
        require(self.random_edges < q * q, "random_edges", self.random_edges, f"fewer than {q * q} between cliques of {q}")
        if self.random_edges:
            pairs = [divmod(pair, q) for pair in stream(seed, "graph").permutation(q * q).tolist()]
            edges += [(i, q + j) for i, j in pairs if (i, j) != (0, q - 1)][: self.random_edges]
        graph = graph_of(edges, nodes)
        if not self.equal_weights:
            return graph
        weight = graph.hears.to(torch.float64) / (q + self.leaves + self.random_edges + 1)
        return graph.with_weights(weight)


@dataclass(frozen=True)
class TwoCliquesHub(Shape):
    """Two cliques joined through one hub, node 0, which has `leaves` further nodes (He et al. 2022).

    The hub hears one node of each clique. Leaves have the last numbers: `byzantine_placement` = "last" makes them Byzantine.
    `delta`: their arcs from and to the hub weigh delta / (leaves + 3), of Metropolis weights 1 / (leaves + 3).
    """

    leaves: int = bounded(1, ge=0)
    delta: float = bounded(1.0, gt=0, le=1)

    def edges(self, nodes: int) -> Edges:
        size = (nodes - 1 - self.leaves) // 2
        fits = size >= 2 and 2 * size + 1 + self.leaves == nodes
        require(fits, "leaves", self.leaves, f"a hub and two equal cliques of 2 or more in {nodes} nodes")
        leaves = [(0, 1 + 2 * size + leaf) for leaf in range(self.leaves)]
        return _clique(1, size) + _clique(1 + size, size) + [(0, 1), (0, 1 + size)] + leaves

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        graph = super().draw(nodes, seed=seed, must_connect=must_connect)
        if self.delta == 1:
            return graph
        leaf = torch.arange(nodes) >= nodes - self.leaves
        weight = torch.where(leaf[:, None] | graph.at_places(leaf), self.delta * graph.weight, graph.weight)
        return graph.with_weights(weight)


@dataclass(frozen=True)
class Geometric(Drawn):
    """Nodes at random places in the unit square, connected up to a distance `radius`."""

    density: ClassVar[str] = "radius"

    radius: float = bounded(0.25, gt=0, le=1.5)

    def sample(self, nodes: int, draws: Stream) -> Graph:
        places = draws.uniform(nodes, 2)
        near = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") <= self.radius
        return graph_of([(i, j) for i, j in near.triu(1).nonzero().tolist()], nodes)


@dataclass(frozen=True)
class EdgeFile(Topology):
    """A graph from a text file with one edge `u v` per line; `directed`: v hears u, else both hear each other."""

    path: str
    directed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.path, Path):
            object.__setattr__(self, "path", str(self.path))
        super().__post_init__()

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        arcs, size = read_edges(self.path, directed=self.directed)
        require(size == nodes, "nodes", nodes, f"{size}, the number of nodes in {self.path}")
        both = torch.cat([arcs, arcs.flip(1)]).unique(dim=0)
        undirected = ListGraph.of_arcs(both[:, 0], both[:, 1], size)
        whole = connected(undirected, torch.ones(size, dtype=torch.bool))
        require(whole, "graph.path", self.path, "a file with a connected graph")
        graph = ListGraph.of_arcs(arcs[:, 0], arcs[:, 1], size)
        return graph if lists_pay(size, graph.lists.index.shape[1]) else Graph.from_hears(graph.dense().hears)


_TOPOLOGIES: dict[str, type[Topology]] = {
    "erdos-renyi": ErdosRenyi,
    "regular": Regular,
    "ring": Ring,
    "complete": Complete,
    "chain": Chain,
    "star": Star,
    "torus": Torus,
    "circulant": Circulant,
    "small-world": SmallWorld,
    "binary-tree": BinaryTree,
    "exponential": Exponential,
    "hypercube": Hypercube,
    "two-castle": TwoCastle,
    "ring-castle": RingCastle,
    "octopus": Octopus,
    "dumbbell": Dumbbell,
    "two-cliques": TwoCliquesHub,
    "geometric": Geometric,
    "directed": DirectedErdosRenyi,
    "file": EdgeFile,
}
TOPOLOGIES: Table[Topology] = Table(Topology, _TOPOLOGIES, "bymi.topologies")

ALIASES: dict[str, str] = {"er": "erdos-renyi", "line": "chain", "watts-strogatz": "small-world", "tree": "binary-tree"}


def _pairs(draws: Stream, nodes: int, p: float) -> Tensor:
    """Pairs of nodes [E, 2], each drawn with probability p, by the gaps between them (Batagelj, Brandes 2005)."""
    total = nodes * (nodes - 1) // 2
    count = math.ceil(total * p + 10 * math.sqrt(total * p) + 10)
    gaps = torch.floor(torch.log(draws.uniform(count)) / math.log1p(-p)).to(torch.int64)
    number = torch.cumsum(gaps + 1, 0) - 1
    if int(number[-1]) < total:  # beyond ten standard deviations
        raise GraphError(f"graph.p: got {p}, drew too few of {total} pairs; allowed: another seed")
    number = number[number < total]
    # Pair (larger, smaller) has number larger (larger - 1) / 2 + smaller; the root may be off by one.
    larger = ((1 + torch.sqrt(1.0 + 8.0 * number.to(torch.float64))) / 2).to(torch.int64)
    larger = larger - (larger * (larger - 1) // 2 > number).to(torch.int64)
    larger = larger + ((larger + 1) * larger // 2 <= number).to(torch.int64)
    return torch.stack([larger, number - larger * (larger - 1) // 2], 1)
