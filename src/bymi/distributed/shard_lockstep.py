"""Lockstep execution of the shards of one process: each waits until all have arrived, then one acts for all.

Only one shard computes at a time: it holds the condition's lock, and releases it while it waits in `meet`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch

from bymi.distributed.collectives import Group
from bymi.distributed.shard_layout import ShardLayout

Item = TypeVar("Item")


class _Left(BaseException):
    """Ends the thread of a shard because another shard has failed."""


class Lockstep:
    """The shards held by this rank, numbered 0, 1, ... among themselves."""

    def __init__(self, group: Group, layout: ShardLayout) -> None:
        self.group, self.layout = group, layout
        self.count = len(layout.held[group.rank])
        self._turn = threading.Condition()
        self._given: dict[int, Any] = {}
        self._results: Sequence[Any] = ()
        self._meetings = 0
        self._failure: BaseException | None = None

    def meet(self, slot: int, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """This shard's result of `act`, called once with what all shards of the process handed in, in their order.

        Collective: all shards must call `meet` in the same order.
        """
        if self.count == 1:
            return act([given])[0]
        self._check(slot)
        self._given[slot] = given
        if len(self._given) == self.count:
            handed = [self._given[shard] for shard in range(self.count)]
            self._given = {}
            self._results = act(handed)
            self._meetings += 1
            self._turn.notify_all()
        else:
            meeting = self._meetings
            self._turn.wait_for(lambda: self._meetings > meeting or self._failure is not None)
            self._check(slot)
        return self._results[slot]

    def share(self, slot: int, given: Any, work: Callable[[list[Any]], Any]) -> Any:
        """The result of `work` for all shards of the process, called once with what each handed in. Collective."""
        return self.meet(slot, given, lambda parts: [work(parts)] * self.count)

    def walk(self, makers: Sequence[Callable[[], Iterator[Item]]]) -> Iterator[list[Item]]:
        """Run one generator per shard in lockstep and yield their items together."""
        if self.count == 1:
            for item in makers[0]():
                yield [item]
                del item  # do not keep a round in memory while the next one is computed
            return
        threads = [
            threading.Thread(target=self._follow, args=(slot, makers[slot]), name=f"shard {slot}", daemon=True)
            for slot in range(1, self.count)
        ]
        try:
            with self._turn, closing(makers[0]()) as items:  # type: ignore[type-var]
                for thread in threads:
                    thread.start()
                try:
                    for item in items:
                        yield self.share(0, item, list)
                        del item
                except BaseException as problem:
                    self._fail(problem)
                    raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _follow(self, slot: int, maker: Callable[[], Iterator[Any]]) -> None:
        torch.set_num_threads(1)  # a setting per thread, on which the order of sums depends
        with self._turn:
            try:
                for item in maker():
                    self.share(slot, item, list)
                    del item
            except _Left:
                return
            except BaseException as problem:
                self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        self._failure = self._failure or problem
        self._turn.notify_all()

    def _check(self, slot: int) -> None:
        if self._failure is not None:
            raise _Left if slot else self._failure
