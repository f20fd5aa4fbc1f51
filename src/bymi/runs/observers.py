"""Observers: objects that are told what a run does while it runs. They get plain values and cannot change the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bymi.core.errors import BymiError, InputError
from bymi.core.named_parts import Table
from bymi.runs.resolved_spec import ResolvedSpec

_log = logging.getLogger("bymi")

MEASURES = ("gap", "acc_scc", "acc_normal", "loss")
"""Keys of a row of metrics.jsonl of which the first that it has describes the quality of the models."""


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands. The numbers are those of its last recorded round and its last detection."""

    label: str
    seed: int
    step: int
    steps: int
    phase: str
    measure: str | None = None
    value: float | None = None
    flagged: int | None = None
    """Nodes flagged by most of the honest nodes that receive from them; None before a detection."""
    unheard: int = 0
    """Messages that honest nodes expected and could not use."""
    done: bool = False
    """Whether the run has ended."""


@dataclass(frozen=True)
class Observer:
    """Base of observers: override what is of interest. An exception switches the observer off, with a warning.

    Name one in a spec's command as `--track module:Name`, or pass an instance to `bymi.runs.run`.
    """

    def started(self, spec: ResolvedSpec, folder: Path) -> None:
        """A run begins or resumes; `folder` is where its run folder will be."""

    def advanced(self, status: RunStatus) -> None:
        """Rounds were computed; called a few times per second."""

    def measured(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl was recorded."""

    def ended(self, summary: dict[str, Any]) -> None:
        """The run has ended with this summary."""


TRACKERS: Table[Observer] = Table(Observer, {}, "bymi.observers")
"""Observers by name: those of bymi.runs.trackers, entry points, and module:Name."""


def make_observers(names: Iterable[str]) -> list[Observer]:
    """Instances of observers by name; a missing package is an InputError that names the extra to install."""
    from bymi.runs import trackers

    made = []
    for name in names:
        try:
            kind = trackers.BY_NAME[name] if name in trackers.BY_NAME else TRACKERS[name]
        except KeyError:
            raise InputError(f"--track: got {name!r}, allowed: {', '.join(trackers.BY_NAME)}, or module:Name") from None
        except InputError as problem:
            raise InputError(f"--track: {problem}") from None
        made.append(kind())
    return made


class Observers:
    """Several observers as one; one that raises is reported once and left out from then on."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def tell(self, what: Callable[[Observer], None]) -> None:
        """Call `what` with every observer."""
        for observer in list(self._observers):
            try:
                what(observer)
            except BymiError:
                raise
            except Exception as problem:  # a tracker's server may be away: the run matters more
                self._observers.remove(observer)
                _log.warning("bymi: %s stopped: %s", type(observer).__name__, " ".join(str(problem).split()))

    def __bool__(self) -> bool:
        return bool(self._observers)


def status_of(
    spec: ResolvedSpec, step: int, phase: str, last: dict[str, Any], flagged: int | None, *, done: bool = False
) -> RunStatus:
    """The status from the last row of metrics."""
    measure = next((key for key in MEASURES if last.get(key) is not None), None)
    value = None if measure is None else last[measure]
    return RunStatus(
        spec.label, spec["seed"], step, spec["steps"], phase, measure, value, flagged, last.get("unheard", 0), done
    )
