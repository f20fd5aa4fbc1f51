"""Long answers are read beside what comes next: one receiver's while its successor is still being answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

_LONG = 1 << 20  # numbers from which on a hand-over to another thread does not show


class Aside:
    """A block in which work is done in order, one piece at a time, at most one behind; all of it is done when it ends.

    On a CPU only: a GPU has its own order of work. Where the process has one core alone, there is nothing to gain.
    """

    def __enter__(self) -> Aside:
        # A thread counts torch's threads for itself: as many here as there.
        self._pool = ThreadPoolExecutor(1, "aside", torch.set_num_threads, (torch.get_num_threads(),))
        self._last: Future[None] | None = None
        self._spare = _cores() > 1
        return self

    def __call__(self, work: Callable[[], None], *, numbers: int, device: torch.device) -> None:
        """Do the work, which is about so many numbers; aside if they are many."""
        self._wait()
        if self._spare and device.type == "cpu" and numbers >= _LONG:
            self._last = self._pool.submit(work)
        else:
            work()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._pool.shutdown()

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
