"""The table of the study rules-linear, read from its run folders."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bymi.core.files import write_bytes
from bymi.paper.study_rules_linear import ATTACKS, METHODS, RulesStudy
from bymi.report.tables import endings, markdown_table
from bymi.runs import run_folder as store

_KEPT = ("seed", "outcome", "gap", "fdp", "pa", "core_size", "core_byzantine", "honest_edges_lost", "seconds", "digest")


def draw(study: RulesStudy, folder: Path, command: str) -> list[Path]:
    """Write the table (Markdown) and all values (JSON) of the study into its folder."""
    page_path, data_path = folder / f"{study.name}.md", folder / f"{study.name}.json"
    data = collect(study, folder, command)
    store.write_json(data_path, data, indent=1)
    write_bytes(page_path, page(data).encode())
    return [page_path, data_path]


def collect(study: RulesStudy, folder: Path, command: str) -> dict[str, Any]:
    """All values of the runs that are there, by rule, attack and role."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for rule, attack, role, spec in study.trials:
        place = store.folder_of(folder, spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            found.setdefault((rule, attack, role), []).append({key: summary[key] for key in _KEPT if key in summary})
    cells = [{"rule": rule, "attack": attack, "role": role, "runs": runs} for (rule, attack, role), runs in found.items()]
    return {"study": study.name, "command": command, "environment": store.environment(), "cells": cells}


def page(data: dict[str, Any]) -> str:
    """The study as a Markdown page, from what its JSON file holds."""
    runs = [run for cell in data["cells"] for run in cell["runs"]]
    seeds = len({run["seed"] for run in runs})
    minutes = sum(run["seconds"] for run in runs) / 60
    lines = [
        f"# {data['study']}",
        "",
        f"`{data['command']}`; {len(runs)} runs, {seeds} seed{'s' * (seeds != 1)}, {minutes:.0f} minutes of runs in all.",
        f"Versions and every value: [JSON]({data['study']}.json).",
        "",
        "The default experiment (linear model, d = 30, a fifth of the nodes Byzantine) with 60 nodes and 600 rounds, 60 of",
        "them warm-up. Each rule with its default setting: those that assume a share of Byzantine neighbours assume 0.35,",
        "Bulyan and BRIDGE-B 0.24.",
        "`alone`: the rule in all rounds. `warm-up`: the rule, then the hardened detection and optimisation. `gap`: median",
        "over seeds of the optimality gap of the mean model, of the honest nodes or of the core. `in core`: Byzantine nodes in",
        "the core at the end, the largest over seeds. MDA has f = 3 on a regular graph of degree 14, where all subsets can be",
        "looked at. Endings other than finished are named.",
        "",
        finding(data),
        "",
        markdown_table(*table(data)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def finding(data: dict[str, Any]) -> str:
    """How many runs with a rule as the warm-up end with a Byzantine node in the core, as a sentence."""
    guided = [run for cell in data["cells"] if cell["role"] == "warm-up" for run in cell["runs"]]
    inside = sum(run["core_byzantine"] > 0 for run in guided)
    return f"Of {len(guided)} runs in which a rule is the warm-up, {inside} end with a Byzantine node in the core."


def table(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: one row a rule."""
    cells = {(cell["rule"], cell["attack"], cell["role"]): cell["runs"] for cell in data["cells"]}
    headings = ["rule"]
    for attack in ATTACKS:
        headings += [f"{attack}: gap alone", f"{attack}: gap as warm-up", f"{attack}: in core"]
    rows = []
    for rule in dict.fromkeys(cell["rule"] for cell in data["cells"]):
        row = [rule]
        for attack in ATTACKS:
            row += [_gap(cells.get((rule, attack, role), [])) for role in METHODS]
            inside = [run["core_byzantine"] for run in cells.get((rule, attack, "warm-up"), [])]
            row.append(str(max(inside)) if inside else "-")
        rows.append(row)
    return headings, rows


def _gap(runs: list[dict[str, Any]]) -> str:
    """Median gap, with how the runs ended if not all finished."""
    values = [run["gap"] for run in runs if run["gap"] is not None]
    shown = f"{median(values):.1e}" if values else "-"
    ends = endings(runs)
    return f"{shown} ({ends})" if ends else shown
