"""Which messages of a round the nodes of a shard hear, by matrices or by lists of neighbours."""

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
    """The columns of a shard's inboxes, and who of its nodes hears which. With lists, what is [B, J] is [B, n]."""

    nodes: Tensor  # [B]
    columns: Tensor  # [J] among all columns of a round: nodes first, then further messages
    senders: Tensor  # [J]
    expected: Tensor  # [B, J] bool
    weight: Tensor  # [B, J] float64
    self_weight: Tensor  # [B]
    lists: NeighbourLists | None = None  # of columns

    @cached_property
    def own_column(self) -> Tensor:
        """[B]"""
        return torch.searchsorted(self.columns, self.nodes)

    def receive(self, own: Tensor, messages: Messages, true: Tensor | None) -> Inbox:
        """`true` [B] says which of its nodes sent what they hold; None for all."""
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
    """All arcs to some receivers [R], row by row: which of these hears, and the number of the node that it hears, each [E]."""
    return graph.neighbours(receivers)


def heard_by(graph: Graph, nodes: Tensor) -> Tensor:
    """Numbers of some nodes and of all whom any of them hears, upwards."""
    found: Tensor = torch.cat([arcs_to(graph, nodes)[1], nodes]).unique()
    return found


def columns_of_shard(
    nodes: Tensor, whole: Graph, weight: Tensor, self_weight: Tensor, faces: Variants | ListedVariants | None
) -> ShardColumns:
    """That of the nodes of a shard: messages travel over all arcs of the `whole`, and carry weight [M, M] or [M, n].

    With `faces` the further messages have columns, too, and each arc is in exactly one of its sender's.
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
    lists, everybody = whole.lists.of(nodes), torch.arange(whole.size, device=nodes.device)
    numbers, senders = lists.at, everybody
    if faces is not None:
        further = faces.at[nodes]
        numbers, senders = torch.where(further >= 0, whole.size + further, numbers), torch.cat([everybody, faces.senders])
    columns = torch.cat([numbers[arcs], nodes]).unique()
    # At a place that has lost its arc stands somebody of whom nothing came: any column does, nothing is expected there.
    at = torch.where(arcs, torch.searchsorted(columns, numbers), 0)
    return ShardColumns(nodes, columns, senders[columns], arcs, weight, self_weight, NeighbourLists(at, lists.there))


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
