"""A network written against the protocol alone: one node per thread, which sends to others through queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from bymi import Graph, Inbox
from bymi.core.network import Answer, NeighbourhoodReply, Outgoing, Received, received_vectors
from bymi.core.topic import Topic

Queues = dict[tuple[int, int], SimpleQueue[Any]]
"""By sender and receiver."""


@dataclass(frozen=True, eq=False)
class QueueNetwork:
    """What one node sees: B = 1, and J = the number of nodes that it hears. Every node takes part in every call."""

    node: int
    graph_here: Graph  # this node looks at its own row only
    whole: Graph  # over which messages travel
    queues: Queues

    @property
    def nodes(self) -> Tensor:
        return torch.tensor([self.node])

    @property
    def size(self) -> int:
        return self.whole.size

    @property
    def arcs(self) -> Tensor:
        return self.whole.hears[self.node][None]

    @property
    def _senders(self) -> list[int]:
        return self.whole.hears[self.node].nonzero().flatten().tolist()

    @property
    def _receivers(self) -> list[int]:
        return self.whole.hears[:, self.node].nonzero().flatten().tolist()

    def _to_all(self, thing: Any) -> list[Any]:
        """What every node gives, in order of nodes."""
        for receiver in range(self.size):
            self.queues[self.node, receiver].put(thing)
        return [self.queues[sender, self.node].get() for sender in range(self.size)]

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        outgoing = {topic: Outgoing.of(given) for topic, given in vectors.items()}
        for receiver in self._receivers:
            self.queues[self.node, receiver].put({topic: given.messages[0] for topic, given in outgoing.items()})
        came = [self.queues[sender, self.node].get() for sender in self._senders]
        return self._inboxes({topic: (given.own, [one[topic] for one in came]) for topic, given in outgoing.items()})

    def _inboxes(self, heard: Mapping[Topic, tuple[Tensor, list[Tensor]]]) -> tuple[Inbox, ...]:
        graph, senders = self.graph_here, torch.tensor(self._senders, dtype=torch.int64)
        return Inbox.align(
            [
                Inbox.receive(
                    own,
                    messages,
                    expected=torch.ones(1, len(senders), dtype=torch.bool),
                    weight=graph.weight[self.node, senders][None],
                    self_weight=graph.self_weight[self.node][None],
                    senders=senders,
                )
                for own, messages in heard.values()
            ]
        )

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        for sender in self._senders:
            self.queues[self.node, sender].put(points[0] if bool(who[0]) else None)
        asked = {asker: self.queues[asker, self.node].get() for asker in self._receivers}
        asked[self.node] = points[0]
        askers = [asker for asker, point in asked.items() if point is not None]
        answers = answer(
            torch.stack([asked[asker] for asker in askers]), torch.full((len(askers),), self.node), torch.tensor(askers)
        )
        mine = {}
        for place, asker in enumerate(askers):
            told = {topic: rows[place] for topic, rows in answers.items()}
            if asker == self.node:
                mine = told
            else:
                self.queues[self.node, asker].put(told)
        if not bool(who[0]):
            return iter(())
        came = [*(self.queues[sender, self.node].get() for sender in self._senders), mine]
        columns = torch.tensor(self._senders, dtype=torch.int64)
        nodes = torch.cat([columns, self.nodes])

        def vectors() -> Mapping[Topic, Tensor]:
            rows = {topic: torch.stack([one[topic] for one in came]) for topic in mine}
            return received_vectors(rows, nodes, self.node, received)

        weights = self.graph_here.weight[self.node, columns], self.graph_here.self_weight[self.node]
        return iter([NeighbourhoodReply(0, columns, points[0], vectors, lambda: weights)])

    def all_agree(self, flag: bool) -> bool:
        return all(self._to_all(flag))

    def count(self, mask: Tensor) -> int:
        return sum(self._to_all(int(mask.sum())))

    def prune(self, flagged: Tensor) -> QueueNetwork:
        graph = self.whole.prune(torch.cat(self._to_all(flagged)))
        return QueueNetwork(self.node, graph, graph, self.queues)

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> QueueNetwork:
        flags = torch.cat(self._to_all(flagged))
        graph = self.whole.prune_mutually(flags, exile=exile) if mutual else self.whole.prune(flags)
        return QueueNetwork(self.node, graph, self.whole, self.queues)


def queue_networks(graph: Graph, kind: type[QueueNetwork] = QueueNetwork) -> list[QueueNetwork]:
    """One network per node."""
    pairs = [(sender, receiver) for sender in range(graph.size) for receiver in range(graph.size)]
    queues: Queues = {pair: SimpleQueue() for pair in pairs}
    return [kind(node, graph, graph, queues) for node in range(graph.size)]
