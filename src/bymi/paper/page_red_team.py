"""Tables of the red-team studies: how each defence did against each attack.

`collect` and `document` turn run folders into the JSON of a study; `page` writes its Markdown from that JSON alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from bymi.core.files import write_bytes
from bymi.paper.provenance import origin
from bymi.paper.study_red_team import BELOW_NOISE, COLUMNS, DIM, NODES, PIECES, SAMPLES, SHOWN_AS, WHOLE, RedTeam
from bymi.report.tables import endings, markdown_table
from bymi.runs import run_folder as store

Runs = dict[tuple[str, str], list[dict[str, Any]]]  # (row, column) -> summaries

_KEPT = (
    *("seed", "outcome", "gap", "pa", "found", "fdp", "honest_edge_loss", "worst_edge_loss", "stuck", "core_size"),
    *(
        "core_byzantine",
        "stuck_nodes",
        "exiled",
        "guard_acted",
        "fused",
        "detections",
        "detection_seconds",
        "seconds",
        "digest",
    ),
    "acc_normal",
)
_SURE, _LOST, _CALM, _TIMES = 0.95, 0.05, 0.01, 10
_NOBODY = "no attackers"
_CHANGED, _FOLD, _SMALL = 0.02, 3, 1e-4  # of P_a and edges, and of gaps, which below the last count as equal
_POINTS = 0.003  # of accuracy, that an attack may cost


def draw(study: RedTeam, folder: Path, command: str) -> list[Path]:
    """Write the table (Markdown) and all values (JSON) of a study into its folder."""
    values = document(collect(study, folder), command)
    table, data = folder / f"{study.name}.md", folder / f"{study.name}.json"
    write_bytes(table, page(study.name, values).encode())
    store.write_json(data, values, indent=1)
    return [table, data]


def document(runs: Runs, command: str) -> dict[str, Any]:
    """The JSON of a study: every run of every cell."""
    cells = [{"row": row, "column": column, "runs": found} for (row, column), found in runs.items()]
    return {"command": command, "environment": store.environment(), "cells": cells}


def read_cells(values: dict[str, Any]) -> Runs:
    """The runs of each cell, from the JSON of a study."""
    return {(cell["row"], cell["column"]): cell["runs"] for cell in values["cells"]}


def on_common_seeds(runs: Runs) -> Runs:
    """The runs of each row with the seeds that all of its columns have, so that columns can be compared; no row without any."""
    seeds: dict[str, set[int]] = {}
    for (row, _), found in runs.items():
        own = {run["seed"] for run in found}
        seeds[row] = seeds.get(row, own) & own
    return {
        (row, column): [run for run in found if run["seed"] in seeds[row]]
        for (row, column), found in runs.items()
        if seeds[row]
    }


def collect(study: RedTeam, folder: Path) -> Runs:
    """The summaries of each cell, of all runs that are there."""
    groups: Runs = defaultdict(list)
    for trial in study.trials:
        place = store.folder_of(folder, trial.spec)
        if store.is_complete(place):
            summary = store.read_json(place / store.SUMMARY)
            values = {key: summary[key] for key in _KEPT}
            values.update(origin(place))
            values["honest"] = NODES - int(trial.spec.byzantine_ratio * NODES + 1e-9)
            groups[trial.row, trial.column].append(values)
    return dict(groups)


def verdict(row: str, runs: list[dict[str, Any]], calm: float | None) -> str:
    """How an attack ended: stopped, harmless, below the noise, or through, and how many runs ended badly.

    `calm` is the gap without attackers. What honest edges are lost counts at the worst of all detections: an attack that has
    them cut in between, or for one window, has done harm that the last detection does not show.
    """
    if any(run["outcome"] == "diverged" for run in runs):
        return "**diverged**" + _badly(runs)
    return _judged(row, runs, calm) + _badly(runs)


def _badly(runs: list[dict[str, Any]]) -> str:
    """The bad endings but divergence, in brackets."""
    found = endings(run for run in runs if run["outcome"] != "diverged")
    return f" ({found} of {len(runs)})" if found else ""


def _judged(row: str, runs: list[dict[str, Any]], calm: float | None) -> str:
    pa, lost, core = _mean(runs, "pa"), _mean(runs, "worst_edge_loss"), _core_share(runs)
    if core is not None and core < _SURE:
        return "**core lost**"
    if row == _NOBODY:
        return "calm" if lost is None or lost <= _CALM else "**edges lost**"
    if pa is not None and lost is not None and pa >= _SURE and lost <= _LOST:
        return "stopped"
    gap = mean(math.inf if run["gap"] is None else run["gap"] for run in runs)
    if calm is not None and gap <= harmless(calm, runs[0]["honest"]):
        return "harmless" if lost is None or lost <= _LOST else "**edges lost**"
    return "below the noise" if row in BELOW_NOISE else "**through**"


def harmless(calm: float, honest: int) -> float:
    """The gap up to which an attack did no harm: ten times that without attackers, or three times the statistical error."""
    return max(_TIMES * calm, 3 * DIM / (2 * honest * SAMPLES))


def meanings(harmless_gap: float) -> str:
    """What the words of `verdict` mean, in a sentence for pages."""
    return (
        f"*Stopped*: in the mean over seeds P_a of at least {100 * _SURE:g} %, and at most {100 * _LOST:g} % of honest edges "
        f"lost at the worst detection. *Harmless*: not so, but a gap of at most {harmless_gap:.1e} ({_TIMES} times that "
        "without attackers, or three times the statistical error). *Edges lost*: such a gap, and more edges lost. *Through*: "
        "a larger gap. Whatever the word, single runs may be *infiltrated*: Byzantine nodes are left in their core."
    )


def not_in_every_run(cells: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which of some attacks are stopped in the mean, but not in every run: bad endings, and seeds that miss a bound."""
    found = []
    for row, runs in cells.items():
        ended = endings(runs)
        words = [f"{ended} of {len(runs)}"] if ended else []
        for run in runs:
            if run["pa"] is not None and run["pa"] < _SURE:
                words.append(f"P_a {100 * run['pa']:.1f} % in seed {run['seed']}")
            if run["worst_edge_loss"] is not None and run["worst_edge_loss"] > _LOST:
                words.append(f"{100 * run['worst_edge_loss']:.1f} % of edges lost in seed {run['seed']}")
        found += [f"{row} ({', '.join(words)})"] if words else []
    return found


