"""When a run is checkpointed: every so many rounds or seconds, and when it receives a signal to stop."""

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
_TIMES = 20  # times the duration of a checkpoint must pass before the next, so that they take at most 1/20 of the run

Made = TypeVar("Made")
_log = logging.getLogger("bymi")


class Company(Protocol):
    """What the process that writes the run folder stores beside the states."""

    def keep(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]: ...


class Checkpointer:
    """Checkpoints a run in a folder. As a context manager it defers SIGTERM and SIGINT until the round is finished and stored.

    A second signal of the same kind acts at once. `every`: rounds between two checkpoints; 0: none, and signals are left alone;
    None: by the clock. `places`: the shards of this process; all processes of a `group` store the same rounds.
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
        """What `make` returns for the newest usable round, or None; it may refuse a round with a ValueError. Collective."""
        if self._every == 0:
            return None
        return checkpoints.newest(self._folder, self._digest, self._frame, self._places, make, self._say, self._group)

    def wants(self, step: int, phase: str) -> bool:
        """Whether this process would store such a round: if any process would, all do."""
        if self._every == 0:
            return False
        return self._asked is not None or self._is_due(step, phase)

    def turn(self, states: Sequence[State], company: Company) -> None:
        """Store a round that some process wants stored, and stop if one of them was told to. Collective."""
        stored = self._save(states, company)
        if not self._group.all_agree(self._asked is None):
            if stored and self._group.rank == 0:
                self._say(f"stopped after round {states[0].step}; the same command goes on from there")
            self._act(self._asked or signal.SIGTERM)  # if the signal reached another process only

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
            if not self._failed:  # reported once: a full disk stays full
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
        # Ctrl-C signals the whole process group, whose first process then terminates the others: the second signal counts.
        self._asked = signal.SIGTERM if self._asked is not None else number

    def _act(self, number: int) -> None:
        """Do what the signal would have done; if its handler lets the run continue, later signals are handled there, too."""
        self._asked = None
        self.__exit__(None, None, None)
        signal.raise_signal(number)

    def _say(self, line: str) -> None:
        _log.warning("bymi: %s: %s", self._folder.name.removesuffix(".checkpoints").removeprefix("."), line)
