"""Ctrl-C on the command line: one line and exit code 130, at any time."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
SENTENCE = "bymi: interrupted; complete runs are kept, others go on from their checkpoint next time\n"


def end_at_once() -> None:
    """Let an interrupt end the process without an exception, for as long as there is nothing to clear away.

    While packages are imported an exception may be swallowed or turned into another one by theirs. Where interrupts are
    ignored or handled by somebody else, that stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let an interrupt raise KeyboardInterrupt again, as in any Python program: there are files and processes to clear away."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, SENTENCE.encode())
    os._exit(INTERRUPTED)
