"""A table of results as text: mean and deviation over seeds of the main measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bymi.report.sweep_data import SHOWN
from bymi.report.tables import COLUMNS
from bymi.runs.results_table import ResultsTable

_MAIN = ("gap", "acc_scc", "acc_normal", "loss", "fdp", "pa", "honest_edge_loss", "core_size", "core_byzantine")


def means_text(table: ResultsTable, width: int) -> str:
    """A row per setting, as wide as `width` at most; where that is too narrow, a block per setting. Values are never cut."""
    means = table.over_seeds()
    kinds = {key: kind for key, _, kind in SHOWN}
    names = {key: heading.removesuffix(" %") for heading, key in COLUMNS}
    settings = [key for key in table.settings if key != "seed"]
    shown = [key for key in _MAIN if any(row.get(key) is not None for row in means)]
    headings = [*settings, "runs", "not finished", *[_heading(names.get(key, key), kinds.get(key)) for key in shown]]
    rows = [
        [
            *[_plain(row[key]) for key in settings],
            str(row["runs"]),
            str(row["not_finished"]),
            *[_pair(row[key], row[f"{key}_sd"], kinds.get(key)) for key in shown],
        ]
        for row in means
    ]
    note = "mean +- standard deviation over seeds"
    widths = [max(len(heading), *(len(row[i]) for row in rows)) for i, heading in enumerate(headings)]
    if sum(widths) + 2 * len(widths) <= width:
        lines = [_line(headings, widths), _line(["-" * one for one in widths], widths), *[_line(row, widths) for row in rows]]
        return "\n".join([*lines, note])
    blocks = []
    for row in rows:
        values = [f"{heading} {value}" for heading, value in zip(headings, row, strict=True) if value != "-"]
        lines = [""]
        for value in values:
            if lines[-1] and len(lines[-1]) + 3 + len(value) > width:
                lines.append("  ")
            lines[-1] += ("   " if lines[-1].strip() else "") + value
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, note])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _heading(name: str, kind: str | None) -> str:
    return f"{name} %" if kind == "share" else name


def _pair(mean: float | None, deviation: float | None, kind: str | None) -> str:
    if mean is None:
        return "-"
    shown = [mean] if deviation is None else [mean, deviation]
    text = [f"{100 * value:.1f}" if kind == "share" else f"{value:.1e}" if kind == "log" else f"{value:.1f}" for value in shown]
    return " +- ".join(text)


def _plain(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
