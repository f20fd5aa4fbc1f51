"""`bymi report`: one self-contained HTML page from run folders, of one run, of several, or of a sweep."""

from __future__ import annotations

import base64
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import bymi
from bymi.core import files
from bymi.core.errors import BymiError, InputError, require
from bymi.report import tables
from bymi.report.figures import describe
from bymi.report.page_data import PACKED, flags_by_node, measures_of, rank, read_optional, run_data
from bymi.report.sweep_data import OWN, SHOWN, sweep_data, varied_settings
from bymi.runs import run_folder as store
from bymi.runs.metrics import DONE
from bymi.runs.results_table import ListedRun, ResultsTable, find_runs, flatten, table_of

DETAILED = 8
"""Runs up to which a page shows the detections of each; a page of more is an overview."""

_SCRIPTS = ("base.js", "chart.js", "detections.js", "sweep.js")
_SHORT = {"found": "found %", "unheard": "not heard"}
_NAMED = 3  # flagged nodes that the first sentence names
_REPEATED = 60  # runs whose spec is on the page


def write_page(folders: Sequence[str | Path], path: str | Path) -> ListedRun | None:
    """Write the page of all runs in these folders; returns the run that it puts first, if any has ended."""
    path = Path(path)
    require(path.suffix in (".html", ".htm"), "-o", str(path), "a file name that ends in .html")
    runs = find_runs([Path(folder) for folder in folders])
    text, main = page(runs)
    files.write_bytes(path, text.encode())
    return main


def page(runs: Sequence[ListedRun]) -> tuple[str, ListedRun | None]:
    """The page as text, and the run that it puts first."""
    from jinja2 import Environment
    from markupsafe import Markup

    table = table_of(runs)
    order = sorted(range(len(runs)), key=lambda index: rank(runs[index]))
    runs, table = [runs[index] for index in order], ResultsTable([table[i] for i in order], table.settings, table.measures)
    ended = [run for run in runs if run.summary is not None]
    varied = [key for key in table.settings if len({repr(row[key]) for row in table}) > 1]
    detailed = ended if len(ended) <= DETAILED else []
    own = all("given_objects" in str((run.spec or {}).get("data")) for run in runs)  # runs of bymi.train
    is_sweep = len(runs) > DETAILED or any(key != "method" and key not in OWN and not own for key in varied)
    if not is_sweep:
        runs = _told_apart(runs)
        ended = detailed = [run for run in runs if run.summary is not None]
    data = _data(detailed)
    main = (detailed[data["main"]] if detailed else ended[-1]) if ended else None
    data["sweep"] = sweep_data(runs, table) if is_sweep else None
    differing = [key for key in varied_settings(table) if key != "method"]
    has_detections = any(run["detections"] for run in data["runs"])
    reasons = {name for run in data["runs"] for name in run.get("reasons_used", ())}
    has_nodes = any(run["nodes"] for run in data["runs"])
    sections = [
        *([("sweep", "Sweep")] if is_sweep else []),
        ("table", "Table"),
        *([("curves", "Curves")] if detailed else []),
        *([("graph", "Graph"), ("detections", "Detections"), ("node", "One node")] if has_detections else []),
        *([("nodes", "Nodes")] if has_nodes else []),
        ("repeat", "Repeat it"),
    ]
    values = {
        "version": bymi.__version__,
        "title": _title(main, data["sweep"], [OWN.get(key, key) for key in differing]),
        "count": f"{len(runs)} runs" if len(runs) > 1 else "1 run",
        "outcome": _overview(table, data["sweep"])
        if is_sweep
        else _outcomes(ended, differing)
        if differing
        else outcome(main, ended),
        "remarks": [line for run in detailed for line in tables.remarks(run.summary or {})],
        "tiles": [] if main is None or is_sweep else _tiles(main, ended),
        "sections": sections,
        "sweep": is_sweep,
        "fixed": data["sweep"]["fixed"] if is_sweep else [],
        "table": _sweep_table(table) if is_sweep else _table(runs, main),
        "detailed": bool(detailed),
        "detections": has_detections,
        "truth": any(graph["byzantine"] is not None for graph in data["graphs"]),
        "nodes": has_nodes,
        "reasons": [(name, meaning) for name, meaning in tables.REASONS.items() if name in reasons],
        "repeat": [_repeat(run) for run in ended[-_REPEATED:]],
        "repeat_note": f"{len(ended) - _REPEATED} more runs have their spec.json in their folders."
        if len(ended) > _REPEATED
        else "",
        "data": Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
        "css": Markup(_part("page.css")),
        "js": Markup("\n".join(map(_part, _SCRIPTS))),
    }
    environment = Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(values), main


