"""`bymi run`: an experiment and its table. Other commands that run specs use `run_specs`, with progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bymi.commands import options
from bymi.commands.console_lines import console, own_command
from bymi.commands.progress_display import Display
from bymi.core.errors import BymiError
from bymi.core.exit_on_ctrl_c import raise_again

FEW = 8
"""Neighbours below which a node can hardly tell who is Byzantine."""


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FILE] [KEY=VALUE]",
            autocompletion=options.complete_words,
            show_default=False,
            help="A recipe or a .toml/.json file, then keys to set: nodes=50 attack=ipm:a=2.0. `bymi list` has all of them.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all random streams.")] = None,
    fdr_level: options.FdrLevel = None,
    out: options.Out = Path("runs"),
    jobs: options.Jobs = None,
    device: options.Device = "auto",
    gradients: options.Gradients = "auto",
    data: options.DataFolder = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_models: options.KeepModels = "mean",
    again: Annotated[bool, typer.Option("--again", help="Run from the first round even what is complete.")] = False,
    imports: options.Imports = False,
    timeout: options.Timeout = 60.0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
    track: options.Track = None,
) -> None:
    """Run an experiment and print its table. Without arguments: the paper's Scenario A. Under torchrun: over all ranks."""
    from bymi.distributed.join_process_group import ranks
    from bymi.experiment import load
    from bymi.report import figures, tables
    from bymi.runs import run_folder as store

    sys.path.append(os.getcwd())  # for own parts, module:Name; last, so that nothing installed is shadowed
    words = words or []
    source = words.pop(0) if words and "=" not in words[0] else None
    words += [] if fdr_level is None else [f"detection.fdr_level={fdr_level}"]
    with ranks(timeout, device=device) as group:
        specs = load(source, words, seed, imports=imports).expand()
        where: dict[str, Any] = {"device": device, "gradients": gradients, "data": data, "checkpoint_every": checkpoint_every}
        where = {**where, "keep_models": keep_models, "again": again, "track": tuple(track or ())}
        results = run_specs(specs, out, jobs, where, group, quiet=quiet)
    if group is not None and group.rank:
        return
    for result in results:
        if isinstance(result, BymiError):
            raise result
    resolved = [spec.resolved for spec in specs]
    folders = [store.folder_of(out, spec) for spec in resolved]
    for folder in folders:
        figures.draw_run(folder)

    name = f"comparison-seed{specs[0].seed}-" + "-".join(spec.digest[:6] for spec in resolved)
    drawn = figures.draw_comparison(folders, out, name)[:1] if len(folders) > 1 else []
    if as_json:
        for summary, folder in zip(results, folders, strict=True):
            print(json.dumps({"folder": str(folder), **summary}, allow_nan=False))
    if not quiet:
        shown = console(error=as_json)
        tables.print_runs(shown, results, figures.describe(resolved[0].values))
        alone = {path.parent for path in out.glob(f"*/{store.SUMMARY}")} == set(folders)
        which = out if alone else " ".join(map(str, folders))
        lines = [f"Figure: {path}" for path in drawn] + [f"Folder: {folder}" for folder in folders]
        remarks = [spec.remark for spec in resolved if spec.remark is not None]
        for line in [*remarks, *_advice(folders), *lines, f"For a report page: {own_command()} report {which} --open"]:
            shown.print(line, soft_wrap=True, markup=False, highlight=False)
    # Under torchrun an exit code would mean that a rank has failed, and restart the run.
    raise typer.Exit(worst(summary["outcome"] for summary in results) if group is None else 0)


def worst(endings: Iterable[str]) -> int:
    """The exit code of several runs: that of the worst ending."""
    from bymi.runs.metrics import ENDING_CODES

    present = set(endings)
    return next(code for ending, code in ENDING_CODES.items() if ending in present)


def _advice(folders: Sequence[Path]) -> list[str]:
    """A line of advice if an honest node of a run with a detection has fewer than FEW neighbours."""
    from bymi.runs import run_folder as store

    for folder in folders:
        try:
            if not (folder / store.VERDICT).exists() or not (folder / store.PER_NODE).exists():
                continue
            nodes, spec = store.read_json(folder / store.PER_NODE), store.read_json(folder / store.SPEC)
        except BymiError:
            continue
        bad = set(nodes["byzantine"] or ())
        least = min(len(listed) for node, listed in enumerate(nodes["neighbours"]) if node not in bad)
        if least < FEW:
            level = spec["detection"]["fdr_level"]
            asked = f"--nodes {len(nodes['neighbours'])} --degree {max(1, least)} --ratio {spec['byzantine_ratio']:g}"
            said = f"Some honest nodes have only {least} neighbours, few to tell who is Byzantine."
            return [f"{said} What to expect: {own_command()} plan {asked} --fdr-level {level:g}"]
    return []


def run_specs(
    specs: Sequence[Any],
    out: Path,
    jobs: int | None,
    where: dict[str, Any],
    group: Any = None,
    *,
    apart: bool = False,
    quiet: bool = False,
) -> list[Any]:
    """Results of specs, as `bymi.runs.run_all` returns them; `where`: execution settings."""
    from bymi.distributed.device_and_thread_settings import Host
    from bymi.runs import run_all

    raise_again()
    host, resolved = Host(**where), [spec.resolved for spec in specs]
    todo = steps_to_do(resolved, out, again=host.again)
    hidden = quiet or (group is not None and group.rank > 0)
    _fetch({spec.data.name for spec in specs if todo}, host.data, group, hidden)
    with Display(len(specs), todo, hidden=hidden) as display:
        how: dict[str, Any] = {"jobs": jobs, "host": host, "group": group, "apart": apart}
        return run_all(resolved, out, **how, watch=display.watch)


def steps_to_do(specs: Sequence[Any], out: Path, *, again: bool = False) -> int:
    """Rounds left to run: those of all resolved specs without a complete folder, or of all of them with `again`."""
    from bymi.runs import run_folder as store

    return sum(spec["steps"] for spec in specs if again or not store.is_complete(store.folder_of(out, spec)))


def _fetch(names: set[str], folder: Path | None, group: Any, hidden: bool) -> None:
    """Download missing data sets, with a progress bar of their own; with ranks, once."""
    from bymi.runs.tasks import fetch

    if group is not None and group.rank:
        group.wait("data", [0])
    with bar((TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()), hidden=hidden) as shown:
        tasks: dict[str, Any] = {}

        def tell(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(f"downloading {file}", total=total)
            shown.update(tasks[file], completed=done)

        for name in sorted(names):
            fetch(name, folder, tell)
    if group is not None and not group.rank:
        group.say("data")


def bar(columns: Any, *, hidden: bool = False) -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    stderr = Console(stderr=True)
    return Progress(*columns, console=stderr, transient=True, disable=hidden or not stderr.is_terminal)
