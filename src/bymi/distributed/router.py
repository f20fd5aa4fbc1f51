"""Routing of one graph's messages between ranks, and the inbox of each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.graph import Graph, MatrixGraph
from bymi.core.inbox import Inbox
from bymi.core.linalg import norms
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import ListedVariants, MessageColumns, Messages, Outgoing, Variants, followed_by
from bymi.core.receiver_group import ReceiverGroup
from bymi.core.size_limits import LIMITS
from bymi.core.topic import FIRST_HALF, PARAMETERS, SECOND_HALF, Topic
from bymi.distributed.dense_shards import DenseShardPlan, DenseShards, acceptable
from bymi.distributed.lockstep import Lockstep
from bymi.distributed.shard_layout import Routes
from bymi.distributed.shard_messages import columns_of_shard, heard_by
from bymi.distributed.sharded_dense_inbox import ShardedDenseInbox
from bymi.distributed.sharded_list_inbox import sharded_list_inbox

STAY = (PARAMETERS, FIRST_HALF, SECOND_HALF)  # topics whose rows may be sharded by coordinate
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
    def weight(self) -> Tensor:
        """Mixing weights of arcs, [M, M] or [M, n]; cached, since a matrix graph computes them again each time."""
        return self.graph.weight

    @cached_property
    def self_weight(self) -> Tensor:
        return self.graph.self_weight

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

    def set_out(self, dim: int) -> None:
        """Decide from the graph whether vectors of `dim` coordinates are sharded by coordinate in all later rounds."""
        shards, whole = self.lockstep.layout.shards, self.whole
        if not isinstance(whole, ListGraph) or len(shards) == 1 or self.everywhere:
            return
        # With fewer coordinates than members of a neighbourhood some rules read the rows themselves.
        long = dim > max(LIMITS.sharded_dim, 1 + whole.hears.shape[1]) and whole.size * dim >= LIMITS.sharded_rows
        if long and sum(len(heard_by(whole, nodes)) for nodes in shards) > LIMITS.sharded_heard * whole.size:
            self.all_lists = whole.lists.of(torch.cat(list(shards)))

    def stays(self, topic: Topic) -> bool:
        """Whether the rows of a topic are sharded by coordinate, in every round, instead of sent to their receivers."""
        return self.all_lists is not None and topic.part in {some.part for some in STAY}

    def columns(self, topic: Topic, *, varied: bool) -> list[Tensor]:
        """Per shard of this rank, the columns of a topic whose update history it stores, in every round.

        `varied`: senders may send variants under this topic.
        """
        if self.stays(topic):
            return self.nodes
        return [
            shard.columns for shard in (self._variant_columns if varied and self.variants is not None else self._shard_columns)
        ]

    def deliver(self, given: list[Mapping[Topic, Outgoing]]) -> list[tuple[Inbox, ...]]:
        """The inboxes of each shard of this rank, one per topic. Collective: all ranks must call it."""
        outgoing = [one for vectors in given for one in vectors.values()]
        split = any(one.variants is not None for one in outgoing)
        held = not split and all(one.sent is None for one in outgoing)
        by_topic = []
        for topic in given[0]:
            parts = [vectors[topic] for vectors in given]
            if self.stays(topic):
                by_topic.append(sharded_list_inbox(self, parts, topic))
                continue
            sliced = self._sliced([part.own for part in parts]) if held and topic == PARAMETERS else None
            by_topic.append(self._topic(parts, topic, split=split) if sliced is None else sliced)
        return [Inbox.together(inboxes) for inboxes in zip(*by_topic, strict=True)]

    def _sliced(self, parts: list[Tensor]) -> list[Inbox] | None:
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
                receiver_group=self.receiver_group(place, columns.columns, self.graph.size),
                nodes=columns.nodes,
                shards=shards,
                seat=place,
            )
            for place, (columns, own) in enumerate(zip(self._shard_columns, parts, strict=True))
        ]

    @cached_property
    def list_places(self) -> tuple[list[NeighbourLists], list[Tensor]]:
        """Per shard of this rank: the neighbour lists of its nodes, and which of their places are arcs [B, n]."""
        lists = self.whole.lists
        assert lists is not None
        held = [lists.of(nodes) for nodes in self.nodes]
        # One tensor for both where nothing was pruned, as in the graph.
        unpruned = self.whole.hears is lists.there
        return held, [
            lists.there if unpruned else self.whole.hears[nodes] for lists, nodes in zip(held, self.nodes, strict=True)
        ]

    @cached_property
    def _dense_shard_plan(self) -> DenseShardPlan | None:
        many = len(self.lockstep.layout.shards) >= _SLICES
        return DenseShardPlan(self) if self.by_slices and many and isinstance(self.whole, MatrixGraph) else None

    def _topic(self, parts: list[Outgoing], topic: Topic, *, split: bool) -> list[Inbox]:
        shard_columns = self._variant_columns if split else self._shard_columns
        known = parts[0].known
        if known is None:
            rows = self.needed.carry(torch.cat([part.messages for part in parts]), topic.stream_name())
        else:
            rows = [known.index_select(0, columns.columns) for columns in self._shard_columns]
        heard: Sequence[Messages] = rows
        if split:
            heard = [self._with_variants(*each) for each in zip(shard_columns, self._shard_columns, parts, rows, strict=True)]
        total = self.graph.size + (len(self.variants.senders) if split and self.variants is not None else 0)
        return [
            replace(
                columns.receive(part.own, messages, part.same),
                receiver_group=self.receiver_group(place, columns.columns, total),
            )
            for place, (columns, part, messages) in enumerate(zip(shard_columns, parts, heard, strict=True))
        ]

    def _with_variants(self, columns: MessageColumns, plain: MessageColumns, part: Outgoing, rows: Tensor) -> Messages:
        """Messages [J, D] of a shard, variants included; `rows`: each neighbour's first message, in the order of `plain`."""
        assert self.variants is not None
        size = self.graph.size
        first, further = columns.columns[columns.columns < size], columns.columns[columns.columns >= size] - size
        if part.variants is not None:
            return followed_by(rows[torch.searchsorted(plain.columns, first)], part.variants(further))
        return rows[torch.searchsorted(plain.columns, torch.cat([first, self.variants.senders[further]]))]

    def receiver_group(self, seat: int, columns: Tensor, total: int, kept: Tensor | None = None) -> ReceiverGroup:
        """All receivers of a round, as one shard reaches them."""
        return _ReceiverGroup(self, seat, columns, total, columns if kept is None else kept)

    @cached_property
    def needed(self) -> Routes:
        wanted = [heard_by(self.whole, nodes) for nodes in self.lockstep.layout.shards]
        return Routes(self.lockstep.layout, self.lockstep.group, wanted)

    @cached_property
    def _shard_columns(self) -> list[MessageColumns]:
        return [columns_of_shard(nodes, self.whole, self.weight, self.self_weight, None) for nodes in self.nodes]

    @cached_property
    def _variant_columns(self) -> list[MessageColumns]:
        return [columns_of_shard(nodes, self.whole, self.weight, self.self_weight, self.variants) for nodes in self.nodes]


@dataclass(frozen=True, eq=False)
class _ReceiverGroup:
    """All receivers of a round. Collective: all shards must call all_agree and gather in the same order."""

    router: Router
    place: int
    columns: Tensor
    total: int
    kept: Tensor

    def all_agree(self, flag: bool) -> bool:
        group = self.router.lockstep.group
        return bool(self.router.lockstep.share(self.place, flag, lambda flags: group.all_agree(all(flags), "receivers")))

    def gather(self, rows: Tensor) -> Tensor:
        whole: Tensor = self.router.lockstep.share(self.place, rows, lambda parts: self.router.gather(parts, "receivers"))
        return whole
