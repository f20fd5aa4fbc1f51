"""Tables and figures of the studies of the theory: from run folders to JSON, and from that to page and figure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bymi.core.files import write_bytes
from bymi.paper.study_theory import NODES, PROFILES, ROUNDS, THEORY_STUDIES, TheoryStudy
from bymi.report.figures import COLOURS, save
from bymi.report.tables import markdown_table
from bymi.runs import run_folder as store

Data = dict[str, Any]  # what is in the JSON file
Run = dict[str, Any]

_KEPT = (
    "seed",
    "outcome",
    "gap",
    "fdp",
    "pa",
    "found",
    "core_size",
    "core_byzantine",
    "capped",
    "steps_done",
    "seconds",
    "digest",
)

_ROWS: tuple[tuple[str, str, str], ...] = (
    ("holds", "core is exactly the honest nodes, hears nobody else (asp:sure_detection2)", "condition"),
    ("nodes", "nodes in the core", "m_g"),
    ("least_perron", "smallest entry of the left Perron vector, times m_g", "m_g min v"),
    ("lambda_2", "second largest modulus of an eigenvalue", "abs lambda_2"),
    ("contraction_factor", "factor of the contraction", "c"),
    ("contraction_rate", "rate of the contraction", "rho"),
    ("inverse_diagonal", "one over the smallest diagonal entry of any power of A", "w"),
    ("smoothness", "smoothness of a node's loss", "L"),
    ("noise", "noise of a mini-batch gradient", "sigma"),
    ("heterogeneity", "difference between the nodes' gradients", "zeta"),
    ("start_gap", "gap at the detection", "f(theta~_0) - f*"),
    ("premix_rounds", "rounds of premixing that it asks for", "t_0"),
    ("d1", "", "D_1"),
    ("d2", "", "D_2"),
    ("d3", "", "D_3"),
    ("d4", "", "D_4"),
    ("least_rounds", "rounds that it asks for", "K at least"),
    ("rounds", "rounds done", "K"),
    ("mean_gradient", "measured: mean squared norm of the gradient at theta~_k", "gradient"),
    ("bound_gradient", "its bound, proven if the rounds are enough", "bound"),
    ("mean_distance", "measured: mean squared distance to theta~_k", "distance"),
    ("bound_distance", "its bound, proven if the rounds are enough", "bound of distance"),
)
_BY_SEED = (
    *("holds", "nodes", "least_perron", "lambda_2", "contraction_factor", "contraction_rate", "inverse_diagonal"),
    *("premix_rounds", "least_rounds", "rounds", "mean_gradient", "bound_gradient", "mean_distance", "bound_distance"),
)


def draw(study: TheoryStudy, folder: Path, command: str) -> list[Path]:
    """Write all values (JSON) of a study into its folder, and what is made of them: page (Markdown) and figure (PNG, SVG)."""
    data = collect(study, folder, command)
    path = folder / f"{study.name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    store.write_json(path, data, indent=1)
    return [path, *redraw(path)]


def redraw(path: Path) -> list[Path]:
    """Page and figure of a study from its JSON file, beside it."""
    data = store.read_json(path)
    page = path.with_suffix(".md")
    write_bytes(page, write_page(data, path.stem).encode())
    figure = _FIGURES.get(data["study"])
    return [page, *([] if figure is None or not data["cells"] else save(lambda: figure(data), path.parent, path.stem))]


def collect(study: TheoryStudy, folder: Path, command: str) -> Data:
    """What the runs of a study that are there have in their summaries, cell by cell."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    machines = set()
    for trial in study.trials:
        place = store.folder_of(folder, trial.spec)
        if store.is_complete(place):
            summary, made = store.read_json(place / store.SUMMARY), store.read_json(place / store.ENVIRONMENT)
            key = tuple(trial.cell.values())
            cells[key] = trial.cell
            groups[key].append({**{name: summary[name] for name in _KEPT}, "theory": summary["theory"]})
            machines.add(f"{made.get('gpu') or 'CPU'}, torch {made['torch']}, bymi {made['bymi']}")
    return {
        "study": study.kind,
        "command": command,
        "made_on": sorted(machines),
        "cells": [{**cells[key], "runs": runs} for key, runs in groups.items()],
    }


