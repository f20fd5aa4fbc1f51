"""Routing of one graph's messages between ranks, and the inbox of each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.graph import Graph, MatrixGraph
from bymi.core.inbox import Inbox, ReceiverGroup, fold
from bymi.core.linalg import norms
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import ListedVariants, MessageColumns, Messages, Outgoing, Variants, followed_by
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import FIRST_HALF, PARAMETERS, SECOND_HALF, Topic
from bymi.distributed.coordinate_sharded_dense_inbox import DenseShardPlan, DenseShards, ShardedDenseInbox, acceptable
from bymi.distributed.coordinate_sharded_list_inbox import sharded_list_inbox
from bymi.distributed.shard_layout import Routes
from bymi.distributed.shard_lockstep import Lockstep

SHARDED_TOPICS = (PARAMETERS, FIRST_HALF, SECOND_HALF)  # topics whose rows may be sharded by coordinate
_SLICES = 3  # shards from which on slices pay: with two, sending them and returning results is as many bytes as rows


class Router:
    """The arcs of one graph as seen by this rank. Messages also travel over arcs of `whole` that the graph lacks.

    `variants`: which senders send different messages to different receivers. `everywhere`: some process reads the rows of all
    nodes anyway, so none are sharded by coordinate.
    """

    def __init__(
        self,
        lockstep: Lockstep,
        graph: Graph,
        *,
        variants: Variants | ListedVariants | None = None,
        everywhere: bool = False,
        whole: Graph | None = None,
    ) -> None:
        self.lockstep, self.graph, self.variants, self.everywhere = lockstep, graph, variants, everywhere
        self.by_slices = True  # where that is less traffic; a run that stores whole messages needs them anyway
        self.all_lists: NeighbourLists | None = None  # of all nodes, shard by shard, if long rows are sharded by coordinate
        self.whole = graph if whole is None else whole
        layout = lockstep.layout
        self.nodes = [layout.shards[shard] for shard in layout.held[lockstep.group.rank]]
        self.all_nodes = torch.arange(graph.size, device=graph.hears.device)

    def over(self, graph: Graph, *, whole: Graph | None = None) -> Router:
        router = Router(self.lockstep, graph, variants=self.variants, everywhere=self.everywhere, whole=whole)
        router.by_slices, router.all_lists = self.by_slices, self.all_lists
        return router

    @cached_property
    def all_rows(self) -> Routes:
        """Routes of every row to every rank."""
        layout = self.lockstep.layout
        return Routes(layout, self.lockstep.group, [self.all_nodes] * len(layout.shards))

    def gather(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """Rows of all nodes [M, ...] in node order, from `parts` per shard of this rank. Collective: all ranks must call it."""
        return self.all_rows.carry(torch.cat(list(parts)), name)[0]

    def total(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """Sum over all shards of the network, from `parts` per shard of this rank. Collective.

        The order of the sum is that of the shards, so the bits do not depend on which rank holds a shard.
        """
        counts = [len(held) for held in self.lockstep.layout.held]
        return self.lockstep.group.collect(torch.stack(list(parts)), counts, name).sum(0)

    def choose_sharding(self, dim: int) -> None:
        """Decide from the graph whether vectors of `dim` coordinates are sharded by coordinate in all later rounds."""
        shards, whole = self.lockstep.layout.shards, self.whole
        if not isinstance(whole, ListGraph) or len(shards) == 1 or self.everywhere:
            return
        # With fewer coordinates than members of a neighbourhood some rules read the rows themselves.
        long = dim > max(LIMITS.sharded_dim, 1 + whole.hears.shape[1]) and whole.size * dim >= LIMITS.sharded_rows
        if long and sum(len(whole.closed_neighbourhood(nodes)) for nodes in shards) > LIMITS.sharded_heard * whole.size:
            self.all_lists = whole.lists.of(torch.cat(list(shards)))

    def is_sharded(self, topic: Topic) -> bool:
        """Whether the rows of a topic are sharded by coordinate, in every round, instead of sent to their receivers."""
        return self.all_lists is not None and topic.part in {some.part for some in SHARDED_TOPICS}

    def columns(self, topic: Topic, *, varied: bool) -> list[Tensor]:
        """Per shard of this rank, the columns of a topic whose update history it stores, in every round.

        `varied`: senders may send variants under this topic.
        """
        if self.is_sharded(topic):
            return self.nodes
        return [
            shard.columns for shard in (self._variant_columns if varied and self.variants is not None else self._shard_columns)
        ]

    def deliver(self, given: list[Mapping[Topic, Outgoing]]) -> list[tuple[Inbox, ...]]:
        """The inboxes of each shard of this rank, one per topic. Collective: all ranks must call it."""
        outgoing = [one for vectors in given for one in vectors.values()]
        varied = any(one.variants is not None for one in outgoing)
        as_held = not varied and all(one.sent is None for one in outgoing)
        by_topic = []
        for topic in given[0]:
            parts = [vectors[topic] for vectors in given]
            if self.is_sharded(topic):
                by_topic.append(sharded_list_inbox(self, parts, topic))
                continue
            sharded = self._sharded_by_coordinate([part.own for part in parts]) if as_held and topic == PARAMETERS else None
            by_topic.append(self._carried(parts, topic, varied=varied) if sharded is None else sharded)
        return [Inbox.align(inboxes) for inboxes in zip(*by_topic, strict=True)]

    def _sharded_by_coordinate(self, parts: list[Tensor]) -> list[Inbox] | None:
        """Inboxes sharded by coordinate, if that is less traffic and every receiver accepts all its neighbours; else None."""
        plan = self._dense_shard_plan
        if plan is None or not plan.pays(parts[0]) or not acceptable(self.gather([norms(part) for part in parts], "lengths")):
            return None
        shards = DenseShards(plan, parts)
        return [
            ShardedDenseInbox(
                own=own,
                expected=columns.expected,
                heard=columns.expected,
                weight=columns.weight,
                self_weight=columns.self_weight,
                own_column=columns.own_column,
                senders=columns.senders,
                receiver_group=self.receiver_group(slot, columns.columns, self.graph.size),
                nodes=columns.nodes,
                shards=shards,
                slot=slot,
            )
            for slot, (columns, own) in enumerate(zip(self._shard_columns, parts, strict=True))
        ]

    @cached_property
    def list_places(self) -> tuple[list[NeighbourLists], list[Tensor]]:
        """Per shard of this rank: the neighbour lists of its nodes, and which of their places are arcs [B, n]."""
        lists = self.whole.lists
        assert lists is not None
        held = [lists.of(nodes) for nodes in self.nodes]
        # One tensor for both where nothing was pruned, as in the graph.
        unpruned = self.whole.hears is lists.mask
        return held, [
            lists.mask if unpruned else self.whole.hears[nodes] for lists, nodes in zip(held, self.nodes, strict=True)
        ]

    @cached_property
    def _dense_shard_plan(self) -> DenseShardPlan | None:
        many = len(self.lockstep.layout.shards) >= _SLICES
        return DenseShardPlan(self) if self.by_slices and many and isinstance(self.whole, MatrixGraph) else None

    def _carried(self, parts: list[Outgoing], topic: Topic, *, varied: bool) -> list[Inbox]:
        """Inboxes with whole rows; `varied`: some senders send variants in this exchange. Collective."""
        shard_columns = self._variant_columns if varied else self._shard_columns
        known = parts[0].known
        if known is None:
            rows = self.needed.carry(torch.cat([part.messages for part in parts]), topic.stream_name())
        else:
            rows = [known.index_select(0, columns.columns) for columns in self._shard_columns]
        heard: Sequence[Messages] = rows
        if varied:
            heard = [self._with_variants(*each) for each in zip(shard_columns, self._shard_columns, parts, rows, strict=True)]
        total = self.graph.size + (len(self.variants.senders) if varied and self.variants is not None else 0)
        return [
            replace(
                columns.receive(part.own, messages, part.same),
                receiver_group=self.receiver_group(slot, columns.columns, total),
            )
            for slot, (columns, part, messages) in enumerate(zip(shard_columns, parts, heard, strict=True))
        ]

    def _with_variants(self, columns: MessageColumns, plain: MessageColumns, part: Outgoing, rows: Tensor) -> Messages:
        """Messages [J, D] of a shard, variants included; `rows`: each neighbour's first message, in the order of `plain`."""
        assert self.variants is not None
        size = self.graph.size
        first, further = columns.columns[columns.columns < size], columns.columns[columns.columns >= size] - size
        if part.variants is not None:
            return followed_by(rows[torch.searchsorted(plain.columns, first)], part.variants(further))
        return rows[torch.searchsorted(plain.columns, torch.cat([first, self.variants.senders[further]]))]

    def receiver_group(self, slot: int, columns: Tensor, total: int, kept: Tensor | None = None) -> ReceiverGroup:
        """All receivers of a round, as one shard reaches them."""
        lockstep = self.lockstep

        def all_agree(flag: bool) -> bool:
            return bool(lockstep.share(slot, flag, lambda flags: lockstep.group.all_agree(all(flags), "receivers")))

        def gather(rows: Tensor) -> Tensor:
            whole: Tensor = lockstep.share(slot, rows, lambda parts: self.gather(parts, "receivers"))
            return whole

        return ReceiverGroup(columns, total, columns if kept is None else kept, all_agree, gather)

    @cached_property
    def needed(self) -> Routes:
        wanted = [self.whole.closed_neighbourhood(nodes) for nodes in self.lockstep.layout.shards]
        return Routes(self.lockstep.layout, self.lockstep.group, wanted)

    @cached_property
    def _shard_columns(self) -> list[MessageColumns]:
        return [_columns_of_shard(nodes, self.whole, self.graph.weight, self.graph.self_weight, None) for nodes in self.nodes]

    @cached_property
    def _variant_columns(self) -> list[MessageColumns]:
        return [
            _columns_of_shard(nodes, self.whole, self.graph.weight, self.graph.self_weight, self.variants)
            for nodes in self.nodes
        ]


def _columns_of_shard(
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
    return _by_matrices(*parts, whole.closed_neighbourhood(nodes), whole.size, variants)


def _by_lists(
    nodes: Tensor, arcs: Tensor, weight: Tensor, self_weight: Tensor, whole: ListGraph, variants: ListedVariants | None
) -> MessageColumns:
    lists, all_nodes = whole.lists.of(nodes), torch.arange(whole.size, device=nodes.device)
    numbers, senders = lists.index, all_nodes
    if variants is not None:
        further = variants.index[nodes]
        numbers, senders = torch.where(further >= 0, whole.size + further, numbers), torch.cat([all_nodes, variants.senders])
    columns = torch.cat([numbers[arcs], nodes]).unique()
    # A list position whose arc was pruned expects nothing, so it may point to any column.
    index = torch.where(arcs, torch.searchsorted(columns, numbers), 0)
    return MessageColumns(nodes, columns, senders[columns], arcs, weight, self_weight, NeighbourLists(index, lists.mask))


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
