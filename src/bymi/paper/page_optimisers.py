"""The study of optimisers: its figure and its page."""

from __future__ import annotations

from statistics import median
from typing import Any

from matplotlib.figure import Figure

from bymi.paper.computed_study import ComputedStudy, paragraph
from bymi.paper.study_optimisers import (
    COLUMNS,
    CUT,
    DIM,
    EVERY,
    METHODS,
    NAME,
    NODES,
    ROUNDS,
    SAMPLES,
    SHOWS,
    SPREAD,
    STEPS,
    WHOLE,
    WHOLE_NODES,
    WHOLE_ROUNDS,
    measure,
    points,
)
from bymi.report.figures import COLOURS
from bymi.report.tables import markdown_table

_DRAWN = ("DSGD", "DRSGD as published", "DRSGD", "FROST", "push-pull", "tracking, mutual")
_CONSTANT = [column for column in COLUMNS if not column.endswith("falling")]
_TINY = 1e-33  # gaps below are drawn here


_SETTING = f"""The third phase alone: {NODES} honest nodes of an Erdos-Renyi graph in which each node has cut {CUT:.0%} of its
in-arcs at random (one-sided), or the edges that neither end has cut (mutual). Least squares, d = {DIM}, {SAMPLES} samples per
node, {ROUNDS} rounds, cap and floor off. *Different* nodes have optima theta* + {SPREAD:g} z_i. *Exact*: gradients over all
samples; *stochastic*: mini-batches of 8. The order is adapt-then-combine but for AB and the rows *as printed* and *as
published*. Each cell takes the step size of {", ".join(map(str, STEPS))} with the least final gap on seed 100; entries are
medians over {{seeds}} seeds of the mean over nodes of f(theta_i) - min f, with that step in brackets."""

_WHOLE = f"""Scenario A with {WHOLE_NODES} nodes and {WHOLE_ROUNDS} rounds, mini-batches of 32, falling step, all other keys as
by default: median gap of the core's mean model to the optimum of all honest nodes and to that of the core's own samples, and
Byzantine nodes in the core. The hardened profile clips parameters and directions; clipped directions no longer sum to the
sum of gradients."""


def figure(values: dict[str, Any]) -> Figure:
    """Gap over rounds with a constant step, the median over seeds: one panel for each kind of gradients and data."""
    picture = Figure(figsize=(11, 7.5), layout="constrained")
    grid = picture.subplots(2, 2, sharex=True)
    for panel, column in zip(grid.flat, _CONSTANT, strict=True):
        for colour, row in zip(COLOURS, _DRAWN, strict=True):
            curves = [point["curve"] for point in _of(values, column, row)]
            if not curves:
                continue
            middle = [median(float("inf") if value is None else value for value in at) for at in zip(*curves, strict=False)]
            rounds = [1 + EVERY * place for place in range(len(middle))]
            panel.plot(rounds, [max(value, _TINY) for value in middle], color=colour, label=row, lw=1.6)
        panel.set(title=f"{column.split(', ')[0]} gradients, {column.split(', ')[1]} nodes", yscale="log")
        panel.set_ylabel("gap")
        panel.set_xlabel("round")
    grid[0][0].legend(fontsize=8)
    return picture


def page(values: dict[str, Any]) -> str:
    """The page, every number on it from the values."""
    lines = [
        "# Optimisers of the third phase",
        "",
        f"`{values['command']}`. Every value: [JSON]({NAME}.json).",
        "",
        paragraph(_SETTING.format(seeds=len({point["seed"] for point in values["points"]}))),
        "",
        *findings(values),
        "",
        f"![Gap over rounds]({NAME}.png)",
        "",
        markdown_table(*table(values)),
        "",
        "## The whole method under attack",
        "",
        paragraph(_WHOLE),
        "",
        markdown_table(*_whole_table(values)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(values: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: one row per method."""
    rows = []
    for row in METHODS:
        cells = []
        for column in COLUMNS:
            found = _of(values, column, row)
            cells.append(f"{_gap(found)} ({found[0]['step']:g})" if found else "-")
        rows.append([row, *cells])
    return ["method", *COLUMNS], rows


def _whole_table(values: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for row in WHOLE:
        found = _of(values, "whole", row)
        if found:
            inside = sum(point["core_byzantine"] for point in found)
            rows.append([row, _gap(found), _gap(found, "gap_to_core"), str(inside)])
    return ["method", "gap", "gap to the core's optimum", "Byzantine in core, all seeds"], rows


def findings(values: dict[str, Any]) -> list[str]:
    """Sentences about who wins, from the values."""
    lines = []
    for column in COLUMNS:
        ends = {row: _middle(_of(values, column, row)) for row in METHODS if _of(values, column, row)}
        if not ends:
            continue
        best = min(ends, key=lambda row: ends[row])
        near = [row for row in ends if row != best and ends[row] <= 1.1 * ends[best]]
        exact = [row for row in ends if ends[row] < 1e-12]
        if exact:
            others = min(ends[row] for row in ends if row not in exact)
            lines.append(f"* {column}: below 1e-12 are {'; '.join(exact)}. The best of the others stops at {others:.1e}.")
        else:
            also = f"; within 10 %: {'; '.join(near)}" if near else ""
            worst = max(ends, key=lambda row: ends[row])
            lines.append(f"* {column}: least {ends[best]:.1e}, {best}{also}. Largest {ends[worst]:.1e}, {worst}.")
    return lines


def _of(values: dict[str, Any], column: str, row: str) -> list[dict[str, Any]]:
    return [point for point in values["points"] if (point["column"], point["row"]) == (column, row)]


def _middle(found: list[dict[str, Any]], key: str = "gap") -> float:
    return float(median(float("inf") if point[key] is None else point[key] for point in found))


def _gap(found: list[dict[str, Any]], key: str = "gap") -> str:
    value = _middle(found, key)
    return "diverged" if value == float("inf") else f"{value:.1e}"


STUDY = ComputedStudy(NAME, SHOWS, points, measure, page, figure)
