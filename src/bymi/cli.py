"""The command line: parses arguments, calls the library, prints. No logic of its own."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bymi import __version__, commands
from bymi.commands.advice import few_neighbours
from bymi.commands.options import (
    AsJson,
    CheckpointEvery,
    DataFolder,
    Device,
    Gradients,
    Imports,
    Jobs,
    KeepModels,
    Quiet,
    Timeout,
    Track,
    complete_words,
)
from bymi.commands.printing import own_command
from bymi.commands.running import bar, run_specs
from bymi.core.errors import BymiError, InputError, StorageError, require, system_refusal
from bymi.core.files import refuse_link
from bymi.core.interrupts import INTERRUPTED, SENTENCE
from bymi.distributed.glibc_memory import keep_memory
from bymi.node_cli import net_app, node_app

app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decentralised learning in which some nodes lie: find out who, cut them off, converge.",
)


app.add_typer(node_app, name="node")
app.add_typer(net_app, name="net")


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"bymi {__version__}")
        raise typer.Exit


Out = Annotated[Path, typer.Option("--out", help="Folder for the run folders.")]


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FILE] [KEY=VALUE]",
            autocompletion=complete_words,
            show_default=False,
            help="A recipe or a .toml/.json file, then keys to set: nodes=50 attack=ipm:a=2.0. `bymi list` has all of them.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all random streams.")] = None,
    fdr_level: Annotated[
        float | None, typer.Option("--fdr-level", help="Target false discovery rate, the key detection.fdr_level.")
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = None,
    device: Device = "auto",
    gradients: Gradients = "auto",
    data: DataFolder = None,
    checkpoint_every: CheckpointEvery = None,
    keep_models: KeepModels = "mean",
    again: Annotated[bool, typer.Option("--again", help="Run from the first round even what is complete.")] = False,
    imports: Imports = False,
    timeout: Timeout = 60.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    track: Track = None,
) -> None:
    """Run an experiment and print its table. Without arguments: the paper's Scenario A. Under torchrun: over all ranks."""
    from bymi.distributed.join_process_group import ranks
    from bymi.experiment import load
    from bymi.report import figures, tables
    from bymi.runs import run_folder as store
    from bymi.runs.outcome import worst

    sys.path.append(os.getcwd())  # for own parts, module:Name; last, so that nothing installed is shadowed
    words = words or []
    source = words.pop(0) if words and "=" not in words[0] else None
    words += [] if fdr_level is None else [f"detection.fdr_level={fdr_level}"]
    with ranks(timeout, device=device) as group:
        specs = load(source, words, seed, imports=imports).expand()
        where: dict[str, Any] = {"device": device, "gradients": gradients, "data": data, "checkpoint_every": checkpoint_every}
        where = {**where, "keep_models": keep_models, "track": tuple(track or ())}
        results = run_specs(specs, out, jobs, where, group, again=again, quiet=quiet)
    if group is not None and group.rank:
        return
    for result in results:
        if isinstance(result, BymiError):
            raise result
    summaries = [result for result in results if isinstance(result, dict)]
    resolved = [spec.resolved for spec in specs]
    folders = [store.folder_of(out, spec) for spec in resolved]
    for folder in folders:
        figures.draw_run(folder)

    name = f"comparison-seed{specs[0].seed}-" + "-".join(spec.digest[:6] for spec in resolved)
    drawn = figures.draw_comparison(folders, out, name)[:1] if len(folders) > 1 else []
    if as_json:
        for summary, folder in zip(summaries, folders, strict=True):
            print(json.dumps({"folder": str(folder), **summary}, allow_nan=False))
    if not quiet:
        console = commands.console(error=as_json)
        tables.print_runs(console, summaries, figures.describe(resolved[0].values))
        for advice in (*(spec.remark for spec in resolved), few_neighbours(folders)):
            if advice is not None:
                _print_line(console, advice)
        for path in drawn:
            _print_line(console, f"Figure: {path}")
        for folder in folders:
            _print_line(console, f"Folder: {folder}")
        alone = {path.parent for path in out.glob(f"*/{store.SUMMARY}")} == set(folders)
        which = out if alone else " ".join(map(str, folders))
        _print_line(console, f"For a report page: {own_command()} report {which} --open")
    # Under torchrun an exit code would mean that a rank has failed, and restart the run.
    raise typer.Exit(worst(summary["outcome"] for summary in summaries) if group is None else 0)


