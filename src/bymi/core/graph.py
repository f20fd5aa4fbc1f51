"""Graphs: arcs, mixing weights, pruning, and the strongly connected core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import GraphError, InputError, shown
from bymi.core.files import MEBIBYTE, decode, read_bytes
from bymi.core.neighbour_lists import NeighbourLists

EDGE_FILE_LIMIT = 256 * MEBIBYTE
NOT_MUTUAL = (
    "detection.pruning: got 'mutual', allowed: directed, since some arcs of the graph have no reverse; "
    "set detection.pruning=directed, or take an undirected graph"
)
_ROW_TOLERANCE = 1e-9
_SQUARINGS = 60
_LARGEST_NODE = 10**9


@dataclass(frozen=True, eq=False)
class Core:
    """The largest strongly connected component of a graph.

    `closed`: it hears no node outside (Paper: asp:sure_detection2). `perron`: left Perron vector of its block of the mixing
    matrix, zero outside, sum one.
    """

    members: Tensor  # [M] bool
    closed: bool
    perron: Tensor  # [M] float64


class Graph(ABC):
    """Arcs and mixing weights of M nodes, one row per receiver.

    Each of P places of a row stands for a node: node j at place j in a `MatrixGraph`, an entry of the receiver's neighbour list
    in a `ListGraph`. `hears[i, k]` means that i receives messages of the node at place k.
    """

    knows_tracker_limit: ClassVar[bool] = False
    """Whether the limit of premixing is computed from the weights."""

    if TYPE_CHECKING:  # fields of subclasses: a property here would become their default

        @property
        def hears(self) -> Tensor:
            """[M, P] bool: arcs."""

        @property
        def weight(self) -> Tensor:
            """[M, P] float64 mixing weights, zero without an arc."""

        @property
        def self_weight(self) -> Tensor:
            """[M] float64"""

        @property
        def lists(self) -> NeighbourLists | None:
            """Nodes at each place; None: node j at place j. For inboxes and networks only."""

    @property
    def size(self) -> int:
        return len(self.hears)

    @property
    def symmetric(self) -> bool:
        """Whether every arc has its reverse."""
        return torch.equal(self.hears, self.reversed(self.hears))

    @abstractmethod
    def reversed(self, mask: Tensor) -> Tensor:
        """Mask over arcs [M, P] seen from the other end: the entry of (i, j) is that of (j, i)."""

    @abstractmethod
    def with_arcs(self, hears: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> Graph:
        """The graph with the same places and the arcs `hears` [M, P].

        With the given weights [M, P], zero without an arc, and self-weights [M], or with Metropolis weights.
        """

    def with_weights(self, weight: Tensor) -> Graph:
        """The same arcs with weights [M, P], zero without an arc; what is left of a row is the self-weight."""
        return self.with_arcs(self.hears, (weight, 1 - weight.sum(1)))

    @property
    def mutual(self) -> Tensor:
        """[M, P] bool: arcs whose reverse is an arc, too."""
        return self.hears & self.reversed(self.hears)

    def at_places(self, values: Tensor) -> Tensor:
        """Values per node [M] at each place: [M, P], or [1, P] if equal for all rows."""
        return values[None] if self.lists is None else self.lists.at_places(values)

    def nodes_at(self, receivers: Tensor, places: Tensor) -> Tensor:
        """Node numbers at places [E] of receivers [E]."""
        return places if self.lists is None else self.lists.index[receivers, places]

    def count(self, mask: Tensor) -> Tensor:
        """Number of receivers that mark each node [M], from a mask [M, P]."""
        return mask.sum(0) if self.lists is None else self.lists.count(mask, self.size)

    def neighbours(self, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """Arcs to receivers [R], row by row: position of the receiver in `receivers` and number of the sender, each [E]."""
        row, place = self.hears[receivers].nonzero(as_tuple=True)
        return row, self.nodes_at(receivers[row], place)

    def closed_neighbourhood(self, nodes: Tensor) -> Tensor:
        """Numbers, ascending, of the given nodes and of all nodes that any of them hears."""
        numbers: Tensor = torch.cat([self.neighbours(nodes)[1], nodes]).unique()
        return numbers

    def arcs(self) -> tuple[Tensor, Tensor]:
        """Receiver and sender of every arc, each [E], row by row."""
        return self.neighbours(torch.arange(self.size, device=self.hears.device))

    @abstractmethod
    def block(self, members: Tensor) -> Tensor:
        """Rows and columns of the mixing matrix [k, k] of the nodes in a mask [M]."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Graph:
        """The same graph on a device."""

    @abstractmethod
    def prune(self, flagged: Tensor) -> Graph:
        """The graph without flagged in-arcs [M, P], their weight redistributed within the row.

        W[i, j] <- W[i, j] / sum of the kept W[i, l], own weight included. Paper: eq:reassign.
        """

    def prune_mutually(self, flagged: Tensor, *, exile: float | None = None) -> Graph:
        """The graph without edges flagged at either end, with Metropolis weights, so doubly stochastic.

        A node flagged by more than a share `exile` of its neighbours keeps receiving from those that it does not flag itself,
        although they no longer receive from it: otherwise it would train alone and never recover.
        """
        if not self.symmetric:
            raise GraphError(NOT_MUTUAL)
        cut = flagged & self.hears
        listens = self.hears & ~cut
        mutual = self.with_arcs(listens & ~self.reversed(cut))
        if exile is None:
            return mutual
        exiled = self.count(cut) > exile * self.count(self.hears)
        rows = listens / (1 + listens.sum(1, keepdim=True, dtype=torch.float64))
        weight = torch.where(exiled[:, None], rows, mutual.weight)
        self_weight = torch.where(exiled, 1 - rows.sum(1), mutual.self_weight)
        return self.with_arcs(torch.where(exiled[:, None], listens, mutual.hears), (weight, self_weight))

    @abstractmethod
    def core(self) -> Core:
        """The largest strongly connected component; among equally large ones, that with the smallest node."""

    def to_networkx(self) -> nx.DiGraph[int]:
        """The arcs as a networkx DiGraph, sender -> receiver."""
        receivers, senders = self.arcs()
        return digraph(receivers, senders, self.size)

    # Constructors from user input. `as_graph` of bymi.core.list_graph chooses lists where they are smaller.

    @staticmethod
    def from_hears(hears: Tensor) -> MatrixGraph:
        """A graph with Metropolis weights from a mask of arcs [M, M]."""
        _check_matrix("hears", hears, torch.bool)
        return MatrixGraph(hears, metropolis(hears))

    @staticmethod
    def from_adjacency(array: Any) -> MatrixGraph:
        """From a square array-like: a non-zero entry [i, j] means that i hears j. The diagonal is ignored."""
        try:
            numbers = np.asarray(array)
        except (TypeError, ValueError, RuntimeError):  # rows of different lengths, a tensor on another device
            numbers = np.asarray(None)
        if numbers.dtype.kind not in "biuf":
            raise GraphError(f"an adjacency array must be a matrix of numbers, got {shown(array)}")
        if numbers.ndim != 2 or numbers.shape[0] != numbers.shape[1] or not len(numbers):
            raise GraphError(f"an adjacency array must be square and not empty, got shape {list(numbers.shape)}")
        if np.isnan(numbers).any():
            raise GraphError("an adjacency array must be a matrix of numbers, got NaN in it")
        return Graph.from_hears(torch.as_tensor(numbers != 0) & ~torch.eye(len(numbers), dtype=torch.bool))

    @staticmethod
    def from_networkx(graph: nx.Graph[Any]) -> MatrixGraph:
        """From a networkx Graph or DiGraph. An arc u -> v means that v hears u.

        Labels that are the numbers 0 to M - 1 are the node numbers; with any other labels nodes are numbered in the order in
        which the graph has them.
        """
        if not isinstance(graph, nx.Graph):
            raise GraphError(f"graph: got {shown(graph)}, allowed: a networkx Graph or DiGraph")
        if graph.number_of_nodes() == 0:
            raise GraphError("the graph has no nodes")
        order = sorted(graph) if set(graph) == set(range(len(graph))) else list(graph)
        return Graph.from_adjacency(nx.to_numpy_array(graph, order, weight=None).T)

    @staticmethod
    def read(path: str | Path, *, directed: bool = False) -> MatrixGraph:
        """From a text file with one edge `u v` per line (separated by blank or comma, # starts a comment), nodes 0, 1, 2, ...

        With `directed`, a line `u v` means that v hears u.
        """
        arcs, size = read_edges(path, directed=directed)
        hears = torch.zeros(size, size, dtype=torch.bool)
        hears[arcs[:, 0], arcs[:, 1]] = True
        return Graph.from_adjacency(hears)


