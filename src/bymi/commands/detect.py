"""`bymi detect` and `bymi plan`: Byzantine machines from arrays of gradients, and what a detection can reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bymi.commands.console_lines import console, print_line
from bymi.core.errors import FLAGGED


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
        typer.Option("--offset", help="Published: 0 as in the paper (default); 1 is stricter: 1/level machines or none."),
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
    from bymi.experiment.detect_files import judge_files
    from bymi.report.detect_output import advice, draw_scores, verdict_json

    how: dict[str, Any] = {"offset": offset, "cross_fit": cross_fit, "centre": centre, "scale": scale}
    verdict = judge_files(first, second, names=names, profile=profile, fdr_level=fdr_level, **how)
    hints = advice(verdict)
    if plot is not None:
        draw_scores(verdict, plot)
    if as_json:
        print(json.dumps(verdict_json(verdict, hints, flagged_only=flagged_only), allow_nan=False))
    else:
        print(verdict.table(flagged_only=flagged_only, advice=hints, width=console().width))
        if plot is not None:
            print_line(f"Figure: {plot}")
    raise typer.Exit(FLAGGED if fail and bool(verdict.flagged.any()) else 0)


def plan(
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes in all.")],
    degree: Annotated[
        int | None,
        typer.Option(
            "--degree",
            help="Neighbours of a node; of the one with the fewest, to be safe. Default: all others, a complete graph.",
            show_default=False,
        ),
    ] = None,
    ratio: Annotated[float, typer.Option("--ratio", help="Share of Byzantine nodes.")] = 0.2,
    fdr_level: Annotated[float, typer.Option("--fdr-level", help="Target false discovery rate.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the forecast and the advice.")] = False,
) -> None:
    """Forecast, before a run, what a detection can reach with this degree and share of Byzantine nodes, and what to change."""
    from bymi.power_analysis import Setting, forecast
    from bymi.report.power_analysis import HEADINGS, advice, outlook_cells, outlook_json, outlook_title
    from bymi.report.tables import print_numbers

    outlook = forecast(Setting(nodes, nodes - 1 if degree is None else degree, ratio, fdr_level))
    if as_json:
        print(json.dumps(outlook_json(outlook)))
        return
    print_line(outlook_title(outlook))
    print_numbers(console(), HEADINGS, outlook_cells(outlook))
    for line in advice(outlook):
        print_line(f"* {line}")
