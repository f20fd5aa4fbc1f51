"""The command line: reads words, calls the library, prints. No logic of its own."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bymi.errors import BymiError, InputError, StorageError, system_refusal
from bymi.files import refuse_link
from bymi.interrupts import INTERRUPTED, SENTENCE, raise_again
from bymi.memory import keep_memory

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decentralised learning in which some nodes lie: find out who, cut them off, converge.",
)

Out = Annotated[Path, typer.Option("--out", help="Folder for the run folders.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at a time, each in a process. Default: one a core.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda. auto: a GPU for models that gain from one.")]
Gradients = Annotated[
    str, typer.Option("--gradients", help="auto, loop, stacked, batched or captured: how those of all nodes are made.")
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data sets. Default: BYMI_DATA, the cache, else a download.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1.0, max=1e6, help="Under torchrun: seconds after which a silent rank counts as lost.")
]

CheckpointEvery = Annotated[
    int | None,
    typer.Option("--checkpoint-every", min=0, help="Rounds between checkpoints. Default: about every 30 s; 0: none."),
]


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FILE] [KEY=VALUE]",
            show_default=False,
            help="A recipe or a .toml/.json file, then keys to set: nodes=50 attack=ipm:a=2.0. `bymi list` has all of them.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all random streams.")] = None,
    out: Out = Path("runs"),
    jobs: Jobs = None,
    device: Device = "auto",
    gradients: Gradients = "auto",
    data: DataFolder = None,
    checkpoint_every: CheckpointEvery = None,
    timeout: Timeout = 60.0,
) -> None:
    """Run an experiment and print its table. Without arguments: the paper's Scenario A. Under torchrun: over all ranks."""
    from bymi.engine.launch import ranks
    from bymi.experiment import load
    from bymi.report import figures, tables
    from bymi.runs import store
    from bymi.runs.outcome import worst

    words = words or []
    source = words.pop(0) if words and "=" not in words[0] else None
    with ranks(timeout, device=device) as group:
        specs = load(source, words, seed).expand()
        results = _run_all(specs, out, jobs, (device, gradients, data, checkpoint_every), group)
    if group is not None and group.rank:
        return
    for result in results:
        if isinstance(result, BymiError):
            raise result
    summaries = [result for result in results if isinstance(result, dict)]
    folders = [store.folder_of(out, spec) for spec in specs]
    for folder in folders:
        figures.draw_run(folder)

    console = _console()
    console.print(tables.terminal_table(summaries, title=figures.describe(specs[0])))
    for line in (line for summary in summaries for line in tables.remarks(summary)):
        _say(console, line)
    if len(folders) > 1:
        name = f"comparison-seed{specs[0].seed}-" + "-".join(spec.digest[:6] for spec in specs)
        for path in figures.draw_comparison(folders, out, name)[:1]:
            _say(console, f"Figure: {path}")
    for folder in folders:
        _say(console, f"Folder: {folder}")
    # Under torchrun a code would mean that a rank has failed, and have the run started again.
    raise typer.Exit(worst(summary["outcome"] for summary in summaries) if group is None else 0)


@app.command()
def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="scenario-a, scenario-b; red-team, red-team-limits, red-team-pieces; "
            "ood-scale, table-mnist, ratios-mnist, curves-mnist, table-fashion, ratios-fashion"
        ),
    ],
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs a setting, seeds 0, 1, 2, ...")] = 5,
    mu: Annotated[float, typer.Option("--mu", help="mu_c of Scenario A; the paper's dip at 0.1 needs 1.")] = 5.0,
    dim: Annotated[list[int] | None, typer.Option("--dim", help="30, 80 or both (default).")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Columns of an image study: undefended, alone, alone-global, hardened, receiver, paper; of red-team: "
            "nobody, BALANCE, paper, hardened; default: all.",
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A small part, one seed: a look, not a result.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the runs to a file for `python -m bymi.runs`; run nothing.")
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = None,
    device: Device = "auto",
    gradients: Gradients = "auto",
    data: DataFolder = None,
    checkpoint_every: CheckpointEvery = None,
    timeout: Timeout = 60.0,
) -> None:
    """Reproduce the paper's figures and tables, and the red-team tables. Resumes where it stopped."""
    from bymi.engine.launch import ranks
    from bymi.experiment.reproduce import find_study
    from bymi.report.reproduce import show
    from bymi.runs import write_sheets

    plan = find_study(study, seeds=seeds, mu=mu, dims=dim or (), only=only or (), fast=fast)
    specs, folder = plan.specs, out / plan.folder
    refuse_link(folder)
    console = _console()
    if export is not None:
        write_sheets(export, [spec.sheet for spec in specs])
        _say(console, f"Wrote {len(specs)} runs to {export}: python -m bymi.runs {export} --out {folder}")
        return
    with ranks(timeout, device=device) as group:
        results = _run_all(specs, folder, jobs, (device, gradients, data, checkpoint_every), group, apart=True)
    if group is not None and group.rank:
        return
    everything = find_study(study, seeds=max(seeds, 5), mu=mu, fast=fast)  # also what earlier calls have run
    paths, table = show(everything, folder, f"bymi reproduce {study}" + ("" if seeds == 5 else f" --seeds {seeds}"))
    for path in paths:
        _say(console, f"Wrote {path}")
    if table is not None:
        console.print(table)
    failed = [result for result in results if isinstance(result, BymiError)]
    if failed:
        _say(console, f"{len(failed)} runs could not be made, the first: {failed[0]}")
        raise typer.Exit(failed[0].exit_code)


