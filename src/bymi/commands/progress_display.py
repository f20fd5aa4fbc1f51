"""Progress of runs on stderr: a live display in a terminal, a line every ten seconds elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

LINE_EVERY = 10.0
"""Seconds between two lines where stderr is no terminal."""

_LINES = 8  # runs that the live display shows by themselves


class Display:
    """Shows the progress of runs, from where each of them stands."""

    def __init__(self, runs: int, rounds: int, *, hidden: bool = False) -> None:
        self._rounds, self._done, self._before = rounds, 0, 0
        self._hidden = hidden or rounds == 0
        self._latest: dict[int, Any] = {}
        self._said = time.monotonic()
        self._start: float | None = None  # when the first rounds were counted
        console = Console(stderr=True)
        self._live: Live | None = None
        if console.is_terminal and not self._hidden:
            counts = (
                MofNCompleteColumn(),
                TextColumn("rounds, {task.fields[speed]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=None), *counts, expand=True)
            self._task = self._bar.add_task(f"{runs} runs" if runs > 1 else "1 run", total=rounds, speed="")
            self._live = Live(get_renderable=self._picture, console=console, transient=True, refresh_per_second=5)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self) -> Group:
        """A bar of all rounds, and a line per run that is under way."""
        shown = [status for status in self._latest.values() if not status.done][-_LINES:]
        shown.sort(key=lambda status: (status.label, status.seed))
        lines = [Text(f"  {where(status)}", style="dim") for status in shown]
        return Group(self._bar, *lines)

    def watch(self, index: int, status: Any) -> None:
        """Note where a run stands. The clock starts with the first rounds, so that starting workers is no slow round."""
        self._latest.pop(index, None)
        self._latest[index] = status  # the newest last
        self._done += status.rounds
        if self._start is None:
            self._start, self._before = time.monotonic(), self._done
        if self._live is not None:
            self._bar.update(self._task, advance=status.rounds, speed=f"{self._speed():.0f}/s")
        elif not self._hidden and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            sys.stderr.write(self.line() + "\n")
            sys.stderr.flush()

    def _speed(self) -> float:
        """Rounds per second since the first ones were counted."""
        seconds = 0.0 if self._start is None else time.monotonic() - self._start
        return (self._done - self._before) / seconds if seconds > 0 else 0.0

    def line(self) -> str:
        """Where all runs stand, in one line."""
        speed = self._speed()
        left = f"{speed:.0f} rounds/s, {clock((self._rounds - self._done) / speed)} left" if speed else "time left unknown"
        share = f"{self._done} of {self._rounds} rounds, {left}"
        if not self._latest:
            return f"bymi: {share}"
        return f"bymi: {share}; {where(list(self._latest.values())[-1])}"


def where(status: Any) -> str:
    """Where one run stands."""
    return f"{status.label} seed {status.seed}: {status.phase}, round {status.step} of {status.steps}, {measures(status)}"


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
