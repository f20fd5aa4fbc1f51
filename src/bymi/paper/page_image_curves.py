"""Curves of the image studies: gradient norm and accuracy over rounds, bands over seeds.

`document` turns run folders into the JSON of the study; `figure` draws one attack from that JSON alone.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bymi.paper.provenance import origin
from bymi.paper.study_images import CURVES, RULES, ImageStudy, curves
from bymi.report.figures import COLOURS
from bymi.report.tables import markdown_table
from bymi.runs import run_folder as store

METRICS = {"grad_norm": "norm of the pooled gradient", "acc_normal": "accuracy of the mean of honest nodes"}
_LABELS = {
    "published": "DRSGD-ByMI, published",
    "published-averaging": "the same, OOD nodes average",
    "receiver": "DRSGD-ByMI, receiver's point",
    "hardened": "hardened-ByMI",
    "alone": "the rule alone",
}


def document(study: ImageStudy, folder: Path, command: str) -> dict[str, Any]:
    """Every curve of a study: per attack, rule and column the median, least and largest value over seeds at each round."""
    found: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for cell in study.cells:
        place = store.folder_of(folder, cell.spec)
        if store.is_complete(place):
            rows = store.read_rows(place / store.METRICS)
            found[cell.attack, cell.rule, cell.column].append((cell.spec, rows, origin(place)))
    drawn = []
    for (attack, rule, column), runs in found.items():
        curve: dict[str, Any] = {"attack": attack, "rule": rule, "column": column, "seeds": [spec.seed for spec, *_ in runs]}
        curve["detections"] = sorted({row["step"] for _, rows, _ in runs for row in rows if row["phase"] == "detection"})
        curve["made"] = [made for *_, made in runs]
        for key in METRICS:
            curve[key] = _bands([rows for _, rows, _ in runs], key)
        drawn.append(curve)
    return {"study": study.title, "command": command, "curves": drawn}


def _bands(runs: list[list[dict[str, Any]]], key: str) -> list[list[float]]:
    """[round, least, median, largest] for every round that any run has a value of `key` for."""
    values: dict[int, list[float]] = defaultdict(list)
    for rows in runs:
        for row in rows:
            if row["phase"] != "detection" and row.get(key) is not None:
                values[row["step"]].append(row[key])
    return [[step, min(some), median(some), max(some)] for step, some in sorted(values.items())]


def page(name: str, values: dict[str, Any]) -> str:
    """The Markdown page of the curves: where each of them ends."""
    rows = []
    for curve in values["curves"]:
        ends = [curve[key][-1] if curve[key] else None for key in METRICS]
        texts = ["-" if end is None else f"{end[2]:.3g} ({end[1]:.3g} to {end[3]:.3g})" for end in ends]
        rows.append([curve["attack"], curve["rule"].upper(), curve["column"], str(len(curve["seeds"])), *texts])
    attacks = dict.fromkeys(curve["attack"] for curve in values["curves"])
    drawn = {(curve["attack"], curve["rule"], curve["column"]) for curve in values["curves"]}
    asked = dict.fromkeys((cell.attack, cell.rule, cell.column) for cell in curves("mnist", 1))
    missing = "; ".join(
        f"{attack}, {rule.upper()}, {column}" for attack, rule, column in asked if (attack, rule, column) not in drawn
    )
    lines = [
        f"# {values['study']}",
        "",
        f"`{values['command']}`; median over seeds at the last round, least and largest value in brackets. Every point:",
        f"[{name}.json]({name}.json). Figures: {', '.join(f'[{attack}]({name}-{attack}.png)' for attack in attacks)}.",
        "",
        "`published`: the OOD nodes average nobody, as in all other columns. `published-averaging`: they average like",
        "everybody; the comparison with the paper counts these under UBAR and IOS. Only runs on MNIST are recorded often",
        "enough for curves.",
        "",
        f"No curves, for want of runs: {missing or 'none'}.",
        "",
        markdown_table(["attack", "rule", "column", "seeds", *METRICS.values()], rows).rstrip("\n"),
    ]
    return "\n".join(lines) + "\n"


def figure(values: dict[str, Any], data: str, attack: str, name: str) -> Figure:
    """Two rows (gradient norm, accuracy) and a column per rule; a line at the first detection, ticks at later ones."""
    drawn = {(curve["rule"], curve["column"]): curve for curve in values["curves"] if curve["attack"] == attack}
    made = Figure(figsize=(13, 7), layout="constrained")
    grid = made.subplots(len(METRICS), len(RULES), sharex=True, sharey="row", squeeze=False)
    for place, rule in enumerate(RULES):
        for row, (key, label) in enumerate(METRICS.items()):
            axes = grid[row][place]
            for colour, column in zip(COLOURS, CURVES, strict=False):
                if (rule, column) in drawn:
                    _curve(axes, drawn[rule, column], key, colour)
            if place == 0:
                axes.set_ylabel(label)
            if key == "grad_norm":
                axes.set_yscale("log")
                axes.set_title(rule.upper())
            else:
                axes.set(xlabel="round", ylim=(0, 1))
    lines = {line.get_label(): line for axes in grid.flat for line in axes.lines if not str(line.get_label()).startswith("_")}
    made.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)
    seeds = " or ".join(map(str, sorted({len(curve["seeds"]) for curve in drawn.values()})))
    averaging = "" if attack != "ood" else "; OOD nodes average nobody unless the legend says so"
    made.suptitle(
        f"{data}, {name} attack, 20 % Byzantine{averaging}\n"
        f"median and range over {seeds} seeds; vertical line: first detection, ticks: later ones (hardened)"
    )
    return made


def _curve(axes: Axes, curve: dict[str, Any], key: str, colour: str) -> None:
    points = curve[key]
    steps = [point[0] for point in points]
    line = "--" if curve["column"] == "alone" else "-"
    axes.plot(steps, [p[2] for p in points], line, color=colour, linewidth=1.6, label=_LABELS[curve["column"]])
    axes.fill_between(steps, [p[1] for p in points], [p[3] for p in points], color=colour, alpha=0.2, linewidth=0)
    if curve["column"] == "published" and curve["detections"]:
        axes.axvline(curve["detections"][0], color="0.4", linestyle=":", linewidth=1)
    for step in curve["detections"][1:]:
        axes.plot(step, 0.02, "|", color=colour, markersize=9, transform=axes.get_xaxis_transform())
