"""Replies of neighbours to a receiver's query: a neighbourhood whose rows belong to this receiver alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bymi.core.inbox import Inbox

DEEDS = "deeds"
"""Traffic topic of update histories that are stored at their senders and come with replies; the adversary cannot alter them."""


@dataclass(frozen=True, eq=False)
class NeighbourhoodReply:
    """Replies to the query of one receiver: one inbox per topic, with that receiver alone (B = 1) and J nodes queried."""

    receiver: int  # position among the nodes held here
    senders: Tensor  # [J] columns of the network's arcs
    point: Tensor  # [D] at which gradients were queried; without a query, the receiver's own vector
    read: Callable[[], tuple[Inbox, ...]]  # call once, in any thread: replies are computed then
    deeds: Callable[[], Tensor] | None = None  # [J + 1, D] update history of the nodes queried, then its own; None if not sent
