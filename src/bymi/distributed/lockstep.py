"""Where the shards of one process meet: each waits until all have come, then one of them acts for all.

Only one shard computes at a time: it holds the lock of the condition, and gives it away while it waits here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch

from bymi.distributed.group import Group
from bymi.distributed.shard_layout import ShardLayout

Item = TypeVar("Item")


class _Left(BaseException):
    """Ends a shard's thread because another one cannot go on."""


class Lockstep:
    """The shards held by this rank, by their place 0, 1, ... among these."""

    def __init__(self, group: Group, layout: ShardLayout) -> None:
        self.group, self.layout = group, layout
        self.count = len(layout.held[group.rank])
        self._turn = threading.Condition()
        self._given: dict[int, Any] = {}
        self._results: Sequence[Any] = ()
        self._meetings = 0
        self._failure: BaseException | None = None

    def meet(self, place: int, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Hand something in, and get back what `act` makes of what all shards handed in, one result for each."""
        if self.count == 1:
            return act([given])[0]
        self._check(place)
        self._given[place] = given
        if len(self._given) == self.count:
            handed = [self._given[shard] for shard in range(self.count)]
            self._given = {}
            self._results = act(handed)
            self._meetings += 1
            self._turn.notify_all()
        else:
            meeting = self._meetings
            self._turn.wait_for(lambda: self._meetings > meeting or self._failure is not None)
            self._check(place)
        return self._results[place]

    def walk(self, makers: Sequence[Callable[[], Iterator[Item]]]) -> Iterator[list[Item]]:
        """Run one generator a shard, in step, and yield their items together."""
        if self.count == 1:
            for item in makers[0]():
                yield [item]
                del item  # a round is not kept while the next one is computed
            return
        threads = [
            threading.Thread(target=self._follow, args=(place, makers[place]), name=f"shard {place}", daemon=True)
            for place in range(1, self.count)
        ]
        try:
            with self._turn, closing(makers[0]()) as items:  # type: ignore[type-var]
                for thread in threads:
                    thread.start()
                try:
                    for item in items:
                        yield self.meet(0, item, lambda all_items: [all_items] * self.count)
                        del item
                except BaseException as problem:
                    self._fail(problem)
                    raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _follow(self, place: int, maker: Callable[[], Iterator[Any]]) -> None:
        torch.set_num_threads(1)  # counts for one thread only; sums depend on it
        with self._turn:
            try:
                for item in maker():
                    self.meet(place, item, lambda all_items: [all_items] * self.count)
                    del item
            except _Left:
                return
            except BaseException as problem:
                self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        self._failure = self._failure or problem
        self._turn.notify_all()

    def _check(self, place: int) -> None:
        if self._failure is not None:
            raise _Left if place else self._failure
