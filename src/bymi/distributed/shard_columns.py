"""Columns of a shard's inboxes: which messages of a round its nodes receive, as matrices or as neighbour lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.graph import Graph
from bymi.core.inbox import Inbox, fold
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import Messages
from bymi.core.variants import ListedVariants, Variants


@dataclass(frozen=True, eq=False)
class ShardColumns:
    """The columns of a shard's inboxes and which of its nodes receive which. With lists, [B, J] is [B, n]."""

    nodes: Tensor  # [B]
    columns: Tensor  # [J] indices into all columns of a round: one per node, then one per variant
    senders: Tensor  # [J]
    expected: Tensor  # [B, J] bool
    weight: Tensor  # [B, J] float64
    self_weight: Tensor  # [B]
    lists: NeighbourLists | None = None  # of column indices

    @cached_property
    def own_column(self) -> Tensor:
        """[B] column of each node's own message."""
        return torch.searchsorted(self.columns, self.nodes)

    def receive(self, own: Tensor, messages: Messages, true: Tensor | None) -> Inbox:
        """The inbox of this shard; `true` [B]: which nodes sent what they hold, None for all."""
        return Inbox.receive(
            own,
            messages,
            expected=self.expected,
            weight=self.weight,
            self_weight=self.self_weight,
            own_column=self.own_column if true is None else torch.where(true, self.own_column, -1),
            senders=self.senders,
            lists=self.lists,
        )


def arcs_to(graph: Graph, receivers: Tensor) -> tuple[Tensor, Tensor]:
    """All arcs to the receivers [R], row by row: index of the receiver and node number of the sender, each [E]."""
    return graph.neighbours(receivers)


def heard_by(graph: Graph, nodes: Tensor) -> Tensor:
    """Node numbers, ascending, of the given nodes and of all nodes that any of them receives from."""
    nodes_heard: Tensor = torch.cat([arcs_to(graph, nodes)[1], nodes]).unique()
    return nodes_heard


def columns_of_shard(
    nodes: Tensor, whole: Graph, weight: Tensor, self_weight: Tensor, faces: Variants | ListedVariants | None
) -> ShardColumns:
    """The columns of a shard with these nodes: messages travel over all arcs of `whole`, with weights [M, M] or [M, n].

    With `faces` (variants) the further variants have columns, too; each arc is in exactly one column of its sender.
    """
    parts = nodes, whole.hears[nodes], weight[nodes], self_weight[nodes]
    if isinstance(whole, ListGraph):
        assert not isinstance(faces, Variants)
        return _by_lists(*parts, whole, faces)
    assert not isinstance(faces, ListedVariants)
    return _by_matrices(*parts, heard_by(whole, nodes), whole.size, faces)


def _by_lists(
    nodes: Tensor, arcs: Tensor, weight: Tensor, self_weight: Tensor, whole: ListGraph, faces: ListedVariants | None
) -> ShardColumns:
    lists, all_nodes = whole.lists.of(nodes), torch.arange(whole.size, device=nodes.device)
    numbers, senders = lists.at, all_nodes
    if faces is not None:
        further = faces.at[nodes]
        numbers, senders = torch.where(further >= 0, whole.size + further, numbers), torch.cat([all_nodes, faces.senders])
    columns = torch.cat([numbers[arcs], nodes]).unique()
    # A list position whose arc was pruned expects nothing, so it may point to any column.
    index = torch.where(arcs, torch.searchsorted(columns, numbers), 0)
    return ShardColumns(nodes, columns, senders[columns], arcs, weight, self_weight, NeighbourLists(index, lists.there))


def _by_matrices(
    nodes: Tensor, arcs: Tensor, weight: Tensor, self_weight: Tensor, columns: Tensor, size: int, faces: Variants | None
) -> ShardColumns:
    if faces is None:
        return ShardColumns(nodes, columns, columns, arcs[:, columns], weight[:, columns], self_weight)
    audience, senders = faces.audience[nodes], faces.senders
    first = ~fold(audience, senders, size)
    extra = audience & arcs[:, senders]
    more = extra.any(0).nonzero().flatten()
    expected = torch.cat([(arcs & first)[:, columns], extra[:, more]], 1)
    weights = torch.cat([(weight * first)[:, columns], (weight[:, senders] * extra)[:, more]], 1)
    return ShardColumns(
        nodes, torch.cat([columns, size + more]), torch.cat([columns, senders[more]]), expected, weights, self_weight
    )