def _told_apart(runs: Sequence[ListedRun]) -> list[ListedRun]:
    """The runs, those of one method named by the end of their folders' names, too, the newest last."""
    labels = Counter(run.label for run in runs)

    def named(run: ListedRun) -> ListedRun:
        if labels[run.label] == 1 or run.summary is None:
            return run
        name = f"{run.label}, {run.folder.name[-6:]}"
        return replace(run, label=name, summary={**run.summary, "method": name})

    newest_last = sorted(runs, key=lambda run: (run.folder / store.SUMMARY).stat().st_mtime if run.summary else 0.0)
    return [named(run) for run in sorted(newest_last, key=rank)]


def _title(main: ListedRun | None, sweep: dict[str, Any] | None, own: Sequence[str]) -> str:
    """The setting of the main run, or the keys that a sweep varies; `own`: what scripts changed."""
    if main is None or main.spec is None:
        return "No run has ended yet"
    if sweep is None or not sweep["axes"]:
        return describe(main.spec) + (f"; runs differ in {', '.join(own)}" if own else "")
    if len(sweep["axes"]) > 3 or any(axis["key"] in own for axis in sweep["axes"]):
        return "Runs that differ in " + ", ".join(axis["key"] for axis in sweep["axes"])
    return "Sweep over " + " and ".join(f"{axis['key']} ({len(axis['values'])} values)" for axis in sweep["axes"])


def _part(name: str) -> str:
    return resources.files("bymi.report").joinpath("page", name).read_text(encoding="utf-8")


def _data(runs: Sequence[ListedRun]) -> dict[str, Any]:
    graphs: list[dict[str, Any]] = []
    with_verdicts = sum((run.summary or {}).get("detections") is not None for run in runs)
    budget = PACKED // max(1, with_verdicts)
    listed = []
    for run in runs:
        try:
            listed.append(run_data(run, graphs, budget))
        except (BymiError, KeyError, TypeError, ValueError, IndexError) as problem:
            raise InputError(f"{run.folder}: a damaged run folder ({' '.join(str(problem).split())})") from None
    judged = [index for index, run in enumerate(listed) if run["detections"]]
    main = judged[-1] if judged else len(listed) - 1
    return {"runs": listed, "graphs": graphs, "measures": measures_of(listed), "main": main}


def _outcomes(runs: Sequence[ListedRun], differing: Sequence[str]) -> str:
    """What `outcome` says of each run, after the settings in which the runs differ."""
    said = []
    for run in runs:
        values = flatten(run.spec or {})
        settings = [f"{key} {tables.cell(key, values.get(key))}" for key in differing if key not in OWN]
        said.append(f"{', '.join(settings)}: {outcome(run, [run])}" if settings else outcome(run, [run]))
    return " ".join(said)


def outcome(main: ListedRun | None, runs: Sequence[ListedRun]) -> str:
    """One sentence on the main run, with the values of the others that have the same measure."""
    if main is None or main.summary is None:
        return "No run has ended yet."
    summary = main.summary
    said = [f"{main.label} finished" if summary["outcome"] == "finished" else f"{main.label} ended {summary['outcome']}"]
    if summary["outcome"] != "finished":
        said[0] += f" ({summary['sentence']})"
    if summary.get("found") is not None:
        said.append(
            f"at its last detection honest nodes flagged {summary['found']:.1%} of the edges from Byzantine nodes, "
            f"and {summary['fdp']:.1%} of a node's flags were wrong on average"
        )
    elif summary.get("fdp") is not None:
        said.append("no node is marked as Byzantine, so every flag counts as wrong")
    elif summary.get("detections"):
        said.append("on real data nobody knows which flags are right")
    if summary.get("core_size") is not None:
        said.append(_core(main, summary))
    measure = _measure(summary)
    if measure is not None:
        key, name = measure
        others = [run for run in runs if run is not main and (run.summary or {}).get(key) is not None and run.seed == main.seed]
        beside = ", ".join(f"{run.label} {_value(key, (run.summary or {})[key])}" for run in others)
        said.append(
            f"its {name} is {_value(key, summary[key])}" + (f" ({beside})" if beside and len(others) < DETAILED else "")
        )
    sentence = f"{said[0]}: {'; '.join(said[1:])}." if said[1:] else f"{said[0]}."
    return f"{_flagged(main)} {sentence}" if tables.is_real(summary) else sentence