def page(name: str, values: dict[str, Any]) -> str:
    """The Markdown page of a study called `name` (as its JSON file is), from its JSON."""
    runs = read_cells(values)
    seeds = sorted({run["seed"] for found in runs.values() for run in found})
    base = name.removesuffix("-fast")
    table = {"red-team": _attacks, "red-team-limits": _limits, "red-team-pieces": _pieces, "red-team-mnist": _images}[base]
    means = "Means over the seeds that all columns of a row have" if base == "red-team" else "Means over seeds"
    lines = [
        f"# {name}",
        "",
        f"`{values['command']}`; {sum(map(len, runs.values()))} runs, seeds {', '.join(map(str, seeds))}.",
        f"Every value: [{name}.json]({name}.json). {means}; P_a, found, FDP, honest edges",
        "lost and the honest nodes in the core in per cent, of the last detection; worst loss over all detections.",
        "",
        *([_PIECES_PAGE, *_beside(runs), ""] if base == "red-team-pieces" else []),
        table(runs).rstrip("\n"),
    ]
    return "\n".join(lines) + "\n"


_PIECES_PAGE = f"""Each piece of the hardened profile is switched off by itself, against attacks of all kinds and on data that
differ (node optima theta* + 0.3 z_i). Named are attacks under which P_a or the edges lost at the worst detection change by
{100 * _CHANGED:g} points or more, or the gap {_FOLD}-fold (gaps below {_SMALL:g} count as equal), with the values with and
without the piece."""


