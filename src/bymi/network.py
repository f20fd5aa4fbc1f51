"""How vectors travel. The algorithm knows the protocol only; here is the one for a single process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from bymi.graph import Graph
from bymi.inbox import Inbox


class Tamper(Protocol):
    """What some senders really put on the wire: messages by sender, None for silence; others send what they hold."""

    def __call__(self, vectors: Tensor, topic: str, step: int) -> Mapping[int, Tensor | None]: ...


class Network(Protocol):
    """The seam between the algorithm and the place where it runs: `nodes` are held here, out of `size` in all."""

    @property
    def nodes(self) -> Tensor: ...

    @property
    def size(self) -> int: ...

    def exchange(self, step: int, **vectors: Tensor) -> tuple[Inbox, ...]:
        """Everybody sends its rows, named by topic; one Inbox a topic comes back, in order, with the same arcs heard."""
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag holds in every process of the network, so that all take the same turn."""
        ...

    def prune(self, flagged: Tensor) -> Network:
        """The network without the in-arcs flagged [B, J]."""
        ...


class LocalNetwork:
    """All nodes in this process: B = J = M, nothing is copied unless somebody tampers."""

    def __init__(self, graph: Graph, tamper: Tamper | None = None) -> None:
        self.graph = graph
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

    def agree(self, flag: bool) -> bool:
        return flag

    def prune(self, flagged: Tensor) -> LocalNetwork:
        return LocalNetwork(self.graph.prune(flagged), self._tamper)

    def _deliver(self, own: Tensor, topic: str, step: int) -> Inbox:
        forged = self._tamper(own, topic, step) if self._tamper is not None else {}
        messages: Tensor | list[Tensor | None] = own
        own_at = self._nodes
        if forged:
            messages = [forged.get(node, own[node]) for node in range(self.size)]
            own_at = own_at.clone()
            own_at[list(forged)] = -1
        return Inbox.receive(
            own,
            messages,
            expected=self.graph.hears,
            weight=self._weight,
            self_weight=self._self_weight,
            own_at=own_at,
        )
