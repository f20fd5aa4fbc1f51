"""When a run is put by: every so many rounds or seconds, and when it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from torch import Tensor

from bymi.distributed.group import Group
from bymi.runs import checkpoints
from bymi.runs.checkpoints import Place, Saved
from bymi.runs.state_schema import StateShape
from bymi.training.state import State

_SECONDS = 30.0  # between two checkpoints, unless rounds are counted
_TIMES = 20  # as long as the last one took must pass before the next: at most a twentieth of the time goes there

Made = TypeVar("Made")
_log = logging.getLogger("bymi")


class Company(Protocol):
    """What is stored beside the states, by the process that writes the run folder."""

    def keep(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]: ...


class Checkpointer:
    """Puts a run by in a folder. As a context it takes SIGTERM and SIGINT: the round is finished and stored, then they act.

    A second signal of the same kind acts at once. `every`: rounds between two checkpoints, 0 for none at all and signals
    left alone, None by the clock. `places`: the shards held here; all processes of a `group` store the same rounds.
    """

    def __init__(
        self,
        folder: Path,
        digest: str,
        every: int | None,
        frame: StateShape,
        places: Sequence[Place],
        group: Group | None = None,
    ) -> None:
        self._folder, self._digest, self._every = folder, digest, every
        self._frame, self._places, self._group = frame, places, group or Group()
        self._before: dict[int, Any] = {}
        self._asked: int | None = None
        self._next, self._failed = time.monotonic() + _SECONDS, False

    def __enter__(self) -> Checkpointer:
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
        return checkpoints.newest(self._folder, self._digest, self._frame, self._places, make, self._say, self._group)

    def wants(self, step: int, phase: str) -> bool:
        """Whether this process would store such a round: if any one does, all of them do."""
        if self._every == 0:
            return False
        return self._asked is not None or self._is_due(step, phase)

    def turn(self, states: Sequence[State], company: Company) -> None:
        """Store a round that some process wants to be stored, and stop if one of them was asked to."""
        stored = self._save(states, company)
        if not self._group.agree(self._asked is None):
            if stored and self._group.rank == 0:
                self._say(f"stopped after round {states[0].step}; the same command goes on from there")
            self._act(self._asked or signal.SIGTERM)  # none was heard here: by another process, then

    def _is_due(self, step: int, phase: str) -> bool:
        if step >= self._frame.plan.steps:
            return False
        if self._every is None:
            return time.monotonic() >= self._next
        return phase != "detection" and step % self._every == 0

    def _save(self, states: Sequence[State], company: Company) -> bool:
        start, step = time.monotonic(), states[0].step
        try:
            for state, place in zip(states, self._places, strict=True):
                tensors, words = company.keep() if place.shard == 0 else ({}, {})
                checkpoints.save(self._folder, self._digest, state, place, tensors, words)
            checkpoints.forget(self._folder)
        except OSError as problem:
            if not self._failed:  # said once: a disk that is full stays so
                self._say(f"no checkpoint of round {step}: {problem.strerror or problem}; the run goes on without")
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
