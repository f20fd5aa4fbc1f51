"""The engine of many processes: each holds some nodes, and the algorithm sees the same protocol as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bymi.algorithm import drsgd_bymi
from bymi.engine.board import Board
from bymi.engine.group import Group
from bymi.engine.inquiry import Inquiry, own_or_sent
from bymi.engine.layout import Layout
from bymi.engine.placement import place
from bymi.engine.striped import StripedInbox
from bymi.engine.wires import Wires
from bymi.faces import Faces, ListedFaces
from bymi.forge import Forge
from bymi.graph import Graph
from bymi.inbox import Inbox
from bymi.network import Answer, Network, Observable, Outgoing, Received, settled
from bymi.plan import Plan
from bymi.problems import Problem
from bymi.sparse import check_connected
from bymi.state import Snapshot, State
from bymi.staying import Replies
from bymi.topic import Topic

SHARDS = 4  # of a run that is to give the same bits on 1, 2 and 4 ranks


class ShardNetwork:
    """The network as one shard sees it. Every method but the properties is called by all shards, in the same order."""

    whole_here = False

    def __init__(self, wires: Wires, place: int, open_inquiries: dict[int, Inquiry]) -> None:
        self.wires, self._place, self._open = wires, place, open_inquiries
        self.shard = wires.board.layout.held[wires.board.group.rank][place]
        self.nodes = wires.nodes[place]
        self.arcs = wires.whole.hears[self.nodes]

    @property
    def size(self) -> int:
        return self.wires.graph.size

    @property
    def graph(self) -> Graph:
        return self.wires.graph

    @property
    def variants(self) -> Faces | ListedFaces | None:
        return self.wires.variants

    def meet(self, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        return self.wires.board.meet(self._place, given, act)

    def finish(self) -> None:
        """Answer what is left of the last inquiry: others may still be asking when this shard has heard enough."""
        while self._place in self._open and self._open[self._place].turns_left:
            self._open[self._place].take_turn()
        self._open.pop(self._place, None)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        self.finish()
        self._note(step, " and ".join(topic.stream_name() for topic in vectors))
        outgoing = {topic: Outgoing.of(given) for topic, given in vectors.items()}
        inboxes: tuple[Inbox, ...] = self.meet(outgoing, self.wires.deliver)
        return tuple(replace(inbox, network=self) if isinstance(inbox, StripedInbox) else inbox for inbox in inboxes)

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[Replies]:
        self.finish()
        self._note(step, "answers")
        inquiry = self._open[self._place] = Inquiry(self, points, answer, self._asking(who), received, deeds)
        return inquiry.replies()

    def visit(
        self, topics: Mapping[Topic, tuple[Tensor, Tensor]], who: Tensor, deeds: tuple[Tensor, Tensor] | None
    ) -> Iterator[Replies]:
        """What the nodes of `who` [B] have before them of each topic, of which nodes sent something and hold something."""
        self.finish()

        def found(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
            return {topic: own_or_sent(sent, own, self.nodes, nodes, askers) for topic, (sent, own) in topics.items()}

        held = next(iter(topics.values()))[1]
        inquiry = self._open[self._place] = Inquiry(self, held, found, self._asking(who), None, deeds, visits=True)
        return self._to_the_end(inquiry)

    def _to_the_end(self, inquiry: Inquiry) -> Iterator[Replies]:
        """Until all shards are through: what comes next may be no exchange, before which they wait for each other anyway."""
        yield from inquiry.replies()
        self.finish()

    def agree(self, flag: bool) -> bool:
        self.finish()
        group, count = self.wires.board.group, self.wires.board.count
        return bool(self.meet(flag, lambda flags: [group.agree(all(flags))] * count))

    def count(self, mask: Tensor) -> int:
        self.finish()
        group, count = self.wires.board.group, self.wires.board.count
        return int(self.meet(int(mask.sum()), lambda some: [group.total(torch.tensor([sum(some)]), "count")] * count))

    def prune(self, flagged: Tensor) -> ShardNetwork:
        return self._over(flagged, lambda whole: self.wires.over(self.graph.prune(whole)))

    def weigh(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> ShardNetwork:
        whole = self.wires.whole

        def weighed(cut: Tensor) -> Wires:
            return self.wires.over(whole.prune_mutually(cut, exile=exile) if mutual else whole.prune(cut), whole=whole)

        return self._over(flagged, weighed)

    def settle(self, step: int) -> Tensor | None:
        return settled(self, self.exchange, step)

    def gather(self, rows: Tensor, what: str) -> Tensor:
        self.finish()
        whole: Tensor = self.meet(rows, lambda parts: [self.wires.gather(parts, what)] * len(parts))
        return whole

    def total(self, values: Tensor, what: str) -> Tensor:
        self.finish()
        total: Tensor = self.meet(values, lambda parts: [self.wires.total(parts, what)] * len(parts))
        return total

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        self.finish()

        def act(parts: list[Tensor]) -> list[Tensor]:
            return [work(self.wires.gather(parts, what), self.wires.everybody)] * len(parts)

        found: Tensor = self.meet(rows, act)
        return found

    def _over(self, flagged: Tensor, make: Callable[[Tensor], Wires]) -> ShardNetwork:
        self.finish()

        def act(parts: list[Tensor]) -> list[Wires]:
            return [make(self.wires.gather(parts, "flags"))] * self.wires.board.count

        return ShardNetwork(self.meet(flagged, act), self._place, self._open)

    def _asking(self, who: Tensor) -> Tensor:
        """Who asks [M], from those of each shard [B]."""
        asks: Tensor = self.meet(who, lambda given: [self.wires.gather(given, "points")] * len(given))
        return asks

    def _note(self, step: int, what: str) -> None:
        self.wires.board.group.moment = f"in round {step} ({what})"


def usual_layout(graph: Graph, dtype: torch.dtype, device: torch.device, group: Group) -> Layout | None:
    """Who holds which nodes, whose models are of a dtype on a device; None where one process computes all of them at once.

    In float64 on a CPU they are computed in 4 blocks, so that 1, 2 and 4 ranks give the same bits. Elsewhere in one a rank,
    which is the fastest.
    """
    shards = SHARDS if dtype == torch.float64 and device.type == "cpu" else 1
    return None if max(shards, group.size) == 1 else _layout(graph, max(shards, group.size), group)


def _layout(graph: Graph, shards: int, group: Group) -> Layout:
    shards = min(graph.size, max(shards, group.size))
    return Layout.even(graph.size, shards, group.size, place(graph, shards)).to(graph.hears.device)


Wrap = Callable[[Observable], tuple[Network, Forge | None]]
"""What the nodes of a shard run on, and what they do in place of the protocol, if anything."""


class Spread:
    """A graph's nodes over the ranks of a group: who holds which, and the network as each shard held here sees it."""

    def __init__(
        self,
        problem: Problem,
        graph: Graph,
        group: Group | None = None,
        *,
        shards: int = SHARDS,
        layout: Layout | None = None,
        variants: Faces | ListedFaces | None = None,
        everywhere: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        """`layout` says who holds which; without one there are so many `shards`, and a shard or more for every rank.

        `wrap` puts something between the nodes of a shard and its network; `variants` and `everywhere` are those of Wires.
        """
        check_connected(graph)
        group = group or Group()
        layout = _layout(graph, shards, group) if layout is None else layout
        self.shards = len(layout.shards)
        self._board = Board(group, layout)
        self._problem = problem
        self.wires = Wires(self._board, graph, variants=variants, everywhere=everywhere)
        self.wires.set_out(problem.dim)
        open_inquiries: dict[int, Inquiry] = {}
        self.networks = [ShardNetwork(self.wires, place, open_inquiries) for place in range(self._board.count)]
        wrapped: list[tuple[Network, Forge | None]] = [(one, None) if wrap is None else wrap(one) for one in self.networks]
        self.wrapped = wrapped

    def walk(self, plan: Plan, states: Sequence[State] | None = None) -> Iterator[list[Snapshot]]:
        """Run this rank's part of a plan, after the `states` of its shards, if given; after every round their snapshots."""
        self.wires.by_slices = plan.watch is None  # trails are made of whole messages
        given: Sequence[State | None] = [None] * self._board.count if states is None else states
        makers = [
            partial(drsgd_bymi, self._problem, network, plan, forge, state)
            for (network, forge), state in zip(self.wrapped, given, strict=True)
        ]
        return self._board.walk(makers)
