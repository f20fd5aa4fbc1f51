"""Tables and curves of the image studies, read from their run folders, with the paper's numbers beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bymi.experiment.images import ATTACKS, COLUMNS, RULES, ImageStudy
from bymi.experiment.published import RULES_ALONE, WITH_DETECTION
from bymi.files import write_bytes
from bymi.report.figures import COLOURS, try_to_save
from bymi.report.tables import markdown_table
from bymi.runs import store

Key = tuple[str, str, float, str]  # attack, rule, ratio, column
Runs = dict[Key, list[dict[str, Any]]]

_NAMES = {"ood": "OOD", "gradient": "Gradient", "ipm": "IPM", "none": "no robust rule"}
_HUGE = 1e4  # from which on a number is written with its power of ten
_KEPT = ("seed", "outcome", "acc_all", "acc_normal", "acc_scc", "fdp", "pa", "grad_norm", "core_size", "core_byzantine")
_SLACK = 0.3  # points of accuracy


def collect(study: ImageStudy, folder: Path) -> Runs:
    """The summaries of each cell, of all runs that are there, with where they were made."""
    groups: Runs = defaultdict(list)
    for cell in study.cells:
        place = store.folder_of(folder, cell.spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            made = store.read_json(place / store.ENVIRONMENT)
            values = {key: summary[key] for key in (*_KEPT, "seconds", "digest")}
            values["made_on"] = made.get("gpu") or f"{made['cores']} CPU cores"
            values["torch"] = made["torch"]
            groups[cell.attack, cell.rule, cell.ratio, cell.column].append(values)
    return dict(groups)


def draw(study: ImageStudy, folder: Path, command: str) -> list[Path]:
    """Write the tables (Markdown), or the curves, and all values (JSON) of a study into its folder."""
    runs = collect(study, folder)
    made: list[Path] = []
    if study.kind == "scale":
        return _draw_scale(study, folder, command)
    if study.kind == "curves":
        for attack in ATTACKS:
            made += try_to_save(partial(_curves, study, folder, attack), folder, f"{study.name}-{attack}")
    else:
        page = folder / f"{study.name}.md"
        write_bytes(page, _page(study, runs, command).encode())
        made.append(page)
    data = folder / f"{study.name}.json"
    cells = [
        {"attack": attack, "rule": rule, "ratio": ratio, "column": column, "runs": found}
        for (attack, rule, ratio, column), found in runs.items()
    ]
    store.write_json(data, {"study": study.title, "command": command, "cells": cells}, indent=1)
    return [*made, data]


def _page(study: ImageStudy, runs: Runs, command: str) -> str:
    """The study as a Markdown page."""
    tables = table(study, runs) if study.kind == "table" else ratios(study, runs)
    counts = sorted({len(found) for found in runs.values()})
    where = ", ".join(sorted({f"{run['made_on']}, torch {run['torch']}" for found in runs.values() for run in found}))
    seconds = sum(run["seconds"] for found in runs.values() for run in found)
    lines = [
        f"# {study.title}",
        "",
        f"`{command}`; {sum(map(len, runs.values()))} runs, {'-'.join(map(str, counts)) or 0} seeds a cell,",
        f"{seconds:.0f} s of runs in all on: {where}.",
        "Mean and standard deviation over seeds, in per cent; the paper's number in brackets.",
        "",
        *[f"* **{name}**: {meaning}" for name, meaning in COLUMNS.items() if any(key[3] == name for key in runs)],
        "",
        tables,
    ]
    return "\n".join(lines) + "\n"


def table(study: ImageStudy, runs: Runs) -> str:
    """Every rule alone and with detection, at one ratio."""
    headings = [
        "attack",
        "rule",
        "column",
        "Acc (all)",
        "Acc (normal)",
        "Acc (scc)",
        "FDP",
        "P_a",
        "gradient norm",
        "runs",
        "misses",
    ]
    rows = []
    for attack in ATTACKS:
        for rule in ("none", *RULES):
            for column in COLUMNS:
                found = runs.get((attack, rule, 0.2, column))
                if not found:
                    continue
                alone, detected = _published(study.data, attack, rule, column)
                rows.append(
                    [
                        _NAMES[attack],
                        _NAMES.get(rule, rule.upper()),
                        column,
                        _cell(found, "acc_all", alone and alone[0]),
                        _cell(found, "acc_normal", alone and alone[1]),
                        _cell(found, "acc_scc", detected and detected[2]),
                        _cell(found, "fdp", detected and detected[0]),
                        _cell(found, "pa", detected and detected[1]),
                        _cell(found, "grad_norm", None, scale=1.0, digits=3),
                        _ended(found),
                        "; ".join(_table_misses(study.data, attack, rule, column, runs)) or "-",
                    ]
                )
    return markdown_table(headings, rows)


def ratios(study: ImageStudy, runs: Runs) -> str:
    """Detection at each ratio of Byzantine nodes, and what a cell must hold."""
    headings = [
        "attack",
        "rule",
        "ratio",
        "column",
        "FDP",
        "P_a",
        "Acc (scc)",
        "rule alone: Acc (normal)",
        "gradient norm",
        "runs",
        "misses",
    ]
    rows = []
    for attack, rule, ratio, column in runs:
        if column not in ("hardened", "receiver"):
            continue
        found = runs[attack, rule, ratio, column]
        paper = WITH_DETECTION[study.data, attack, rule][ratio]
        alone = runs.get((attack, rule, ratio, "alone"), [])
        rows.append(
            [
                _NAMES[attack],
                rule.upper(),
                f"{ratio:g}",
                column,
                _cell(found, "fdp", paper.fdp),
                _cell(found, "pa", paper.pa),
                _cell(found, "acc_scc", paper.acc_scc),
                _cell(alone, "acc_normal", None),
                _cell(found, "grad_norm", None, scale=1.0, digits=3),
                _ended(found),
                "; ".join(misses(study.data, paper.acc_scc, found, alone)) or "-",
            ]
        )
    order = {name: at for at, name in enumerate(_NAMES.values())}
    rows.sort(key=lambda row: (order[row[0]], row[1:4]))
    return markdown_table(headings, rows)


def _table_misses(data: str, attack: str, rule: str, column: str, runs: Runs) -> list[str]:
    """Targets that a row of the table misses. An attack counts only if it brings the undefended run as low as the paper's."""
    found = runs[attack, rule, 0.2, column]
    if column == "undefended":
        accuracy, published = 100 * mean(run["acc_all"] for run in found), RULES_ALONE[data, attack, "none"].acc_all
        return [] if round(accuracy, 1) <= published else ["too weak an attack to count"]  # one digit is published
    if column == "paper":
        return [] if mean(run["pa"] or 0.0 for run in found) >= 0.99 else ["P_a below 99"]
    if column in ("hardened", "receiver"):
        published = WITH_DETECTION[data, attack, rule][0.2].acc_scc
        return misses(data, published, found, runs.get((attack, rule, 0.2, "alone"), []))
    return []


