"""From the runs of a sweep to what its page draws (dots per seed, bands of curves, varied axes) and to a table as text."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from bymi.core.errors import BymiError
from bymi.report.page_data import curves, measures_of
from bymi.report.tables import COLUMNS, own_measures, pairs_in_lines
from bymi.runs import run_folder as store
from bymi.runs.results_table import ListedRun, ResultsTable

SHOWN: tuple[tuple[str, str, str], ...] = (
    ("gap", "optimality gap", "log"),
    ("acc_scc", "Acc (scc): accuracy of the core's mean model", "share"),
    ("acc_normal", "Acc (normal): accuracy of the honest nodes' mean model", "share"),
    ("acc_all", "Acc (all): accuracy of all nodes' mean model", "share"),
    ("loss", "loss", "log"),
    ("fdp", "FDP: honest among the flagged", "share"),
    ("pa", "P_a: honest nodes that flagged all Byzantine neighbours", "share"),
    ("found", "edges from Byzantine nodes flagged", "share"),
    ("honest_edge_loss", "edges between honest nodes lost", "share"),
    ("core_size", "nodes in the core", "count"),
    ("core_byzantine", "Byzantine nodes in the core", "count"),
    ("consensus", "largest distance from the mean", "log"),
    ("unheard", "messages not heard", "count"),
    ("seconds", "seconds", "count"),
)
"""Measures of the overview: key in summary.json, name, and kind of scale."""

OWN = {"data.content": "model, loss or data", "graph.content": "own graph", "warm_up.rule.content": "own rule"}
"""Names of the digests of what `bymi.train` was given: two runs differ in them after a change in a script."""

_BAND_POINTS = 120
_MAIN = ("gap", "acc_scc", "acc_normal", "loss", "fdp", "pa", "honest_edge_loss", "core_size", "core_byzantine")


def sweep_data(runs: Sequence[ListedRun], table: ResultsTable) -> dict[str, Any]:
    """Settings, measures, a row per run and a band per setting and measure."""
    axes = [key for key in table.settings if key != "seed"]
    values = {key: _in_order({_text(row[key]) for row in table}) for key in axes}
    varied = varied_settings(table)
    shown = [{"key": key, "name": name, "kind": kind} for key, name, kind in SHOWN if key in table.measures]
    shown += [{"key": key, "name": key, "kind": "count"} for key in own_measures(table.measures)]
    rows = [
        {
            "settings": [_text(row[key]) for key in varied],
            "seed": row["seed"],
            "run": row["run"],
            "outcome": row["outcome"],
            "sentence": row["sentence"],
            "values": {one["key"]: row[one["key"]] for one in shown},
        }
        for row in table
    ]
    places = [{value: place for place, value in enumerate(values[key])} for key in varied]
    order = sorted(
        range(len(rows)), key=lambda index: [at[one] for at, one in zip(places, rows[index]["settings"], strict=True)]
    )
    rows, runs = [rows[index] for index in order], [runs[index] for index in order]
    return {
        "axes": [{"key": OWN.get(key, key), "values": values[key]} for key in varied],
        "fixed": [[key, values[key][0]] for key in axes if len(values[key]) == 1],
        "measures": shown,
        "rows": rows,
        **_bands(runs, rows),
    }


def varied_settings(table: ResultsTable) -> list[str]:
    """Settings that tell runs apart, but for the seed. One that follows from others is left out, first of all digests."""
    settings = sorted((key for key in table.settings if key not in ("method", "seed")), key=lambda key: key in OWN)
    chosen: list[str] = []
    for key in [*settings, "method"]:
        before = {tuple(repr(row[one]) for one in chosen) for row in table}
        if len({tuple(repr(row[one]) for one in [*chosen, key]) for row in table}) > len(before):
            chosen.append(key)
    return ["method", *chosen[:-1]] if chosen[-1:] == ["method"] else chosen


def _bands(runs: Sequence[ListedRun], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Per setting and measure the median and the range over seeds, at the steps that all of its runs have recorded."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.summary is None:
            continue
        try:
            groups.setdefault(tuple(row["settings"]), []).append(curves(store.read_rows(run.folder / store.METRICS)))
        except (BymiError, ValueError, KeyError):
            continue
    measures = measures_of([{"curves": curve} for group in groups.values() for curve in group])
    bands = []
    for settings, group in groups.items():
        band: dict[str, Any] = {"settings": list(settings), "runs": len(group), "measures": {}}
        for measure in measures:
            key = measure["key"]
            columns = [dict(zip(curve["step"], curve[key], strict=True)) for curve in group if key in curve]
            if columns:
                band["measures"][key] = _band(columns)
        bands.append(band)
    return {"bands": bands, "curve_measures": measures}


def _band(columns: Sequence[Mapping[int, float | None]]) -> dict[str, list[float]]:
    common = [step for step in columns[0] if all(column.get(step) is not None for column in columns)]
    stride = max(1, len(common) // _BAND_POINTS)
    steps = common[::stride] + (common[-1:] if common and (len(common) - 1) % stride else [])
    values = [[float(column[step] or 0.0) for column in columns] for step in steps]
    return {
        "step": [float(step) for step in steps],
        "low": [min(row) for row in values],
        "mid": [_short(statistics.median(row)) for row in values],
        "high": [max(row) for row in values],
    }


def _in_order(values: set[str]) -> list[str]:
    """Numbers by size, words by the alphabet."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    headings += [names.get(key, key) + (" %" if kinds.get(key) == "share" else "") for key in shown]
    rows = [
        [
            *[_text(row[key]) for key in [*settings, *counts]],
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
    values = zip(headings[settings:], row[settings:], strict=True)
    return "\n".join([*lines, *pairs_in_lines(values, width)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pair(mean: float | None, deviation: float | None, kind: str | None) -> str:
    if mean is None:
        return "-"
    shown = [mean] if deviation is None else [mean, deviation]
    text = [f"{100 * value:.1f}" if kind == "share" else f"{value:.1e}" if kind == "log" else f"{value:.3g}" for value in shown]
    return " +- ".join(text)
