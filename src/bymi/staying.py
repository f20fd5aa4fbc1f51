"""Rounds of long vectors on many processes: rows stay with those who sent them, and what is needed of them is found together.

On a random graph a process with some of the nodes hears nearly all others, so whole rows would be all rows. A `StayingInbox`
has none. It says who is heard, how far messages are and what they mix to; whoever has to look at rows visits receiver by
receiver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from bymi.inbox import Inbox
from bymi.list_inbox import ListInbox

DEEDS = "deeds"
"""The topic of what was seen of a sender, kept where it is: it travels with answers, and nobody can lie about it."""


@dataclass(frozen=True, eq=False)
class Replies:
    """What one receiver gets back on a question: one inbox a topic, with that receiver alone (B = 1) and J who were asked."""

    receiver: int  # its place among the nodes held here
    senders: Tensor  # [J] which columns of the network's arcs they are
    point: Tensor  # [D] about which it asked; on a visit, what it holds
    read: Callable[[], tuple[Inbox, ...]]  # once, in any thread: only then do nodes say what they found
    deeds: Callable[[], Tensor] | None = None  # [J + 1, D] of those asked and, last, its own, if they came with the answers


@dataclass(frozen=True, eq=False, kw_only=True)
class StayingInbox(ListInbox):
    """An inbox of lists without rows: message j is that of node j, `messages` are of no length.

    Every shard uses it alike, in one order: others need its part of what they ask for, and it needs theirs.
    """

    @property
    @abstractmethod
    def kept(self) -> Tensor:
        """Messages of the nodes held here [B, D]; zero where nobody may use them."""

    @abstractmethod
    def visit(
        self, *further: Inbox, who: Tensor | None = None, deeds: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[Replies]:
        """What receivers have before them, in this inbox and further ones of the same round: all of them, or `who` [B].

        `deeds`: of the nodes held here what others saw of each, and what it did [B, D] each. Walked through receiver by
        receiver, before anything else is sent.
        """
