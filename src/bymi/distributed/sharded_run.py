"""Training over several processes: each rank holds some nodes, and the algorithm sees the same Network protocol as in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bymi.core.byzantine_hooks import Deviation
from bymi.core.graph import Graph, check_connected
from bymi.core.inbox import Inbox
from bymi.core.network import (
    Answer,
    ListedVariants,
    NeighbourhoodReply,
    Network,
    Observable,
    Outgoing,
    Received,
    Variants,
)
from bymi.core.topic import Topic
from bymi.distributed.collectives import Group
from bymi.distributed.coordinate_sharded_list_inbox import ShardedListInbox
from bymi.distributed.gradient_queries import PointQueries, own_or_sent
from bymi.distributed.router import Router
from bymi.distributed.shard_layout import ShardLayout, order_nodes
from bymi.distributed.shard_lockstep import Lockstep
from bymi.problems import Problem
from bymi.training.algorithm import drsgd_bymi
from bymi.training.plan import Plan
from bymi.training.state import Snapshot, State

SHARDS = 4  # per run, so that 1, 2 and 4 ranks give the same bits


class ShardNetwork:
    """The network as one shard sees it. Every method is collective: all shards must call the same methods in the same order."""

    whole_here = False

    def __init__(self, router: Router, slot: int, open_queries: dict[int, PointQueries]) -> None:
        self.router, self._slot, self._open = router, slot, open_queries
        self.shard = router.lockstep.layout.held[router.lockstep.group.rank][slot]
        self.nodes = router.nodes[slot]
        self.arcs = router.whole.hears[self.nodes]
        self.graph, self.size, self.variants = router.graph, router.graph.size, router.variants

    def meet(self, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        return self.router.lockstep.meet(self._slot, given, act)

    def finish(self) -> None:
        """Take the remaining turns of the last point query: other shards may still ask when this one is done. Collective."""
        while self._slot in self._open and self._open[self._slot].turns_left:
            self._open[self._slot].take_turn()
        self._open.pop(self._slot, None)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        self.finish()
        self._note(step, " and ".join(topic.stream_name() for topic in vectors))
        outgoing = {topic: Outgoing.of(given) for topic, given in vectors.items()}
        inboxes: tuple[Inbox, ...] = self.meet(outgoing, self.router.deliver)
        return tuple(replace(inbox, network=self) if isinstance(inbox, ShardedListInbox) else inbox for inbox in inboxes)

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        self.finish()
        self._note(step, "answers")
        query = self._open[self._slot] = PointQueries(self, points, answer, self.gather(who, "points"), received, history)
        return query.replies()

    def visit(
        self, topics: Mapping[Topic, tuple[Tensor, Tensor]], who: Tensor, history: tuple[Tensor, Tensor] | None
    ) -> Iterator[NeighbourhoodReply]:
        """Replies for the nodes in `who` [B], from what each node sent and holds per topic: (sent, own) [B, D]."""
        self.finish()

        def vectors_of(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
            return {topic: own_or_sent(sent, own, self.nodes, nodes, askers) for topic, (sent, own) in topics.items()}

        held = next(iter(topics.values()))[1]
        query = self._open[self._slot] = PointQueries(
            self, held, vectors_of, self.gather(who, "points"), None, history, visits=True
        )
        return self._replies_then_finish(query)

    def _replies_then_finish(self, query: PointQueries) -> Iterator[NeighbourhoodReply]:
        """Yield all replies, then finish: what follows may not be an exchange, which would finish it anyway."""
        yield from query.replies()
        self.finish()

    def all_agree(self, flag: bool) -> bool:
        return bool(self._share(flag, lambda flags: self.router.lockstep.group.all_agree(all(flags))))

    def count(self, mask: Tensor) -> int:
        group = self.router.lockstep.group
        return int(self._share(int(mask.sum()), lambda counts: group.total(torch.tensor([sum(counts)]), "count")))

    def prune(self, flagged: Tensor) -> ShardNetwork:
        return self._over(flagged, lambda whole: self.router.over(self.graph.prune(whole)))

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> ShardNetwork:
        whole = self.router.whole

        def weighed(cut: Tensor) -> Router:
            return self.router.over(whole.prune_mutually(cut, exile=exile) if mutual else whole.prune(cut), whole=whole)

        return self._over(flagged, weighed)

    def gather(self, rows: Tensor, what: str) -> Tensor:
        whole: Tensor = self._share(rows, lambda parts: self.router.gather(parts, what))
        return whole

    def total(self, values: Tensor, what: str) -> Tensor:
        total: Tensor = self._share(values, lambda parts: self.router.total(parts, what))
        return total

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        result: Tensor = self._share(rows, lambda parts: work(self.router.gather(parts, what), self.router.all_nodes))
        return result

    def _share(self, given: Any, work: Callable[[list[Any]], Any]) -> Any:
        """The result of `work` for all shards of this process, from what each of them gives. Collective."""
        self.finish()
        return self.router.lockstep.share(self._slot, given, work)

    def _over(self, flagged: Tensor, make: Callable[[Tensor], Router]) -> ShardNetwork:
        router: Router = self._share(flagged, lambda parts: make(self.router.gather(parts, "flags")))
        return ShardNetwork(router, self._slot, self._open)

    def _note(self, step: int, what: str) -> None:
        self.router.lockstep.group.moment = f"in round {step} ({what})"


def default_layout(graph: Graph, dtype: torch.dtype, device: torch.device, group: Group) -> ShardLayout | None:
    """The default shard layout for models of this dtype and device; None where one process computes all nodes at once.

    In float64 on a CPU there are 4 shards, so that 1, 2 and 4 ranks give the same bits; elsewhere one per rank, the fastest.
    """
    shards = SHARDS if dtype == torch.float64 and device.type == "cpu" else 1
    return None if max(shards, group.size) == 1 else _layout(graph, max(shards, group.size), group)


def _layout(graph: Graph, shards: int, group: Group) -> ShardLayout:
    shards = min(graph.size, max(shards, group.size))
    return ShardLayout.even(graph.size, shards, group.size, order_nodes(graph, shards)).to(graph.hears.device)


Wrap = Callable[[Observable], tuple[Network, Deviation | None]]
"""Wraps a shard's network: the network its nodes run on, and how they deviate from the protocol, if they do."""