@app.command()
def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="scenario-a, table-mnist, red-team, ...: `bymi list studies` has all of them and what they show; "
            "or pages: write README and docs of this checkout from docs/results."
        ),
    ],
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs per setting, seeds 0, 1, 2, ...")] = 5,
    mu: Annotated[float, typer.Option("--mu", help="mu_c of Scenario A; the paper's dip at 0.1 needs 1.")] = 5.0,
    dim: Annotated[list[int] | None, typer.Option("--dim", help="30, 80 or both (default).")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Columns of an image study: undefended, alone, alone-global, published, published-averaging, receiver, "
            "hardened; of red-team: nobody, BALANCE, published, hardened; of non-iid: hardened, BALANCE, IOS, receiver, "
            "published; default: all.",
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A small part, one seed: a look, not a result.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With pages: write nothing, name the pages that differ, exit code 2 if any does.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the runs to a file for `python -m bymi.runs`; run nothing.")
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = None,
    device: Device = "auto",
    gradients: Gradients = "auto",
    data: DataFolder = None,
    checkpoint_every: CheckpointEvery = None,
    keep_models: KeepModels = "mean",
    timeout: Timeout = 60.0,
) -> None:
    """Reproduce the paper's figures and tables, and the red-team tables. Resumes where it stopped."""
    from bymi.distributed.join_process_group import ranks
    from bymi.paper import study_detect_level as detect_level
    from bymi.paper.computed_studies import COMPUTED
    from bymi.paper.find_study import find_study
    from bymi.paper.write_study import show
    from bymi.runs import write_resolved_specs

    if study == "pages":
        _pages(check)
        return
    require(not check, "--check", study, "for pages only")
    if study == detect_level.NAME:
        _detect_level(out / detect_level.FOLDER, fast, data)
        return
    if study in COMPUTED:
        _computed(COMPUTED[study], out / f"reproduce-{study}", fast=fast, data=data, jobs=jobs)
        return
    plan = find_study(study, seeds=seeds, mu=mu, dims=dim or (), only=only or (), fast=fast)
    specs, folder = plan.specs, out / plan.folder
    refuse_link(folder)
    console = commands.console()
    if export is not None:
        write_resolved_specs(export, [spec.resolved for spec in specs])
        _print_line(console, f"Wrote {len(specs)} runs to {export}: python -m bymi.runs {export} --out {folder}")
        return
    with ranks(timeout, device=device) as group:
        where = {"device": device, "gradients": gradients, "data": data, "checkpoint_every": checkpoint_every}
        results = run_specs(specs, folder, jobs, {**where, "keep_models": keep_models}, group, apart=True)
    if group is not None and group.rank:
        return
    everything = find_study(study, seeds=max(seeds, 5), mu=mu, fast=fast)  # includes what earlier calls have run
    said = ("" if seeds == 5 else f" --seeds {seeds}") + ("" if mu == 5.0 else f" --mu {mu:g}")
    paths, table = show(everything, folder, f"bymi reproduce {study}{said}")
    for path in paths:
        _print_line(console, f"Wrote {path}")
    if table is not None:
        console.print(table)
    failed = [result for result in results if isinstance(result, BymiError)]
    if failed:
        _print_line(console, f"{len(failed)} runs could not be made, the first: {failed[0]}")
        raise typer.Exit(failed[0].exit_code)


def _pages(check: bool) -> None:
    """Write the pages of the checkout in the current folder, or name those that differ."""
    from bymi.paper import all_pages as pages

    found = pages.check(Path()) if check else [f"Wrote {path}" for path in pages.write(Path())]
    for line in found:
        _print_line(commands.console(), line)
    if check and found:
        raise typer.Exit(InputError.exit_code)


def _computed(study: Any, folder: Path, *, fast: bool, data: Path | None, jobs: int | None) -> None:
    """A study without run folders: its points with a progress bar, then its files."""
    from bymi.runs.tasks import fetch

    if study.data is not None:
        fetch(study.data, data, lambda *_: None)
    refuse_link(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("points"), TimeElapsedColumn())
    with bar((*columns, TextColumn("left"), TimeRemainingColumn())) as shown:
        task = shown.add_task(study.name, total=len(study.points(fast)))
        paths = study.run(folder, fast=fast, data=data, jobs=jobs or 1, tell=lambda count: shown.advance(task, count))
    for path in paths:
        _print_line(commands.console(), f"Wrote {path}")


def _detect_level(folder: Path, fast: bool, data: Path | None) -> None:
    """The study without runs: draws with a progress bar, then its files."""
    from bymi.paper.page_detect_level import draw, draws, run
    from bymi.runs.tasks import fetch

    if not fast:
        fetch("mnist", data, lambda *_: None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("draws"), TimeElapsedColumn())
    with bar((*columns, TextColumn("left"), TimeRemainingColumn())) as shown:
        task = shown.add_task("detection on arrays", total=draws(fast=fast))
        run(folder, fast=fast, data=data, tell=lambda count: shown.advance(task, count))
    for path in draw(folder):
        _print_line(commands.console(), f"Wrote {path}")


