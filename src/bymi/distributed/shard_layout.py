"""Which nodes each rank holds, and which rows travel between ranks.

Nodes are dealt to shards, and each shard is computed in one piece wherever it is. So results depend on the shards, not on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.graph import Graph, MatrixGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.collectives import Group

_PAYS = 0.9  # use another order only if it sends less than this share of the rows of the plain order
_SPARSE = 32  # average degree above which every shard receives almost all rows, whatever the order


@dataclass(frozen=True, eq=False)
class ShardLayout:
    """`shards`: ascending node numbers per shard, each node in exactly one. `held`: range of shards per rank."""

    shards: tuple[Tensor, ...]
    held: tuple[range, ...]

    @staticmethod
    def even(size: int, shards: int, ranks: int, order: Tensor | None = None) -> ShardLayout:
        """A layout of consecutive blocks of nodes, by number or in the given `order`, as even as possible."""
        if ranks > size:
            raise InputError(f"--nproc-per-node: got {ranks} ranks for {size} nodes, allowed: as many ranks as nodes, or fewer")
        shards = min(size, max(shards, ranks))
        blocks = (torch.arange(size) if order is None else order).tensor_split(shards)
        starts = [rank * shards // ranks for rank in range(ranks + 1)]
        held = tuple(range(first, last) for first, last in pairwise(starts))
        return ShardLayout(tuple(block.sort().values for block in blocks), held)

    def to(self, device: torch.device) -> ShardLayout:
        return ShardLayout(tuple(nodes.to(device) for nodes in self.shards), self.held)

    @cached_property
    def shards_on_cpu(self) -> tuple[Tensor, ...]:
        """The nodes of each shard on the CPU: counting them must not wait for an accelerator."""
        return tuple(nodes.to("cpu") for nodes in self.shards)

    def blocks(self, rank: int) -> list[Tensor]:
        """The nodes of a rank, one tensor per shard."""
        return [self.shards[shard] for shard in self.held[rank]]

    @property
    def size(self) -> int:
        return sum(len(nodes) for nodes in self.shards)

    def nodes(self, rank: int) -> Tensor:
        """All nodes of a rank, shard by shard."""
        return torch.cat(self.blocks(rank))

    @cached_property
    def home(self) -> Tensor:
        """The shard of each node [M]."""
        counts = torch.tensor([len(nodes) for nodes in self.shards], device=self.shards[0].device)
        numbers = torch.arange(len(self.shards), device=counts.device).repeat_interleave(counts)
        return torch.empty_like(numbers).index_copy_(0, torch.cat(self.shards), numbers)

    @cached_property
    def holder(self) -> Tensor:
        """The rank that holds each node [M]."""
        ranks = torch.empty(self.size, dtype=torch.int64, device=self.shards[0].device)
        for rank in range(len(self.held)):
            ranks[self.nodes(rank)] = rank
        return ranks


class Routes:
    """Which rows go from rank to rank so that each shard gets the rows of the nodes it wants."""

    def __init__(self, layout: ShardLayout, group: Group, wanted: Sequence[Tensor]) -> None:
        """`wanted`: ascending node numbers per shard of the whole network."""
        self._group, self._size = group, layout.size
        ranks, size, own_rank = range(group.size), layout.size, group.rank
        by_rank = [torch.unique(torch.cat([wanted[shard] for shard in layout.held[rank]])) for rank in ranks]
        own_nodes = layout.nodes(own_rank)
        device = own_nodes.device
        place = torch.full((size,), -1, device=device).index_copy(0, own_nodes, torch.arange(len(own_nodes), device=device))
        sent = [nodes[layout.holder[nodes] == own_rank] for nodes in by_rank]
        self._send, self._counts = place[torch.cat(sent)], [len(nodes) for nodes in sent]
        received = [by_rank[own_rank][layout.holder[by_rank[own_rank]] == rank] for rank in ranks]
        self._coming = [len(nodes) for nodes in received]
        table = torch.cat(received)
        row = torch.full((size,), -1, device=device).index_copy(0, table, torch.arange(len(table), device=device))
        # None: the rows arrive in the wanted order and need no copy.
        self._picks = [_pick(row[wanted[shard]], len(table)) for shard in layout.held[own_rank]]
        self._whole = group.size == 1 and len(own_nodes) == len(self._send) and bool((self._send == place[own_nodes]).all())

    def carry(self, rows: Tensor, name: str) -> list[Tensor]:
        """Rows wanted by each shard of this rank, from the rows [B, ...] of its nodes. Collective: all ranks must call it."""
        table = self._swap(rows, name)
        return [table if pick is None else table.index_select(0, pick) for pick in self._picks]

    def _swap(self, rows: Tensor, name: str) -> Tensor:
        width = max(1, LIMITS.routed_rows // self._size)
        if self._whole or rows.ndim != 2 or rows.shape[1] <= width:
            outgoing = rows if self._whole else rows.index_select(0, self._send)
            return self._group.swap(outgoing, self._counts, self._coming, name)
        # A row is copied for each rank that it goes to; long rows therefore go some coordinates at a time.
        table = rows.new_empty(sum(self._coming), rows.shape[1])
        for part, into in zip(rows.split(width, 1), table.split(width, 1), strict=True):
            into.copy_(self._group.swap(part.index_select(0, self._send), self._counts, self._coming, name))
        return table


def _pick(places: Tensor, size: int) -> Tensor | None:
    same = len(places) == size and bool((places == torch.arange(size, device=places.device)).all())
    return None if same else places


# Order of nodes for sharding: neighbours share a shard where that leaves fewer rows to send.


def order_nodes(graph: Graph, shards: int) -> Tensor:
    """An order [M] of all nodes, to be cut into `shards` even blocks: 0, 1, ... unless another order sends far fewer rows.

    Candidates are reverse Cuthill-McKee, for elongated graphs, and recursive Kernighan-Lin bisection, for clusters.
    """
    size = graph.size
    own = torch.arange(size)
    if shards == 1 or int(graph.hears.sum()) > _SPARSE * size:
        return own
    graph = graph.to("cpu")
    receivers, senders = graph.neighbours(own)
    arcs = nx.Graph()
    arcs.add_nodes_from(own.tolist())
    arcs.add_edges_from(zip(receivers.tolist(), senders.tolist(), strict=True))
    tried = [list(nx.utils.reverse_cuthill_mckee_ordering(arcs))]
    if isinstance(graph, MatrixGraph):  # on large graphs it takes six times as long and saves less
        tried.append(_halve(arcs, list(range(size)), shards))
    best = min((torch.tensor(order) for order in tried), key=lambda order: rows_sent(graph, order, shards))
    return best if rows_sent(graph, best, shards) < _PAYS * rows_sent(graph, own, shards) else own


def rows_sent(graph: Graph, order: Tensor, shards: int) -> int:
    """Number of rows that cross between shards in one exchange: per shard, those it receives and does not hold."""
    return sum(len(graph.closed_neighbourhood(block)) - len(block) for block in order.tensor_split(shards))


def _halve(arcs: Any, nodes: Sequence[int], parts: int) -> list[int]:
    """Nodes ordered such that even blocks are the parts of a recursive bisection with few edges between them."""
    if parts < 2 or len(nodes) < 2:
        return sorted(nodes)
    first, second = nx.algorithms.community.kernighan_lin_bisection(arcs.subgraph(nodes), seed=0)
    low, high = sorted((sorted(first), sorted(second)))
    return _halve(arcs, low, parts // 2) + _halve(arcs, high, parts // 2)