def _beside(runs: Runs) -> list[str]:
    """Sentences on runs that are in no row: of attacks with all pieces alone, and of pieces that there are no more."""
    compared = {attack for piece, attack in runs if piece in PIECES}
    alone = [attack for piece, attack in runs if piece == WHOLE and attack not in compared]
    gone = [
        f"{piece} ({sum(row == piece for row, _ in runs)} attacks)" for piece in _rows(runs) if piece not in (WHOLE, *PIECES)
    ]
    lines = [f"Run with all pieces in place alone, and in no row: {'; '.join(alone)}."] if alone else []
    if gone:
        lines.append(
            f"Made with a version that had pieces which are gone; what changes without them is in no row: {'; '.join(gone)}."
        )
    return lines


def _rows(runs: Runs) -> list[str]:
    return list(dict.fromkeys(row for row, _ in runs))


def _attacks(runs: Runs) -> str:
    """One row an attack: the gaps of all defences, then what the two detections found and lost, on the seeds that all have."""
    headings = ["attack", *(f"gap: {name}" for name in COLUMNS)]
    for name in ("published", "hardened"):
        headings += [f"{name}: P_a", "found", "FDP", "lost"]
    headings += ["worst loss", "stuck", "core", "runs", "hardened"]
    rows = []
    runs = on_common_seeds(runs)
    calm = _mean(runs.get((_NOBODY, "hardened"), []), "gap")
    for row in _rows(runs):
        cells = [row, *(_gap(runs.get((row, name), [])) for name in COLUMNS)]
        for name in ("published", "hardened"):
            found = runs.get((row, name), [])
            cells += [_share(found, key) for key in ("pa", "found", "fdp", "honest_edge_loss")]
        found = runs.get((row, "hardened"), [])
        cells += [_share(found, "worst_edge_loss"), _share(found, "stuck"), _core(found), str(len(found))]
        cells.append(verdict(row, found, calm) if found else "-")
        rows.append(cells)
    return markdown_table(headings, rows)


def _images(runs: Runs) -> str:
    """One row an attack: the accuracy of the honest nodes under all defences, then what the two detections found and lost."""
    headings = ["attack", *(f"accuracy: {name}" for name in COLUMNS)]
    for name in ("published", "hardened"):
        headings += [f"{name}: P_a", "found", "FDP", "lost"]
    headings += ["core", "hardened"]
    calm = _mean(runs.get((_NOBODY, "hardened"), []), "acc_normal")
    rows = []
    for row in _rows(runs):
        cells = [row, *(_share(runs.get((row, name), []), "acc_normal") for name in COLUMNS)]
        for name in ("published", "hardened"):
            cells += [_share(runs.get((row, name), []), key) for key in ("pa", "found", "fdp", "honest_edge_loss")]
        found = runs.get((row, "hardened"), [])
        rows.append([*cells, _core(found), image_verdict(found, calm)])
    return markdown_table(headings, rows)


def image_verdict(runs: list[dict[str, Any]], calm: float | None) -> str:
    """Whether accuracy stayed within 0.3 points of `calm`, that without attackers."""
    if any(run["outcome"] == "diverged" for run in runs):
        return "**diverged**" + _badly(runs)
    accuracy, core = _mean(runs, "acc_normal"), _core_share(runs)
    if accuracy is None or calm is None:
        return "-"
    if core is not None and core < _SURE:
        return "**core lost**" + _badly(runs)
    return ("held" if accuracy >= calm - _POINTS else "**through**") + _badly(runs)


def _limits(runs: Runs) -> str:
    headings = ["where", "attack", "runs", "P_a", "found", "FDP", "lost", "worst loss", "core", "gap", "ended"]
    rows = []
    for row, column in sorted(runs, key=lambda key: list(dict.fromkeys(name for _, name in runs)).index(key[1])):
        found = runs[row, column]
        calm = _mean(runs.get((_NOBODY, column), []), "gap")
        shares = [_share(found, key) for key in ("pa", "found", "fdp", "honest_edge_loss", "worst_edge_loss")]
        ended = verdict(row, found, calm if calm is not None else 0.0)
        rows.append([column, row, str(len(found)), *shares, _core(found), _gap(found), ended])
    return markdown_table(headings, rows)


