"""The figure and the page of the frontier: harm against visibility, of the defence as it is and as it was before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bymi.core.files import write_bytes
from bymi.paper.page_red_team import harmless
from bymi.paper.provenance import fingerprints, origin
from bymi.paper.study_attack_search import FAMILIES, PLACES, RUNS, RUNS_ELSEWHERE, Frontier
from bymi.paper.study_red_team import NODES
from bymi.report.tables import markdown_table
from bymi.runs import run_folder as store

_KEPT = (
    *("seed", "outcome", "gap", "pa", "found", "honest_edge_loss", "worst_edge_loss", "core_size", "core_byzantine"),
    *("exiled", "seconds", "digest"),
)
_LOST = 0.05  # of the honest edges
_RATIO = 0.2  # of Byzantine nodes, where a place names no other
BEFORE = "before"
"""Runs of the same draws by the defence before these attacks were known, from the same file."""


def draw(study: Frontier, folder: Path, command: str) -> list[Path]:
    """Write the page (Markdown), all values (JSON) and the figure of the study into its folder."""
    values = collect(study, folder, command)
    data, page_path, figure = (folder / f"{study.name}.{kind}" for kind in ("json", "md", "png"))
    plot(values, figure)
    store.write_json(data, {**values, "figures": fingerprints([figure])}, indent=1)
    write_bytes(page_path, page(study.name, values).encode())
    return [page_path, data, figure]


def collect(study: Frontier, folder: Path, command: str) -> dict[str, Any]:
    """All values of the runs that are there, in the order of the draws."""
    runs = []
    for trial in study.trials:
        run_folder = store.folder_of(folder, trial.spec)
        if store.is_complete(run_folder):
            summary = store.read_json(run_folder / store.SUMMARY)
            attack = {key: value for key, value in trial.spec.resolved["attack"].items() if key != "name"}
            values = {key: summary[key] for key in _KEPT}
            runs.append({"place": trial.place, "family": trial.family, "attack": attack, **values, **origin(run_folder)})
    return {"command": command, "environment": store.environment(), "runs": runs, BEFORE: []}


def worst(runs: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """The run with the largest value; one that diverged is worse than all."""
    found = [run for run in runs if run[key] is not None or run["outcome"] == "diverged"]
    return max(found, key=lambda run: float("inf") if run[key] is None else run[key], default=None)


def page(name: str, values: dict[str, Any]) -> str:
    """The Markdown page of the study from its JSON."""
    runs, before = values["runs"], values[BEFORE]
    first, *elsewhere = PLACES
    here = [run for run in runs if place_of(run) == first]
    full = [draws * len(FAMILIES) for draws in (RUNS, len(elsewhere) * RUNS_ELSEWHERE)]
    lines = [
        f"# {name}",
        "",
        f"`{values['command']}`; {len(runs)} runs of the defence after these attacks were known (*now*), {len(before)} of",
        f"the same draws by that before (*before*). A full search has {RUNS} draws of each of {len(FAMILIES)} families at",
        f"{first}, and the first {RUNS_ELSEWHERE} of them at each of {len(elsewhere)} other places. Made were {len(here):,} of",
        f"{full[0]:,} there, and {len(runs) - len(here):,} of {full[1]:,} elsewhere. All values: [{name}.json]({name}.json).",
        "",
        "Linear model as in the red-team study, seeds 0 to 4 in turns. Parameters are drawn at random; a list of attacks,",
        f"however long, is no proof. Lines: a gap of three times the statistical error ({line_at(first):.1e} at ratio 0.2),",
        "and 5 % of honest edges lost at the worst of all detections. `found`: share of the arcs from Byzantine to honest",
        "nodes that are cut at the end.",
        "",
        f"At {first}:",
        "",
        _table(here, before).rstrip("\n"),
        "",
        "All families together, by place, each with the family of the worst run:",
        "",
        places_table(runs).rstrip("\n"),
        "",
        *_late_pushes(runs),
        f"![harm against visibility]({name}.png)",
    ]
    return "\n".join(lines) + "\n"


def _late_pushes(runs: list[dict[str, Any]]) -> list[str]:
    """A sentence if attackers that were all found had done the most harm before: pushes before the last detections."""
    worst_gaps = [worst([run for run in runs if place_of(run) == place], "gap") for place in PLACES]
    late = [place_of(run) for run in worst_gaps if run and run["found"] == 1.0 and run["attack"].get("last") is not None]
    said = "All attackers are found at the end of the run with the worst gap, which does not undo their late push, at: "
    return [f"{said}{'; '.join(late)}.", ""] if late else []


def place_of(run: dict[str, Any]) -> str:
    """Where a run is, by its name in PLACES."""
    return str(run.get("place", next(iter(PLACES))))


def line_at(place: str) -> float:
    """The gap up to which an attack did no harm: three times the statistical error of the honest fit."""
    return harmless(0.0, NODES - int(PLACES[place].get("byzantine_ratio", _RATIO) * NODES + 1e-9))


def _above(runs: list[dict[str, Any]]) -> int:
    """How many runs have a gap above the line of their place, or diverged."""
    return sum(run["gap"] is None or run["gap"] > line_at(place_of(run)) for run in runs)


def _cut(runs: list[dict[str, Any]]) -> int:
    """How many runs lost more honest edges than they may."""
    return sum(run["worst_edge_loss"] > _LOST for run in runs)


def _table(runs: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    headings = ["family", "runs", "worst gap", "found there", "above the line", "worst loss", "above 5 %"]
    headings += [f"before: {heading}" for heading in ("runs", "worst gap", "worst loss")]
    rows = []
    for family in (*FAMILIES, "all"):
        mine, old = ([run for run in some if family in ("all", run["family"])] for some in (runs, before))
        gap, lost, old_gap, old_lost = (worst(some, key) for some in (mine, old) for key in ("gap", "worst_edge_loss"))
        rows.append(
            [
                *(family, str(len(mine)), _gap(gap), _share(gap, "found"), str(_above(mine)), _share(lost, "worst_edge_loss")),
                *(str(_cut(mine)), str(len(old)), _gap(old_gap), _share(old_lost, "worst_edge_loss")),
            ]
        )
    return markdown_table(headings, rows)


def places_table(runs: list[dict[str, Any]]) -> str:
    """What was found at each place, all families together: the worst of both lines, and how often they were crossed."""
    headings = ["place", "runs", "line", "worst gap", "above the line", "worst loss", "above 5 %", "infiltrated", "diverged"]
    rows = []
    for place in PLACES:
        mine = [run for run in runs if place_of(run) == place]
        gap, lost = (worst(mine, key) for key in ("gap", "worst_edge_loss"))
        families = [f" ({run['family']})" if run else "" for run in (gap, lost)]
        infiltrated = sum(bool(run["core_byzantine"]) for run in mine)
        diverged = sum(run["outcome"] == "diverged" for run in mine)
        rows.append(
            [
                *(place, str(len(mine)), f"{line_at(place):.1e}", _gap(gap) + families[0], str(_above(mine))),
                *(_share(lost, "worst_edge_loss") + families[1], str(_cut(mine)), str(infiltrated), str(diverged)),
            ]
        )
    return markdown_table(headings, rows)


def _gap(run: dict[str, Any] | None) -> str:
    return "-" if run is None else "diverged" if run["gap"] is None else f"{run['gap']:.1e}"


def _share(run: dict[str, Any] | None, key: str) -> str:
    return "-" if run is None or run[key] is None else f"{100 * run[key]:.1f}"


def plot(values: dict[str, Any], path: Path) -> None:
    """One point per run: the gap against the share of Byzantine arcs found, and against the honest edges lost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.8), sharey=True, layout="constrained")
    line = line_at(next(iter(PLACES)))
    by_place = {place: [run for run in values["runs"] if place_of(run) == place] for place in PLACES}
    sides = (
        ("found", "Byzantine arcs found at the end, %"),
        ("worst_edge_loss", "honest edges lost at the worst detection, %"),
    )
    for axis, (key, words) in zip(axes, sides, strict=True):
        for name, runs, marker in [("before", values[BEFORE], "x"), *((place, by_place[place], "o") for place in by_place)]:
            points = [run for run in runs if run["gap"] is not None and run[key] is not None]
            across, up = [100 * run[key] for run in points], [run["gap"] for run in points]
            axis.scatter(across, up, s=12, marker=marker, alpha=0.55, label=f"{name}, {len(points)} runs")
        axis.axhline(line, color="black", linewidth=0.8, linestyle="--")
        axis.set_yscale("log")
        axis.set_xlabel(words)
        axis.grid(alpha=0.3)
    axes[1].axvline(100 * _LOST, color="black", linewidth=0.8, linestyle="--")
    axes[0].set_ylabel("gap (harm)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)