class ShardedRun:
    """A graph's nodes over the ranks of a group: the layout, and the network of each shard of this rank."""

    def __init__(
        self,
        problem: Problem,
        graph: Graph,
        group: Group | None = None,
        *,
        shards: int = SHARDS,
        layout: ShardLayout | None = None,
        variants: Variants | ListedVariants | None = None,
        everywhere: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        """`layout`: which rank holds which nodes; default: `shards` shards, at least one per rank.

        `wrap` puts another network between the nodes of a shard and its own; `variants` and `everywhere` are those of Router.
        """
        check_connected(graph)
        group = group or Group()
        layout = _layout(graph, shards, group) if layout is None else layout
        self.shards = len(layout.shards)
        self._lockstep = Lockstep(group, layout)
        self._problem = problem
        self.router = Router(self._lockstep, graph, variants=variants, everywhere=everywhere)
        self.router.choose_sharding(problem.dim)
        open_queries: dict[int, PointQueries] = {}
        self.networks = [ShardNetwork(self.router, slot, open_queries) for slot in range(self._lockstep.count)]
        wrapped: list[tuple[Network, Deviation | None]] = [(one, None) if wrap is None else wrap(one) for one in self.networks]
        self.wrapped = wrapped

    def walk(self, plan: Plan, states: Sequence[State] | None = None) -> Iterator[list[Snapshot]]:
        """Yield the snapshots of this rank's shards after every round, from the first or after their `states`. Collective."""
        self.router.by_slices = plan.watch is None  # the update history stores whole messages
        given: Sequence[State | None] = [None] * self._lockstep.count if states is None else states
        makers = [
            partial(drsgd_bymi, self._problem, network, plan, deviation, state)
            for (network, deviation), state in zip(self.wrapped, given, strict=True)
        ]
        return self._lockstep.walk(makers)
