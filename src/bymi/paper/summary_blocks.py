"""Blocks of README and docs that sum up studies: tables and sentences, each a function of the committed JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from bymi.paper import page_array_detection as detect_level
from bymi.paper import page_attack_search as attack_search
from bymi.paper import page_default_experiment as default
from bymi.paper import page_images as images
from bymi.paper import page_red_team as red_team
from bymi.paper.committed_results import (
    NOT_MEASURED,
    Results,
    Run,
    average,
    count_runs,
    ended_badly,
    mean_or_infinite,
    middle,
    numbers,
    of,
    percent,
    small,
    span,
)
from bymi.paper.provenance import versions
from bymi.paper.published_tables import RULES_ALONE
from bymi.paper.study_images import COLUMNS, DATA, DETECTING
from bymi.paper.study_red_team import ADAPTIVE
from bymi.paper.study_red_team import COLUMNS as DEFENCES
from bymi.report.tables import endings, markdown_table

GAP = 1e-4  # the paper's, and the dashed line of its figures
LEVEL = 0.2

_STUDIES = {
    "default": "Default experiment",
    "scenario-a": "Scenario A",
    "scenario-a-mu1": "Scenario A with mu_c = 1",
    "scenario-b": "Scenario B",
    "images": "MNIST and Fashion-MNIST",
    "published-step": "The published step size",
    "detection": "Detection on arrays",
    "theory": "Theorems, measured",
    "optimisers": "Optimisers of the third phase",
    "centres": "Robust means of detection",
    "centralised": "Centralised ByMI",
    "pieces-arrays": "What each test buys on arrays",
    "rules": "Rules alone and as warm-up, and told a wrong share",
    "red-team": "Red team",
    "evidence": "Evidence at a glance",
}
"""Folders of docs/results, and what they hold."""


def default_table(results: Results) -> str:
    """The table of the default experiment, as the terminal shows it."""
    values = results.json("default/default.json")
    return NOT_MEASURED if values is None else f"```text\n{default.text(values)}```"


def index(results: Results) -> str:
    """All studies that are there: their pages, figures, values, commands and numbers of runs."""
    rows = []
    others = sorted(path.name for path in results.folder.iterdir() if path.is_dir() and path.name not in _STUDIES)
    for name, title in (_STUDIES | dict(zip(others, others, strict=True))).items():
        files = sorted(results.folder.glob(f"{name}/*"))
        values = {path: results.json(f"{name}/{path.name}") for path in files if path.suffix == ".json"}
        if values:
            said = dict.fromkeys(f"`{found['command']}`" for found in values.values() if found and "command" in found)
            runs = sum(map(count_runs, values.values()))
            rows.append([title, _links(name, files), "<br>".join(said) or "-", str(runs)])
    return markdown_table(["study", "pages, figures, values", "commands", "runs"], rows)


def _links(name: str, files: list[Path]) -> str:
    """Links to the page of a folder, or to all of its pages, figures and values."""
    if any(path.name == "README.md" for path in files):
        return f"[page of its own]({name}/README.md)"
    shown = [path for suffix in (".md", ".png", ".json") for path in files if path.suffix == suffix]
    return ", ".join(f"[{path.name}]({name}/{path.name})" for path in shown)


def linear(name: str) -> Callable[[Results], str]:
    """A block about one of the linear studies: how many settings reach what, then a row for each point of the axis."""

    def block(results: Results) -> str:
        values, settings = results.json(f"{name}/values.json"), results.linear(name)
        if values is None or not settings:
            return NOT_MEASURED
        warm_ups = list(dict.fromkeys(warm_up for _, warm_up, _ in settings))
        lines = []
        for dim in sorted({dim for dim, _, _ in settings}):
            chosen = [runs for (where, _, _), runs in settings.items() if where == dim]
            seeds = span((len(runs) for runs in chosen), str)
            lines.append(
                f"* d = {dim}, {seeds} seeds a setting: the median gap is below {GAP:.0e} in {of(_gap_below(chosen))} settings"
                f", the median FDP at most {100 * LEVEL:g} % in {of(middle(runs, 'fdp') <= LEVEL for runs in chosen)} "
                f"({span(middle(runs, 'fdp') for runs in chosen)}), and P_a is 100 % in "
                f"{of(run['pa'] == 1 for runs in chosen for run in runs)} runs."
            )
        headings = [
            "d",
            values["axis"],
            "median FDP",
            *(f"P_a 100 %: {name}" for name in warm_ups),
            "median gap",
            "ended badly",
        ]
        rows = []
        for dim, value in sorted({(dim, value) for dim, _, value in settings}):
            row = [settings.get((dim, warm_up, value), []) for warm_up in warm_ups]
            found = [of(run["pa"] == 1 for run in runs) for runs in row]
            medians = [middle(runs, "fdp") for runs in row if runs], [middle(runs, "gap") for runs in row if runs]
            bad = of(ended_badly(run) for runs in row for run in runs)
            rows.append([str(dim), f"{value:g}", span(medians[0]), *found, span(medians[1], small), bad])
        return "\n".join([*lines, "", markdown_table(headings, rows)])

    return block


def _gap_below(settings: list[list[Run]]) -> list[bool]:
    return [middle(runs, "gap") < GAP for runs in settings]


def image_cells(results: Results, short: str) -> images.Runs:
    """All cells of a data set, of the table at ratio 0.2 and of the ratios."""
    return {**results.images("table", short), **results.images("ratios", short)}


def image_summary(results: Results) -> str:
    """For each data set, column and ratio: the range of the means of its cells."""
    headings = ["data", "column", "ratio", "cells", "not run", "seeds", "P_a", "FDP", "accuracy", "gradient norm"]
    headings += ["ended badly", "misses", "made with bymi"]
    rows = []
    missing = Counter((data, column, ratio) for data, _, _, ratio, column, _ in _misses(results))
    for short, data in DATA.items():
        runs = image_cells(results, short)
        planned = {*images.planned("table", data), *images.planned("ratios", data)} if runs else set()
        for column in COLUMNS:
            for ratio in sorted({key[2] for key in runs if key[3] == column}):
                cells = [found for key, found in runs.items() if key[2:] == (ratio, column)]
                absent = Counter(key[0] for key in sorted(planned) if key[2:] == (ratio, column) and not runs.get(key))
                judged = any(numbers(found, "pa") for found in cells)
                accuracy = "acc_scc" if judged else "acc_normal"
                rows.append(
                    [
                        *(data, column, f"{ratio:g}", f"{len(cells)} of {len(cells) + absent.total()}"),
                        ", ".join(f"{attack} ({count})" for attack, count in absent.items()) or "-",
                        span(map(len, cells), str),
                        *(_cell_span(cells, key) if judged else "-" for key in ("pa", "fdp")),
                        _cell_span(cells, accuracy),
                        _cell_span(cells, "grad_norm", "{:.2g}".format),
                        of(ended_badly(run) for found in cells for run in found),
                        of(at < missing[data, column, ratio] for at in range(len(cells))) if judged else "-",
                        versions({"cells": cells}),
                    ]
                )
    return f"{markdown_table(headings, rows)}\n{_rules_alone(results)}" if rows else NOT_MEASURED


def _rules_alone(results: Results) -> str:
    """In how many cells a rule alone is as accurate as each detection, on common seeds."""
    lines = ["Cells in which the rule alone (`alone`) is as accurate as the detection, or more, on common seeds:", ""]
    for short, data in DATA.items():
        runs = image_cells(results, short)
        for ratio in sorted({key[2] for key in runs}):
            counts = []
            for column in DETECTING:
                pairs = [
                    red_team.on_common_seeds({("", "alone"): alone, ("", column): runs[attack, rule, ratio, column]})
                    for (attack, rule, at, where), alone in runs.items()
                    if (at, where) == (ratio, "alone") and (attack, rule, ratio, column) in runs
                ]
                level = [
                    _accuracy(pair["", "alone"], "acc_normal") >= _accuracy(pair["", column], "acc_scc")
                    for pair in pairs
                    if pair
                ]
                counts += [f"{column} {of(level)}"] if level else []
            lines += [f"* {data}, ratio {ratio:g}: {', '.join(counts)}"] if counts else []
    return "\n".join(lines)


def _accuracy(runs: list[Run], key: str) -> float:
    return mean(run[key] or 0.0 for run in runs)


def _cell_span(cells: list[list[Run]], key: str, write: Callable[[float], str] = percent) -> str:
    means = [average(found, key) for found in cells]
    return span((value for value in means if value is not None), write)


def image_misses(results: Results) -> str:
    """Every cell that misses a target, with the targets that it misses."""
    rows = [[data, attack, rule, f"{ratio:g}", column, why] for data, attack, rule, ratio, column, why in _misses(results)]
    if not rows:
        return "No cell misses a target."
    return markdown_table(["data", "attack", "rule", "ratio", "column", "what it misses"], rows)


def _misses(results: Results) -> list[tuple[str, str, str, float, str, str]]:
    """Data, attack, rule, ratio, column and missed targets of each cell that misses one."""
    found: dict[tuple[str, str, str, float, str], str] = {}
    for short, data in DATA.items():
        for kind, write in (("table", images.table), ("ratios", images.ratios)):
            headings, rows = write(data, results.images(kind, short))
            for row in (dict(zip(headings, row, strict=True)) for row in rows):
                where = (data, row["attack"], row["rule"], float(row.get("ratio", "0.2")), row["column"])
                if row["misses"] != "-":
                    found[where] = row["misses"]
    return [(*where, why) for where, why in found.items()]


def ood_scale(results: Results) -> str:
    """Accuracy of plain DSGD over the scale of the OOD noise, beside the paper's."""
    values = results.json("images/ood-scale.json")
    if values is None:
        return NOT_MEASURED
    found = {(entry["data"], entry["scale"]): mean(entry["acc_all"]) for entry in values["settings"]}
    scales = sorted({scale for _, scale in found})
    rows = [
        [data, *(f"{found[data, scale]:.1f}" for scale in scales), f"{RULES_ALONE[data, 'ood', 'none'].acc_all:.1f}"]
        for data in dict.fromkeys(data for data, _ in found)
    ]
    return markdown_table(["Acc (all) of DSGD, % / scale", *(f"{scale:g}" for scale in scales), "paper"], rows)


