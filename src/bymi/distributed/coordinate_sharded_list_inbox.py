"""A list inbox sharded by coordinate: rules use it as any other, and it computes distances and mixtures on slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.inbox import Inbox, Mixture, PairMakers, Sides, T
from bymi.core.linalg import VectorStack, inner_of_sets, norms
from bymi.core.list_graph import ListGraph
from bymi.core.list_inbox import ListInbox
from bymi.core.message_validity import OVERFLOW, acceptable, heard
from bymi.core.neighbour_lists import NeighbourLists, dist2_of_pairs
from bymi.core.neighbourhoods import Need, Neighbourhoods, Trial, Work
from bymi.core.network import NeighbourhoodReply, Outgoing
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import Topic
from bymi.distributed.coordinate_shards import CoordinateShards, once

if TYPE_CHECKING:
    from bymi.distributed.router import Router
    from bymi.distributed.sharded_run import ShardNetwork

_TOGETHER = 4  # shards that may share a process


class ListShards(CoordinateShards):
    """The rows of one topic in a round: `sent` [B, D] per shard of this rank, zero where no receiver may accept them.

    `own` [K, D]: own vectors of the nodes in the mask `whose` [M], which sent something else. `acceptable` [M]: rows that some
    receiver may accept.
    """

    def __init__(
        self, router: Router, sent: Sequence[Tensor], own: Sequence[Tensor], whose: Tensor, acceptable: Tensor
    ) -> None:
        super().__init__(router, sent[0].shape[1])
        assert isinstance(router.whole, ListGraph)
        self.sent, self._own, self._acceptable, self._whole = sent, own, acceptable, router.whole
        self.size, self._ranks = len(whose), range(self.group.size)
        self.own_row = torch.where(whose, self.size - 1 + torch.cumsum(whose, 0), router.all_nodes)  # [M]
        self._count = self.size + int(whose.sum())
        self._nodes = [router.lockstep.layout.nodes(rank) for rank in self._ranks]
        self._place = [torch.cat([nodes, self.own_row[nodes[whose[nodes]]]]) for nodes in self._nodes]

    def _turns(self) -> Iterator[list[slice]]:
        """Yield a few coordinates per shard at a time, which bounds the memory in transit; the same on any number of ranks."""
        size = max(1, LIMITS.slice_turn // (self._count * min(len(self.all_spans), _TOGETHER)))
        for start in range(0, max(last - first for first, last in self.all_spans), size):
            yield [slice(min(first + start, last), min(first + start + size, last)) for first, last in self.all_spans]

    def _of(self, rank: int, parts: Sequence[slice]) -> list[slice]:
        """The entries of `parts` that belong to the shards of a rank."""
        return [parts[shard] for shard in self.held[rank]]

    def _columns(self, part: slice) -> Tensor:
        """Some of this rank's coordinates, of all rows."""
        start = self.spans[0][0]
        return self._table[:, part.start - start : part.stop - start]

    @cached_property
    def _table(self) -> Tensor:
        """This rank's coordinates of all rows, then of own vectors that were not sent [M + K, D / P]. Collective."""
        start = self.spans[0][0]
        rows = torch.cat([*self.sent, *self._own]) if len(self.sent) > 1 or len(self._own[0]) else self.sent[0]
        if self.group.size == 1:
            return torch.empty_like(rows).index_copy_(0, self._place[0], rows)
        table = rows.new_empty(self._count, self.spans[-1][1] - start)
        for parts in self._turns():
            # The slices of a rank's shards are not contiguous, so they are sent one after the other.
            sent = [torch.cat([rows[:, part].flatten() for part in self._of(rank, parts)]) for rank in self._ranks]
            mine = self._of(self.group.rank, parts)
            widths = [part.stop - part.start for part in mine]
            received = self.group.trade(sent, [(len(place) * sum(widths),) for place in self._place], "parameters")
            for place, block in zip(self._place, received, strict=True):
                for part, one in zip(mine, block.split([len(place) * width for width in widths]), strict=True):
                    into = table[:, part.start - start : part.stop - start]
                    into.index_copy_(0, place, one.view(len(place), part.stop - part.start))
        return table

    @property
    def slices(self) -> list[Tensor]:
        return [self._columns(slice(*span)) for span in self.spans]

    def _back(self, receivers: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Whole rows for the receivers of each shard of this rank. Collective.

        `work` maps some coordinates of all rows to those of all receivers; `receivers`: node numbers per shard, in that order.
        """
        rank_here = self.group.rank
        counts = [sum(len(receivers[shard]) for shard in held) for held in self.held]
        rows = self._table.new_empty(counts[rank_here], self.dim)
        for parts in self._turns():
            results = [self._made(part, sum(counts), work).split(counts) for part in self._of(rank_here, parts)]
            sent = [torch.cat([blocks[rank].flatten() for blocks in results]) for rank in self._ranks]
            widths = [[part.stop - part.start for part in self._of(rank, parts)] for rank in self._ranks]
            received = self.group.trade(sent, [(counts[rank_here] * sum(held),) for held in widths], "mixtures")
            for rank, block in enumerate(received):
                pieces = block.split([counts[rank_here] * width for width in widths[rank]])
                for part, piece in zip(self._of(rank, parts), pieces, strict=True):
                    rows[:, part] = piece.view(counts[rank_here], part.stop - part.start)
        return list(rows.split([len(receivers[shard]) for shard in self.held[rank_here]]))

    def _made(self, part: slice, count: int, work: Callable[[Tensor], Tensor]) -> Tensor:
        """`work` on some coordinates; with more shards than coordinates some slices are empty."""
        return work(self._columns(part)) if part.stop > part.start else self._table.new_empty(count, 0)

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """Weighted sums of messages for the receivers of each shard: (node numbers, weights [b, n] or None for the graph's)."""
        router = self.router
        by_shard, marked = self.receivers([(nodes, weight is not None) for nodes, weight in given])
        receivers = torch.cat(by_shard).to(router.all_nodes.device)
        if not len(receivers):
            return [part[:0] for part in self.sent]
        used = router.graph.weight
        if bool(marked.any()):
            weights = []
            for (nodes, weight), held in zip(given, router.nodes, strict=True):
                usual, places = used[held], torch.searchsorted(held, nodes)
                weights.append(usual if weight is None else usual.index_copy(0, places, weight))
            used = router.gather(weights, "weights")
        lists = self._all_lists if len(receivers) == self.size else self._whole.lists.of(receivers)
        chosen = used[receivers]
        return self._back(by_shard, lambda part: lists.total(chosen, part))

    @property
    def _all_lists(self) -> NeighbourLists:
        """Neighbour lists of all nodes, shard by shard; the same in all rounds."""
        assert self.router.all_lists is not None
        return self.router.all_lists

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, Work]]) -> list[Tensor]:
        """Results of a coordinate-wise reduction for all receivers, from masks [B, n] of accepted messages per shard."""
        work, valid = given[0][1], self.router.gather([heard for heard, _ in given], "weights")
        all_nodes = torch.cat(list(self.shards))
        members = self._sets(all_nodes)
        valid = torch.nn.functional.pad(valid[all_nodes], (0, 1), value=True)
        return self._back(self.shards, lambda part: work(VectorStack(part), members, valid))

    def _sets(self, nodes: Tensor) -> Tensor:
        """Row indices [b, n + 1] of each receiver's neighbourhood, its own row last."""
        return torch.cat([self._whole.lists.index[nodes], self.own_row[nodes][:, None]], 1)

    def distances(self) -> list[Tensor]:
        """Squared distances [B, n] of each message to the receiver's own vector, per shard of this rank."""
        lists = self._all_lists
        masks = lists.mask.split([len(nodes) for nodes in self._nodes])
        counts = [int(places.sum()) for places in masks]
        receivers, numbers = lists.flat
        own = self.own_row[torch.cat(self._nodes)[receivers]]
        pairs = zip(own.split(counts), numbers.split(counts), strict=True)
        parts = [[dist2_of_pairs(part, one, part, other) for part in self.slices] for one, other in pairs]
        own_mask, sums = masks[self.group.rank], self.sum_over_slices(parts, counts[self.group.rank])
        output = torch.zeros(own_mask.shape, dtype=torch.float64, device=sums.device).masked_scatter_(own_mask, sums)
        return list(output.split([len(nodes) for nodes in self.router.nodes]))

    @cached_property
    def _origin(self) -> Tensor:
        """Index of the origin of all products."""
        acceptable = self._acceptable if bool(self._acceptable.any()) else torch.ones_like(self._acceptable)
        return self.nearest_to_median(acceptable.nonzero().flatten())

    def among(self) -> list[Tensor]:
        """Inner products [B, n + 1, n + 1] within each receiver's neighbourhood, its own row last, per shard of this rank."""
        products, size = [], 1 + self._whole.hears.shape[1]
        step = max(1, min(LIMITS.slice_sets, LIMITS.slice_turn // (len(self.shards) * size**2)))
        for start in range(0, max(len(nodes) for nodes in self.shards), step):
            # Shard by shard: the order of sums inside a product depends on the batch size.
            batch = [nodes[start : start + step] for nodes in self.shards]
            made = [
                [inner_of_sets(part, members, part, members, part[self._origin]) for part in self.slices]
                for members in map(self._sets, batch)
            ]
            parts = [[torch.cat(each) for each in zip(*(made[shard] for shard in held), strict=True)] for held in self.held]
            counts = [len(batch[shard]) for shard in self.held_here]
            products.append(self.sum_over_slices(parts, sum(counts), size, size).split(counts))
        return [torch.cat(parts) for parts in zip(*products, strict=True)]


_NO_ROWS = (
    "this needs the rows of a round, but long ones of large graphs stay with their senders: "
    "derive a rule from SetRule or CoordinateRule, or go from receiver to receiver with `Inbox.iter_receivers`"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedListInbox(ListInbox):
    """The inbox of one shard, without rows: message j is that of node j, and `messages` is zero-width.

    Every method is collective: all shards must call the same methods in the same order, or the run deadlocks.
    """

    history_at_senders: ClassVar[bool] = True

    nodes: Tensor  # [B] numbers of the receivers, ascending
    sent: Tensor = field(repr=False)  # [B, D] as sent
    topic: Topic
    shards: ListShards = field(repr=False)
    slot: int  # index of the shard within its process
    network: ShardNetwork | None = field(default=None, repr=False)

    @property
    def kept(self) -> Tensor:
        return self.shards.sent[self.slot]

    def metadata_only(self) -> Inbox:
        kept = {part.name: getattr(self, part.name) for part in fields(ListInbox)}
        return ListInbox(**kept | {"own": self.own[:, :0].clone()})

    def _selected(self, receivers: Tensor) -> dict[str, Any]:
        return {**super()._selected(receivers), "nodes": self.nodes.index_select(0, receivers)}

    @cached_property
    def rows(self) -> VectorStack:
        return ListShardVectors(inbox=self)

    @cached_property
    def own_row(self) -> Tensor:
        return self.shards.own_row[self.nodes]

    def dist2_to_own(self) -> Tensor:
        distances, held = (
            once(self, "distances", None, lambda given: self.shards.distances()),
            self.shards.router.nodes[self.slot],
        )
        return distances if len(self.nodes) == len(held) else distances[torch.searchsorted(held, self.nodes)]

    def message_norms(self) -> Tensor:
        shards = self.shards

        def gather(given: object) -> list[Tensor]:
            return [shards.router.gather([norms(part) for part in shards.sent], "lengths")] * len(shards.sent)

        return self._at_places(once(self, "norms", None, gather))

    def mix(self, mixture: Mixture) -> Tensor:
        usual = self.complete and mixture.weight is self.weight
        heard = self.shards.meet(self.slot, (self.nodes, None if usual else mixture.weight), self.shards.mix)
        mixed: Tensor = mixture.own.to(self.own.dtype)[:, None] * self.own + heard
        return mixed

    def neighbourhoods(self, need: Need, *, common: bool = False) -> Iterator[Neighbourhoods]:
        if need != "nothing":
            self._products()
        return super().neighbourhoods(need, common=common)

    def reduce_coordinates(self, work: Work) -> Tensor:
        reduced: Tensor = self.shards.meet(self.slot, (self.heard, work), self.shards.reduce_coordinates)
        return reduced

    def iter_receivers(self, wanted: Tensor) -> Iterator[Trial]:
        for reply in self.visit():
            (inbox,) = reply.read()
            receiver, senders = torch.tensor([reply.receiver], device=wanted.device), reply.senders
            tried = torch.nn.functional.pad(wanted[receiver][:, senders], (0, 1), value=True)
            places = torch.zeros_like(wanted[receiver], dtype=torch.int64)
            places[0, senders] = torch.arange(len(senders), device=wanted.device)
            yield Trial(receiver, inbox.rows.vectors, tried, places, torch.full_like(places[:, :1], len(senders)))

    def _products(self) -> Tensor:
        return once(self, "products", None, lambda given: self.shards.among())

    def among(self, at: Tensor) -> Tensor:
        """Inner products [b, n, n] of sets `at` as rules give them: first places of a receiver's list, its own row last."""
        products = self._products()
        row = self.own_row
        order = torch.argsort(row)
        receivers = order[torch.searchsorted(row[order], at[:, -1].contiguous())]
        positions = torch.arange(at.shape[1], device=at.device)
        positions = torch.where(positions == at.shape[1] - 1, products.shape[1] - 1, positions)
        return products[receivers][:, positions[:, None], positions]

    def paired(self, second: Inbox, makers: PairMakers[T], *, who: Tensor | None = None, history: Sides | None = None) -> T:
        return makers.replies(self.visit(second, who=who, history=history))

    def visit(
        self, *further: Inbox, who: Tensor | None = None, history: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[NeighbourhoodReply]:
        assert self.network is not None
        asks = torch.ones_like(self.nodes, dtype=torch.bool) if who is None else who
        topics = {one.topic: (one.sent, one.own) for one in (self, *further) if isinstance(one, ShardedListInbox)}
        return self.network.visit(topics, asks, history)


def sharded_list_inbox(router: Router, outgoing: list[Outgoing], topic: Topic) -> list[Inbox]:
    """The inboxes of each shard of this rank, from what its nodes hold and send. Collective."""
    parts = [one.own for one in outgoing]
    own_lengths = [norms(part) for part in parts]
    rows, true, lengths = parts, None, own_lengths
    if any(one.sent is not None for one in outgoing):
        rows, true = [one.messages for one in outgoing], [_same(one) for one in outgoing]
        lengths = [norms(row) for row in rows]
    both_lengths = router.gather([torch.stack(pair, 1) for pair in zip(lengths, own_lengths, strict=True)], "lengths")
    length, own_length = both_lengths.unbind(1)
    valid = acceptable(length, own_length)
    # Nodes whose own vector is not among the messages.
    unsent = torch.zeros_like(router.all_nodes, dtype=torch.bool) if true is None else ~router.gather(true, "lengths")
    kept, own = rows, parts
    if valid is not None:
        unsent = unsent | ~valid
        kept = [torch.where(valid[nodes][:, None], row, 0.0) for row, nodes in zip(rows, router.nodes, strict=True)]
        # A diverged vector takes part in nothing; zeros keep the sums over the other rows finite.
        finite = [(long < OVERFLOW)[:, None] for long in own_lengths]
        own = [torch.where(mask, part, 0.0) for part, mask in zip(parts, finite, strict=True)]
    own = [part[unsent[nodes]] for part, nodes in zip(own, router.nodes, strict=True)]
    shards = ListShards(router, kept, own, unsent, torch.ones_like(unsent) if valid is None else valid)
    inboxes: list[Inbox] = []
    for slot, (nodes, lists, expected) in enumerate(zip(router.nodes, *router.list_places, strict=True)):
        arcs = expected if valid is None else heard(length, own_lengths[slot], expected, lists)
        weight = router.graph.weight[nodes]
        inboxes.append(
            ShardedListInbox(
                own=parts[slot],
                messages=parts[slot].new_empty(router.graph.size, 0),
                expected=expected,
                heard=arcs,
                weight=weight if valid is None else weight * arcs,
                self_weight=router.graph.self_weight[nodes],
                own_column=torch.where(unsent[nodes], -1, nodes),
                lists=lists,
                receiver_group=router.receiver_group(slot, router.all_nodes, router.graph.size, nodes),
                nodes=nodes,
                sent=rows[slot],
                topic=topic,
                shards=shards,
                slot=slot,
            )
        )
    return inboxes


def _same(given: Outgoing) -> Tensor:
    """Mask [B] of nodes that send what they hold."""
    return torch.ones(len(given.own), dtype=torch.bool, device=given.own.device) if given.same is None else given.same


@dataclass(frozen=True, eq=False)
class ListShardVectors(VectorStack):
    """The rows of a sharded list inbox: inner products only."""

    vectors: Tensor = field(init=False, repr=False)  # never available
    inbox: ShardedListInbox = field(kw_only=True)

    def __getattr__(self, name: str) -> Tensor:
        if name != "vectors":
            raise AttributeError(name)
        raise InputError(_NO_ROWS)

    @property
    def dim(self) -> int:
        return self.inbox.shards.dim

    def among(self, at: Tensor) -> Tensor:
        return self.inbox.among(at)
