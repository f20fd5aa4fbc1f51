"""Point queries: a receiver asks its neighbours for vectors at its own point, and gets a neighbourhood of replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.topic import Topic

DEEDS = "deeds"
"""Traffic topic of update histories that are stored at their senders and come with replies; the adversary cannot alter them."""


class Answer(Protocol):
    """Vectors [P, D] by topic that nodes [P] compute at the points [P, D] sent by `askers` [P]."""

    def __call__(self, points: Tensor, nodes: Tensor, askers: Tensor) -> Mapping[Topic, Tensor]: ...


class Received(Protocol):
    """Vectors that one asker receives in place of the replies [J + 1, D] of nodes [J + 1], of which the last is the asker.

    Called once all replies to one query are available.
    """

    def __call__(self, vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class NeighbourhoodReply:
    """Replies to the query of one receiver: one inbox per topic, with that receiver alone (B = 1) and J nodes queried."""

    receiver: int  # position among the nodes held here
    senders: Tensor  # [J] columns of the network's arcs
    point: Tensor  # [D] at which gradients were queried; without a query, the receiver's own vector
    read: Callable[[], tuple[Inbox, ...]]  # call once, in any thread: replies are computed then
    deeds: Callable[[], Tensor] | None = None  # [J + 1, D] update history of the nodes queried, then its own; None if not sent


def inboxes_of_replies(
    replies: Mapping[Topic, Tensor], nodes: Tensor, weight: Tensor, self_weight: Tensor, received: Received | None
) -> tuple[Inbox, ...]:
    """Inboxes of one receiver, one per topic, from the replies [J + 1, D] of nodes [J + 1], the last of them its own.

    `weight` [J] and `self_weight` (a scalar) are the mixing weights of its neighbours and its own.
    """
    inboxes = []
    for topic, vectors in replies.items():
        heard = vectors if received is None else received(vectors, nodes, int(nodes[-1]), topic)
        everyone = torch.ones(1, len(weight), dtype=torch.bool, device=weight.device)
        inboxes.append(
            Inbox.receive(heard[-1:], heard[:-1], expected=everyone, weight=weight[None], self_weight=self_weight[None])
        )
    return Inbox.together(inboxes)
