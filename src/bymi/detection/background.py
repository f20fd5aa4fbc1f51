"""Long answers are read beside what comes next: one receiver's while its successor is still being answered."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from types import TracebackType

import torch

_BEHIND = 2  # pieces at a time
_LONG = 1 << 20  # numbers from which on a hand-over to another thread does not show


class BackgroundReader:
    """A block in which pieces of work are done, few at a time, in any order; all of it is done when it ends.

    On a CPU only: a GPU has its own order of work. Where the process has one core alone, there is nothing to gain.
    """

    def __enter__(self) -> BackgroundReader:
        self._pool: ThreadPoolExecutor | None = None
        self._open: deque[Future[None]] = deque()
        self._spare = _cores() > 1
        return self

    def __call__(self, work: Callable[[], None], *, numbers: int, device: torch.device) -> None:
        """Do the work, which is about so many numbers; aside if they are many."""
        if not self._spare or device.type != "cpu" or numbers < _LONG:
            work()
            return
        if self._pool is None:
            self._pool = _threads(_BEHIND)
        while len(self._open) >= _BEHIND:
            self._open.popleft().result()
        self._open.append(self._pool.submit(work))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            while kind is None and self._open:
                self._open.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown()


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads in each of which torch has no more: those would take the cores from what goes on beside it."""
    before, all_here = torch.get_num_threads(), Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # torch looks up a thread's number when it is first asked for
        all_here.wait()

    pool = ThreadPoolExecutor(count, "aside")
    for started in [pool.submit(begin) for _ in range(count)]:
        started.result()
    torch.set_num_threads(before)  # the new threads have changed what later threads of others begin with
    return pool


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
