"""Ctrl-C on the command line: one line and exit code 130, at any time."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
SENTENCE = "bymi: interrupted; complete runs are kept, others go on from their checkpoint next time\n"


def end_at_once() -> None:
    """Let Ctrl-C end the process without an exception, while there is nothing to clean up.

    During imports an exception may be swallowed or replaced by the packages' own handlers. A SIGINT handler other than Python's
    default stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, as in any Python program: there are files and processes to clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, SENTENCE.encode())
    os._exit(INTERRUPTED)
