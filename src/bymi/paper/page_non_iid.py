"""Tables and figure of the study non-iid, from its run folders and from its JSON."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bymi.core.files import write_bytes
from bymi.paper.provenance import fingerprints, origin
from bymi.paper.study_non_iid import ATTACKS, COLUMNS, DATA, PARTITIONS, NonIidStudy, build_non_iid
from bymi.report.figures import COLOURS, try_to_save
from bymi.report.tables import endings, markdown_table
from bymi.runs import run_folder as store

Runs = dict[tuple[str, str, str, str], list[dict[str, Any]]]

_KEPT = (
    *("seed", "outcome", "fdp", "pa", "found", "honest_edge_loss", "worst_edge_loss", "core_size", "core_byzantine"),
    *("acc_normal", "acc_farthest", "consensus", "seconds", "digest"),
)
_DETECTING = ("hardened", "receiver", "published")
_RULES = ("BALANCE", "IOS", "NNM + Krum")
_POINTS = 0.002  # below the best rule alone that count as level
_LOST = 0.05  # of the honest edges, from which on a run is named


def draw(study: NonIidStudy, folder: Path, command: str) -> list[Path]:
    """Write the tables (Markdown), the figure and all values (JSON) of the study into its folder."""
    page_path, data_path = folder / f"{study.name}.md", folder / f"{study.name}.json"
    values = collect(study, folder, command)
    figures = try_to_save(lambda: figure(read_cells(values)), folder, study.name)
    values["figures"] = fingerprints(figures)
    store.write_json(data_path, values, indent=1)
    write_bytes(page_path, page(values).encode())
    return [page_path, data_path, *figures]


def collect(study: NonIidStudy, folder: Path, command: str) -> dict[str, Any]:
    """All values of the runs that are there, by cell."""
    groups: Runs = defaultdict(list)
    for cell in study.cells:
        place = store.folder_of(folder, cell.spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            run = {**{key: summary.get(key) for key in _KEPT}, **origin(place)}
            groups[cell.data, cell.partition, cell.attack, cell.column].append(run)
    names = ("data", "partition", "attack", "column")
    cells = [{**dict(zip(names, key, strict=True)), "runs": runs} for key, runs in groups.items()]
    return {"study": study.name, "command": command, "cells": cells}


def read_cells(values: dict[str, Any]) -> Runs:
    """The runs of each cell."""
    return {(cell["data"], cell["partition"], cell["attack"], cell["column"]): cell["runs"] for cell in values["cells"]}


def page(values: dict[str, Any]) -> str:
    """The study as a Markdown page, from what its JSON file holds."""
    runs, name = read_cells(values), values["study"]
    count, seeds = sum(map(len, runs.values())), sorted({run["seed"] for found in runs.values() for run in found})
    lines = [
        f"# {name}",
        "",
        f"`{values['command']}`; {count} runs, seeds {', '.join(map(str, seeds))}. Every value: [{name}.json]({name}.json).",
        "",
        "150 LeNets, 500 rounds, a fifth of the nodes Byzantine unless the attack is none. Means over seeds, in per cent. FDP,",
        "P_a, honest edges lost and Byzantine nodes in the core are of the last detection, `worst lost` of all. Accuracy is",
        "that of the honest nodes' averaged model; `farthest` that of the honest node whose model is farthest from it.",
        "`level`: accuracy of the hardened run at least that of the best rule alone minus 0.2 points, on common seeds.",
        "`seeds`: of the hardened run. Where nobody is Byzantine, P_a says nothing and FDP is the share of nodes that flagged",
        "anybody.",
        "",
        edges_lost(runs),
        "",
        f"No runs of: {'; '.join(_absent(name, runs)) or 'none'}.",
        "",
    ]
    if values.get("figures"):
        lines += [f"![Accuracy and honest edges lost]({name}.png)", ""]
    for data, title in DATA.items():
        rows = [
            _row(partition, attack, {column: runs.get((data, partition, attack, column), []) for column in COLUMNS})
            for partition in PARTITIONS
            for attack in ATTACKS
            if any(key[:3] == (data, partition, attack) for key in runs)
        ]
        if rows:
            headings = ["partition", "attack", "seeds", "P_a", "FDP", "lost", "worst lost", "in the core"]
            headings += ["hardened", *_RULES, "farthest: hardened", *(f"farthest: {rule}" for rule in _RULES), "level"]
            lines += [f"## {title}", "", markdown_table(headings, rows)]
    keys = ("fdp", "honest_edge_loss", "acc_normal")
    rows = [
        [data, partition, attack, column, _pa(attack, found), *(_percent(found, key) for key in keys)]
        for (data, partition, attack, column), found in runs.items()
        if column in _DETECTING and column != "hardened"
    ]
    if rows:
        headings = ["data", "partition", "attack", "detection", "P_a", "FDP", "lost", "accuracy"]
        lines += ["## One detection without a panel", "", markdown_table(headings, rows)]
    return "\n".join(lines).rstrip("\n") + "\n"


def edges_lost(runs: Runs) -> str:
    """The hardened runs that lost many honest edges at some detection, which means over seeds may hide."""
    found = [
        f"{DATA[data]}, {partition}, {attack}, seed {run['seed']} ({100 * run['worst_edge_loss']:.1f} %, at the last detection "
        f"{100 * run['honest_edge_loss']:.1f} %)"
        for (data, partition, attack, column), cell in runs.items()
        for run in cell
        if column == "hardened" and (run["worst_edge_loss"] or 0.0) > _LOST
    ]
    named = "; ".join(found) or "none"
    return f"Hardened runs that lost more than {100 * _LOST:g} % of the honest edges at some detection: {named}."


def _absent(name: str, runs: Runs) -> list[str]:
    """The cells of the study that the JSON has no run of, by data, partition and attack."""
    columns: dict[tuple[str, str, str], list[str]] = {}
    for cell in build_non_iid(seeds=1, fast=name.endswith("-fast")).cells:
        if not runs.get((cell.data, cell.partition, cell.attack, cell.column)):
            columns.setdefault((DATA[cell.data], cell.partition, cell.attack), []).append(cell.column)
    return [f"{', '.join(where)} ({', '.join(missing)})" for where, missing in columns.items()]


def _row(partition: str, attack: str, columns: dict[str, list[dict[str, Any]]]) -> list[str]:
    hardened, rules = columns["hardened"], {rule: columns[rule] for rule in _RULES}
    row = [partition, attack, str(len(hardened)), _pa(attack, hardened)]
    row += [_percent(hardened, key) for key in ("fdp", "honest_edge_loss", "worst_edge_loss")]
    inside = _mean(hardened, "core_byzantine")
    row.append("-" if inside is None else f"{inside:.1f}")
    row += [_percent(found, "acc_normal") for found in (hardened, *rules.values())]
    row += [_percent(found, "acc_farthest") for found in (hardened, *rules.values())]
    return [*row, level(hardened, list(rules.values()))]


def level(hardened: list[dict[str, Any]], rules: list[list[dict[str, Any]]]) -> str:
    """Whether the hardened run is as accurate as the best rule alone, up to 0.2 points, over the seeds that both have."""
    differences = []
    for found in rules:
        pairs = [
            (run["acc_normal"], other["acc_normal"])
            for run in hardened
            for other in found
            if run["seed"] == other["seed"] and None not in (run["acc_normal"], other["acc_normal"])
        ]
        if pairs:
            differences.append(mean(ours - theirs for ours, theirs in pairs))
    if not differences:
        return "-"
    return "yes" if min(differences) >= -_POINTS else f"no, {100 * min(differences):.1f} points"


def figure(runs: Runs) -> Figure:
    """Accuracy and honest edges lost over partitions, MNIST, no attackers and sign flip."""
    chart = Figure(figsize=(9, 5.5), layout="constrained")
    axes = chart.subplots(2, 2, sharex=True, squeeze=False)
    measured = [partition for partition in PARTITIONS if any(key[:2] == ("mnist", partition) for key in runs)]
    places = {partition: place for place, partition in enumerate(measured)}
    for column, attack in enumerate(("none", "sign flip")):
        for colour, who in zip(COLOURS, COLUMNS, strict=False):
            for row, key in enumerate(("acc_normal", "honest_edge_loss")):
                points = [
                    (place, 100 * value)
                    for partition, place in places.items()
                    if (value := _mean(runs.get(("mnist", partition, attack, who), []), key)) is not None
                ]
                if points:
                    across, up = zip(*points, strict=True)
                    axes[row][column].plot(across, up, "o", color=colour, label=who, markersize=6)
        axes[0][column].set_title(f"MNIST, {'no attackers' if attack == 'none' else attack}")
        axes[1][column].set_xticks(list(places.values()), list(places), rotation=40, ha="right")
    axes[0][0].set_ylabel("accuracy of honest nodes, %")
    axes[1][0].set_ylabel("honest edges lost, %")
    axes[0][0].legend(fontsize=8)
    return chart


def _mean(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return mean(values) if values else None


def _pa(attack: str, runs: list[dict[str, Any]]) -> str:
    return "-" if attack == "none" else _percent(runs, "pa")


def _percent(runs: list[dict[str, Any]], key: str) -> str:
    """The mean in per cent, with bad endings but infiltration, which has a column of its own."""
    value = _mean(runs, key)
    bad = endings(run for run in runs if run["outcome"] != "infiltrated") if key == "acc_normal" else ""
    return "-" if value is None else f"{100 * value:.1f}" + (f" ({bad})" if bad else "")
