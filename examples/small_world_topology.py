"""A topology: a ring of neighbours with some edges rewired. `graph = "small_world_topology:SmallWorld:degree=6"`."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
from torch import Tensor

from bymi import Graph
from bymi.core.topology import Topology


@dataclass(frozen=True)
class SmallWorld(Topology):
    """Each node is joined to its `degree` nearest ones on a ring; edges are rewired with probability `p`."""

    degree: int = 8
    p: float = 0.3

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        return Graph.from_networkx(nx.connected_watts_strogatz_graph(nodes, self.degree, self.p, seed=seed))
