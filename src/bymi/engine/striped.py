"""An inbox whose rows stay where they are: rules ask it for distances and mixtures as any other, and it gets them by strips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bymi.engine.strips import Strips, Work
from bymi.errors import InputError
from bymi.hearing import OVERFLOW, heard, usable
from bymi.inbox import Inbox, Mixture
from bymi.network import Outgoing
from bymi.staying import Replies, StayingInbox
from bymi.topic import Topic
from bymi.vectors import Rows, norms

if TYPE_CHECKING:
    from bymi.engine.distributed import ShardNetwork
    from bymi.engine.wires import Wires


_NO_ROWS = (
    "this needs the rows of a round, but long ones of large graphs stay with those who sent them: "
    "derive a rule from SetRule or CoordinateRule, or go from receiver to receiver with `StayingInbox.visit`"
)


@dataclass(frozen=True, eq=False)
class StripedInbox(StayingInbox):
    """The inbox of one shard."""

    nodes: Tensor = field(kw_only=True)  # [B] numbers of the receivers, upwards
    sent: Tensor = field(kw_only=True, repr=False)  # [B, D] as it is on the wire
    topic: Topic = field(kw_only=True)
    strips: Strips = field(kw_only=True, repr=False)
    seat: int = field(kw_only=True)  # of the shard, among those held by its process
    network: ShardNetwork | None = field(default=None, kw_only=True, repr=False)

    @property
    def kept(self) -> Tensor:
        return self.strips.sent[self.seat]

    def without_vectors(self) -> Inbox:
        values = (self.own[:, :0].clone(), self.messages, self.expected, self.heard, self.weight, self.self_weight, self.own_at)
        return Inbox(*values, self.senders, self.lists, self.crowd)

    def of(self, receivers: Tensor) -> Inbox:
        """Of few receivers a mixture can be asked for: they come by number."""
        assert self.lists is not None
        expected = self.expected.index_select(0, receivers)
        return replace(
            self,
            own=self.own.index_select(0, receivers),
            expected=expected,
            heard=expected if self.complete else self.heard.index_select(0, receivers),
            weight=self.weight.index_select(0, receivers),
            self_weight=self.self_weight.index_select(0, receivers),
            own_at=self.own_at.index_select(0, receivers),
            lists=self.lists.of(receivers),
            crowd=None,
            nodes=self.nodes.index_select(0, receivers),
        )

    def _once(self, name: str, act: Callable[[], Sequence[Tensor]]) -> Tensor:
        """What all shards find together, kept under a name. Not by cached_property, which may keep others out of it."""
        if name not in self.__dict__:
            self.__dict__[name] = self._meet(None, lambda given: act())
        found: Tensor = self.__dict__[name]
        return found

    def _meet(self, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        return self.strips.weave.wires.board.meet(self.seat, given, act)

    @cached_property
    def _sources(self) -> tuple[Rows, Tensor]:
        return StripedRows(inbox=self), self.strips.own_row[self.nodes]

    def dist2_to_own(self) -> Tensor:
        found, held = self._once("distances", self.strips.distances), self.strips.weave.wires.nodes[self.seat]
        return found if len(self.nodes) == len(held) else found[torch.searchsorted(held, self.nodes)]

    def mix(self, mixture: Mixture) -> Tensor:
        usual = self.complete and mixture.weight is self.weight
        heard = self._meet((self.nodes, None if usual else mixture.weight), self.strips.mix)
        mixed: Tensor = mixture.own.to(self.own.dtype)[:, None] * self.own + heard
        return mixed

    def by_sets(self, work: Work) -> Tensor:
        found: Tensor = self._meet((self.heard, work), self.strips.by_sets)
        return found

    def among(self, at: Tensor) -> Tensor:
        """Products of sets of rows [b, n, n] as rules name them: some first places of a receiver's list, and last its own."""
        products = self._once("products", self.strips.among)
        row = self.own_row
        order = torch.argsort(row)
        receivers = order[torch.searchsorted(row[order], at[:, -1].contiguous())]
        seats = torch.arange(at.shape[1], device=at.device)
        seats = torch.where(seats == at.shape[1] - 1, products.shape[1] - 1, seats)
        return products[receivers][:, seats[:, None], seats]

    def visit(
        self, *further: Inbox, who: Tensor | None = None, deeds: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[Replies]:
        assert self.network is not None
        asks = torch.ones_like(self.nodes, dtype=torch.bool) if who is None else who
        topics = {one.topic: (one.sent, one.own) for one in (self, *further) if isinstance(one, StripedInbox)}
        return self.network.visit(topics, asks, deeds)


def striped(wires: Wires, outgoing: list[Outgoing], topic: Topic) -> list[Inbox]:
    """The inboxes of each shard held here, of what its nodes hold and send."""
    parts = [one.own for one in outgoing]
    own_lengths = [norms(part) for part in parts]
    rows, true, lengths = parts, None, own_lengths
    if any(one.sent is not None for one in outgoing):
        rows, true = [one.messages for one in outgoing], [_same(one) for one in outgoing]
        lengths = [norms(row) for row in rows]
    told = wires.gather([torch.stack(pair, 1) for pair in zip(lengths, own_lengths, strict=True)], "lengths")
    length, own_length = told.unbind(1)
    fine = usable(length, own_length)
    # Whose own vector is not among the messages.
    alone = torch.zeros_like(wires.everybody, dtype=torch.bool) if true is None else ~wires.gather(true, "lengths")
    kept, own = rows, parts
    if fine is not None:
        alone = alone | ~fine
        kept = [torch.where(fine[nodes][:, None], row, 0.0) for row, nodes in zip(rows, wires.nodes, strict=True)]
        # A vector that has diverged takes part in nothing; zero keeps the sums of the others clean.
        sane = [(long < OVERFLOW)[:, None] for long in own_lengths]
        own = [torch.where(some, part, 0.0) for part, some in zip(parts, sane, strict=True)]
    own = [part[alone[nodes]] for part, nodes in zip(own, wires.nodes, strict=True)]
    strips = Strips(wires.weave, kept, own, alone, torch.ones_like(alone) if fine is None else fine)
    inboxes: list[Inbox] = []
    for seat, (nodes, lists, expected) in enumerate(zip(wires.nodes, *wires.weave.places, strict=True)):
        arcs = expected if fine is None else heard(length, own_lengths[seat], expected, lists)
        weight = wires.weight[nodes]
        inboxes.append(
            StripedInbox(
                parts[seat],
                parts[seat].new_empty(wires.graph.size, 0),
                expected,
                arcs,
                weight if fine is None else weight * arcs,
                wires.self_weight[nodes],
                torch.where(alone[nodes], -1, nodes),
                None,
                lists,
                wires.crowd(seat, wires.everybody, wires.graph.size, nodes),
                nodes=nodes,
                sent=rows[seat],
                topic=topic,
                strips=strips,
                seat=seat,
            )
        )
    return inboxes


def _same(given: Outgoing) -> Tensor:
    """Which nodes [B] send what they hold."""
    return torch.ones(len(given.own), dtype=torch.bool, device=given.own.device) if given.same is None else given.same


@dataclass(frozen=True, eq=False)
class StripedRows(Rows):
    """The rows of such an inbox, by their products."""

    vectors: Tensor = field(init=False, repr=False)  # there are none
    inbox: StripedInbox = field(kw_only=True)

    def __getattr__(self, name: str) -> Tensor:
        if name != "vectors":
            raise AttributeError(name)
        raise InputError(_NO_ROWS)

    @property
    def dim(self) -> int:
        return self.inbox.strips.dim

    def among(self, at: Tensor) -> Tensor:
        return self.inbox.among(at)