@app.command()
def detect(
    first: Annotated[
        Path, typer.Argument(help="First half gradients [n, d], a row per machine: .npy, .npz, .csv, .pt, .safetensors")
    ],
    second: Annotated[
        Path | None,
        typer.Argument(help="Second half gradients, same rows. Left out: FIRST holds two arrays.", show_default=False),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", help="hardened: a panel of tests. published: the paper's score and threshold.")
    ] = "hardened",
    fdr_level: Annotated[float, typer.Option("--fdr-level", help="Target false discovery rate.")] = 0.2,
    names: Annotated[
        Path | None,
        typer.Option("--names", help="File with a name per line. Default: the first column of a .csv, else numbers."),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", help="Published: 0 as in the paper (default); 1 for exact control, 1/level machines or none."),
    ] = None,
    cross_fit: Annotated[
        bool | None,
        typer.Option(
            "--cross-fit/--no-cross-fit",
            help="Published: compare second halves with a centre of second halves (default). --no-cross-fit is the exact form "
            "of the paper; at level 0.2 its false discovery rate grows from 0.3 at d = 100 to 0.8 at d = 10^6.",
        ),
    ] = None,
    centre: Annotated[
        str | None,
        typer.Option("--centre", help="Published: filtering (default), or any of `bymi list detection.centre`"),
    ] = None,
    scale: Annotated[str | None, typer.Option("--scale", help="Published: identity (default), pca, projected or mad")] = None,
    flagged_only: Annotated[bool, typer.Option("--flagged-only", help="List flagged machines only.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the scores with their threshold: .png or .svg")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: settings, warnings, a record per machine.")] = False,
    fail: Annotated[bool, typer.Option("--fail-if-flagged", help="End with exit code 7 if a machine is flagged.")] = False,
) -> None:
    """Find Byzantine machines from two half-batch gradients each: row j of both arrays belongs to machine j."""
    from bymi.core.errors import FLAGGED
    from bymi.experiment.detect_files import judge_files
    from bymi.report.array_verdicts import advice, draw_scores, verdict_json

    how: dict[str, Any] = {"offset": offset, "cross_fit": cross_fit, "centre": centre, "scale": scale}
    verdict = judge_files(first, second, names=names, profile=profile, fdr_level=fdr_level, **how)
    hints = advice(verdict)
    if plot is not None:
        draw_scores(verdict, plot)
    if as_json:
        print(json.dumps(verdict_json(verdict, hints, flagged_only=flagged_only), allow_nan=False))
    else:
        print(verdict.table(flagged_only=flagged_only, advice=hints))
    raise typer.Exit(FLAGGED if fail and bool(verdict.flagged.any()) else 0)


@app.command()
def plan(
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes in all.")],
    degree: Annotated[int, typer.Option("--degree", help="Neighbours of a node; of the one with the fewest, to be safe.")],
    ratio: Annotated[float, typer.Option("--ratio", help="Share of Byzantine nodes.")] = 0.2,
    fdr_level: Annotated[float, typer.Option("--fdr-level", help="Target false discovery rate.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the forecast and the advice.")] = False,
) -> None:
    """Forecast, before a run, what a detection can reach with this degree and share of Byzantine nodes, and what to change."""
    from bymi.power_analysis import Setting, forecast
    from bymi.report.power_analysis import advice, outlook_json, outlook_table, outlook_title

    outlook = forecast(Setting(nodes, degree, ratio, fdr_level))
    if as_json:
        print(json.dumps(outlook_json(outlook)))
        return
    console = commands.console()
    _print_line(console, outlook_title(outlook))
    console.print(outlook_table(outlook))
    for line in advice(outlook):
        _print_line(console, f"* {line}")


commands.register(app)


def _print_line(console: Console, line: str) -> None:
    """Print a line as it is: paths are not folded, and brackets in them are not markup."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def main() -> None:
    """Entry point: every mistake of a user is one line on stderr and an exit code."""
    try:
        keep_memory()
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except BymiError as problem:
        code = _print_error(problem)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as problem:
        # typer's usage errors, whichever release of it (and of click) is installed
        if hasattr(problem, "format_message"):
            problem = InputError(problem.format_message())
        refused = problem if isinstance(problem, BymiError) else system_refusal(problem)
        if refused is None:
            raise
        code = _print_error(refused)
    if code == INTERRUPTED:  # typer turns the interrupt into this code by itself
        sys.stderr.write(SENTENCE)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(problem: BymiError) -> int:
    """Print an error in one line on stderr, unless another process has; returns the exit code."""
    if not problem.said:
        sys.stderr.write(f"bymi: {' '.join(str(problem).splitlines())}\n")  # in one write: other ranks may write there, too
    if problem.exit_code == StorageError.exit_code:  # stdout itself may have failed: Python would flush it again and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return problem.exit_code
