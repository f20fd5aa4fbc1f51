"""Columns of a shard's inboxes: which messages of a round its nodes receive, as matrices or as neighbour lists."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.core.graph import Graph
from bymi.core.inbox import fold
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import ListedVariants, MessageColumns, Variants


def heard_by(graph: Graph, nodes: Tensor) -> Tensor:
    """Node numbers, ascending, of the given nodes and of all nodes that any of them receives from."""
    nodes_heard: Tensor = torch.cat([graph.neighbours(nodes)[1], nodes]).unique()
    return nodes_heard


def columns_of_shard(
    nodes: Tensor, whole: Graph, weight: Tensor, self_weight: Tensor, variants: Variants | ListedVariants | None
) -> MessageColumns:
    """The columns of a shard with these nodes: messages travel over all arcs of `whole`, with weights [M, M] or [M, n].

    With `variants` these have columns, too; each arc is in exactly one column of its sender.
    """
    parts = nodes, whole.hears[nodes], weight[nodes], self_weight[nodes]
    if isinstance(whole, ListGraph):
        assert not isinstance(variants, Variants)
        return _by_lists(*parts, whole, variants)
    assert not isinstance(variants, ListedVariants)
    return _by_matrices(*parts, heard_by(whole, nodes), whole.size, variants)


def _by_lists(
    nodes: Tensor, arcs: Tensor, weight: Tensor, self_weight: Tensor, whole: ListGraph, variants: ListedVariants | None
) -> MessageColumns:
    lists, all_nodes = whole.lists.of(nodes), torch.arange(whole.size, device=nodes.device)
    numbers, senders = lists.at, all_nodes
    if variants is not None:
        further = variants.at[nodes]
        numbers, senders = torch.where(further >= 0, whole.size + further, numbers), torch.cat([all_nodes, variants.senders])
    columns = torch.cat([numbers[arcs], nodes]).unique()
    # A list position whose arc was pruned expects nothing, so it may point to any column.
    index = torch.where(arcs, torch.searchsorted(columns, numbers), 0)
    return MessageColumns(nodes, columns, senders[columns], arcs, weight, self_weight, NeighbourLists(index, lists.there))


def _by_matrices(
    nodes: Tensor, arcs: Tensor, weight: Tensor, self_weight: Tensor, columns: Tensor, size: int, variants: Variants | None
) -> MessageColumns:
    if variants is None:
        return MessageColumns(nodes, columns, columns, arcs[:, columns], weight[:, columns], self_weight)
    audience, senders = variants.audience[nodes], variants.senders
    first = ~fold(audience, senders, size)
    extra = audience & arcs[:, senders]
    more = extra.any(0).nonzero().flatten()
    expected = torch.cat([(arcs & first)[:, columns], extra[:, more]], 1)
    weights = torch.cat([(weight * first)[:, columns], (weight[:, senders] * extra)[:, more]], 1)
    return MessageColumns(
        nodes, torch.cat([columns, size + more]), torch.cat([columns, senders[more]]), expected, weights, self_weight
    )