def _pieces(runs: Runs) -> str:
    """A row per piece: the attacks under which the defence is worse without it, and better."""
    rows = []
    for piece in PIECES:
        changes: dict[bool, list[str]] = {True: [], False: []}
        attacks = [attack for name, attack in runs if name == piece and (WHOLE, attack) in runs]
        for attack in attacks:
            for is_worse, words in without(runs[WHOLE, attack], runs[piece, attack]).items():
                changes[is_worse].append(f"{attack} ({words})")
        if attacks:
            rows.append(
                [
                    SHOWN_AS.get(piece, piece),
                    str(len(attacks)),
                    *("; ".join(changes[is_worse]) or "none" for is_worse in (True, False)),
                ]
            )
    idle = "; ".join(row[0] for row in rows if row[2:] == ["none", "none"])
    said = f"\nNo row changes without one of these, the others in place: {idle}. What they do on plain arrays: "
    said += "[pieces-arrays](../pieces-arrays/pieces-arrays.md); on images, at other ratios and degrees: ADR 0010.\n"
    return markdown_table(["without", "attacks", "worse under", "better under"], rows) + (said if idle else "")


def without(whole: list[dict[str, Any]], less: list[dict[str, Any]]) -> dict[bool, str]:
    """What is worse (True) and better (False) without a piece, in words: means with it and without, on common seeds."""
    seeds = {run["seed"] for run in whole} & {run["seed"] for run in less}
    pair = [[run for run in found if run["seed"] in seeds] for found in (whole, less)]
    words: dict[bool, list[str]] = {True: [], False: []}
    for key, name, sign in (("pa", "P_a", -1), ("worst_edge_loss", "worst loss", 1)):
        before, after = (_mean(found, key) for found in pair)
        if before is not None and after is not None and abs(after - before) >= _CHANGED:
            words[sign * (after - before) > 0].append(f"{name} {100 * before:.1f}, {100 * after:.1f}")
    gaps = [mean(math.inf if run["gap"] is None else max(run["gap"], _SMALL) for run in found) for found in pair]
    if max(gaps) >= _FOLD * min(gaps):
        words[gaps[1] > gaps[0]].append(f"gap {_gap(pair[0])}, {_gap(pair[1])}")
    return {is_worse: "; ".join(parts) for is_worse, parts in words.items() if parts}


def _mean(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return mean(values) if values else None


def _share(runs: list[dict[str, Any]], key: str) -> str:
    value = _mean(runs, key)
    return "-" if value is None else f"{100 * value:.1f}{_some(runs, key)}"


def _some(runs: list[dict[str, Any]], key: str) -> str:
    """Of how many runs a mean is, if not of all."""
    there = sum(run[key] is not None for run in runs)
    return "" if there == len(runs) else f" ({there} of {len(runs)})"


def _gap(runs: list[dict[str, Any]]) -> str:
    """The mean gap; a run that diverged has none, nor has one with a mean model that is not finite."""
    lost = sum(run["outcome"] == "diverged" for run in runs)
    if lost:
        return f"diverged ({lost} of {len(runs)})"
    value = _mean(runs, "gap")
    if value is None:
        return "not finite" if runs else "-"
    return f"{value:.1e}{_some(runs, 'gap')}"


def _core(runs: list[dict[str, Any]]) -> str:
    value = _core_share(runs)
    return "-" if value is None else f"{100 * value:.0f}{_some(runs, 'core_size')}"


def _core_share(runs: list[dict[str, Any]]) -> float | None:
    """Honest nodes in the largest component, as a share of all honest ones."""
    values = [(run["core_size"] - run["core_byzantine"]) / run["honest"] for run in runs if run["core_size"] is not None]
    return mean(values) if values else None