def published_column(names: set[str]) -> str:
    """What the published method is called in a study."""
    return "published" if "published" in names else "paper"


def red_team_ends(results: Results) -> str:
    """How many attacks ended how under each defence, and which ones the hardened one did not stop, on common seeds."""
    runs = red_team.on_common_seeds(results.red_team())
    if not runs:
        return NOT_MEASURED
    calm = average(runs.get(("no attackers", "hardened"), []), "gap")
    ends = {(row, column): _ended(row, found, calm) for (row, column), found in runs.items()}
    attacks = [row for row in dict.fromkeys(row for row, _ in runs) if row != "no attackers"]
    words = list(dict.fromkeys(["stopped", "harmless", *(word for (row, _), word in ends.items() if row in attacks)]))
    rows = []
    for column in DEFENCES:
        count = Counter(ends[row, column] for row in attacks if (row, column) in ends)
        rows.append([column, str(count.total()), *(str(count[word]) for word in words)])
    lines = [f"{len(attacks)} attacks; without attackers the hardened run ends at a gap of {small(calm or 0)}.", ""]
    honest = min(run["honest"] for found in runs.values() for run in found)
    lines += [red_team.meanings(red_team.harmless(calm or 0, honest)), ""]
    lines += [markdown_table(["defence", "attacks", *words], rows), "Not stopped by the hardened profile:", ""]
    stopped = {row: runs[row, "hardened"] for row in attacks if ends.get((row, "hardened")) == "stopped"}
    for row in attacks:
        if row not in stopped and (row, "hardened") in ends:
            found = runs[row, "hardened"]
            pa, gap = average(found, "pa"), average(found, "gap")
            inside = of(bool(run["core_byzantine"]) for run in found)
            figures = f"P_a {_or(pa, percent)}, gap {_or(gap, small)}, infiltrated in {inside} runs"
            lines.append(f"* {row}: {ends[row, 'hardened']}, {figures}")
    flawed = red_team.not_in_every_run(stopped)
    lines += ["", f"Of the {len(stopped)} that it stops in the mean, not in every run: {_listed(flawed)}.", ""]
    every = list(dict.fromkeys(row for row, _ in runs))
    for column, who in (("nobody", "Plain averaging"), ("BALANCE", "BALANCE alone")):
        as_good = [row for row in every if _as_good(runs, row, column)]
        lines += [f"{who} ends at a gap no larger than the hardened run's, on the same seeds, under: {_listed(as_good)}.", ""]
    only = [row for row in attacks if not any((row, column) in runs for column in DEFENCES if column != "hardened")]
    if only:
        lines.append(
            f"Run against the hardened profile only, and not counted in the other rows: {_listed(only)} ({len(only)})."
        )
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return "; ".join(names) or "none"


