"""The interface through which Byzantine nodes deviate from the protocol inside the phases."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.topic import Topic


class Deviation(Protocol):
    """What Byzantine nodes do in place of the protocol; rows of honest nodes pass through unchanged.

    The bodies below are those of a network in which all nodes are honest.
    """

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int) -> Tensor:
        """Gradients used in place of the computed ones [B, D]."""
        return vectors

    def observe(self, updates: Tensor | None) -> None:
        """Before a detection: own update histories of the nodes held here [B, D], None if there are none yet. Collective."""
        return

    def keep(self, inbox: Inbox, mixed: Tensor, nodes: Tensor, *, averaged: bool = False, step: int | None = None) -> Tensor:
        """Vectors kept after a round in place of the rule's output [B, D]; `averaged`: that output is the plain average."""
        return mixed

    def asks(self, nodes: Tensor, step: int | None = None) -> Tensor:
        """Mask [B] of nodes that query their neighbours when the protocol says so."""
        return torch.ones_like(nodes, dtype=torch.bool)

    def prune(self, flagged: Tensor, nodes: Tensor, step: int | None = None) -> Tensor:
        """In-arcs cut in place of those flagged [B, P]."""
        return flagged


class FollowsProtocol(Deviation):
    """The Deviation of a network in which all nodes are honest."""
