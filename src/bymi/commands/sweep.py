"""`bymi sweep` and `bymi results`: many runs from one line, and one table of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bymi.commands import options
from bymi.commands.console_lines import console, print_line
from bymi.commands.progress_display import clock
from bymi.commands.run import run_specs
from bymi.core.errors import BymiError

_TIMED = 6  # kinds of runs that a dry run times
_LISTED = 30  # runs that a dry run lists
_START = 4.0  # seconds until the workers of a sweep have started


def sweep(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RECIPE|FILE] [KEY=[A,B,C]] [seeds=N]",
            autocompletion=options.complete_words,
            help="A recipe or a file, then keys: attack=[ipm,gradient] nodes=60 seeds=5. Lists, in a file too, mean a product.",
        ),
    ],
    fdr_level: options.FdrLevel = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the run folders, results.csv and report.html.")] = Path(
        "sweep"
    ),
    jobs: options.Jobs = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and estimate the time; run nothing.")] = False,
    device: options.Device = "auto",
    gradients: options.Gradients = "auto",
    data: options.DataFolder = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_models: options.KeepModels = "none",
    imports: options.Imports = False,
    timeout: options.Timeout = 60.0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
    track: options.Track = None,
) -> None:
    """Run every combination of settings and seeds, then write results.csv and report.html. The same command resumes it."""
    from bymi.distributed.join_process_group import ranks
    from bymi.experiment.sweep import load_sweep
    from bymi.report.page import write_page
    from bymi.runs import run_folder as store
    from bymi.runs.results_table import find_runs, table_of

    sys.path.append(os.getcwd())  # for own parts, module:Name
    source = words.pop(0) if "=" not in words[0] else None
    words += [] if fdr_level is None else [f"detection.fdr_level={fdr_level}"]
    plan = load_sweep(source, words, imports=imports)
    where: dict[str, Any] = {"device": device, "gradients": gradients, "data": data, "checkpoint_every": checkpoint_every}
    if dry_run:
        _dry_run(plan, out, jobs, where)
        return
    with ranks(timeout, device=device) as group:
        if group is None or not group.rank:
            store.prepare(out)
            plan.list_in(out)
            if not quiet:
                console(error=as_json).print(plan.size, markup=False, highlight=False)
        where = {**where, "keep_models": keep_models, "track": tuple(track or ())}
        found = run_specs(plan.specs, out, jobs, where, group, apart=True, quiet=quiet)
    if group is not None and group.rank:
        return
    errors = {spec.digest: str(one) for spec, one in zip(plan.specs, found, strict=True) if isinstance(one, BymiError)}
    names = plan.list_in(out, errors)
    there = {run.folder.name: run for run in find_runs([out])}
    table_of(list(there.values())).to_csv(out / "results.csv")
    write_page([out], out / "report.html")
    table = table_of([there[name] for name in names])
    if as_json:
        _print_rows(table)
    if not quiet:
        _print_means(table, error=as_json)
        if len(there) > len(table):
            others = f"{len(there) - len(table)} more runs, of other sweeps or commands"
            print_line(f"{out} has {others}: they are in the files below only", error=as_json)
        print_line(f"Results: {out / 'results.csv'}", error=as_json)
        print_line(f"Report: {out / 'report.html'}", error=as_json)
    failed = [run for run in plan.runs if run.error] + list(errors)
    if failed:
        print_line(
            f"bymi: {len(failed)} of {len(plan.runs)} runs could not be made: see why in {out / 'results.csv'}", error=True
        )
        raise typer.Exit(2)


def _dry_run(plan: Any, out: Path, jobs: int | None, where: dict[str, Any]) -> None:
    """Print how many runs there are, which are done, and how long the others may take."""
    from bymi.distributed.device_and_thread_settings import Host
    from bymi.report.tables import print_words
    from bymi.runs import run_folder as store
    from bymi.runs.time_estimate import estimate_seconds

    host = Host(**where)
    todo = [run for run in plan.runs if run.spec is not None and not store.is_complete(store.folder_of(out, run.spec))]
    kinds: dict[Any, list[Any]] = {}
    for run in todo:
        kinds.setdefault((run.spec.label, run.spec.nodes, run.spec.data.name, run.spec.steps), []).append(run.spec)
    known: dict[Any, float] = {}
    for kind in list(kinds)[:_TIMED]:
        seconds = estimate_seconds(kinds[kind][0].resolved, host)
        if seconds is not None:
            known[kind] = seconds
    keys = list(plan.axes)
    rows = [
        [run.spec.label if run.spec else "-", *[str(run.settings[key]) for key in keys], str(run.seed)] for run in plan.runs
    ]
    console().print(plan.size, markup=False, highlight=False)
    print_words(console(), ["method", *keys, "seed"], rows[:_LISTED])
    if len(rows) > _LISTED:
        print_line(f"... and {len(rows) - _LISTED} more")
    invalid = sum(run.spec is None for run in plan.runs)
    done = len(plan.runs) - len(todo) - invalid
    print_line(
        f"{len(plan.runs)} runs: {done} complete, {len(todo)} to do" + (f", {invalid} that cannot be made" if invalid else "")
    )
    if todo and known:
        mean = sum(known.values()) / len(known)
        total = sum(known.get(kind, mean) * len(specs) for kind, specs in kinds.items())
        beside = min(len(todo), jobs or os.cpu_count() or 1)
        print_line(f"Estimated time: about {clock(_START + total / beside)} with {beside} at a time on idle cores")


def results(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or run folders.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="Write all runs to this file.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write all runs to this file (extra: pandas).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all runs as JSON, an object per line.")] = False,
) -> None:
    """Print means and deviations over seeds of all runs in folders; write every run to a file."""
    from bymi.runs.results_table import results as read_results

    table = read_results(list(folders))
    if csv is not None:
        table.to_csv(csv)
    if parquet is not None:
        table.to_parquet(parquet)
    if as_json:
        _print_rows(table)
        return
    _print_means(table)
    for path in (csv, parquet):
        if path is not None:
            print_line(f"Wrote {path}")


def _print_rows(table: Any) -> None:
    """Print every run as JSON, an object per line."""
    for row in table:
        print(json.dumps(row, allow_nan=False))


def _print_means(table: Any, *, error: bool = False) -> None:
    """Print a row per setting: mean and deviation over seeds of the main measures."""
    from bymi.report.sweep_data import means_text

    print_line(means_text(table, console(error=error).width), error=error)
