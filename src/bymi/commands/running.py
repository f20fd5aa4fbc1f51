"""Runs specs with progress on stderr, for all commands that run any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bymi.commands.progress_display import Display
from bymi.core.interrupts import raise_again


def run_specs(
    specs: Sequence[Any],
    out: Path,
    jobs: int | None,
    where: dict[str, Any],
    group: Any = None,
    *,
    apart: bool = False,
    again: bool = False,
    quiet: bool = False,
) -> list[Any]:
    """Results of specs, as `bymi.experiment.run_all` returns them; `where`: execution settings."""
    from bymi.experiment import run_all
    from bymi.runs import steps_to_do

    raise_again()
    todo = steps_to_do([spec.resolved for spec in specs], out, again=again)
    host = _host(where, specs if todo else [], group, quiet)
    hidden = quiet or (group is not None and group.rank > 0)
    with Display(len(specs), todo, hidden=hidden) as display:
        how: dict[str, Any] = {"jobs": jobs, "host": host, "group": group, "apart": apart, "again": again}
        return run_all(specs, out, **how, progress=display.advance, watch=display.watch)


def _host(where: dict[str, Any], specs: Sequence[Any], group: Any, quiet: bool) -> Any:
    """Execution settings. Missing data sets are downloaded first, with a progress bar of their own; with ranks, once."""
    from bymi.distributed.execution_settings import Host
    from bymi.runs.tasks import fetch

    host = Host(**where)
    names = {spec.data.name for spec in specs}
    if group is not None and group.rank:
        group.wait("data", [0])
    with bar((TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()), group, quiet=quiet) as shown:
        tasks: dict[str, Any] = {}

        def tell(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(f"downloading {file}", total=total)
            shown.update(tasks[file], completed=done)

        for name in sorted(names):
            fetch(name, host.data, tell)
    if group is not None and not group.rank:
        group.say("data")
    return host


def bar(columns: Any, group: Any = None, *, quiet: bool = False) -> Progress:
    """A progress bar on stderr, if that is a terminal; with ranks, on rank 0 only."""
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal or (group is not None and group.rank > 0)
    return Progress(*columns, console=console, transient=True, disable=hidden)
