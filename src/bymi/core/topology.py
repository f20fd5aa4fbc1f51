"""Topologies: ways to draw a graph. To add one, write a class and list it in TOPOLOGIES."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import torch
from torch import Tensor

from bymi.core import topology_shapes as shapes
from bymi.core.errors import GraphError, require
from bymi.core.graph import Graph, read_edges
from bymi.core.list_graph import ListGraph, connected, lists_pay
from bymi.core.named_parts import Table
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.random_streams import Stream, stream
from bymi.core.topology_base import Topology as Topology
from bymi.core.topology_base import check_draw

_DRAWS = 1000


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Each pair is joined with probability p; drawn again until the graph and the `must_connect` subset are both connected.

    Paper: asp:scc_graph.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.p <= 1, "p", self.p, "0 < p <= 1")

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        part = torch.ones(nodes, dtype=torch.bool) if must_connect is None else must_connect
        # The longest list is not known yet: estimated as 1.5 times the mean degree.
        if lists_pay(nodes, math.ceil(1.5 * self.p * nodes)):
            return self._draw_sparse(nodes, seed, part)
        above = torch.triu(torch.ones(nodes, nodes, dtype=torch.bool), diagonal=1)
        for attempt in range(_DRAWS):
            upper = (stream(seed, "graph", step=attempt).uniform(nodes, nodes) < self.p) & above
            hears = upper | upper.T
            if _connected(hears) and _connected(hears[part][:, part]):
                return Graph.from_hears(hears)
        raise GraphError(self._never(nodes))

    def _draw_sparse(self, nodes: int, seed: int, part: Tensor) -> ListGraph:
        """A graph in time and memory that grow with the edges; not the same draw as with matrices."""
        for attempt in range(_DRAWS):
            graph = ListGraph.of_edges(_pairs(stream(seed, "graph", step=attempt), nodes, self.p), nodes)
            if connected(graph.lists, torch.ones_like(part)) and connected(graph.lists, part):
                return graph
        raise GraphError(self._never(nodes))

    def _never(self, nodes: int) -> str:
        return f"graph.p: got {self.p}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: a larger p"


@dataclass(frozen=True)
class Regular(Topology):
    """Each node has `degree` neighbours; drawn again until the graph and the `must_connect` subset are both connected."""

    degree: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.degree >= 2, "degree", self.degree, "2 or more")

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        fits = self.degree < nodes and self.degree * nodes % 2 == 0
        require(fits, "degree", self.degree, f"below the number of nodes, {nodes}, and an even number of arcs in all")
        part = torch.ones(nodes, dtype=torch.bool) if must_connect is None else must_connect
        for attempt in range(_DRAWS):
            drawn = nx.random_regular_graph(
                self.degree, nodes, seed=int(stream(seed, "graph", step=attempt).integers(1 << 32, 1))
            )
            ends = torch.tensor(sorted(map(sorted, drawn.edges())), dtype=torch.int64)
            graph = ListGraph.of_edges(ends, nodes)
            if connected(graph.lists, torch.ones_like(part)) and connected(graph.lists, part):
                return graph if lists_pay(nodes, self.degree) else graph.dense()
        raise GraphError(
            f"graph.degree: got {self.degree}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: more"
        )


@dataclass(frozen=True)
class Ring(Topology):
    """Each node hears its two neighbours on a circle."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        require(nodes >= 3, "nodes", nodes, "3 or more on a ring")
        if lists_pay(nodes, 2):
            node = torch.arange(nodes)
            return ListGraph.of_edges(torch.stack([node, (node + 1) % nodes], 1), nodes)
        return Graph.from_networkx(nx.cycle_graph(nodes))


@dataclass(frozen=True)
class Complete(Topology):
    """Every node hears every other node."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        check_draw(nodes, seed, must_connect)
        require(nodes >= 2, "nodes", nodes, "2 or more")
        return Graph.from_networkx(nx.complete_graph(nodes))


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
        whole = connected(NeighbourLists.of_arcs(both[:, 0], both[:, 1], size), torch.ones(size, dtype=torch.bool))
        require(whole, "graph.path", self.path, "a file with a connected graph")
        graph = ListGraph.of_arcs(arcs[:, 0], arcs[:, 1], size)
        return graph if lists_pay(size, graph.lists.at.shape[1]) else Graph.read(self.path, directed=self.directed)


_TOPOLOGIES: dict[str, type[Topology]] = {
    "erdos-renyi": ErdosRenyi,
    "regular": Regular,
    "ring": Ring,
    "complete": Complete,
    "chain": shapes.Chain,
    "star": shapes.Star,
    "torus": shapes.Torus,
    "circulant": shapes.Circulant,
    "small-world": shapes.SmallWorld,
    "binary-tree": shapes.BinaryTree,
    "exponential": shapes.Exponential,
    "hypercube": shapes.Hypercube,
    "two-castle": shapes.TwoCastle,
    "ring-castle": shapes.RingCastle,
    "octopus": shapes.Octopus,
    "dumbbell": shapes.Dumbbell,
    "two-cliques": shapes.TwoCliquesHub,
    "geometric": shapes.Geometric,
    "directed": shapes.DirectedErdosRenyi,
    "file": EdgeFile,
}
TOPOLOGIES: Table[Topology] = Table(Topology, _TOPOLOGIES, "bymi.topologies")

ALIASES: dict[str, str] = {"er": "erdos-renyi", "line": "chain", "watts-strogatz": "small-world", "tree": "binary-tree"}


def _connected(hears: Tensor) -> bool:
    return len(hears) > 0 and nx.is_connected(nx.from_numpy_array(hears.numpy()))


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
