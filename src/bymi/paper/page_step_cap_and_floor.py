"""The table of the study published-step, read from its run folders: which settings of the optimisation converge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bymi.core.files import write_bytes
from bymi.paper.study_step_cap_and_floor import SETTINGS, StepStudy
from bymi.report.tables import endings, markdown_table
from bymi.runs import run_folder as store

_KEPT = (
    *("seed", "outcome", "sentence", "gap", "capped", "floored", "fdp", "pa", "core_size", "core_byzantine", "steps_done"),
    *("seconds", "digest"),
)
_HEADINGS = ["optimisation", "runs", "diverged in round", "nodes lost", "gap", "steps capped %", "trackers floored %"]


def draw(study: StepStudy, folder: Path, command: str) -> list[Path]:
    """Write the table (Markdown) and all values (JSON) of the study into its folder."""
    page_path, data_path = folder / f"{study.name}.md", folder / f"{study.name}.json"
    data = collect(study, folder, command)
    store.write_json(data_path, data, indent=1)
    write_bytes(page_path, page(data).encode())
    return [page_path, data_path]


def collect(study: StepStudy, folder: Path, command: str) -> dict[str, Any]:
    """All values of the runs that are there, by setting.

    `round`: of the optimisation, from 1, in which a run diverged; `lost`: how many honest nodes had left all bounds by then.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name, spec in study.trials:
        place = store.folder_of(folder, spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            run: dict[str, Any] = {**{key: summary[key] for key in _KEPT}, "round": None, "lost": None}
            if summary["outcome"] == "diverged":  # the sentence begins with how many nodes
                run.update(round=summary["steps_done"] - spec.warm_up_steps, lost=int(summary["sentence"].split()[0]))
            found.setdefault(name, []).append(run)
    settings = [{"setting": name, "changes": SETTINGS[name], "runs": runs} for name, runs in found.items()]
    return {"study": study.name, "command": command, "environment": store.environment(), "settings": settings}


def page(data: dict[str, Any]) -> str:
    """The study as a Markdown page, from what its JSON file holds."""
    runs = [run for setting in data["settings"] for run in setting["runs"]]
    seeds = len({run["seed"] for run in runs})
    lines = [
        f"# {data['study']}",
        "",
        f"`{data['command']}`; {len(runs)} runs, {seeds} seeds. Versions and every value: [JSON]({data['study']}.json).",
        "",
        "The default experiment (linear model, d = 30, 150 nodes, Scenario A) with the published detection. Warm-up and",
        "detection are the same in all rows of a seed. The paper prints eq:local_dsgdrs with the step of thm:main0; the cap,",
        "the floor, a step that falls to zero and a tracker y that starts at its limit are ours. Ranges over seeds. A run ends",
        "as diverged when any honest node leaves all bounds: `nodes lost` counts them, `diverged in round` is the round of the",
        "optimisation. The first are nodes that few or none in the core hear: their tracker entry is near zero, and the step",
        "that is divided by it as long as cap and floor allow. `gap` is of the mean model of the core, at the end or when the",
        "run diverged. Shares are of the local steps of honest nodes.",
        "",
        markdown_table(*table(data)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: one row a setting."""
    rows = []
    for setting in data["settings"]:
        runs, changes = setting["runs"], setting["changes"]
        row = [setting["setting"], f"{len(runs)}: {endings(runs) or 'finished'}"]
        row += [_range(runs, key, "{:.0f}") for key in ("round", "lost")]
        row.append(_range(runs, "gap", "{:.1e}"))
        for key, switch in (("capped", "max_local_step"), ("floored", "min_weight")):
            row.append("off" if switch in changes else _range(runs, key, "{:.1f}", 100.0))
        rows.append(row)
    return _HEADINGS, rows


def _range(runs: list[dict[str, Any]], key: str, form: str, scale: float = 1.0) -> str:
    """Smallest to largest value over runs; of how many, if some have none."""
    values = sorted(scale * run[key] for run in runs if run[key] is not None)
    if not values:
        return "-"
    ends = dict.fromkeys(form.format(value) for value in (values[0], values[-1]))
    return " to ".join(ends) + ("" if len(values) == len(runs) else f" ({len(values)} of {len(runs)})")