@dataclass(frozen=True, eq=False)
class MatrixGraph(Graph):
    """A graph as matrices. Rows are receivers, columns are senders; self-weights are on the diagonal of `mixing`.

    `hears[i, j]` means that i hears j. Rows of `mixing` sum to one and are zero without an arc.
    """

    lists: ClassVar[None] = None

    hears: Tensor  # [M, M] bool, False on the diagonal
    mixing: Tensor  # [M, M] float64

    def __post_init__(self) -> None:
        _check_matrix("hears", self.hears, torch.bool)
        _check_matrix("mixing", self.mixing, torch.float64)
        size = len(self.hears)
        if self.hears.shape != (size, size) or self.mixing.shape != (size, size):
            raise GraphError(
                f"a graph needs two square matrices of one size, got {list(self.hears.shape)} and {list(self.mixing.shape)}"
            )
        if bool(self.hears.diagonal().any()):
            raise GraphError("a node does not hear itself through an arc: clear the diagonal of `hears`")
        outside = self.mixing[~self.hears & ~torch.eye(size, dtype=torch.bool, device=self.hears.device)]
        rows = self.mixing.sum(1)
        if bool((outside != 0).any()) or bool((self.mixing < 0).any()) or not torch.all((rows - 1).abs() < _ROW_TOLERANCE):
            raise GraphError("mixing weights must be non-negative, zero without an arc, and sum to one in each row")
        if not bool((self.mixing.diagonal() > 0).all()):
            raise GraphError("every node needs a positive weight on itself")

    @cached_property
    def weight(self) -> Tensor:
        return self.mixing * self.hears

    @cached_property
    def self_weight(self) -> Tensor:
        return self.mixing.diagonal().clone()

    def reversed(self, mask: Tensor) -> Tensor:
        return mask.T

    def with_arcs(self, hears: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> MatrixGraph:
        return MatrixGraph(hears, metropolis(hears) if weights is None else weights[0] + torch.diag(weights[1]))

    def block(self, members: Tensor) -> Tensor:
        return self.mixing[members][:, members]

    def to(self, device: torch.device | str) -> MatrixGraph:
        return MatrixGraph(self.hears.to(device), self.mixing.to(device))

    def prune(self, flagged: Tensor) -> MatrixGraph:
        cut = flagged & self.hears
        kept = torch.where(cut, torch.zeros_like(self.mixing), self.mixing)
        total = kept.sum(1, keepdim=True)
        # Rows without a cut are not divided by their sum, which is 1 up to rounding: their bits stay.
        return MatrixGraph(self.hears & ~cut, torch.where(cut.any(1, keepdim=True), kept / total, kept))

    def core(self) -> Core:
        reached = _reach(self.hears)
        mutual = reached & reached.T
        numbers = torch.arange(self.size, device=mutual.device)
        members = mutual[(mutual.sum(1) * (self.size + 1) - numbers).argmax()]
        closed = not bool(self.hears[members][:, ~members].any())
        perron = torch.zeros(self.size, dtype=torch.float64, device=self.hears.device)
        perron[members] = perron_vector(self.block(members))
        return Core(members, closed, perron)


def _check_matrix(name: str, matrix: object, dtype: torch.dtype) -> None:
    if not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.dtype != dtype or not len(matrix):
        allowed = f"a tensor [nodes, nodes] of {dtype}; Graph.from_adjacency takes other arrays, Graph.from_networkx a graph"
        raise GraphError(f"{name}: got {shown(matrix)}, allowed: {allowed}")


def _reach(hears: Tensor) -> Tensor:
    """Mask [M, M] of the nodes that each node hears over some path, itself included; path lengths double per iteration."""
    reached = hears | torch.eye(len(hears), dtype=torch.bool, device=hears.device)
    while True:
        paths = reached.to(torch.float32)
        farther = paths @ paths > 0
        if torch.equal(farther, reached):
            return reached
        reached = farther


def connected(graph: Graph, part: Tensor) -> bool:
    """Whether the nodes in `part` [M] bool are connected among themselves, in an undirected graph."""
    if not bool(part.any()):
        return False
    seen = torch.zeros_like(part)
    front = part.nonzero()[:1].flatten()
    seen[front] = True
    while len(front):
        near = graph.neighbours(front)[1].unique()
        front = near[part[near] & ~seen[near]]
        seen[front] = True
    return bool((seen == part).all())


def check_connected(graph: Graph) -> None:
    """Raise a GraphError unless the graph is weakly connected."""
    part = _parts(graph)
    if bool(part.any()):
        apart = f"{graph.size} nodes in {len(part.unique())} parts without an arc between them"
        raise GraphError(f"graph: got {apart}, allowed: a connected graph")


def _parts(graph: Graph) -> Tensor:
    """Weakly connected component of each node [M], named by its smallest node."""
    receivers, senders = graph.arcs()
    label = torch.arange(graph.size, device=receivers.device)
    while True:  # label propagation with pointer jumping
        least = torch.minimum(label[receivers], label[senders])
        ends = torch.cat([receivers, senders, label[receivers], label[senders]])
        lower = label.scatter_reduce(0, ends, least.repeat(4), "amin")
        lower = lower[lower]
        if torch.equal(lower, label):
            return label
        label = lower


def digraph(receivers: Tensor, senders: Tensor, size: int) -> nx.DiGraph[int]:
    """Arcs [E] among `size` nodes as a networkx DiGraph, sender -> receiver."""
    arcs = nx.DiGraph()
    arcs.add_nodes_from(range(size))
    arcs.add_edges_from(zip(senders.tolist(), receivers.tolist(), strict=True))
    return arcs


def metropolis(hears: Tensor) -> Tensor:
    """Metropolis weights [M, M] float64: 1 / (1 + max(d_i, d_j)) on arcs, the rest on the diagonal.

    Doubly stochastic when `hears` is symmetric, else row-stochastic (d = number of nodes heard).
    """
    degree = hears.sum(1, dtype=torch.float64)
    weights = hears / (1 + torch.maximum(degree[:, None], degree[None, :]))
    return weights + torch.diag(1 - weights.sum(1))


def perron_vector(block: Tensor) -> Tensor:
    """Left Perron vector of an irreducible non-negative block with positive diagonal, sum one.

    Repeated squaring: A^(2^k) tends to a rank-one matrix whose rows are multiples of the vector.
    """
    power = block
    for _ in range(_SQUARINGS):
        rows = power / power.sum(1, keepdim=True)
        if bool((rows.amax(0) - rows.amin(0)).max() < 1e-15):
            break
        power = power @ power
        power = power / power.amax()
    vector = power.sum(0)
    return vector / vector.sum()


def read_edges(path: str | Path, *, directed: bool = False) -> tuple[Tensor, int]:
    """Arcs [E, 2] (receiver, sender) of an edge file, without duplicates and self-loops, and the number of nodes."""
    if not isinstance(path, (str, Path)):
        raise GraphError(f"path: got {shown(path)}, allowed: the name of an edge file")
    edges = _read_edges(Path(path))
    size = 1 + max(max(edge) for edge in edges)
    if size > len(edges) + 1:  # certainly not connected, and a huge number would exhaust memory
        raise GraphError(f"{path}: got node number {size - 1} but {len(edges)} edges; allowed: 0, 1, 2, ... without gaps")
    arcs = torch.tensor(edges).flip(1)
    arcs = (arcs if directed else torch.cat([arcs, arcs.flip(1)])).unique(dim=0)
    return arcs[arcs[:, 0] != arcs[:, 1]], size


def _read_edges(path: Path) -> list[tuple[int, int]]:
    try:
        lines = decode(read_bytes(path, limit=EDGE_FILE_LIMIT)).splitlines()
    except (InputError, ValueError) as problem:
        raise GraphError(f"cannot read the edge file {path}: {str(problem).removeprefix(f'cannot read {path}: ')}") from None
    edges = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            sender, receiver = (int(word) for word in words)
            if not 0 <= min(sender, receiver) <= max(sender, receiver) <= _LARGEST_NODE:
                raise ValueError
        except ValueError:
            got = repr(line.strip()[:60])
            raise GraphError(f"{path}, line {number}: expected two node numbers from 0 to {_LARGEST_NODE}, got {got}") from None
        edges.append((sender, receiver))
    if not edges:
        raise GraphError(f"{path} has no edges")
    return edges