def _core(main: ListedRun, summary: dict[str, Any]) -> str:
    """Who is in the core."""
    spec, size, inside = main.spec or {}, summary["core_size"], summary["core_byzantine"]
    if inside is None or "nodes" not in spec:
        return f"{size} nodes are left in the core"
    honest = spec["nodes"] - math.floor(spec["byzantine_ratio"] * spec["nodes"] + 1e-9)
    return f"{size - inside} of {honest} honest nodes are in the core, and {inside} Byzantine"


def _flagged(main: ListedRun) -> str:
    """Which nodes were flagged by most of their neighbours, and why."""
    found = flags_by_node(main.folder)
    if not found:
        return "No node was flagged by most of its neighbours."
    core = read_optional(main.folder / store.PER_NODE).get("core") or list(found)
    said = []
    for node, (flags, heard, reason) in list(found.items())[:_NAMED]:
        said.append(
            f"Node {node} was flagged by {flags} of {heard} neighbours ({reason})" + ("" if node in core else " and cut off")
        )
    return "; ".join(said) + (f"; and {len(found) - _NAMED} more." if len(found) > _NAMED else ".")


def _measure(summary: dict[str, Any]) -> tuple[str, str] | None:
    names = (
        ("gap", "optimality gap"),
        ("acc_scc", "accuracy (core)"),
        ("acc_normal", "accuracy (honest nodes)"),
        ("loss", "loss (nodes of the core)" if tables.is_real(summary) else "loss"),
    )
    return next(((key, name) for key, name in names if summary.get(key) is not None), None)


def _value(key: str, value: float) -> str:
    return f"{value:.1%}" if key.startswith("acc") else f"{value:.1e}"


def _tiles(main: ListedRun, runs: Sequence[ListedRun]) -> list[tuple[str, str]]:
    """Four figures of the main run, and up to two of an own evaluation."""
    summary, tiles = main.summary or {}, []
    if summary.get("found") is not None:
        tiles.append((f"{summary['found']:.1%}", "of edges from Byzantine nodes flagged"))
    if summary.get("fdp") is not None and summary.get("found") is not None:
        tiles.append((f"{summary['fdp']:.1%}", "FDP: honest among the flagged"))
    if summary.get("core_size") is not None:
        inside = "" if summary.get("found") is None else f", {summary['core_byzantine']} of them Byzantine"
        tiles.append((str(summary["core_size"]), f"nodes in the core{inside}"))
    if (measure := _measure(summary)) is not None:
        tiles.append((_value(measure[0], summary[measure[0]]), measure[1]))
    return tiles + [(tables.cell(key, summary[key]), key) for key in tables.own_measures(summary)[:2]]


def _table(runs: Sequence[ListedRun], main: ListedRun | None) -> dict[str, Any]:
    shown = tables.columns([run.summary for run in runs if run.summary is not None])
    rows = [
        tables.cells({**run.summary, "flagged": len(flags_by_node(run.folder))}, shown)
        if run.summary
        else _failed(run, len(shown))
        for run in runs
    ]
    return {
        "title": ("Against the baselines" if len({rank(run)[0] for run in runs}) > 1 else "The runs")
        if len(runs) > 1
        else "The run",
        "headings": [heading for heading, _ in shown],
        "rows": rows,
        "words": [0],
        "main": next((index for index, run in enumerate(runs) if run is main), -1),
        "legend": tables.meanings(key for _, key in shown),
        "searchable": len(runs) > 4,
    }


