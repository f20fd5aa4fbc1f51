"""Messages that a node serves: those of the last few rounds, and nothing else. Used within the event loop only."""

from __future__ import annotations

import asyncio
from collections import deque

from bymi.node.wire import Tag

KEPT = 4
"""Messages of a kind that are kept: a neighbour that is a round or two behind can still pull them."""


class GoneError(LookupError):
    """A message that is no longer there, or was never made: the node has passed that point."""


class Outbox:
    """Published messages by tag, and the calls that wait for one. A message is bytes for all neighbours, or for one each."""

    def __init__(self) -> None:
        self.step = 0
        self.published = 0
        self._messages: dict[Tag, bytes | dict[int, bytes]] = {}
        self._order: dict[str, deque[Tag]] = {}
        self._news = asyncio.Event()

    def publish(self, tag: Tag, body: bytes | dict[int, bytes], *, keep: int = KEPT) -> None:
        """Serve a message from now on, in place of an earlier one under the same tag; `keep` of its kind stay."""
        order = self._order.setdefault(tag.kind, deque())
        if tag not in self._messages:
            order.append(tag)
        self._messages[tag] = body
        while len(order) > keep:
            del self._messages[order.popleft()]
        self.published += 1
        self.move_to(tag.step)

    def move_to(self, step: int) -> None:
        """Say which round the node is in, and wake the calls that wait."""
        self.step = max(self.step, step)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait_for(self, tag: Tag, peer: int, seconds: float) -> bytes:
        """The bytes of a message for a neighbour; TimeoutError if it is not there in time, GoneError if it never will be."""
        async with asyncio.timeout(seconds):
            while True:
                body = self._messages.get(tag)
                if body is None and self.has_passed(tag):
                    raise GoneError(tag)
                mine = body.get(peer) if isinstance(body, dict) else body
                if mine is not None:
                    return mine
                await self.news()

    async def news(self) -> None:
        """Return when something is published next."""
        await self._news.wait()

    def has_passed(self, tag: Tag) -> bool:
        """Whether the node has passed the point at which it would make a message."""
        order = self._order.get(tag.kind)
        behind = order is not None and (tag.step, tag.number) < (order[-1].step, order[-1].number)
        return behind or tag.step + KEPT < self.step
