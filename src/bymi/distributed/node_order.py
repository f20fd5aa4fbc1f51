"""Order of nodes for sharding: neighbours share a shard where that leaves fewer rows to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from bymi.core.graph import Graph, MatrixGraph

_PAYS = 0.9  # use another order only if it sends less than this share of the rows of the plain order
_SPARSE = 32  # average degree above which every shard receives almost all rows, whatever the order


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
