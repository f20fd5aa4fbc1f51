"""The evidence page: a heat map of the red team, and short tables of image studies and benchmarks, from the committed JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bymi.core.files import write_bytes
from bymi.paper import page_non_iid
from bymi.paper import page_optimisers as optimisers
from bymi.paper import page_rule_tables as grid
from bymi.paper import page_rules_linear as rules_linear
from bymi.paper.committed_results import NOT_MEASURED, Results, Run, mean_or_infinite, of, percent, span
from bymi.paper.page_red_team import on_common_seeds
from bymi.paper.provenance import fingerprints
from bymi.paper.published_tables import WITH_DETECTION
from bymi.paper.study_images import ATTACKS, DATA, RULES
from bymi.paper.study_red_team import COLUMNS as DEFENCES
from bymi.paper.study_rule_tables import TOLD, TOLD_RULES
from bymi.report.figures import save
from bymi.report.tables import markdown_table

FOLDER = "evidence"
_COLUMNS = ("alone", "published", "published-averaging", "receiver", "hardened")
_BEST, _WORST = -5.0, 0.0  # of the colour scale, log10 of the gap


_LOST_AND_ACCURACY = ("honest_edge_loss", "worst_edge_loss", "acc_normal")


def images(results: Results) -> str:
    """For each data set and attack at ratio 0.2: accuracy over the rules in the paper and in each column, and how runs ended.

    A cell names its rules where they are not all three.
    """
    rows = []
    for short, data in DATA.items():
        runs = results.images("table", short)
        for attack in ATTACKS if runs else ():
            paper = span((WITH_DETECTION[data, attack, rule][0.2].acc_scc / 100 for rule in RULES), percent)
            cells = []
            for column in _COLUMNS:
                key = "acc_normal" if column == "alone" else "acc_scc"
                found = {rule: runs[where] for rule in RULES if (where := (attack, rule, 0.2, column)) in runs}
                accuracy = span((mean(run[key] or 0.0 for run in cell) for cell in found.values()), percent) if found else "-"
                which = "" if len(found) in (0, len(RULES)) else f" ({', '.join(rule.upper() for rule in found)})"
                cells.append(accuracy + which)
            rows.append([data, attack, paper, *cells])
    return markdown_table(["data", "attack", "paper, with detection", *_COLUMNS], rows) if rows else NOT_MEASURED


def non_iid(results: Results) -> str:
    """For each data set, partition and attack of the study of data that differ: found, honest edges lost and accuracy.

    Then the cells in which somebody is missed, and those in which another defence is as accurate as the hardened run.
    """
    values = results.json("non-iid/non-iid.json")
    if values is None:
        return NOT_MEASURED
    runs = {tuple(cell[key] for key in ("data", "partition", "attack", "column")): cell["runs"] for cell in values["cells"]}
    hardened = {key[:3]: found for key, found in runs.items() if key[3] == "hardened"}
    pa = {key: mean(run["pa"] or 0.0 for run in found) for key, found in hardened.items() if key[2] != "none"}
    rows = [
        [
            *key,
            str(len(found)),
            percent(pa[key]) if key in pa else "-",
            *(percent(mean(run[name] or 0.0 for run in found)) for name in _LOST_AND_ACCURACY),
            of(run["outcome"] == "infiltrated" for run in found),
        ]
        for key, found in hardened.items()
    ]
    headings = ["data", "partition", "attack", "seeds", "P_a", "honest edges lost", "at the worst detection"]
    headings += ["accuracy of honest nodes", "infiltrated"]
    missed = [f"{', '.join(key)} ({percent(value)})" for key, value in pa.items() if value < 1]
    level = [f"{', '.join(key)} ({', '.join(better)})" for key in hardened if (better := _as_accurate(runs, key))]
    return "\n".join(
        [
            markdown_table(headings, rows),
            f"P_a below 100 %: {'; '.join(missed) or 'nowhere'}.",
            "",
            page_non_iid.edges_lost(page_non_iid.read_cells(values)),
            "",
            f"Another defence is as accurate as the hardened run, or more, on common seeds: {'; '.join(level) or 'nowhere'}.",
        ]
    )


def _as_accurate(runs: dict[tuple[str, ...], list[Run]], key: tuple[str, ...]) -> list[str]:
    """The rules alone whose mean accuracy is at least that of the hardened run, over the seeds that both have."""
    found = []
    for column in (name for *where, name in runs if tuple(where) == key and name != "hardened"):
        both = on_common_seeds({("", name): runs[*key, name] for name in (column, "hardened")})
        means = [mean(run["acc_normal"] or 0.0 for run in some) for some in both.values()]
        found += [column] if means and means[0] >= means[1] else []
    return found


_SPEED = ("the plain loop, gradients and BALANCE", "ByzFL 0.0.11, star graph, one trimmed mean", "one iteration with BALANCE")


def speed(results: Results) -> str:
    """Times beside a plain loop and ByzFL, of a large graph and over ranks, with the command; then which version made which."""
    rows, made_with = [], []
    for name, command in (("images-cuda", "images.py"), ("large", "large.py"), ("ranks", "ranks.py")):
        values = results.json(f"../../benchmarks/results/{name}.json")
        if values is None:
            continue
        made = values["environment"]
        where = f"torch {made['torch']}, {made.get('gpu') or str(made['cores']) + ' cores'}"
        link = f"[{name}.json](../benchmarks/results/{name}.json)"
        made_with.append(f"{name}.json with {made['bymi']}")
        if name == "images-cuda":
            found = [(f"150 LeNets: {row['what']}", row["seconds"]) for row in values["rows"] if row["what"] in _SPEED]
        elif name == "large":
            found = [
                (f"{row['nodes']:,} nodes: {row['what']}", row["seconds"])
                for row in values["rows"]
                if "100 rounds" in row["what"]
            ]
        else:
            found = [(f"`bymi run mnist`, ranks: {row['ranks']}", row["seconds"]) for row in values["whole"]]
        rows += [[what, f"{seconds:.3g}", where, f"`python benchmarks/{command}`, {link}"] for what, seconds in found]
    if not rows:
        return NOT_MEASURED
    table = markdown_table(["what", "seconds", "with", "command and values"], rows)
    return f"{table}\nVersions of bymi that were timed: {', '.join(made_with)}."


def comparisons(results: Results) -> str:
    """What the studies of rules, detectors and optimisers find, a line each, with links to page and values."""
    rows = []
    for name, sentence in _FINDINGS.items():
        values = results.json(f"{name}.json")
        if values is not None:
            links = f"[page](results/{name}.md), [values](results/{name}.json)"
            rows.append([f"`{values['command']}`", sentence(values), links])
    return markdown_table(["command", "what it finds", "more"], rows) if rows else NOT_MEASURED


def _misspecified(values: dict[str, Any]) -> str:
    gaps: dict[str, float] = {}
    for cell in values["cells"]:
        gaps[cell["row"]] = max(grid.worth(cell["runs"]), gaps.get(cell["row"], 0.0))

    def largest(word: str) -> str:
        found = {rule: gaps[f"{rule} {word}"] for rule in TOLD_RULES if f"{rule} {word}" in gaps}
        most = max(found.values())
        others = [gap for gap in found.values() if gap < most]
        rest = f"; the others at most {_or_diverged(max(others))}" if others else ""
        return f"{word} {_or_diverged(most)} ({', '.join(rule for rule in found if found[rule] == most)}{rest})"

    rules = f"Largest median gap over all attacks of {', '.join(TOLD_RULES)}, by the share of Byzantine nodes they are told"
    hardened = _or_diverged(gaps["hardened"])
    return f"{rules}: {', '.join(map(largest, TOLD))}; of the hardened method, which is told none: {hardened}."


def _or_diverged(gap: float) -> str:
    return f"{gap:.1e}" if math.isfinite(gap) else "diverged"


def _centralised(values: dict[str, Any]) -> str:
    points = [point["detectors"] for point in values["points"] if point["share"]]
    means = [
        f"{name} {mean(point[name]['fdp'] for point in points):.2f}, {mean(point[name]['power'] for point in points):.2f}"
        for name in points[0]
    ]
    return f"False discovery proportion and share found, means over attacks and shares: {'; '.join(means)}."


def _optimisers(values: dict[str, Any]) -> str:
    exact = next(line for line in optimisers.findings(values) if line.startswith("* exact, different: "))
    return f"Final gap with exact gradients where nodes differ: {exact.removeprefix('* exact, different: ')}"


_FINDINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "rules-linear/rules-linear": rules_linear.finding,
    "rules/rules": lambda values: " ".join(grid.endings(values)),
    "rules/rules-mnist": lambda values: " ".join(grid.endings(values)),
    "rules/few-neighbours": lambda values: " ".join(grid.endings(values)),
    "rules/misspecified": _misspecified,
    "centralised/centralised": _centralised,
    "optimisers/optimisers": _optimisers,
}
"""JSON below docs/results, and its finding as a sentence."""


def faults(results: Results) -> str:
    """Faults that a run survives, from the table of docs/scale.md, without the names of their tests."""
    page = results.folder.parent / "scale.md"
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return markdown_table(["fault", "what happens"], [row[:2] for row in rows if "`test_" in row[-1]]) if rows else NOT_MEASURED


def heat_map(results: Results) -> Figure:
    """Mean final gap of every attack under every defence, logarithmic; grey where a run diverged, or none was made."""
    runs = on_common_seeds(results.red_team())
    attacks = list(dict.fromkeys(row for row, _ in runs))
    gaps = [[_log_gap(runs.get((row, column), [])) for column in DEFENCES] for row in attacks]
    figure = Figure(figsize=(7, 1.4 + 0.2 * len(attacks)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.75")
    axes.grid(visible=False)
    shown = axes.imshow(gaps, aspect="auto", cmap="cividis", vmin=_BEST, vmax=_WORST)
    for row, values in enumerate(gaps):
        for column, value in enumerate(values):
            made = bool(runs.get((attacks[row], list(DEFENCES)[column])))
            text = "not run" if not made else "diverged" if math.isnan(value) else f"{10**value:.0e}"
            colour = "black" if math.isnan(value) or value > (_BEST + _WORST) / 2 else "white"
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
    axes.set_xticks(range(len(DEFENCES)), list(DEFENCES))
    axes.set_yticks(range(len(attacks)), attacks, fontsize=7)
    axes.xaxis.tick_top()
    figure.colorbar(shown, ax=axes, label="log10 of the mean final gap", shrink=0.3, anchor=(0.0, 1.0))
    return figure


def _log_gap(runs: list[Run]) -> float:
    """log10 of the mean gap; NaN where there is no run, or one diverged."""
    gap = mean_or_infinite(runs, "gap") if runs else math.inf
    if not math.isfinite(gap) or any(run["outcome"] == "diverged" for run in runs):
        return math.nan
    return math.log10(max(gap, 1e-300))


def _stamp(results: Results) -> str:
    results.used.clear()
    results.red_team()
    return results.stamp()


def differs(results: Results) -> bool:
    """Whether the heat map was drawn from another red-team.json than the one that is there."""
    drawn = results.json(f"{FOLDER}/evidence.json")
    return bool(results.red_team()) and (drawn is None or drawn.get("drawn_from") != _stamp(results))


def draw(results: Results) -> list[Path]:
    """Draw the heat map, and note what it was drawn from."""
    folder = results.folder / FOLDER
    paths = save(lambda: heat_map(results), folder, "red-team")
    values = {"command": "bymi reproduce pages", "drawn_from": _stamp(results), "figures": fingerprints(paths)}
    write_bytes(folder / "evidence.json", (json.dumps(values, indent=1) + "\n").encode())
    return [*paths, folder / "evidence.json"]