def write_page(data: Data, name: str) -> str:
    """The page of a study from its JSON."""
    lines = [f"# {THEORY_STUDIES[data['study']].split(' Paper:')[0]}", ""]
    lines += [f"`{data['command']}`; versions and every value: [{name}.json]({name}.json).", ""]
    complete = any(cell["runs"] for cell in data["cells"])
    lines += _PAGES[data["study"]](data, name) if complete else ["Complete runs: none yet."]
    return "\n".join(lines) + "\n"


def _theory_page(data: Data, name: str) -> list[str]:
    cells = {cell["detection"]: cell["runs"] for cell in data["cells"]}
    rows = []
    for key, words, letter in _ROWS:
        values = [[run["theory"][key] for run in runs if run["theory"] is not None] for runs in cells.values()]
        if any(value is not None for some in values for value in some):
            rows.append([letter, words, *map(_range, values)])
    for key, words in (("fdp", "false discovery proportion"), ("pa", "sure detection"), ("gap", "gap after the last round")):
        values = [[run[key] for run in runs] for runs in cells.values()]
        if any(value is not None for some in values for value in some):
            rows.append([{"fdp": "FDP", "pa": "P_a"}.get(key, key), words, *map(_range, values)])
    lines = ["Median over seeds, and from the smallest to the largest in brackets. What each number is: docs/theory.md.", ""]
    lines += [markdown_table(["letter", "what it is", *cells], rows), "Every run:", ""]
    letters = {key: letter for key, _, letter in _ROWS}
    shown = [
        key
        for key in _BY_SEED
        if any(run["theory"] and run["theory"][key] is not None for runs in cells.values() for run in runs)
    ]
    each = [
        [kind, str(run["seed"]), run["outcome"], *[_text((run["theory"] or {}).get(key)) for key in shown]]
        for kind, runs in cells.items()
        for run in runs
    ]
    return [*lines, markdown_table(["detection", "seed", "outcome", *[letters[key] for key in shown]], each).rstrip()]


def _speed_page(data: Data, name: str) -> list[str]:
    rows = []
    for cell in data["cells"]:
        runs, sound = cell["runs"], _sound(cell)
        each = [run["theory"]["nodes"] for run in sound]
        values = [_range([run["theory"]["mean_gradient"] for run in sound]), _range(map(_relative, sound))]
        values.append(_range([run["gap"] for run in sound]))
        good = f"{len(sound)} of {len(runs)}"
        rows.append([cell["panel"], cell["detection"], str(cell["nodes"]), str(cell["rounds"]), good, _range(each), *values])
    headings = [
        "setting",
        "detection",
        "nodes",
        "K",
        "runs counted",
        "m_g",
        "mean squared gradient norm",
        "over the gap at the start",
        "gap",
    ]
    slopes = [
        f"* {label}: the {what} falls as {quantity}^{slope:.2f} ({expected})."
        for label, what, quantity, expected, slope in _slopes(data)
    ]
    return [
        f"![{name}]({name}.png)",
        "",
        "Left: the theorem's constant step after one hardened detection, whose pruning leaves equal weights.",
        "Right: the default settings, with their falling step and their cap. Runs that did not finish, or with Byzantine",
        "nodes in the core, are not counted. Exponents are those of a straight line through all dots, in logarithms.",
        "",
        *slopes,
        "",
        markdown_table(headings, rows).rstrip(),
    ]