def _failed(run: ListedRun, columns: int) -> list[str]:
    return [run.label, *["-"] * (columns - 3), "failed" if run.error else "not run", run.error or "-"]


def _sweep_table(table: ResultsTable) -> dict[str, Any]:
    """A row per run: settings, the measures that the overview shows, the outcome, and why runs failed if any did."""
    shown = [*[key for key, _, _ in SHOWN if key in table.measures], *tables.own_measures(table.measures)]
    names = {key: heading for heading, key in tables.COLUMNS}
    settings = [*(varied_settings(table) or ["method"]), "seed"]
    reasons = ["" if row["outcome"] == "finished" and row["sentence"] == DONE else str(row["sentence"] or "") for row in table]
    failed = any(reasons)
    rows = []
    for row, why in zip(table, reasons, strict=True):
        cells = [tables.cell(key, row[key]) for key in settings]
        cells += [tables.cell(key, row[key]) if key in names else _plain(key, row[key]) for key in shown]
        rows.append([*cells, str(row["outcome"]), *([why] if failed else [])])
    words = [at for at, key in enumerate(settings) if key != "seed"]
    return {
        "title": "All runs",
        "headings": [
            *[OWN.get(key, key) for key in settings],
            *[names.get(key, _SHORT.get(key, key)) for key in shown],
            "outcome",
            *(["why"] if failed else []),
        ],
        "rows": rows,
        "words": [*words, len(settings) + len(shown), len(settings) + len(shown) + 1],
        "main": -1,
        "legend": tables.meanings(shown),
        "searchable": True,
    }


def _plain(key: str, value: Any) -> str:
    share = any(key == one and kind == "share" for one, _, kind in SHOWN)
    return "-" if value is None else f"{100 * value:.1f}" if share else f"{value:.3g}"


def _overview(table: ResultsTable, sweep: dict[str, Any]) -> str:
    """Two sentences on a sweep: how many runs finished, and the range of their main measure."""
    finished = sum(row["outcome"] == "finished" for row in table)
    settings = len({tuple(repr(row[key]) for key in table.settings if key != "seed") for row in table})
    seeds = len({row["seed"] for row in table})
    rest = len(table) - finished
    other = f"; {rest} did not finish: see why in the table" if rest else ""
    counts = f"{settings} settings with {seeds} {'seeds' if seeds > 1 else 'seed'}"
    return f"{len(table)} runs of {counts}: {finished} finished{other}.{_range(sweep)}"


def _range(sweep: dict[str, Any]) -> str:
    """The smallest and the largest median of the main measure, with their settings; empty for fewer than two settings."""
    measure = _measure({one["key"]: True for one in sweep["measures"]})
    groups: dict[str, list[float]] = {}
    for row in sweep["rows"]:
        if measure is not None and row["values"][measure[0]] is not None:
            groups.setdefault(", ".join(row["settings"]), []).append(row["values"][measure[0]])
    if measure is None or len(groups) < 2:
        return ""
    key, name = measure
    medians = {group: statistics.median(values) for group, values in groups.items()}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    return f" Their median {name} goes from {_value(key, medians[low])} ({low}) to {_value(key, medians[high])} ({high})."


def _repeat(run: ListedRun) -> dict[str, Any]:
    """Spec, environment, summary and the command of one run."""
    environment = read_optional(run.folder / store.ENVIRONMENT)
    text = json.dumps(run.spec, indent=2)
    own = "given_objects" in text
    name = f"{run.folder.name}.json"
    return {
        "label": run.label,
        "seed": run.seed,
        "folder": run.folder.name,
        "file": name,
        "href": f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}",
        "how": "Made by bymi.train from objects of a program: the same call repeats it."
        if own
        else "Save the spec, then run it; or name the spec.json in the run folder.",
        "command": "bymi.train(...)  # with the settings below" if own else f"bymi run {name}",
        "spec": text,
        "environment": [(key, value) for key, value in environment.items()],
        "summary": [(key, value) for key, value in flatten(run.summary or {}).items() if value is not None],
    }
