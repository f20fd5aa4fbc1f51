"""Ways to draw a graph. To add one: write it and list it in TOPOLOGIES."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

from bymi.errors import GraphError, require
from bymi.graph import Graph
from bymi.streams import stream

_DRAWS = 1000


class Topology(ABC):
    """A recipe for a graph of a given size."""

    @abstractmethod
    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        """A graph of `nodes` nodes. `must_connect` [M] bool marks a part that should be connected on its own."""


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Each pair is joined with probability p; drawn again until the whole and the part marked are both connected.

    Paper: asp:scc_graph.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.p <= 1, "p", self.p, "0 < p <= 1")

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        part = torch.ones(nodes, dtype=torch.bool) if must_connect is None else must_connect
        above = torch.triu(torch.ones(nodes, nodes, dtype=torch.bool), diagonal=1)
        for attempt in range(_DRAWS):
            upper = (stream(seed, "graph", step=attempt).uniform(nodes, nodes) < self.p) & above
            hears = upper | upper.T
            if _connected(hears) and _connected(hears[part][:, part]):
                return Graph.from_hears(hears)
        raise GraphError(f"graph.p: got {self.p}, no connected graph of {nodes} nodes in {_DRAWS} draws; allowed: a larger p")


@dataclass(frozen=True)
class Ring(Topology):
    """Each node hears its two neighbours on a circle."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        require(nodes >= 3, "nodes", nodes, "3 or more on a ring")
        return Graph.from_networkx(nx.cycle_graph(nodes))


@dataclass(frozen=True)
class Complete(Topology):
    """Everybody hears everybody."""

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        require(nodes >= 2, "nodes", nodes, "2 or more")
        return Graph.from_networkx(nx.complete_graph(nodes))


@dataclass(frozen=True)
class EdgeFile(Topology):
    """A graph from a text file with one edge `u v` a line; `directed`: v hears u, else both hear each other."""

    path: str
    directed: bool = False

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        graph = Graph.read(self.path, directed=self.directed)
        require(graph.size == nodes, "nodes", nodes, f"{graph.size}, the number of nodes in {self.path}")
        require(_connected(graph.hears | graph.hears.T), "graph.path", self.path, "a file with a connected graph")
        return graph


TOPOLOGIES: dict[str, type[Topology]] = {
    "erdos-renyi": ErdosRenyi,
    "ring": Ring,
    "complete": Complete,
    "file": EdgeFile,
}

ALIASES: dict[str, str] = {"er": "erdos-renyi"}


def _connected(hears: Tensor) -> bool:
    return len(hears) > 0 and nx.is_connected(nx.from_numpy_array(hears.numpy()))
