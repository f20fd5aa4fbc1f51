"""Mixing weights of a graph by name, and what a graph's weights say about how fast nodes agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import networkx as nx
import torch

from bymi.core.graph import Graph

Weights = Literal["metropolis", "max-degree", "uniform", "lazy"]

WEIGHTS: dict[Weights, str] = {
    "metropolis": "1 / (1 + max(d_i, d_j)) per arc, d the number of nodes heard; the rest of a row is on the own vector.",
    "max-degree": "1 / (1 + largest d) per arc.",
    "uniform": "1 / (1 + d_i) per arc; columns need not sum to one.",
    "lazy": "Half of the Metropolis weights, and half more on the own vector.",
}
"""What each is. Rows sum to one."""

LARGEST = 2000
"""Nodes up to which spectral gap and diameter are computed."""


def weighted(graph: Graph, kind: Weights) -> Graph:
    """The same arcs with weights of a kind."""
    degree = graph.hears.sum(1, dtype=torch.float64)
    own, other = degree[:, None], graph.at_places(degree)
    if kind == "uniform":
        weight = graph.hears / (1 + own)
    elif kind == "max-degree":
        weight = graph.hears / (1 + degree.max())
    else:
        weight = graph.hears / (1 + torch.maximum(own, other))
    if kind == "lazy":
        weight = weight / 2
    return graph.with_weights(weight)


@dataclass(frozen=True)
class GraphFigures:
    """Degrees, spectral gap and diameter of a graph; None for what a large or unconnected graph does not have."""

    nodes: int
    least_degree: int
    mean_degree: float
    largest_degree: int
    spectral_gap: float | None  # 1 - second largest modulus of an eigenvalue of the mixing matrix
    diameter: int | None


def figures_of(graph: Graph) -> GraphFigures:
    """The figures of a graph, by matrices."""
    degree = graph.hears.sum(1)
    gap = diameter = None
    if graph.size <= LARGEST:
        everyone = torch.ones(graph.size, dtype=torch.bool, device=graph.hears.device)
        moduli = torch.linalg.eigvals(graph.block(everyone)).abs().sort().values
        gap = float(1 - moduli[-2]) if graph.size > 1 else 1.0
        arcs = graph.to_networkx()
        diameter = nx.diameter(arcs) if nx.is_strongly_connected(arcs) else None
    return GraphFigures(graph.size, int(degree.min()), float(degree.double().mean()), int(degree.max()), gap, diameter)