def _ended(row: str, runs: list[Run], calm: float | None) -> str:
    """How an attack ended; below the noise is an excuse of detections alone."""
    word = red_team.verdict(row, runs, calm).split(" (")[0].strip("*")
    return "through" if word == "below the noise" and not numbers(runs, "pa") else word


def _as_good(runs: red_team.Runs, row: str, column: str) -> bool:
    """Whether the mean gap of a defence is at most that of the hardened one."""
    found = [runs.get((row, name), []) for name in (column, "hardened")]
    return all(found) and mean_or_infinite(found[0], "gap") <= mean_or_infinite(found[1], "gap")


def red_team_table(results: Results) -> str:
    """One line an attack: the gap under each defence, what both detections found, how it ended for the hardened one."""
    runs = red_team.on_common_seeds(results.red_team())
    if not runs:
        return NOT_MEASURED
    published = published_column({column for _, column in runs})
    calm = average(runs.get(("no attackers", "hardened"), []), "gap")
    headings = [
        "attack",
        "seeds",
        *(f"gap: {column}" for column in DEFENCES),
        f"P_a: {published}",
        "P_a: hardened",
        "lost: hardened",
        "ended",
    ]
    rows = []
    for row in dict.fromkeys(row for row, _ in runs):
        gaps = [_gap(runs.get((row, column), [])) for column in DEFENCES]
        shares = [(published, "pa"), ("hardened", "pa"), ("hardened", "honest_edge_loss")]
        shown = [_or(average(runs.get((row, column), []), key), percent) for column, key in shares]
        rows.append(
            [
                row,
                str(len(runs.get((row, "hardened"), []))),
                *gaps,
                *shown,
                red_team.verdict(row, runs[row, "hardened"], calm) if (row, "hardened") in runs else "-",
            ]
        )
    return markdown_table(headings, rows)