@app.command()
def detect(
    first: Annotated[Path, typer.Argument(help="First half gradients [n, d]: .npy, .npz or .csv")],
    second: Annotated[Path, typer.Argument(help="Second half gradients [n, d], same rows")],
    fdr_level: Annotated[float, typer.Option("--fdr-level", help="Target false discovery rate.")] = 0.2,
    offset: Annotated[
        int, typer.Option("--offset", help="0 as in the paper; 1 for exact control, at least 1/level rows or none.")
    ] = 0,
    centre: Annotated[
        str, typer.Option("--centre", help="mean, median, trimmed-mean, geometric-median, filtering")
    ] = "filtering",
    scale: Annotated[str, typer.Option("--scale", help="identity or pca")] = "identity",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: scores, threshold, flagged.")] = False,
) -> None:
    """Judge machines from two half-batch gradients each: row j of both files belongs to machine j."""
    import json

    from bymi.experiment.matrices import judge_files
    from bymi.report.tables import verdict_json, verdict_table, verdict_title

    verdict = judge_files(first, second, fdr_level=fdr_level, offset=offset, centre=centre, scale=scale)
    if as_json:
        print(json.dumps(verdict_json(verdict)))
    else:
        console = _console()
        _say(console, verdict_title(verdict))
        console.print(verdict_table(verdict))
        _say(console, "With --offset 0 even a clean set loses a row or two on average; use 20 rows or more.")


@app.command()
def plan(
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes in all.")],
    degree: Annotated[int, typer.Option("--degree", help="Neighbours of a node; of the one with the fewest, to be safe.")],
    ratio: Annotated[float, typer.Option("--ratio", help="Share of Byzantine nodes.")] = 0.2,
    alpha: Annotated[float, typer.Option("--alpha", help="Target false discovery rate.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the forecast and the advice.")] = False,
) -> None:
    """Say before a run what a detection can reach with so many neighbours, and what to change."""
    import json

    from bymi.outlook import Question, recall
    from bymi.report.outlook import advice, outlook_json, outlook_table, outlook_title

    outlook = recall(Question(nodes, degree, ratio, alpha))
    if as_json:
        print(json.dumps(outlook_json(outlook)))
        return
    console = _console()
    _say(console, outlook_title(outlook))
    console.print(outlook_table(outlook))
    for line in advice(outlook):
        _say(console, f"* {line}")


@app.command("list")
def list_parts() -> None:
    """List recipes, graphs, rules, attacks, robust means and scales, with their parameters, and the exit codes."""
    from bymi.experiment.catalogue import catalogue
    from bymi.report.tables import plain_table

    for heading, rows in catalogue().items():
        _console().print(plain_table([heading, "parameters", "what it is"], rows))


def _host(where: Any, specs: Any, group: Any) -> Any:
    """Where to run. Data sets that have to be downloaded come first, under a bar of their own; with ranks, once."""
    from bymi.engine.host import Host
    from bymi.runs.tasks import fetch

    device, gradients, data, checkpoint_every = where
    host = Host(device, gradients, data=data, checkpoint_every=checkpoint_every)
    names = {spec.data.name for spec in specs}
    if group is not None and group.rank:
        group.wait("data", [0])
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with _bar(columns, group) as bar:
        tasks: dict[str, Any] = {}

        def tell(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(f"downloading {file}", total=total)
            bar.update(tasks[file], completed=done)

        for name in sorted(names):
            fetch(name, data, tell)
    if group is not None and not group.rank:
        group.say("data")
    return host


def _bar(columns: Any, group: Any) -> Progress:
    """A bar on stderr, where somebody looks; of all ranks, at one."""
    console = Console(stderr=True)
    hidden = not console.is_terminal or (group is not None and group.rank > 0)
    return Progress(*columns, console=console, transient=True, disable=hidden)


def _run_all(specs: Any, out: Path, jobs: int | None, where: Any, group: Any, *, apart: bool = False) -> Any:
    """Run specs under a bar of all steps and the time left, on stderr."""
    from bymi.experiment import run_all, steps_to_do

    raise_again()
    todo = steps_to_do(specs, out)
    host = _host(where, specs if todo else [], group)
    steps = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    with _bar((*steps, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()), group) as bar:
        task = bar.add_task(f"{len(specs)} runs" if len(specs) > 1 else "1 run", total=todo)
        tell = lambda index, done: bar.advance(task, done)  # noqa: E731
        return run_all(specs, out, jobs=jobs, progress=tell, host=host, group=group, apart=apart)


def _say(console: Console, line: str) -> None:
    """A line as it is: paths are not folded, and brackets in them are not markup."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _console() -> Console:
    """A console that never folds a table into nonsense when the output is a file."""
    return Console(width=None if sys.stdout.isatty() else 140, soft_wrap=False)


def main() -> None:
    """Entry point: every mistake of a user is one line on stderr and an exit code."""
    try:
        keep_memory()
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except BymiError as problem:
        code = _complain(problem)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as problem:
        # typer's usage errors, whichever release of it (and of the click below) is installed
        if hasattr(problem, "format_message"):
            problem = InputError(problem.format_message())
        refused = problem if isinstance(problem, BymiError) else system_refusal(problem)
        if refused is None:
            raise
        code = _complain(refused)
    if code == INTERRUPTED:  # typer turns the interrupt into this code by itself
        sys.stderr.write(SENTENCE)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(problem: BymiError) -> int:
    """Say what is wrong in one line on stderr, unless another process has; the exit code."""
    if not problem.said:
        sys.stderr.write(f"bymi: {' '.join(str(problem).splitlines())}\n")  # in one piece: other ranks may write there, too
    if problem.exit_code == StorageError.exit_code:  # of stdout itself, maybe: Python would try again and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return problem.exit_code
