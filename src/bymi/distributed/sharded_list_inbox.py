"""A list inbox sharded by coordinate: rules use it as any other, and it computes distances and mixtures on slices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.inbox import Inbox, Mixture, PairMakers, Sides, T
from bymi.core.linalg import VectorStack, norms
from bymi.core.list_inbox import ListInbox
from bymi.core.message_validity import OVERFLOW, acceptable, heard
from bymi.core.neighbourhoods import Need, Neighbourhoods, Trial, Work
from bymi.core.network import NeighbourhoodReply, Outgoing
from bymi.core.topic import Topic
from bymi.distributed.coordinate_shards import once
from bymi.distributed.list_shards import ListShards

if TYPE_CHECKING:
    from bymi.distributed.router import Router
    from bymi.distributed.sharded_run import ShardNetwork


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
    seat: int  # index of the shard within its process
    network: ShardNetwork | None = field(default=None, repr=False)

    @property
    def kept(self) -> Tensor:
        return self.shards.sent[self.seat]

    def metadata_only(self) -> Inbox:
        kept = {part.name: getattr(self, part.name) for part in fields(ListInbox)}
        return ListInbox(**kept | {"own": self.own[:, :0].clone()})

    def _selected(self, receivers: Tensor) -> dict[str, Any]:
        return {**super()._selected(receivers), "nodes": self.nodes.index_select(0, receivers)}

    @cached_property
    def _sources(self) -> tuple[VectorStack, Tensor]:
        return ListShardVectors(inbox=self), self.shards.own_row[self.nodes]

    def dist2_to_own(self) -> Tensor:
        distances, held = (
            once(self, "distances", None, lambda given: self.shards.distances()),
            self.shards.router.nodes[self.seat],
        )
        return distances if len(self.nodes) == len(held) else distances[torch.searchsorted(held, self.nodes)]

    def message_norms(self) -> Tensor:
        shards = self.shards

        def gather(given: object) -> list[Tensor]:
            return [shards.router.gather([norms(part) for part in shards.sent], "lengths")] * len(shards.sent)

        return self._at_places(once(self, "norms", None, gather))

    def mix(self, mixture: Mixture) -> Tensor:
        usual = self.complete and mixture.weight is self.weight
        heard = self.shards.meet(self.seat, (self.nodes, None if usual else mixture.weight), self.shards.mix)
        mixed: Tensor = mixture.own.to(self.own.dtype)[:, None] * self.own + heard
        return mixed

    def neighbourhoods(self, need: Need, *, common: bool = False) -> Iterator[Neighbourhoods]:
        if need != "nothing":
            self._products()
        return super().neighbourhoods(need, common=common)

    def reduce_coordinates(self, work: Work) -> Tensor:
        reduced: Tensor = self.shards.meet(self.seat, (self.heard, work), self.shards.reduce_coordinates)
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
        return makers.replies(self.visit(second, who=who, deeds=history))

    def visit(
        self, *further: Inbox, who: Tensor | None = None, deeds: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[NeighbourhoodReply]:
        assert self.network is not None
        asks = torch.ones_like(self.nodes, dtype=torch.bool) if who is None else who
        topics = {one.topic: (one.sent, one.own) for one in (self, *further) if isinstance(one, ShardedListInbox)}
        return self.network.visit(topics, asks, deeds)


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
    for seat, (nodes, lists, expected) in enumerate(zip(router.nodes, *router.list_places, strict=True)):
        arcs = expected if valid is None else heard(length, own_lengths[seat], expected, lists)
        weight = router.weight[nodes]
        inboxes.append(
            ShardedListInbox(
                own=parts[seat],
                messages=parts[seat].new_empty(router.graph.size, 0),
                expected=expected,
                heard=arcs,
                weight=weight if valid is None else weight * arcs,
                self_weight=router.self_weight[nodes],
                own_column=torch.where(unsent[nodes], -1, nodes),
                lists=lists,
                receiver_group=router.receiver_group(seat, router.all_nodes, router.graph.size, nodes),
                nodes=nodes,
                sent=rows[seat],
                topic=topic,
                shards=shards,
                seat=seat,
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
