"""Tables and figures of the studies over rules, read from their run folders."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bymi.aggregation import RULES
from bymi.core.files import write_bytes
from bymi.paper.computed_study import paragraph
from bymi.paper.provenance import fingerprints, origin
from bymi.paper.study_rule_tables import (
    ATTACKS,
    GRID_STUDIES,
    MNIST_RULES,
    NODES,
    RATIO,
    STEPS,
    TOLD,
    TOLD_RULES,
    UNTOLD,
    GridStudy,
)
from bymi.report.figures import COLOURS, save
from bymi.report.tables import endings as bad_endings
from bymi.report.tables import markdown_table
from bymi.runs import run_folder as store

_KEPT = ("seed", "outcome", "gap", "acc_scc", "acc_normal", "fdp", "pa", "core_size", "core_byzantine", "seconds", "digest")
_LOST = 1e3  # what a diverged run counts as in the figures


def draw(study: GridStudy, folder: Path, command: str) -> list[Path]:
    """Write figure, table (Markdown) and values (JSON) of a study into its folder, from all of its runs that are there."""
    data = collect(study, folder, command)
    figures = save(lambda: figure(data), folder, study.name)
    data["figures"] = fingerprints(figures)
    values, text = folder / f"{study.name}.json", folder / f"{study.name}.md"
    store.write_json(values, data, indent=1)
    write_bytes(text, page(data).encode())
    return [*figures, text, values]


def collect(study: GridStudy, folder: Path, command: str) -> dict[str, Any]:
    """All values of the runs that are there, by row and column."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row, column, spec in study.trials:
        place = store.folder_of(folder, spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            cells.setdefault((row, column), []).append({**{key: summary[key] for key in _KEPT}, **origin(place)})
    found = [{"row": row, "column": column, "runs": runs} for (row, column), runs in cells.items()]
    return {"study": study.name, "command": command, "environment": store.environment(), "cells": found}


def worth(runs: list[dict[str, Any]]) -> float:
    """Median gap, or accuracy on images; a run without one, which diverged, counts as infinite or as zero."""
    if any(run["acc_normal"] is not None or run["acc_scc"] is not None for run in runs):
        return median(run["acc_normal"] or run["acc_scc"] or 0.0 for run in runs)
    return median(math.inf if run["gap"] is None or run["outcome"] == "diverged" else run["gap"] for run in runs)


def _said(runs: list[dict[str, Any]]) -> str:
    """A cell: the median, and how many runs ended badly, and how."""
    value = worth(runs)
    images = any(run["acc_normal"] is not None or run["acc_scc"] is not None for run in runs)
    text = f"{100 * value:.1f}" if images else "diverged" if math.isinf(value) else f"{value:.1e}"
    detecting = [run["pa"] for run in runs if images and run["pa"] is not None and run["core_byzantine"] is not None]
    text += f", P_a {100 * mean(detecting):.1f}" if detecting else ""
    badly = bad_endings(runs)
    return text + (f" ({badly} of {len(runs)})" if badly else "")


def page(data: dict[str, Any]) -> str:
    """A study as a Markdown page, from what its JSON file holds."""
    name = data["study"].removesuffix("-fast")
    runs = [run for cell in data["cells"] for run in cell["runs"]]
    lines = [
        f"# {data['study']}",
        "",
        f"`{data['command']}`; {len(runs)} runs, {_seeds(data)}. Every value: [JSON]({data['study']}.json).",
        "",
        paragraph(f"{GRID_STUDIES[name]} {_SETTINGS[name]}{_not_run(data)}"),
        "",
        f"![{data['study']}]({data['study']}.png)",
        "",
        *(f"* {line}" for line in endings(data)),
        "",
        markdown_table(*table(data)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _seeds(data: dict[str, Any]) -> str:
    """How many seeds a cell has; where cells differ, the rows with each number."""
    rows: dict[int, dict[str, None]] = {}
    for cell in data["cells"]:
        rows.setdefault(len(cell["runs"]), {})[cell["row"]] = None
    if len(rows) == 1:
        return "one seed" if 1 in rows else f"{next(iter(rows))} seeds per cell"
    return " or ".join(f"{count} seed{'s' * (count > 1)} per cell ({'; '.join(rows[count])})" for count in sorted(rows))


_LINEAR = f"""Linear model, {{nodes}} nodes, {STEPS} rounds, a share of {RATIO:g} Byzantine nodes, other keys as by default.
Entries are median gaps of the mean model of honest nodes, or of the core; a run in whose core Byzantine nodes remain is
infiltrated."""
_SETTINGS = {
    "misspecified": f"{_LINEAR.format(nodes=NODES['misspecified'])} In the figure a diverged run is at {_LOST:g}.",
    "rules": f"""{_LINEAR.format(nodes=NODES["rules"])} *Different*: node optima theta* + 0.3 z_i. Every rule has its default
    parameters, but for MDA: f = 3 on a regular graph of degree 14, where all subsets can be looked at.""",
    "rules-mnist": """Settings of the recipe mnist; the published method has its step sizes, too, not those of the image
    tables. Entries are median accuracies of the honest nodes' averaged model and mean P_a, in percent.""",
    "few-neighbours": """LeNet, 500 rounds, settings of the hardened column of the image tables with BALANCE as warm-up; a fifth
    of the nodes are Byzantine, two of twelve. Entries are median accuracies of the honest nodes' averaged model and mean P_a,
    in percent; in the figure x marks Byzantine nodes in a core alone, not nodes that were isolated. A node with fewer than 15
    neighbours keeps the warm-up rule as its mixing.""",
}


def _not_run(data: dict[str, Any]) -> str:
    """Which rules a study over rules has no runs of, or not those of all columns; empty if none lacks."""
    there = Counter(cell["row"] for cell in data["cells"])
    columns = len({cell["column"] for cell in data["cells"]})
    rules = {"rules": tuple(RULES), "rules-mnist": MNIST_RULES}.get(data["study"], ())
    missing = [
        rule + (f" but for {there[rule]} of {columns} cells" if there[rule] else "") for rule in rules if there[rule] < columns
    ]
    return f" Not among these runs: {', '.join(missing)}." if missing else ""


def table(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows."""
    cells = {(cell["row"], cell["column"]): cell["runs"] for cell in data["cells"]}
    rows, columns = (list(dict.fromkeys(cell[key] for cell in data["cells"])) for key in ("row", "column"))
    return ["network" if data["study"].startswith("few") else "rule", *columns], [
        [row, *(_said(cells[row, column]) if (row, column) in cells else "-" for column in columns)] for row in rows
    ]


def endings(data: dict[str, Any]) -> list[str]:
    """How many runs of each method, or network, ended badly, and how."""
    lines = []
    cells = data["cells"]
    for name in dict.fromkeys(cell["column"].rpartition(", ")[2] if ", " in cell["column"] else cell["row"] for cell in cells):
        runs = [run for cell in cells if name in (cell["row"], cell["column"].rpartition(", ")[2]) for run in cell["runs"]]
        lines.append(f"{name}: {len(runs)} runs, {bad_endings(runs) or 'all finished'}.")
    return lines + [
        line for ending, key in (("infiltrated", "column"), ("diverged", "row")) for line in _where(cells, ending, key)
    ]


def _where(cells: list[dict[str, Any]], ending: str, key: str) -> list[str]:
    """A line on the columns, or rows, in which runs of the hardened method came to a bad ending, if any did."""
    hardened = [cell for cell in cells if cell["column"].endswith(", hardened")]
    parts = []
    for name in dict.fromkeys(cell[key] for cell in hardened):
        runs = [run for cell in hardened if cell[key] == name for run in cell["runs"]]
        found = sum(bad_endings([run]).endswith(ending) for run in runs)
        if found:
            parts.append(f"{name.removesuffix(', hardened')} ({found} of {len(runs)} runs)")
    return [f"hardened, {ending}: {'; '.join(parts)}."] if parts else []


def figure(data: dict[str, Any]) -> Figure:
    """The heat map of a table; for rules that are told a share, lines over that share."""
    return _lines(data) if data["study"].startswith("misspecified") else _heat_map(data)


def _lines(data: dict[str, Any]) -> Figure:
    cells = {(cell["row"], cell["column"]): min(worth(cell["runs"]), _LOST) for cell in data["cells"]}
    picture = Figure(figsize=(12, 3.8), layout="constrained")
    for panel, attack in zip(np.atleast_1d(picture.subplots(1, len(ATTACKS), sharey=True)), ATTACKS, strict=True):
        for colour, rule in zip(COLOURS, TOLD_RULES, strict=False):
            known = [
                (place, cells[f"{rule} {word}", attack])
                for place, word in enumerate(TOLD)
                if (f"{rule} {word}", attack) in cells
            ]
            if known:
                panel.plot(*zip(*known, strict=True), marker="o", color=colour, label=rule)
        for style, name in zip(("--", ":"), UNTOLD, strict=True):
            if (name, attack) in cells:
                panel.axhline(cells[name, attack], color="black", ls=style, label=f"ByMI, {name}")
        panel.set(title=attack, yscale="log", xticks=range(len(TOLD)), xticklabels=list(TOLD), xlabel="share told")
    picture.axes[0].set_ylabel("gap")
    picture.axes[0].legend(fontsize=7)
    return picture


def _heat_map(data: dict[str, Any]) -> Figure:
    cells = {(cell["row"], cell["column"]): cell["runs"] for cell in data["cells"]}
    rows, columns = (list(dict.fromkeys(cell[key] for cell in data["cells"])) for key in ("row", "column"))
    images = data["study"].startswith(("rules-mnist", "few"))
    grid = np.full((len(rows), len(columns)), np.nan)
    for (row, column), runs in cells.items():
        value = worth(runs)
        grid[rows.index(row), columns.index(column)] = value if images else math.log10(max(1e-6, min(value, _LOST)))
    picture = Figure(figsize=(4 + 0.36 * len(columns), 2.6 + 0.26 * len(rows)), layout="constrained")
    panel = picture.subplots()
    shown = panel.imshow(grid, aspect="auto", cmap="viridis" if images else "viridis_r")
    for (row, column), runs in cells.items():
        if any(run["core_byzantine"] for run in runs):
            panel.text(columns.index(column), rows.index(row), "x", ha="center", va="center", color="white", fontsize=8)
    panel.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
    panel.set_yticks(range(len(rows)), rows, fontsize=8)
    panel.grid(False)
    picture.colorbar(shown, label="accuracy" if images else "log10 gap")
    absent = "; white: not run" if np.isnan(grid).any() else ""
    panel.set_title(f"x: Byzantine nodes in the core of a run{absent}", fontsize=9)
    return picture