def _level_page(data: Data, name: str) -> list[str]:
    rows = []
    for cell in data["cells"]:
        runs = cell["runs"]
        shares = [_percent([run[key] for run in runs]) for key in ("fdp", "found", "pa")]
        rows.append([cell["detection"], f"{100 * cell['level']:g}", str(len(runs)), *shares])
    rows.sort(key=lambda row: (list(PROFILES).index(row[0]), float(row[1])))
    return [
        f"![{name}]({name}.png)",
        "",
        "One detection after the default warm-up (Scenario A, 20 % Byzantine). FDP is the mean over honest receivers; mean",
        "over seeds, and from the smallest to the largest seed in brackets.",
        "",
        markdown_table(["detection", "level %", "seeds", "FDP %", "arcs from Byzantine nodes found %", "P_a %"], rows).rstrip(),
    ]


_PAGES: dict[str, Callable[[Data, str], list[str]]] = {
    "theory": _theory_page,
    "theory-mnist": _theory_page,
    "speed-up": _speed_page,
    "fdr-level": _level_page,
}


def _sound(cell: dict[str, Any]) -> list[Run]:
    """Runs that came to their end without Byzantine nodes in the core."""
    return [run for run in cell["runs"] if run["outcome"] == "finished" and not run["core_byzantine"]]


def _slopes(data: Data) -> list[tuple[str, str, str, str, float]]:
    """Exponents of the lines in the speed-up figure: label, what falls, with what, what is expected, exponent."""
    found = []
    points = [
        (math.log(run["theory"]["rounds"] * run["theory"]["nodes"]), math.log(_relative(run)))
        for cell in data["cells"]
        if cell["panel"] != "default"
        for run in _sound(cell)
    ]
    if len({x for x, _ in points}) > 1:
        found.append(
            (
                "theorem's step",
                "mean squared gradient norm over the gap at the start",
                "(K m_g)",
                "theorem: -0.5",
                _slope(points),
            )
        )
    for kind in PROFILES:
        points = [
            (math.log(run["theory"]["nodes"]), math.log(run["gap"]))
            for cell in data["cells"]
            if cell["panel"] == "default" and cell["detection"] == kind
            for run in _sound(cell)
        ]
        if len({x for x, _ in points}) > 1:
            found.append(
                (f"default, {kind}", "gap after the last round", "m_g", "-1 where noise is all that is left", _slope(points))
            )
    return found