def misses(data: str, published: float, found: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> list[str]:
    """Which targets the mean of a cell misses: everybody found, few wrongly, as accurate as the paper and the rule alone."""
    accuracy = 100 * mean(run["acc_scc"] or 0.0 for run in found)
    missed = []
    if any(run["pa"] is None for run in found):
        missed.append("a run ended before its detection")
    if mean(run["pa"] or 0.0 for run in found) < 1:
        missed.append("P_a below 100")
    if mean(run["fdp"] or 0.0 for run in found) > 0.1:
        missed.append("FDP above 10")
    if accuracy < published - _SLACK:
        missed.append(f"{published - accuracy:.1f} points below the paper")
    if alone:
        best = 100 * mean(run["acc_normal"] for run in alone)
        if accuracy < best - _SLACK:
            missed.append(f"{best - accuracy:.1f} points below the rule alone")
    norms = [float("inf") if run["grad_norm"] is None else run["grad_norm"] for run in found]
    if data == "mnist" and mean(norms) > 0.1:
        missed.append("gradient norm above 0.1")
    return missed


def _published(
    data: str, attack: str, rule: str, column: str
) -> tuple[tuple[float, float] | None, tuple[float, float, float] | None]:
    """The paper's numbers for a cell: of the rule alone, or of its DRSGD-ByMI."""
    if column in ("hardened", "receiver", "paper"):
        return None, WITH_DETECTION[data, attack, rule][0.2]
    return RULES_ALONE[data, attack, rule], None


def _cell(runs: Sequence[dict[str, Any]], key: str, published: float | None, *, scale: float = 100.0, digits: int = 1) -> str:
    """Mean and standard deviation over seeds, and the paper's value."""
    values = [scale * run[key] for run in runs if run[key] is not None]
    if not values:
        return "-"
    numbers = [mean(values), *([stdev(values)] if len(values) > 1 else [])]
    text = " ± ".join(f"{number:.1e}" if number >= _HUGE else f"{number:.{digits}f}" for number in numbers)
    return text if published is None else f"{text} [{published:.1f}]"


def _ended(runs: Sequence[dict[str, Any]]) -> str:
    """How many runs, and how many of them did not finish."""
    bad = [run["outcome"] for run in runs if run["outcome"] != "finished"]
    return str(len(runs)) + (f", {len(bad)} {bad[0]}" if bad else "")


def _curves(study: ImageStudy, folder: Path, attack: str) -> Figure:
    """Gradient norm and accuracy over rounds: rules alone dashed, with detection solid."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for cell in (cell for cell in study.cells if cell.attack == attack):
        place = store.folder_of(folder, cell.spec)
        if not store.is_complete(place):
            continue
        rows = store.read_rows(place / store.METRICS)
        colour = COLOURS[RULES.index(cell.rule)]
        detected = cell.column == "receiver"
        label = cell.rule.upper() + ("-DRSGD-ByMI" if detected else "")
        style: dict[str, Any] = {"color": colour, "linestyle": "-" if detected else "--", "linewidth": 1.6, "label": label}
        _line(left, rows, "grad_norm", style)
        _line(right, [{**row, "acc": row.get("acc_scc") or row["acc_normal"]} for row in rows], "acc", style)
    left.set(yscale="log", xlabel="round", ylabel="norm of the global gradient")
    right.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    if right.lines:
        right.legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(f"{study.data}, {_NAMES[attack]} attack, 20 % Byzantine, seed 0")
    return figure


def _draw_scale(study: ImageStudy, folder: Path, command: str) -> list[Path]:
    """Accuracy of the undefended run over the scale of the OOD noise, beside the paper's."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for cell in study.cells:
        place = store.folder_of(folder, cell.spec)
        if store.is_complete(place) and cell.scale is not None:
            found[cell.data, cell.scale].append(100 * store.read_json(place / store.SUMMARY)["acc_all"])

    def figure() -> Figure:
        made = Figure(figsize=(7, 4), layout="constrained")
        axes = made.subplots()
        for colour, data in zip(COLOURS, sorted({data for data, _ in found}), strict=False):
            points = sorted((value, mean(accuracies)) for (name, value), accuracies in found.items() if name == data)
            axes.plot([value for value, _ in points], [accuracy for _, accuracy in points], "o-", color=colour, label=data)
            axes.axhline(RULES_ALONE[data, "ood", "none"].acc_all, color=colour, linestyle="--", linewidth=1)
        axes.set(xlabel="scale of the OOD noise", ylabel="Acc (all) of DSGD, %", title="dashed: the paper's 'no robust rule'")
        if found:
            axes.legend(frameon=False)
        return made

    paths = try_to_save(figure, folder, study.name)
    data = folder / f"{study.name}.json"
    rows = [{"data": name, "scale": value, "acc_all": accuracies} for (name, value), accuracies in sorted(found.items())]
    store.write_json(data, {"study": study.title, "command": command, "settings": rows}, indent=1)
    return [*paths, data]


def _line(axes: Axes, rows: Sequence[dict[str, Any]], key: str, style: dict[str, Any]) -> None:
    points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    axes.plot([step for step, _ in points], [value for _, value in points], **style)
