"""`bymi reproduce`: the studies of bymi.paper, and the pages written from their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bymi.commands import options
from bymi.commands.console_lines import console, print_line
from bymi.commands.run import bar, run_specs
from bymi.core.errors import BymiError, InputError, require
from bymi.core.files import refuse_link


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
    out: options.Out = Path("runs"),
    jobs: options.Jobs = None,
    device: options.Device = "auto",
    gradients: options.Gradients = "auto",
    data: options.DataFolder = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_models: options.KeepModels = "mean",
    timeout: options.Timeout = 60.0,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce the paper's figures and tables, and the red-team tables. Resumes where it stopped."""
    from bymi.distributed.join_process_group import ranks
    from bymi.paper import study_array_detection as detect_level
    from bymi.paper.computed_studies import COMPUTED
    from bymi.paper.find_study import find_study
    from bymi.paper.show_study import show
    from bymi.report.tables import print_words
    from bymi.runs import write_resolved_specs

    if study == "pages":
        _pages(check, quiet)
        return
    require(not check, "--check", study, "for pages only")
    if study == detect_level.NAME:
        _detect_level(out / detect_level.FOLDER, fast, data, quiet)
        return
    if study in COMPUTED:
        _computed(COMPUTED[study], out / f"reproduce-{study}", fast=fast, data=data, jobs=jobs or 1, quiet=quiet)
        return
    plan = find_study(study, seeds=seeds, mu=mu, dims=dim or (), only=only or (), fast=fast)
    specs, folder = plan.specs, out / plan.folder
    refuse_link(folder)
    if export is not None:
        write_resolved_specs(export, [spec.resolved for spec in specs])
        _say([f"Wrote {len(specs)} runs to {export}: python -m bymi.runs {export} --out {folder}"], quiet)
        return
    with ranks(timeout, device=device) as group:
        where = {"device": device, "gradients": gradients, "data": data, "checkpoint_every": checkpoint_every}
        results = run_specs(specs, folder, jobs, {**where, "keep_models": keep_models}, group, apart=True, quiet=quiet)
    if group is not None and group.rank:
        return
    everything = find_study(study, seeds=max(seeds, 5), mu=mu, fast=fast)  # includes what earlier calls have run
    said = ("" if seeds == 5 else f" --seeds {seeds}") + ("" if mu == 5.0 else f" --mu {mu:g}")
    paths, table = show(everything, folder, f"bymi reproduce {study}{said}")
    _say([f"Wrote {path}" for path in paths], quiet)
    if table is not None and not quiet:
        print_words(console(), *table)
    failed = [result for result in results if isinstance(result, BymiError)]
    if failed:
        print_line(f"{len(failed)} runs could not be made, the first: {failed[0]}", error=True)
        raise typer.Exit(failed[0].exit_code)


def _say(lines: Iterable[str], quiet: bool) -> None:
    for line in () if quiet else lines:
        print_line(line)


def _pages(check: bool, quiet: bool) -> None:
    """Write the pages of the checkout in the current folder, or name those that differ."""
    from bymi.paper import all_pages as pages

    found = pages.check(Path()) if check else [f"Wrote {path}" for path in pages.write(Path())]
    _say(found, quiet)
    if check and found:
        raise typer.Exit(InputError.exit_code)


def _computed(study: Any, folder: Path, *, fast: bool, data: Path | None, jobs: int, quiet: bool) -> None:
    """A study without run folders: its points with a progress bar, then its files."""
    from bymi.runs.tasks import fetch

    if study.data is not None:
        fetch(study.data, data, lambda *_: None)
    refuse_link(folder)
    with _counted(study.name, len(study.points(fast)), "points", quiet) as tell:
        paths = study.run(folder, fast=fast, data=data, jobs=jobs, tell=tell)
    _say([f"Wrote {path}" for path in paths], quiet)


def _detect_level(folder: Path, fast: bool, data: Path | None, quiet: bool) -> None:
    """The study without runs: draws with a progress bar, then its files."""
    from bymi.paper.page_array_detection import draw, draws, run
    from bymi.runs.tasks import fetch

    if not fast:
        fetch("mnist", data, lambda *_: None)
    with _counted("detection on arrays", draws(fast=fast), "draws", quiet) as tell:
        run(folder, fast=fast, data=data, tell=tell)
    _say([f"Wrote {path}" for path in draw(folder)], quiet)


@contextmanager
def _counted(what: str, total: int, unit: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A function that advances a progress bar by a number of units."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with bar((*columns, TextColumn("left"), TimeRemainingColumn()), hidden=quiet) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)
