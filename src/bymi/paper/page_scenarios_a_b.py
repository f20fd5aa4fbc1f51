"""Box plots and medians of the linear studies.

`collect` and `document` turn run folders into the JSON of a study; `page` writes its Markdown from that JSON alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bymi.core.files import write_bytes
from bymi.paper.provenance import fingerprints, origin
from bymi.paper.study_scenarios_a_b import Study
from bymi.report.figures import COLOURS, try_to_save
from bymi.report.tables import cell, endings, markdown_table
from bymi.runs import run_folder as store

_METRICS = (("FDP", "fdp"), ("P_a", "pa"), ("optimality gap", "gap"))
_HEADINGS = ("FDP %", "P_a %", "gap")

Group = tuple[int, str, float]  # dimension, warm-up, value on the axis


def draw(study: Study, folder: Path, command: str) -> list[Path]:
    """Write figure (PNG, SVG), medians (Markdown) and all values (JSON) of a study into its folder."""
    values = collect(study, folder)
    figures = try_to_save(lambda: _figure(study, values), folder, study.name)
    everything = document(study, values, command, fingerprints(figures))
    table, data = folder / "medians.md", folder / "values.json"
    write_bytes(table, page(everything).encode())
    store.write_json(data, everything, indent=1)
    return [*figures, table, data]


def document(study: Study, values: dict[Group, list[dict[str, Any]]], command: str, figures: dict[str, str]) -> dict[str, Any]:
    """The JSON of a study: every run of every setting."""
    rows = [{"dim": d, "warm_up": w, study.axis: v, "runs": runs} for (d, w, v), runs in values.items()]
    said = {"study": study.title, "command": command, "axis": study.axis, "environment": store.environment()}
    return {**said, "figures": figures, "settings": rows}


def read_settings(values: dict[str, Any]) -> dict[Group, list[dict[str, Any]]]:
    """The runs of each setting, from the JSON of a study."""
    axis = values["axis"]
    return {(entry["dim"], entry["warm_up"], entry[axis]): entry["runs"] for entry in values["settings"]}


def page(values: dict[str, Any]) -> str:
    """The Markdown page of a study, from its JSON."""
    settings = read_settings(values)
    lines = [
        f"# {values['study']}",
        "",
        f"`{values['command']}`; {sum(map(len, settings.values()))} runs. Medians over seeds. Versions and every value:",
        "[values.json](values.json).",
        "",
        markdown_table(*medians(values["axis"], settings)).rstrip("\n"),
    ]
    return "\n".join(lines) + "\n"


def collect(study: Study, folder: Path) -> dict[Group, list[dict[str, Any]]]:
    """The summaries of each setting, of all runs that are there."""
    groups: dict[Group, list[dict[str, Any]]] = defaultdict(list)
    for entry in study.cells:
        place = store.folder_of(folder, entry.spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            keys = ("seed", "outcome", "fdp", "pa", "gap", "honest_edge_loss", "core_size", "core_byzantine", "core_closed")
            values = {key: summary[key] for key in keys}
            if values["outcome"] == "diverged":
                values["gap"] = None  # how far it got says nothing
            values.update(origin(place))
            groups[entry.dim, entry.warm_up, entry.value].append(values)
    return dict(groups)


def medians(axis: str, values: dict[Group, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: the median of each metric over the seeds of a setting, and how many runs ended badly and how."""
    headings = ["d", axis, "warm-up", *_HEADINGS, "runs", "not finished"]
    rows = []
    for (dim, warm_up, value), runs in sorted(values.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        middle = [_middle(key, runs) for _, key in _METRICS]
        bad = endings(runs) or "0"
        rows.append([str(dim), f"{value:g}", warm_up, *middle, str(len(runs)), bad])
    return headings, rows


def _middle(key: str, runs: list[dict[str, Any]]) -> str:
    """The median of a metric as text. A run without a finite value, such as one that diverged, counts on the bad side."""
    worst = -math.inf if key == "pa" else math.inf
    value = median(worst if run[key] is None else run[key] for run in runs)
    if math.isfinite(value):
        return cell(key, value)
    return "diverged" if any(run["outcome"] == "diverged" for run in runs) else "not finite"


def _figure(study: Study, values: dict[Group, list[dict[str, Any]]]) -> Figure:
    dims = sorted({dim for dim, _, _ in values})
    figure = Figure(figsize=(14, 3.6 * len(dims) + 0.6), layout="constrained")
    grid = figure.subplots(len(dims), len(_METRICS), squeeze=False)
    for row, dim in enumerate(dims):
        for column, (name, key) in enumerate(_METRICS):
            axes = grid[row][column]
            _boxes(axes, study, {group: runs for group, runs in values.items() if group[0] == dim}, key)
            axes.set(title=f"{name} (d = {dim})", xlabel=study.axis)
    grid[0][0].legend(frameon=False, loc="upper left")
    figure.suptitle(study.title)
    return figure


def _boxes(axes: Axes, study: Study, values: dict[Group, list[dict[str, Any]]], key: str) -> None:
    warm_ups = list(dict.fromkeys(warm_up for _, warm_up, _ in values))
    width = 0.8 / max(1, len(warm_ups))
    for index, warm_up in enumerate(warm_ups):
        data, places = [], []
        for place, value in enumerate(study.values):
            runs = next((runs for (_, name, where), runs in values.items() if name == warm_up and where == value), [])
            numbers = [run[key] for run in runs if run[key] is not None]
            at = place + (index - (len(warm_ups) - 1) / 2) * width
            if numbers:
                data.append(numbers)
                places.append(at)
            if len(numbers) < len(runs):  # a cross at the top for settings in which a run diverged
                axes.plot(at, 0.98, "x", color=COLOURS[index], transform=axes.get_xaxis_transform())
        colour = COLOURS[index]
        boxes = axes.boxplot(
            data,
            positions=places,
            widths=0.8 * width,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": "black"},
            flierprops={"marker": ".", "markersize": 4},
        )
        for box in boxes["boxes"]:
            box.set(facecolor=colour, alpha=0.75)
        axes.plot([], [], color=colour, linewidth=6, alpha=0.75, label=f"{warm_up}-DRSGD-ByMI")
    axes.set_xticks(range(len(study.values)), [f"{value:g}" for value in study.values])
    if key == "gap":
        axes.set_yscale("log")
        axes.axhline(1e-4, color="0.4", linestyle="--", linewidth=1)
    else:
        axes.set_ylim(-0.03, 1.03)
    if key == "fdp":
        axes.axhline(0.2, color="0.4", linestyle="--", linewidth=1)
