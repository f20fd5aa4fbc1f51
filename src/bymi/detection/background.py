"""Background workers: replies to one receiver are reduced while those to the next are computed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from types import TracebackType

import torch

_BEHIND = 2  # tasks and threads
_LONG = 1 << 20  # entries from which the cost of a thread hand-over is negligible


class BackgroundReader:
    """A context in which tasks run in a few background threads, in any order; all are done when it exits.

    CPU only: a GPU queues its own work. With a single core, tasks run in the caller.
    """

    def __enter__(self) -> BackgroundReader:
        self._pool: ThreadPoolExecutor | None = None
        self._open: deque[Future[None]] = deque()
        self._spare = _cores() > 1
        return self

    def __call__(self, work: Callable[[], None], *, numbers: int, device: torch.device) -> None:
        """Run `work` on `numbers` entries: in the background if they are many, else at once."""
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
    """Threads with one torch thread each, which leaves the other cores to the caller."""
    before, started = torch.get_num_threads(), Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # torch applies the setting of a thread when it is first queried
        started.wait()

    pool = ThreadPoolExecutor(count, "aside")
    for task in [pool.submit(begin) for _ in range(count)]:
        task.result()
    torch.set_num_threads(before)  # the new threads have changed the default of later threads
    return pool


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