def _gap(runs: list[Run]) -> str:
    lost = sum(run["outcome"] == "diverged" for run in runs)
    return f"diverged ({lost} of {len(runs)})" if lost else _or(average(runs, "gap"), small)


def red_team_limits(results: Results) -> str:
    """Where the hardened profile ends worse than stopped: other ratios and degrees."""
    runs = results.red_team("red-team-limits")
    if not runs:
        return NOT_MEASURED
    rows, places = [], list(dict.fromkeys(column for _, column in runs))
    for column in places:
        calm = average(runs.get(("no attackers", column), []), "gap") or 0.0
        here = {row: found for (row, where), found in runs.items() if where == column and row != "no attackers"}
        ends = {row: _ended(row, found, calm) for row, found in here.items()}
        others = [f"{row} ({end}, gap {_gap(here[row])})" for row, end in ends.items() if end != "stopped"]
        every = [run for found in here.values() for run in found]
        lost = span(value for value in (average(found, "worst_edge_loss") for found in here.values()) if value is not None)
        worst = percent(max(numbers(every, "worst_edge_loss"), default=0.0))
        flawed = red_team.not_in_every_run({row: found for row, found in here.items() if ends[row] == "stopped"})
        rows.append(
            [
                *(column, of(end == "stopped" for end in ends.values()), f"{lost} ({worst})"),
                f"{endings(every) or 'none'} of {len(every)}",
                *("; ".join(some) or "-" for some in (flawed, others)),
            ]
        )
    headings = ["where", "attacks stopped", "honest edges lost at the worst detection, means over seeds (worst seed)"]
    return markdown_table([*headings, "runs that ended badly", "stopped in the mean, not in every run", "not stopped"], rows)


