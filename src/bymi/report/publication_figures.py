"""`bymi report --figures`: figures of runs and sweeps in the style of a paper, as PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bymi.report import figures
from bymi.report.figures import COLOURS, STYLE
from bymi.report.page_data import curves, measures_of, phases, rank
from bymi.report.sweep_data import sweep_data
from bymi.runs import run_folder as store
from bymi.runs.results_table import ListedRun, find_runs, table_of

SYMBOLS = {
    "gap": r"optimality gap  $F(\bar{\theta}) - F^{\star}$",
    "grad_norm": r"gradient norm  $\|\nabla F(\bar{\theta})\|$",
    "grad_norm_weighted": r"gradient norm  $\|\nabla F(\bar{\theta}_v)\|$",
    "consensus": r"consensus  $\max_i \|\theta_i - \bar{\theta}\|$",
    "fdp": r"$\mathrm{FDP}$",
    "pa": r"$P_a$",
}
"""Names with symbols, by key; others keep the name that pages use."""

_STYLE: dict[Any, Any] = {
    **STYLE,
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType, which journals ask for
}
_CURVES = 12  # that can be told apart by colour and dash
_KINDS = ("png", "svg", "pdf")
_DASHES = ("-", "--", ":", "-.")


def write_figures(folders: Sequence[str | Path], target: str | Path) -> list[Path]:
    """Write all figures that these runs allow; returns the paths."""
    target = Path(target)
    runs = sorted(find_runs([Path(folder) for folder in folders]), key=rank)
    ended = [run for run in runs if run.summary is not None]
    table = table_of(runs)
    jobs: dict[str, Callable[[], Figure]] = {}
    if len(ended) <= 8:
        listed = [{"label": run.label, **_curves(run)} for run in ended]
        for measure in measures_of(listed):
            jobs[f"curve-{measure['key']}"] = partial(_curve, listed, measure)
    if len(runs) > len({run.label for run in runs}):
        sweep = sweep_data(runs, table)
        shown = [
            one for one in sweep["measures"] if one["key"] in ("gap", "acc_scc", "acc_normal", "loss", "fdp", "pa", "found")
        ]
        for measure in shown:
            jobs[f"dots-{measure['key']}"] = partial(_dots, sweep, measure)
            if len(sweep["axes"]) > 1:
                jobs[f"heat-{measure['key']}"] = partial(_heat, sweep, measure)
        for measure in sweep["curve_measures"]:
            jobs[f"bands-{measure['key']}"] = partial(_bands, sweep, measure)
    return [path for name, make in jobs.items() for path in figures.save(make, target, name, _KINDS, _STYLE)]


def _curves(run: ListedRun) -> dict[str, Any]:
    rows = store.read_rows(run.folder / store.METRICS)
    detections = [row["step"] for row in rows if row["phase"] == "detection"]
    return {"curves": curves(rows), "phases": phases(rows), "detections": detections}


def _name(measure: dict[str, Any]) -> str:
    return SYMBOLS.get(measure["key"], str(measure["name"]))


def _curve(runs: Sequence[dict[str, Any]], measure: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.subplots()
    for index, run in enumerate(runs):
        values = run["curves"].get(measure["key"])
        if values is not None:
            steps = run["curves"]["step"]
            axes.plot(steps, np.array(values, dtype=float), _DASHES[index % 4], color=COLOURS[index % 6], label=run["label"])
    for step in max((run["detections"] for run in runs), key=len, default=[]):
        axes.axvline(step, color="0.6", linewidth=0.5, linestyle=(0, (4, 3)), zorder=0)
    axes.set(xlabel=r"round $t$", ylabel=_name(measure), yscale="log" if measure["log"] else "linear")
    axes.legend()
    return figure


def _bands(sweep: dict[str, Any], measure: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.subplots()
    bands = [band for band in sweep["bands"] if measure["key"] in band["measures"]]
    for index, band in enumerate(bands[:_CURVES]):
        values = band["measures"][measure["key"]]
        colour, dash = COLOURS[index % 6], _DASHES[(index + index // 6) % 4]
        axes.plot(values["step"], values["mid"], dash, color=colour, label=", ".join(band["settings"]))
        axes.fill_between(values["step"], values["low"], values["high"], color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=r"round $t$", ylabel=_name(measure), yscale="log" if measure["log"] else "linear")
    axes.legend(title=f"{_CURVES} of {len(bands)} settings" if len(bands) > _CURVES else None, ncols=1 + (len(bands) > 6))
    return figure


def _dots(sweep: dict[str, Any], measure: dict[str, Any]) -> Figure:
    groups: dict[str, list[float]] = {}
    for row in sweep["rows"]:
        value = row["values"][measure["key"]]
        groups.setdefault(", ".join(row["settings"]) or "all", []).append(np.nan if value is None else float(value))
    figure = Figure(figsize=(4.6, 0.9 + 0.24 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for place, values in enumerate(groups.values()):
        known = [value for value in values if np.isfinite(value)]
        axes.plot(known, [place] * len(known), "o", color=COLOURS[0], alpha=0.7, markersize=4, markeredgewidth=0)
        if known:
            axes.plot([float(np.median(known))], [place], "|", color="black", markersize=9)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set(xlabel=_name(measure), xscale="log" if measure["kind"] == "log" else "linear")
    if measure["kind"] == "share":
        low, high = _limits([value for values in groups.values() for value in values], "share")
        axes.set_xlim(low - 0.005, high + 0.005)
    return figure


def _limits(values: Sequence[float], kind: str) -> tuple[float, float]:
    """The smallest and the largest value, at least 1 (of shares 0.1) apart, so that small differences look small."""
    known, share = [value for value in values if np.isfinite(value)] or [0.0], kind == "share"
    half = max(max(known) - min(known), 0.1 if share else 1.0) / 2
    middle = (min(known) + max(known)) / 2
    if share:
        middle = min(1 - half, max(half, middle))
    return middle - half, middle + half


def _heat(sweep: dict[str, Any], measure: dict[str, Any]) -> Figure:
    """Medians over the first two settings; other settings and seeds are pooled."""
    down, across = sweep["axes"][:2]
    cells: dict[tuple[str, str], list[float]] = {}
    for row in sweep["rows"]:
        value = row["values"][measure["key"]]
        if value is not None:
            cells.setdefault((row["settings"][0], row["settings"][1]), []).append(float(value))
    medians = np.array(
        [[np.median(cells[(a, b)]) if (a, b) in cells else np.nan for b in across["values"]] for a in down["values"]]
    )
    figure = Figure(figsize=(1.6 + 0.95 * len(across["values"]), 1.0 + 0.36 * len(down["values"])), layout="constrained")
    axes = figure.subplots()
    log = measure["kind"] == "log"
    shown = np.log10(np.where(medians > 0, medians, np.nan)) if log else medians
    low, high = _limits(shown.flatten().tolist(), measure["kind"])
    image = axes.imshow(shown, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    axes.grid(visible=False)
    axes.set_xticks(range(len(across["values"])), across["values"])
    axes.set_yticks(range(len(down["values"])), down["values"])
    axes.set(xlabel=across["key"], ylabel=down["key"])
    for (i, j), value in np.ndenumerate(medians):
        if np.isfinite(value):
            light = bool(np.asarray(image.norm(np.log10(value) if log and value > 0 else value), dtype=float) > 0.6)
            axes.text(
                j, i, f"{value:.1e}" if log else f"{value:.3g}", ha="center", va="center", color="black" if light else "white"
            )
    bar = figure.colorbar(image)
    bar.set_label(rf"$\log_{{10}}$ of the {measure['name']}" if log else _name(measure))
    return figure
