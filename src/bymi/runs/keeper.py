"""When a run is put by: every so many rounds or seconds, and when it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from torch import Tensor

from bymi.runs import checkpoints
from bymi.runs.checkpoints import Place, Saved
from bymi.runs.packing import Frame
from bymi.state import State

_SECONDS = 30.0  # between two checkpoints, unless rounds are counted
_TIMES = 20  # as long as the last one took must pass before the next: at most a twentieth of the time goes there

Made = TypeVar("Made")
_log = logging.getLogger("bymi")


class Company(Protocol):
    """What is stored beside the state, by the process that writes the run folder."""

    def keep(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]: ...


class Keeper:
    """Puts a run by in a folder. As a context it takes SIGTERM and SIGINT: the round is finished and stored, then they act.

    A second signal of the same kind acts at once. `every`: rounds between two checkpoints, 0 for none at all and signals
    left alone, None by the clock. `agree` is that of a network of several processes: all of them store the same rounds.
    """

    def __init__(
        self, folder: Path, digest: str, every: int | None, frame: Frame, place: Place, agree: Callable[[bool], bool] = bool
    ) -> None:
        self._folder, self._digest, self._every = folder, digest, every
        self._frame, self._place, self._agree = frame, place, agree
        self._before: dict[int, Any] = {}
        self._asked: int | None = None
        self._next, self._failed = time.monotonic() + _SECONDS, False

    def __enter__(self) -> Keeper:
        if self._every != 0 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def newest(self, make: Callable[[Saved], Made]) -> Made | None:
        """What `make` makes of the newest round that can be used; it may refuse one with a ValueError."""
        if self._every == 0:
            return None
        return checkpoints.newest(self._folder, self._digest, self._frame, self._place, make, self._say, self._agree)

    def turn(self, state: State, company: Company) -> None:
        """After a round: store it if it is time to, and stop if that was asked for."""
        if self._every == 0:
            return
        asked = self._asked is not None
        if not self._any(asked or self._is_due(state)):
            return
        stored = self._save(state, company)
        if self._any(asked):
            if stored and self._place.rank == 0:
                self._say(f"stopped after round {state.step}; the same command goes on from there")
            self._act(self._asked or signal.SIGTERM)  # none was heard here: by another process, then

    def _any(self, flag: bool) -> bool:
        return not self._agree(not flag)

    def _is_due(self, state: State) -> bool:
        if state.step >= self._frame.plan.steps:
            return False
        if self._every is None:
            return time.monotonic() >= self._next
        return state.phase != "detection" and state.step % self._every == 0

    def _save(self, state: State, company: Company) -> bool:
        start = time.monotonic()
        tensors, words = company.keep() if self._place.rank == 0 else ({}, {})
        try:
            checkpoints.save(self._folder, self._digest, state, self._place, tensors, words)
        except OSError as problem:
            if not self._failed:  # said once: a disk that is full stays so
                self._say(f"no checkpoint of round {state.step}: {problem.strerror or problem}; the run goes on without")
            self._failed = True
        else:
            self._failed = False
        end = time.monotonic()
        self._next = end + max(_SECONDS, _TIMES * (end - start))
        return not self._failed

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._asked:
            self._act(number)
            return
        # Who pressed Ctrl-C signals the whole group, and its first process then ends the others: the end counts.
        self._asked = signal.SIGTERM if self._asked is not None else number

    def _act(self, number: int) -> None:
        """What the signal would have done; whoever handles it may let the run go on, and then handles all further ones."""
        self._asked = None
        self.__exit__(None, None, None)
        signal.raise_signal(number)

    def _say(self, line: str) -> None:
        _log.warning("bymi: %s: %s", self._folder.name.removesuffix(".checkpoints").removeprefix("."), line)
