"""Progress of runs on stderr: a live display in a terminal, a line every ten seconds elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

LINE_EVERY = 10.0
"""Seconds between two lines where stderr is no terminal."""

_LINES = 8  # runs that the live display shows by themselves


class _Speed(ProgressColumn):
    """Rounds per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None or task.fields.get("detail") else f"{task.speed:.0f} rounds/s")


class Display:
    """Shows the progress of runs: `advance` counts rounds, `watch` says where one run stands."""

    def __init__(self, runs: int, rounds: int, *, hidden: bool = False) -> None:
        self._runs, self._rounds, self._done = runs, rounds, 0
        self._hidden = hidden or rounds == 0
        self._latest: dict[int, Any] = {}
        self._tasks: dict[int, TaskID] = {}
        self._start = self._said = time.monotonic()
        console = Console(stderr=True)
        self._live: Progress | None = None
        if console.is_terminal and not self._hidden:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=18), MofNCompleteColumn(), _Speed())
            left = (TextColumn("{task.fields[detail]}"), TimeRemainingColumn(compact=True))
            self._live = Progress(*columns, *left, console=console, transient=True)
            self._all = self._live.add_task(f"{runs} runs" if runs > 1 else "1 run", total=rounds, detail="")

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self, index: int, rounds: int) -> None:
        """Count rounds of a run."""
        self._done += rounds
        if self._live is not None:
            self._live.advance(self._all, rounds)
        elif not self._hidden and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            sys.stderr.write(self.line() + "\n")
            sys.stderr.flush()

    def watch(self, index: int, status: Any) -> None:
        """Note where a run stands."""
        self._latest.pop(index, None)
        self._latest[index] = status  # the newest last
        if self._live is None or (index not in self._tasks and len(self._tasks) >= _LINES):
            return
        if index not in self._tasks:
            name = f"{status.label}, seed {status.seed}"
            self._tasks[index] = self._live.add_task(f"  {name}", total=status.steps, detail="")
        done = status.step >= status.steps
        self._live.update(self._tasks[index], completed=status.step, detail=f"{status.phase} {measures(status)}")
        if done:
            self._live.remove_task(self._tasks.pop(index))

    def line(self) -> str:
        """Where all runs stand, in one line."""
        seconds = max(1e-9, time.monotonic() - self._start)
        speed = self._done / seconds
        left = f"{clock((self._rounds - self._done) / speed)} left" if speed else "time left unknown"
        share = f"{self._done} of {self._rounds} rounds, {speed:.0f} rounds/s, {left}"
        if not self._latest:
            return f"bymi: {share}"
        status = list(self._latest.values())[-1]
        where = f"{status.label} seed {status.seed}: {status.phase}, round {status.step} of {status.steps}"
        return f"bymi: {share}; {where}, {measures(status)}"


def measures(status: Any) -> str:
    """The last measure, nodes flagged and messages not heard, as far as there are any."""
    parts = []
    if status.value is not None:
        shown = f"{status.value:.1%}" if status.measure.startswith("acc") else f"{status.value:.1e}"
        parts.append(f"{status.measure} {shown}")
    if status.flagged is not None:
        parts.append(f"{status.flagged} flagged")
    parts.append(f"{status.unheard} not heard")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """A duration in words: 42 s, 3 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
