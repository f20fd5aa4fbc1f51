"""The door through which nodes under foreign control act inside the phases."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.topic import Topic


class Deviation(Protocol):
    """What nodes under foreign control do instead of what they should; the others pass through unchanged."""

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int) -> Tensor:
        """Gradients really used, in place of those computed [B, D]."""
        ...

    def keep(self, inbox: Inbox, mixed: Tensor, nodes: Tensor, *, averaged: bool = False, step: int | None = None) -> Tensor:
        """Vectors really kept after a round, in place of the rule's output [B, D]; `averaged`: that is the plain average."""
        ...

    def asks(self, nodes: Tensor, step: int | None = None) -> Tensor:
        """Which nodes ask their neighbours when they should [B] bool."""
        ...

    def prune(self, flagged: Tensor, nodes: Tensor, step: int | None = None) -> Tensor:
        """In-arcs really cut, in place of those flagged [B, J]."""
        ...


class FollowsProtocol:
    """Everybody follows the protocol."""

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int) -> Tensor:
        return vectors

    def keep(self, inbox: Inbox, mixed: Tensor, nodes: Tensor, *, averaged: bool = False, step: int | None = None) -> Tensor:
        return mixed

    def asks(self, nodes: Tensor, step: int | None = None) -> Tensor:
        return torch.ones_like(nodes, dtype=torch.bool)

    def prune(self, flagged: Tensor, nodes: Tensor, step: int | None = None) -> Tensor:
        return flagged
