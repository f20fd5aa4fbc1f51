"""What one receiver gets back when it asks its neighbours: a neighbourhood with rows of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bymi.core.inbox import Inbox

DEEDS = "deeds"
"""The topic of what was seen of a sender, kept where it is: it travels with answers, and nobody can lie about it."""


@dataclass(frozen=True, eq=False)
class NeighbourhoodReply:
    """What one receiver gets back on a question: one inbox a topic, with that receiver alone (B = 1) and J who were asked."""

    receiver: int  # its place among the nodes held here
    senders: Tensor  # [J] which columns of the network's arcs they are
    point: Tensor  # [D] about which it asked; on a visit, what it holds
    read: Callable[[], tuple[Inbox, ...]]  # once, in any thread: only then do nodes say what they found
    deeds: Callable[[], Tensor] | None = None  # [J + 1, D] of those asked and, last, its own, if they came with the answers
