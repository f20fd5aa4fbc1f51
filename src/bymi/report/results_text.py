"""A table of results as text: mean and deviation over seeds of the main measures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from bymi.report.sweep_data import OWN, SHOWN, varied_settings
from bymi.report.tables import COLUMNS, own_measures
from bymi.runs.results_table import ResultsTable

_MAIN = ("gap", "acc_scc", "acc_normal", "loss", "fdp", "pa", "honest_edge_loss", "core_size", "core_byzantine")


def means_text(table: ResultsTable, width: int) -> str:
    """A row per setting, as wide as `width` at most; where that is too narrow, a block per setting. Values are never cut."""
    means = table.over_seeds()
    kinds = {key: kind for key, _, kind in SHOWN}
    names = {key: heading.removesuffix(" %") for heading, key in COLUMNS}
    settings = varied_settings(table) or ["method"]
    shown = [key for key in [*own_measures(table.measures), *_MAIN] if any(row.get(key) is not None for row in means)]
    counts = ["runs"] if len({row["runs"] for row in means}) > 1 else []
    counts += ["not_finished"] if any(row["not_finished"] for row in means) else []
    headings = [*[OWN.get(key, key) for key in settings], *[key.replace("_", " ") for key in counts]]
    headings += [_heading(names.get(key, key), kinds.get(key)) for key in shown]
    rows = [
        [
            *[_plain(row[key]) for key in [*settings, *counts]],
            *[_pair(row[key], row[f"{key}_sd"], kinds.get(key)) for key in shown],
        ]
        for row in means
    ]
    each = "" if counts[:1] == ["runs"] else f", {means[0]['runs']} per row"
    note = f"{len(table)} {'run' if len(table) == 1 else 'runs'}{each}" + (
        "" if len(table) == len(means) else ", mean +- standard deviation over seeds"
    )
    widths = [max(map(len, [*heading.split(), *[row[at] for row in rows]])) for at, heading in enumerate(headings)]
    if sum(widths) + 2 * len(widths) <= width:
        lines = [
            *_folded(headings, widths),
            _line(["-" * one for one in widths], widths),
            *[_line(row, widths) for row in rows],
        ]
        return "\n".join([*lines, note])
    return "\n\n".join([*[_block(headings, row, len(settings), width) for row in rows], note])


def _folded(headings: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Lines of headings, folded at blanks and ending on the same line."""
    folded = [textwrap.wrap(heading, width) for heading, width in zip(headings, widths, strict=True)]
    height = max(map(len, folded))
    return [_line([([""] * (height - len(one)) + one)[at] for one in folded], widths) for at in range(height)]


def _block(headings: Sequence[str], row: Sequence[str], settings: int, width: int) -> str:
    """The settings on one line, then the values, on as many lines as they need."""
    lines = textwrap.wrap(
        ", ".join(f"{heading} {value}" for heading, value in zip(headings, row[:settings], strict=False)), width
    )
    line = ""
    for heading, value in zip(headings[settings:], row[settings:], strict=True):
        pair = f"{heading} {value}"
        if line and len(line) + 3 + len(pair) > width:
            lines.append(line)
            line = ""
        line = f"{line}   {pair}" if line else f"  {pair}"
    return "\n".join([*lines, line])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _heading(name: str, kind: str | None) -> str:
    return f"{name} %" if kind == "share" else name


def _pair(mean: float | None, deviation: float | None, kind: str | None) -> str:
    if mean is None:
        return "-"
    shown = [mean] if deviation is None else [mean, deviation]
    text = [f"{100 * value:.1f}" if kind == "share" else f"{value:.1e}" if kind == "log" else f"{value:.3g}" for value in shown]
    return " +- ".join(text)


def _plain(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
