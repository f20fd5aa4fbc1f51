"""The engine of many processes: each holds some nodes, and the algorithm sees the same protocol as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bymi.algorithm import drsgd_bymi
from bymi.attacks import Adversary
from bymi.engine.board import Board
from bymi.engine.group import Group
from bymi.engine.inquiry import Inquiry, own_or_sent
from bymi.engine.layout import Layout
from bymi.engine.placement import place
from bymi.engine.simulate import check_adversary
from bymi.engine.striped import StripedInbox
from bymi.engine.wires import Wires
from bymi.graph import Graph
from bymi.inbox import Inbox
from bymi.network import Answer, Say
from bymi.plan import Plan
from bymi.problems import Problem
from bymi.sparse import SparseGraph, check_connected
from bymi.state import Snapshot, State
from bymi.staying import Replies
from bymi.topic import PREMIX, Topic

_SHARDS = 4  # of a run that is to give the same bits on 1, 2 and 4 ranks


class ShardNetwork:
    """The network as one shard sees it. Every method but the properties is called by all shards, in the same order."""

    def __init__(self, wires: Wires, place: int, open_inquiries: dict[int, Inquiry]) -> None:
        self.wires, self._place, self._open = wires, place, open_inquiries
        self.shard = wires.board.layout.held[wires.board.group.rank][place]
        self.nodes = wires.nodes[place]
        self.arcs = wires.whole.hears[self.nodes]

    @property
    def size(self) -> int:
        return self.wires.graph.size

    @property
    def graph(self) -> Graph | SparseGraph:
        return self.wires.graph

    def meet(self, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        return self.wires.board.meet(self._place, given, act)

    def finish(self) -> None:
        """Answer what is left of the last inquiry: others may still be asking when this shard has heard enough."""
        while self._place in self._open and self._open[self._place].turns_left:
            self._open[self._place].take_turn()
        self._open.pop(self._place, None)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor]) -> tuple[Inbox, ...]:
        self.finish()
        self._note(step, " and ".join(topic.stream_name() for topic in vectors))
        inboxes: tuple[Inbox, ...] = self.meet(vectors, lambda given: self.wires.deliver(given, step))
        return tuple(replace(inbox, network=self) if isinstance(inbox, StripedInbox) else inbox for inbox in inboxes)

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        say: Say | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[Replies]:
        self.finish()
        self._note(step, "answers")
        inquiry = self._open[self._place] = Inquiry(self, step, points, answer, self._asking(who), say, deeds)
        return inquiry.replies()

    def visit(
        self, topics: Mapping[Topic, tuple[Tensor, Tensor]], who: Tensor, deeds: tuple[Tensor, Tensor] | None
    ) -> Iterator[Replies]:
        """What the nodes of `who` [B] have before them of each topic, of which nodes sent something and hold something."""
        self.finish()

        def found(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
            return {topic: own_or_sent(sent, own, self.nodes, nodes, askers) for topic, (sent, own) in topics.items()}

        held = next(iter(topics.values()))[1]
        inquiry = self._open[self._place] = Inquiry(self, 0, held, found, self._asking(who), None, deeds, visits=True)
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
        """As in one process: each rank works out the limit of all, from the weights that every shard really uses."""
        graph = self.graph
        if not isinstance(graph, SparseGraph):
            return None
        ones = torch.ones(len(self.nodes), 1, dtype=torch.float64, device=self.nodes.device)
        (inbox,) = self.exchange(step, {PREMIX: ones})
        used = inbox.average()

        def act(parts: list[Tensor]) -> list[Tensor]:
            whole = self.wires.gather(parts, "premix")
            limit = graph.tracker_limit(whole[:, :-1], whole[:, -1])
            return [limit[nodes] for nodes in self.wires.nodes]

        entries: Tensor = self.meet(torch.cat([used.weight, used.own[:, None]], 1), act)
        return entries

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


class ShardForge:
    """What the adversary does to the nodes of one shard, with its eyes on those of all."""

    def __init__(self, adversary: Adversary, network: ShardNetwork) -> None:
        self._adversary, self._network = adversary, network
        self.keep, self.asks, self.prune = adversary.keep, adversary.asks, adversary.prune

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int) -> Tensor:
        network, adversary = self._network, self._adversary
        if not adversary.forges(topic, step):
            return vectors
        if topic.asker is not None:  # answers to one asker, which have come together here
            return adversary.gradients(vectors, nodes, topic, step)
        network.finish()
        wires = network.wires
        if adversary.sees == "nothing":
            return adversary.gradients_about(vectors, nodes, topic, step, vectors[0])
        if adversary.sees == "mean":
            told = f"{topic.stream_name()}s"
            mean = network.meet(adversary.total(vectors, nodes), lambda parts: [wires.mean_of_others(parts, told)] * len(parts))
            return vectors if mean is None else adversary.gradients_about(vectors, nodes, topic, step, mean)

        def act(parts: list[Tensor]) -> list[Tensor]:
            whole = wires.gather(parts, f"{topic.stream_name()}s for those who lie")
            forged = adversary.gradients(whole, wires.everybody, topic, step)
            return [forged[some] for some in wires.nodes]

        used: Tensor = network.meet(vectors, act)
        return used


def usual_layout(graph: Graph | SparseGraph, dtype: torch.dtype, device: torch.device, group: Group) -> Layout | None:
    """Who holds which nodes, whose models are of a dtype on a device; None where one process computes all of them at once.

    In float64 on a CPU they are computed in 4 blocks, so that 1, 2 and 4 ranks give the same bits. Elsewhere in one a rank,
    which is the fastest.
    """
    shards = _SHARDS if dtype == torch.float64 and device.type == "cpu" else 1
    return None if max(shards, group.size) == 1 else _layout(graph, max(shards, group.size), group)


def _layout(graph: Graph | SparseGraph, shards: int, group: Group) -> Layout:
    shards = min(graph.size, max(shards, group.size))
    return Layout.even(graph.size, shards, group.size, place(graph, shards)).to(graph.hears.device)


class Spread:
    """A graph's nodes over the ranks of a group: who holds which, and the network as each shard held here sees it."""

    def __init__(
        self,
        problem: Problem,
        graph: Graph | SparseGraph,
        adversary: Adversary | None = None,
        group: Group | None = None,
        *,
        shards: int = _SHARDS,
        layout: Layout | None = None,
    ) -> None:
        """`layout` says who holds which; without one there are so many `shards`, and a shard or more for every rank."""
        check_adversary(adversary, graph.size)
        check_connected(graph)
        group = group or Group()
        layout = _layout(graph, shards, group) if layout is None else layout
        self.shards = len(layout.shards)
        self._board = Board(group, layout)
        self._problem, self._adversary = problem, adversary
        self.wires = Wires(self._board, graph, adversary)
        self.wires.set_out(problem.dim)
        open_inquiries: dict[int, Inquiry] = {}
        self.networks = [ShardNetwork(self.wires, place, open_inquiries) for place in range(self._board.count)]

    def walk(self, plan: Plan, states: Sequence[State] | None = None) -> Iterator[list[Snapshot]]:
        """Run this rank's part of a plan, after the `states` of its shards, if given; after every round their snapshots."""
        self.wires.by_slices = plan.watch is None  # trails are made of whole messages
        given: Sequence[State | None] = [None] * self._board.count if states is None else states
        makers = [
            partial(drsgd_bymi, self._problem, network, plan, self._forge(network), state)
            for network, state in zip(self.networks, given, strict=True)
        ]
        return self._board.walk(makers)

    def _forge(self, network: ShardNetwork) -> ShardForge | None:
        return None if self._adversary is None else ShardForge(self._adversary, network)