def _relative(run: Run) -> float:
    """The mean squared gradient norm in units of the gap at the start, which differs by seed: so does the bound."""
    return float(run["theory"]["mean_gradient"] / run["theory"]["start_gap"])


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line of least squares."""
    x0, y0 = mean(x for x, _ in points), mean(y for _, y in points)
    return sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)


def _speed_figure(data: Data) -> Figure:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _theorem_panel(left, [cell for cell in data["cells"] if cell["panel"] != "default"])
    _default_panel(right, [cell for cell in data["cells"] if cell["panel"] == "default"])
    return figure


def _theorem_panel(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """All dots lie on one line where twice the nodes are worth twice the rounds."""
    everything = []
    for cell in cells:
        colour, marker = COLOURS[NODES.index(cell["nodes"])], "os^"[ROUNDS.index(cell["rounds"])]
        dots = [(run["theory"]["rounds"] * run["theory"]["nodes"], _relative(run)) for run in _sound(cell)]
        everything += dots
        if dots:
            axes.scatter([x for x, _ in dots], [y for _, y in dots], color=colour, marker=marker, s=28, alpha=0.8, linewidths=0)
    for place, nodes in enumerate(NODES):
        axes.plot([], [], "o", color=COLOURS[place], label=f"{nodes} nodes")
    for place, rounds in enumerate(ROUNDS):
        axes.plot([], [], "os^"[place], color="0.4", label=f"K = {rounds}")
    _guide(axes, everything, -0.5, "slope -1/2 (theorem)")
    axes.set(xlabel=r"rounds times nodes in the core, $K\,m_g$", title="theorem's step, hardened detection")
    axes.set(ylabel=r"mean of $\|\nabla f(\tilde\theta_k)\|^2$ over $f(\tilde\theta_0) - f^*$", xscale="log", yscale="log")
    ticks = [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    if everything:
        axes.set_ylim(0.8 * min(y for _, y in everything), 1.25 * max(y for _, y in everything))
    axes.legend(frameon=False, fontsize=8, ncols=2)


def _default_panel(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """Dots are seeds, lines medians."""
    for place, kind in enumerate(PROFILES):
        chosen = sorted((cell for cell in cells if cell["detection"] == kind), key=lambda cell: cell["nodes"])
        dots, middle = [], []
        for cell in chosen:
            runs = _sound(cell)
            dots += [(run["theory"]["nodes"], run["gap"]) for run in runs]
            if runs:
                middle.append((median(run["theory"]["nodes"] for run in runs), median(run["gap"] for run in runs)))
        colour = COLOURS[(4, 0)[place]]
        if dots:
            axes.scatter([x for x, _ in dots], [y for _, y in dots], color=colour, s=24, alpha=0.55, linewidths=0)
            axes.plot(*zip(*middle, strict=True), color=colour, label=f"{kind} (median and seeds)", linewidth=1.8)
            _guide(axes, dots, -1.0, "slope -1" if place else None)
    axes.set(xlabel="nodes in the core, $m_g$", ylabel="gap after the last round", title="default settings, K = 2700")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([25, 50, 100, 200], ["25", "50", "100", "200"])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8)


def _guide(axes: Axes, dots: Sequence[tuple[float, float]], slope: float, label: str | None) -> None:
    """A dashed line of a slope through the middle of the dots."""
    if not dots:
        return
    low, high = min(x for x, _ in dots), max(x for x, _ in dots)
    level = mean(math.log(y) - slope * math.log(x) for x, y in dots)
    ends = [low, high]
    axes.plot(ends, [math.exp(level) * x**slope for x in ends], "--", color="0.4", linewidth=1.2, label=label)


def _level_figure(data: Data) -> Figure:
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    figure.suptitle("one detection, linear model, Scenario A, 150 nodes, 20 % Byzantine", fontsize=10)
    for place, kind in enumerate(PROFILES):
        cells = sorted((cell for cell in data["cells"] if cell["detection"] == kind), key=lambda cell: cell["level"])
        colour, aside = COLOURS[(4, 0)[place]], (-0.003, 0.003)[place]
        for axes, key in ((left, "fdp"), (right, "found")):
            for cell in cells:
                values = [run[key] for run in cell["runs"] if run[key] is not None]
                axes.scatter([cell["level"] + aside] * len(values), values, color=colour, s=16, alpha=0.5, linewidths=0)
            known = [(cell["level"], [run[key] for run in cell["runs"] if run[key] is not None]) for cell in cells]
            middle = [(level, mean(values)) for level, values in known if values]
            if middle:
                shape: dict[str, Any] = {"marker": "os"[place], "markersize": (7, 4)[place]}  # one may lie on the other
                axes.plot(*zip(*middle, strict=True), color=colour, label=f"{kind} (mean and seeds)", **shape)
    left.plot([0, 0.45], [0, 0.45], "--", color="0.4", linewidth=1.2, label="level kept")
    left.set(xlabel="level asked for", ylabel="false discovery proportion", title="realised FDR", xlim=(0, 0.43))
    left.set_ylim(bottom=-0.01)
    right.set(xlabel="level asked for", ylabel="share found", title="arcs from Byzantine nodes found", xlim=(0, 0.43))
    right.set_ylim(-0.02, 1.05)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


_FIGURES: dict[str, Callable[[Data], Figure]] = {"speed-up": _speed_figure, "fdr-level": _level_figure}


def _range(values: Iterable[Any]) -> str:
    """The median and the ends of some values; of conditions, how many hold."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if all(isinstance(value, bool) for value in known):
        return f"{sum(known)} of {len(known)}"
    low, middle, high = (_text(value) for value in (min(known), median(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _percent(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    return f"{mean(known):.1f} ({min(known):.1f} to {max(known):.1f})" if known else "-"


def _text(value: Any) -> str:
    """A number in three digits; a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e4):
        return str(int(value))
    if 100 <= abs(value) < 1e4:
        return f"{value:.0f}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 100 else f"{value:.1e}"