def red_team_adaptive(results: Results) -> str:
    """How the attackers that know the detection ended, in the table and at other ratios and degrees; the worst is named."""
    table, limits = red_team.on_common_seeds(results.red_team()), results.red_team("red-team-limits")
    places = {"ratio 0.2, degree about 75": {row: found for (row, column), found in table.items() if column == "hardened"}}
    for row, column in limits:
        places.setdefault(column, {})[row] = limits[row, column]
    calms = {where: average(rows.get("no attackers", []), "gap") for where, rows in places.items()}
    lines = []
    for where, rows in places.items():
        known = {row: found for row, found in rows.items() if row in ADAPTIVE}
        if known:
            ends = Counter(_ended(row, found, calms[where] or 0.0) for row, found in known.items())
            gaps = {row: mean_or_infinite(found, "gap") for row, found in known.items()}
            worst = max(gaps, key=lambda row: gaps[row])
            counts = ", ".join(f"{count} {word}" for word, count in ends.most_common())
            lines.append(f"* {where}, {len(known)} attacks: {counts}. Largest gap: {worst}, {small(gaps[worst])}.")
    return "\n".join(lines) or NOT_MEASURED


def attack_search_worst(results: Results) -> str:
    """The worst gap and the worst loss that the random search found, by ratio and degree."""
    values = results.json("frontier/frontier.json")
    return NOT_MEASURED if values is None else attack_search.places_table(values["runs"]).rstrip("\n")


def published_step(results: Results) -> str:
    """The published method with other settings of its optimisation: how many runs diverge, when, and the gap of the others."""
    values = results.json("published-step/published-step.json")
    if values is None:
        return NOT_MEASURED
    rows = []
    for entry in values["settings"]:
        lost = [run for run in entry["runs"] if run["outcome"] == "diverged"]
        others = [run for run in entry["runs"] if run["outcome"] != "diverged"]
        when = span(numbers(lost, "round"), "{:.0f}".format) if lost else "-"
        gap = span(numbers(others, "gap"), small) if others else "-"
        rows.append([entry["setting"], f"{len(lost)} of {len(entry['runs'])}", when, gap])
    return markdown_table(["optimisation", "diverged", "in round", "gap of the others"], rows)


def detection_cost(results: Results) -> str:
    """The share of a hardened run's time that its detections take, in studies that were timed."""
    cases = {
        "default experiment": [run for run in results.default().values() if "hardened" in run["method"]],
        "red team, linear model, no attackers": results.red_team().get(("no attackers", "hardened"), []),
    }
    rows = []
    for name, runs in cases.items():
        if runs:
            share = mean(run["detection_seconds"] / run["seconds"] for run in runs)
            seconds = f"{mean(numbers(runs, 'seconds')):.1f}"
            rows.append([name, span(numbers(runs, "detections"), str), seconds, f"{100 * share:.0f} %"])
    return markdown_table(["runs", "detections", "seconds per run", "of them detections"], rows) if rows else NOT_MEASURED


def detect_profiles(results: Results) -> str:
    """What the profiles of `bymi detect` reach, in the study of detection on arrays."""
    values = results.json("detection/detect-level.json")
    return NOT_MEASURED if values is None else detect_level.profiles(values)


def _or(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "default": default_table,
    "index": index,
    "scenario-a": linear("scenario-a"),
    "scenario-a-mu1": linear("scenario-a-mu1"),
    "scenario-b": linear("scenario-b"),
    "images": image_summary,
    "image-misses": image_misses,
    "ood-scale": ood_scale,
    "red-team-ends": red_team_ends,
    "red-team-table": red_team_table,
    "red-team-limits": red_team_limits,
    "red-team-adaptive": red_team_adaptive,
    "frontier": attack_search_worst,
    "published-step": published_step,
    "detection-cost": detection_cost,
    "detect-profiles": detect_profiles,
}
"""Names of blocks, and what writes them."""
