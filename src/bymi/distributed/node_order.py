"""Which nodes share a shard: neighbours, where that leaves fewer rows to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from bymi.core.graph import Graph, MatrixGraph
from bymi.distributed.shard_columns import heard_by

_PAYS = 0.9  # of the rows that blocks in order of numbers would send
_SPARSE = 32  # neighbours of a node on average: with more, every shard hears almost everybody however it is cut


def place(graph: Graph, shards: int) -> Tensor:
    """An order of all nodes [M] to be cut into `shards` even blocks: their own, unless another sends far fewer rows.

    The others tried: reverse Cuthill-McKee, for graphs that are long, and recursive Kernighan-Lin bisection, for clusters.
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
    if isinstance(graph, MatrixGraph):  # with many nodes it takes six times as long, and finds less: docs/scale.md
        tried.append(_halve(arcs, list(range(size)), shards))
    best = min((torch.tensor(order) for order in tried), key=lambda order: rows_sent(graph, order, shards))
    return best if rows_sent(graph, best, shards) < _PAYS * rows_sent(graph, own, shards) else own


def rows_sent(graph: Graph, order: Tensor, shards: int) -> int:
    """How many rows cross between shards in one exchange: of each shard, those it hears and does not hold."""
    return sum(len(heard_by(graph, block)) - len(block) for block in order.tensor_split(shards))


def _halve(arcs: Any, nodes: Sequence[int], parts: int) -> list[int]:
    """Nodes in an order in which even blocks are the halves of halves ... that few edges join."""
    if parts < 2 or len(nodes) < 2:
        return sorted(nodes)
    first, second = nx.algorithms.community.kernighan_lin_bisection(arcs.subgraph(nodes), seed=0)
    low, high = sorted((sorted(first), sorted(second)))
    return _halve(arcs, low, parts // 2) + _halve(arcs, high, parts // 2)
