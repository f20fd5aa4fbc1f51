"""Watchdog: end this process when its parent process is gone, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_LOOK_EVERY = 0.25  # seconds
_SET_PARENT_DEATH_SIGNAL = 1  # prctl, Linux


def die_with_parent(say: Callable[[], str | None], code: int) -> None:
    """Exit with `code` once the parent is gone, after printing what `say` returns, if anything.

    A thread polls for the parent: unlike a signal handler it also runs while this process blocks in a collective.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        # A stopped process cannot poll: this resumes it when its parent dies.
        ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        line = say()
        if line is not None:
            sys.stderr.write(f"{line}\n")  # in one write: other ranks write there, too
            sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=look, name="parent", daemon=True).start()
