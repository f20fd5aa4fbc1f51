"""Graphs as neighbour lists: memory grows with the number of arcs instead of the square of the number of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import GraphError, is_integer, shown
from bymi.core.graph import Core, Graph, MatrixGraph, digraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.performance_thresholds import LIMITS

GraphLike = Any
"""A Graph, a networkx graph, or a square array whose entry [i, j] says whether i hears j."""

_ROW_TOLERANCE = 1e-9
_STEPS = 20_000  # of the power iteration: error about 1e-14 unless a few arcs connect the graph
_STILL = 1e-14  # relative change of an entry that counts as none


def lists_pay(size: int, longest: int) -> bool:
    """Whether a graph of `size` nodes with lists of up to `longest` places is stored as lists."""
    return size >= LIMITS.lists_from and LIMITS.nodes_per_place * longest <= size


@dataclass(frozen=True, eq=False)
class ListGraph(Graph):
    """A graph as neighbour lists: the node at each place, which places are arcs, and their weights.

    Places do not change when arcs are cut, so that tensors per place line up over a run. Lists are padded to the longest:
    memory is [M, largest degree], so a graph with a hub is better stored as a MatrixGraph.
    """

    knows_tracker_limit: ClassVar[bool] = True

    lists: NeighbourLists  # [M, n] all places; rows are receivers
    hears: Tensor  # [M, n] bool: arcs
    weight: Tensor  # [M, n] float64, zero without an arc
    self_weight: Tensor  # [M] float64

    def __post_init__(self) -> None:
        parts = (("hears", torch.bool, 2), ("weight", torch.float64, 2), ("self_weight", torch.float64, 1))
        if not isinstance(self.lists, NeighbourLists):
            raise GraphError(f"lists: got {shown(self.lists)}, allowed: NeighbourLists; ListGraph.of_edges takes edges")
        for name, dtype, dimensions in parts:
            part, shape = getattr(self, name), self.lists.index.shape[:dimensions]
            if not isinstance(part, Tensor) or part.dtype != dtype or part.shape != shape:
                raise GraphError(f"{name}: got {shown(part)}, allowed: a tensor {list(shape)} of {dtype}")
        if bool((self.hears & ~self.lists.mask).any()):
            raise GraphError("an arc needs a place in its receiver's list")
        if bool((self.weight[~self.hears] != 0).any()) or bool((self.weight < 0).any()):
            raise GraphError("mixing weights must be non-negative and zero without an arc")
        if not torch.all((self.weight.sum(1) + self.self_weight - 1).abs() < _ROW_TOLERANCE):
            raise GraphError("mixing weights must sum to one in each row")
        if not bool((self.self_weight > 0).all()):
            raise GraphError("every node needs a positive weight on itself")

    @staticmethod
    def of_arcs(receivers: Tensor, senders: Tensor, size: int) -> ListGraph:
        """A graph with Metropolis weights from arcs [E] without duplicates: receivers hear senders."""
        for name, ends in (("receivers", receivers), ("senders", senders)):
            _check_ends(name, ends, size)
        lists = NeighbourLists.of_arcs(receivers, senders, size)
        return ListGraph(lists, lists.mask, *_metropolis(lists, lists.mask))

    @staticmethod
    def of_edges(ends: Tensor, size: int) -> ListGraph:
        """A graph with Metropolis weights from undirected edges [E, 2]."""
        _check_ends("ends", ends, size)
        if ends.ndim != 2 or ends.shape[1] != 2:
            raise GraphError(f"ends: got {shown(ends)}, allowed: edges [E, 2]")
        one, two = ends.unbind(1)
        return ListGraph.of_arcs(torch.cat([one, two]), torch.cat([two, one]), size)

    @staticmethod
    def of_graph(graph: MatrixGraph) -> ListGraph:
        """The same arcs and weights as a MatrixGraph."""
        receivers, senders = graph.hears.nonzero(as_tuple=True)
        lists = NeighbourLists.of_arcs(receivers, senders, graph.size)
        weight = torch.where(lists.mask, graph.weight.gather(1, lists.index), 0.0)
        return ListGraph(lists, lists.mask, weight, graph.self_weight)

    def dense(self) -> MatrixGraph:
        """The same arcs and weights as matrices."""
        rows, places = self.hears.nonzero(as_tuple=True)
        columns = self.lists.index[rows, places]
        hears = torch.zeros(self.size, self.size, dtype=torch.bool, device=self.hears.device)
        mixing = torch.diag(self.self_weight)
        hears[rows, columns], mixing[rows, columns] = True, self.weight[rows, places]
        return MatrixGraph(hears, mixing)

    def compact(self) -> Graph:
        """The graph itself, or as matrices where these are better."""
        return self if lists_pay(self.size, self.lists.index.shape[1]) else self.dense()

    def to(self, device: torch.device | str) -> ListGraph:
        parts = (part.to(device) for part in (self.hears, self.weight, self.self_weight))
        return ListGraph(self.lists.to(device), *parts)

    def block(self, members: Tensor) -> Tensor:
        position = torch.cumsum(members, 0) - 1
        block = torch.diag(self.self_weight[members])
        receivers, places = (self.hears & members[:, None] & self.at_places(members)).nonzero(as_tuple=True)
        block[position[receivers], position[self.lists.index[receivers, places]]] = self.weight[receivers, places]
        return block

    @cached_property
    def _mirror(self) -> tuple[Tensor, Tensor]:
        """For every non-empty place: index of the reverse arc among these [E], and whether it exists [E]."""
        receivers, senders = self.lists.flat
        forth, back = receivers * self.size + senders, senders * self.size + receivers
        index = torch.searchsorted(forth, back).clamp_max(max(0, len(forth) - 1))
        return index, forth[index] == back

    def reversed(self, mask: Tensor) -> Tensor:
        index, exists = self._mirror
        filled = self.lists.mask
        return torch.zeros_like(mask).masked_scatter(filled, mask[filled][index] & exists)

    def with_arcs(self, hears: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> ListGraph:
        return ListGraph(self.lists, hears, *(_metropolis(self.lists, hears) if weights is None else weights))

    def prune(self, flagged: Tensor) -> ListGraph:
        cut = flagged & self.hears
        kept = torch.where(cut, 0.0, self.weight)
        # Rows without a cut keep their bits.
        total = torch.where(cut.any(1), kept.sum(1) + self.self_weight, 1.0)
        return replace(self, hears=self.hears & ~cut, weight=kept / total[:, None], self_weight=self.self_weight / total)

    def core(self) -> Core:
        part = _components(self.lists, self.hears)
        first = torch.full_like(part, self.size).scatter_reduce_(0, part, torch.arange(self.size, device=part.device), "amin")
        sizes = torch.bincount(part, minlength=self.size)
        largest = (sizes * (self.size + 1) - first).argmax()
        members = part == largest
        inside = self.hears & members[:, None] & self.at_places(members)
        closed = torch.equal(inside, self.hears & members[:, None])
        perron = _settle(self.lists, self.weight * inside, self.self_weight, members / members.sum(dtype=torch.float64))
        return Core(members, closed, perron)

    def tracker_limit(self, weight: Tensor, self_weight: Tensor) -> Tensor:
        """Limit of [y_i]_i [M] under y_i <- sum_j W_ij y_j from y_i = e_i, with the weights [M, n] and self-weights [M] used.

        A strongly connected component that hears no node outside is a closed class: within it, y tends to the left Perron
        vector of its block of W. Entries of all other nodes tend to zero.
        """
        carries = weight > 0
        part = _components(self.lists, carries)
        leaves = (carries & (self.at_places(part) != part[:, None])).any(1)
        closed = torch.bincount(part[leaves], minlength=self.size) == 0
        stays = closed[part]
        start = stays / torch.bincount(part, minlength=self.size)[part].to(torch.float64)
        return _settle(self.lists, weight * stays[:, None], self_weight * stays, start, classes=part)


def as_graph(graph: GraphLike) -> Graph:
    """The graph itself, or one with Metropolis weights from a networkx graph or an adjacency array."""
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, nx.Graph):
        size = graph.number_of_nodes()
        if not size or not lists_pay(size, max(degree for _, degree in graph.degree())):
            return Graph.from_networkx(graph)
        positions = {node: position for position, node in enumerate(graph)}
        arcs = torch.tensor([(positions[to], positions[source]) for source, to in graph.edges() if source != to])
        arcs = (arcs if graph.is_directed() else torch.cat([arcs, arcs.flip(1)])).unique(dim=0)
        return ListGraph.of_arcs(arcs[:, 0], arcs[:, 1], size)
    if isinstance(graph, (np.ndarray, Tensor, list, tuple)):
        return Graph.from_adjacency(graph)
    raise GraphError(f"graph: got {shown(graph)}, allowed: a Graph, a networkx graph or a square array")


def _check_ends(name: str, ends: object, size: int) -> None:
    """Raise a GraphError unless `ends` are numbers of `size` nodes."""
    if not is_integer(size) or size < 1:
        raise GraphError(f"size: got {shown(size)}, allowed: an integer, 1 or more")
    if not isinstance(ends, Tensor) or ends.dtype != torch.int64:
        raise GraphError(f"{name}: got {shown(ends)}, allowed: a tensor of torch.int64")
    if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < size:
        raise GraphError(f"{name}: got node numbers {int(ends.min())} to {int(ends.max())}, allowed: 0 to {size - 1}")


def _metropolis(lists: NeighbourLists, hears: Tensor) -> tuple[Tensor, Tensor]:
    """Metropolis weights 1 / (1 + max(d_i, d_j)) of arcs [M, n] and self-weights [M], d the number of nodes heard."""
    degree = hears.sum(1, dtype=torch.float64)
    weight = hears / (1 + torch.maximum(degree[:, None], lists.at_places(degree)))
    return weight, 1 - weight.sum(1)


def _components(lists: NeighbourLists, hears: Tensor) -> Tensor:
    """Strongly connected component of each node [M], named by its smallest node."""
    receivers, places = hears.nonzero(as_tuple=True)
    part = torch.empty(len(hears), dtype=torch.int64)
    for component in nx.strongly_connected_components(digraph(receivers, lists.index[receivers, places], len(hears))):
        part[list(component)] = min(component)
    return part.to(hears.device)


def _settle(lists: NeighbourLists, weight: Tensor, self_weight: Tensor, start: Tensor, classes: Tensor | None = None) -> Tensor:
    """Left Perron vector [M] by power iteration v <- v W from `start`; with `classes` [M], one per class.

    Each class of `start` sums to one, and so does the result.
    """
    receivers, senders = lists.flat
    arcs = weight[lists.mask]
    class_of = torch.zeros(len(start), dtype=torch.int64, device=start.device) if classes is None else classes

    def scaled(vector: Tensor) -> Tensor:
        # By the largest entry of each class, which is exact: sums over thousands of entries have errors above _STILL.
        return vector / _nonzero(torch.zeros_like(vector).scatter_reduce_(0, class_of, vector, "amax"))[class_of]

    vector = scaled(start)
    for _ in range(_STEPS):
        moved = scaled((vector * self_weight).index_add_(0, senders, vector[receivers] * arcs))
        converged = bool(((moved - vector).abs() <= _STILL * moved).all())
        vector = moved
        if converged:
            break
    return vector / _nonzero(torch.zeros_like(vector).index_add_(0, class_of, vector))[class_of]


def _nonzero(divisors: Tensor) -> Tensor:
    return torch.where(divisors > 0, divisors, 1.0)
