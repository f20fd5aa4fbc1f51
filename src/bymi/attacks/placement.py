"""Placement of Byzantine nodes on a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import networkx as nx
import torch
from torch import Tensor

from bymi.core.errors import GraphError
from bymi.core.graph import Graph, connected
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.random_streams import Stream, stream

_SOURCES = 1000  # sources of the shortest paths that are counted

Placement = Literal["random", "high-degree", "neighbourhood", "cut-vertex", "last"]


def place(graph: Graph, count: int, how: Placement, *, seed: int) -> Tensor:
    """Mask [M] of the `count` nodes that the placement ranks first, such that all others stay connected among themselves.

    A candidate whose removal would disconnect the others is skipped for the next one.
    """
    undirected = _undirected(graph)
    if not connected(undirected, torch.ones(graph.size, dtype=torch.bool)):
        raise GraphError(f"byzantine_placement: got {how!r} on a graph that is not connected, allowed: a connected graph")
    order = PLACEMENTS[how](undirected.lists, stream(seed, "roles"))
    chosen = torch.zeros(graph.size, dtype=torch.bool)
    chosen[order[:count]] = True
    if connected(undirected, ~chosen):
        return chosen
    chosen = torch.zeros_like(chosen)
    for _ in range(count):
        # A connected graph stays connected without a leaf of a spanning tree, so there is always a candidate.
        for node in order[~chosen[order]].tolist():
            chosen[node] = True
            if connected(undirected, ~chosen):
                break
            chosen[node] = False
    return chosen


def _undirected(graph: Graph) -> ListGraph:
    """The graph with every arc in both directions."""
    arcs = torch.stack(graph.arcs(), 1)
    both = torch.cat([arcs, arcs.flip(1)]).unique(dim=0)
    return ListGraph.of_arcs(both[:, 0], both[:, 1], graph.size)


def _random(links: NeighbourLists, draws: Stream) -> Tensor:
    return draws.permutation(len(links.index))


def _high_degree(links: NeighbourLists, draws: Stream) -> Tensor:
    order = draws.permutation(len(links.index))
    return order[torch.argsort(links.mask.sum(1)[order], descending=True, stable=True)]


def _neighbourhood(links: NeighbourLists, draws: Stream) -> Tensor:
    """The neighbours of the node drawn first, then all others, that node last."""
    order = draws.permutation(len(links.index))
    middle, rest = order[:1], order[1:]
    near = torch.isin(rest, links.index[middle][links.mask[middle]])
    return torch.cat([rest[near], rest[~near], middle])


def _cut_vertex(links: NeighbourLists, draws: Stream) -> Tensor:
    """By betweenness: how many shortest paths go through a node; on a large graph, of those from a sample of sources."""
    size = len(links.index)
    order = draws.permutation(size)
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(zip(*(ends.tolist() for ends in links.flat), strict=True))
    between = nx.betweenness_centrality(graph, k=None if size <= _SOURCES else _SOURCES, seed=int(order[0]))
    values = torch.tensor([between[node] for node in range(size)], dtype=torch.float64)
    return order[torch.argsort(values[order], descending=True, stable=True)]


def _last(links: NeighbourLists, draws: Stream) -> Tensor:
    """The largest number first: leaves of topologies that are made for a few Byzantine nodes."""
    return torch.arange(len(links.index) - 1, -1, -1)


PLACEMENTS: dict[Placement, Callable[[NeighbourLists, Stream], Tensor]] = {
    "random": _random,
    "high-degree": _high_degree,
    "neighbourhood": _neighbourhood,
    "cut-vertex": _cut_vertex,
    "last": _last,
}
"""Each orders all nodes [M], the best place for an attacker first."""
