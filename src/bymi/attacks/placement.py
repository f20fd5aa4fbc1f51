"""Where on the graph Byzantine nodes stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import networkx as nx
import torch
from torch import Tensor

from bymi.errors import GraphError
from bymi.graph import Graph
from bymi.streams import Stream, stream

Placement = Literal["random", "high-degree", "neighbourhood", "cut-vertex"]


def place(graph: Graph, count: int, how: Placement, *, seed: int) -> Tensor:
    """`count` nodes [M] bool, those that the placement likes best, such that all others stay connected among themselves.

    A candidate whose loss would break the others apart is passed over for the next one.
    """
    links = graph.hears | graph.hears.T
    if not _connected(links, torch.ones(graph.size, dtype=torch.bool)):
        raise GraphError(f"byzantine_placement: got {how!r} on a graph that is not connected, allowed: a connected graph")
    order = PLACEMENTS[how](links, stream(seed, "roles"))
    chosen = torch.zeros(graph.size, dtype=torch.bool)
    chosen[order[:count]] = True
    if _connected(links, ~chosen):
        return chosen
    chosen = torch.zeros_like(chosen)
    for _ in range(count):
        # A connected graph keeps together without the last leaf of any of its spanning trees: somebody is always found.
        for node in order[~chosen[order]].tolist():
            chosen[node] = True
            if _connected(links, ~chosen):
                break
            chosen[node] = False
    return chosen


def _random(links: Tensor, draws: Stream) -> Tensor:
    return draws.permutation(len(links))


def _high_degree(links: Tensor, draws: Stream) -> Tensor:
    order = draws.permutation(len(links))
    return order[torch.argsort(links.sum(1)[order], descending=True, stable=True)]


def _neighbourhood(links: Tensor, draws: Stream) -> Tensor:
    """The neighbours of the node drawn first, then all others; that node itself comes last."""
    order = draws.permutation(len(links))
    middle, rest = order[:1], order[1:]
    near = links[middle[0], rest]
    return torch.cat([rest[near], rest[~near], middle])


def _cut_vertex(links: Tensor, draws: Stream) -> Tensor:
    """By betweenness: how many shortest paths go through a node."""
    order = draws.permutation(len(links))
    graph: nx.Graph[Any] = nx.from_numpy_array(links.numpy())
    between = nx.betweenness_centrality(graph)
    values = torch.tensor([between[node] for node in range(len(links))], dtype=torch.float64)
    return order[torch.argsort(values[order], descending=True, stable=True)]


PLACEMENTS: dict[Placement, Callable[[Tensor, Stream], Tensor]] = {
    "random": _random,
    "high-degree": _high_degree,
    "neighbourhood": _neighbourhood,
    "cut-vertex": _cut_vertex,
}
"""Each orders all nodes [M], the best place for an attacker first."""


def _connected(links: Tensor, part: Tensor) -> bool:
    """Whether a part of the nodes [M] bool hangs together without the others."""
    inside = links[part][:, part]
    seen = torch.zeros(len(inside), dtype=torch.bool)
    seen[:1] = True
    front = seen
    while bool(front.any()):
        front = inside[front].any(0) & ~seen
        seen = seen | front
    return len(inside) > 0 and bool(seen.all())
