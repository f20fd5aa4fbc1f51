"""How vectors travel. The algorithm knows the protocol only; here is the one for a single process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from bymi.graph import Graph
from bymi.inbox import Inbox, Replies

_NUMBERS = 1 << 25  # in the answers to the questions handled at a time: 128 MB in float32


class Tamper(Protocol):
    """What some senders really put on the wire: messages by row, None for silence; others send the vector they hold."""

    def __call__(self, vectors: Tensor, senders: Tensor, topic: str, step: int) -> Mapping[int, Tensor | None]: ...


class Answer(Protocol):
    """What nodes [P] say of points [P, D] that they were sent by `askers` [P]: vectors [P, D] by topic."""

    def __call__(self, points: Tensor, nodes: Tensor, askers: Tensor) -> Mapping[str, Tensor]: ...


class Network(Protocol):
    """The seam between the algorithm and the place where it runs: `nodes` are held here, out of `size` in all."""

    @property
    def nodes(self) -> Tensor: ...

    @property
    def size(self) -> int: ...

    def exchange(self, step: int, **vectors: Tensor) -> tuple[Inbox, ...]:
        """Everybody sends its rows, named by topic; one Inbox a topic comes back, in order, with the same arcs heard."""
        ...

    def ask(self, step: int, points: Tensor, answer: Answer, who: Tensor) -> Iterator[Replies]:
        """The nodes of `who` [B] send their points [B, D] to those they hear; each of these answers, as the node itself does.

        Walked through receiver by receiver, so that memory does not grow with their number.
        """
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag holds in every process of the network, so that all take the same turn."""
        ...

    @property
    def arcs(self) -> Tensor:
        """[B, M] bool: whom each node held here can hear."""
        ...

    def prune(self, flagged: Tensor) -> Network:
        """The network without the in-arcs flagged [B, M]."""
        ...

    def weigh(self, flagged: Tensor, *, exile: float | None) -> Network:
        """The network in which edges that one end flags carry no weight. Messages travel on: who is watched can come back."""
        ...


class LocalNetwork:
    """All nodes in this process: B = J = M, nothing is copied unless somebody tampers."""

    def __init__(self, graph: Graph, tamper: Tamper | None = None, *, arcs: Tensor | None = None) -> None:
        self.graph = graph
        self.arcs = graph.hears if arcs is None else arcs
        self._tamper = tamper
        self._nodes = torch.arange(graph.size, device=graph.hears.device)
        self._weight = graph.mixing * graph.hears
        self._self_weight = graph.mixing.diagonal().clone()

    @property
    def nodes(self) -> Tensor:
        return self._nodes

    @property
    def size(self) -> int:
        return self.graph.size

    def exchange(self, step: int, **vectors: Tensor) -> tuple[Inbox, ...]:
        return Inbox.together([self._deliver(own, topic, step) for topic, own in vectors.items()])

    def ask(self, step: int, points: Tensor, answer: Answer, who: Tensor) -> Iterator[Replies]:
        if not bool(who.any()):
            return
        # Lists of neighbours are walked on the CPU: one copy here instead of a wait for each receiver.
        senders = [row.nonzero().flatten() for row in self.arcs.cpu()]
        largest = 1 + max(len(some) for some in senders)
        size = max(1, _NUMBERS // (largest * points.shape[1]))
        for some in self._nodes[who].split(size):
            # Those who answer each receiver, and last the receiver itself.
            asked = [torch.cat([senders[node].to(some), node[None]]) for node in some]
            counts = [len(nodes) for nodes in asked]
            askers = some.repeat_interleave(torch.tensor(counts, device=some.device))
            answers = answer(points[askers], torch.cat(asked), askers)
            parts = {topic: vectors.split(counts) for topic, vectors in answers.items()}
            for place, node in enumerate(some.tolist()):
                replies = [
                    self._reply(vectors[place], node, senders[node].to(some), topic, step) for topic, vectors in parts.items()
                ]
                yield Replies(node, senders[node].to(some), Inbox.together(replies))

    def agree(self, flag: bool) -> bool:
        return flag

    def prune(self, flagged: Tensor) -> LocalNetwork:
        return LocalNetwork(self.graph.prune(flagged), self._tamper)

    def weigh(self, flagged: Tensor, *, exile: float | None) -> LocalNetwork:
        whole = Graph.from_hears(self.arcs)
        return LocalNetwork(whole.prune_mutually(flagged, exile=exile), self._tamper, arcs=self.arcs)

    def _deliver(self, own: Tensor, topic: str, step: int) -> Inbox:
        forged = self._tamper(own, self._nodes, topic, step) if self._tamper is not None else {}
        messages: Tensor | list[Tensor | None] = own
        own_at = self._nodes
        if forged:
            messages = [forged.get(node, own[node]) for node in range(self.size)]
            own_at = own_at.clone()
            own_at[list(forged)] = -1
        return Inbox.receive(
            own,
            messages,
            expected=self.arcs,
            weight=self._weight,
            self_weight=self._self_weight,
            own_at=own_at,
        )

    def _reply(self, vectors: Tensor, node: int, senders: Tensor, topic: str, step: int) -> Inbox:
        """The inbox of one receiver: answers of the senders, and its own in the last row."""
        messages: Tensor | list[Tensor | None] = vectors[:-1]
        forged = self._tamper(vectors[:-1], senders, topic, step) if self._tamper is not None else {}
        if forged:
            messages = [forged.get(row, vectors[row]) for row in range(len(senders))]
        return Inbox.receive(
            vectors[-1:],
            messages,
            expected=torch.ones(1, len(senders), dtype=torch.bool, device=vectors.device),
            weight=self._weight[node, senders][None],
            self_weight=self._self_weight[node][None],
        )
