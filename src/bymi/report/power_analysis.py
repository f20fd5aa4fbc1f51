"""A forecast as text: a title, a table, and advice."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch

from bymi.detection import Panel
from bymi.power_analysis import Forecast
from bymi.power_analysis.forecast import FAR, MOST_LOST, MOST_LOST_WITHOUT, SHIFTS, SURE
from bymi.power_analysis.ideal_neighbourhoods import DIMENSIONS, LARGEST

HEADINGS = (
    "rule",
    "none Byzantine: honest edges lost %",
    "nodes that flag anybody %",
    "Byzantine nodes: honest edges lost %",
    "FDP %",
    "P_a %",
    "shift found alone",
    "shift found together",
)
"""Edges lost are upper bounds; Byzantine nodes are far off; a shift is found in 95 % of cases, in sigma / sqrt(N)."""

_SEEN = 0.005  # shares of nodes below this are not mentioned
_RARELY = 0.01  # nor is an event that some node has with a probability below this


def outlook_title(outlook: Forecast) -> str:
    """The setting, in one line."""
    asked = outlook.question
    complete = " (complete graph)" if asked.degree == asked.nodes - 1 else ""
    return (
        f"{asked.nodes} nodes, {asked.byzantine} of them Byzantine; {asked.degree} neighbours each{complete}; "
        f"FDR level {asked.fdr_level:g}. Ideal data: normal noise in {DIMENSIONS} dimensions; shifts in sigma/sqrt(N)."
    )


def outlook_cells(outlook: Forecast) -> list[list[str]]:
    """One row per rule, under HEADINGS."""
    rows = []
    for row in outlook.rows:
        shares = [f"{100 * share:.1f}" for share in (row.lost_without, row.fdp_without)]
        if outlook.question.byzantine:
            shares += [f"{100 * share:.1f}" for share in (row.lost, row.fdp, row.sure)]
            shares += [_shift(row.alone), _shift(row.together)]
        rows.append([row.rule, *shares, *["-"] * (len(HEADINGS) - 1 - len(shares))])
    return rows


def advice(outlook: Forecast) -> list[str]:
    """What the figures mean and what to change, the most important first."""
    return [_verdict(outlook), *_neighbourhoods(outlook), *_published(outlook), *_bounds(outlook), *_shifts(outlook)]


def outlook_json(outlook: Forecast) -> dict[str, Any]:
    """The forecast and the advice as plain values."""
    return {**asdict(outlook), "does": outlook.does, "advice": advice(outlook)}


def _verdict(outlook: Forecast) -> str:
    asked, row = outlook.question, outlook.hardened
    wanted = f"honest edges lost <= {MOST_LOST_WITHOUT:.0%} without Byzantine nodes"
    if asked.byzantine:
        wanted += f" and <= {MOST_LOST:.0%} with them, P_a >= {SURE:.0%} at {FAR:g} sigma/sqrt(N)"
    if outlook.does:
        fewer = outlook.enough is not None and outlook.enough < asked.degree
        more = f"; about {outlook.enough} neighbours would do" if fewer else ""
        return f"The hardened rule reaches what we ask for ({wanted}){more}."
    checks = (
        (row.lost_without > MOST_LOST_WITHOUT, f"{row.lost_without:.1%} lost without Byzantine nodes"),
        (row.lost > MOST_LOST, f"{row.lost:.1%} lost with them"),
        (row.sure < SURE, f"P_a {row.sure:.1%}"),
    )
    short = ", ".join(words for fails, words in checks if fails)
    todo = (
        f"raise the degree to about {outlook.enough}"
        if outlook.enough is not None
        else "no degree that we tried does it among so few nodes, so many of them Byzantine: do not trust verdicts"
    )
    return f"The hardened rule does not reach what we ask for ({wanted}): {short}; {todo}."


def _neighbourhoods(outlook: Forecast) -> list[str]:
    asked = outlook.question
    if not asked.byzantine:
        return []
    mean = asked.byzantine * asked.degree / (asked.nodes - 1)
    line = f"An honest node has {mean:.1f} Byzantine ones among its {asked.degree} neighbours on average"
    most = f"more than the {Panel().most:.0%} that the filter may take"
    if outlook.anywhere < _RARELY:
        return [f"{line} and hardly ever {most}: nothing to worry about up to ratio {outlook.bearable:.2f}."]
    majority = f"the majority in {outlook.outnumbered:.2%} of nodes, "
    return [
        f"{line}; {majority if outlook.outnumbered else ''}{most} in {outlook.overwhelmed:.2%}, and in some node of all "
        f"with probability {outlook.anywhere:.0%}: nobody can be sure there. Raise the degree, or count on this degree up to "
        f"ratio {outlook.bearable:.2f} only."
    ]


def _published(outlook: Forecast) -> list[str]:
    asked, (zero, one) = outlook.question, outlook.rows[:2]
    lines = []
    if zero.fdp_without > asked.fdr_level:
        lines.append(
            f"Offset 0: {zero.fdp_without:.0%} of nodes flag somebody where all are honest; the FDR level is no bound there."
        )
    least = math.ceil(1 / asked.fdr_level - 1e-9)
    few = float(asked.odds()[: min(least, asked.degree + 1)].sum())
    if asked.byzantine and few >= _SEEN:
        lines.append(
            f"Offset 1 flags at least 1/fdr_level = {least} neighbours or nobody, and {few:.0%} of nodes have fewer Byzantine "
            f"ones: P_a {one.sure:.0%}. Raise the level or the degree, or use the hardened rule."
        )
    return lines


def _bounds(outlook: Forecast) -> list[str]:
    asked = outlook.question
    wider = float(Panel().wider(torch.tensor(float(asked.degree), dtype=torch.float64)))
    lines = []
    if wider > 1:
        lines.append(
            f"With {asked.degree} neighbours all bounds of the hardened rule are {wider:.2f} times as wide as with many."
        )
    few = Panel().few
    if few is not None and min(asked.degree, outlook.enough or asked.degree) < few:
        lines.append(
            f"In the hardened profile a node with fewer than {few} neighbours (panel.few) mixes by the warm-up rule to the "
            "end, over those it has not flagged, instead of averaging."
        )
    if asked.degree > LARGEST:
        lines.append(
            f"Simulated with {LARGEST} neighbours, the share of Byzantine nodes as with {asked.degree}: more change little."
        )
    return lines


def _shifts(outlook: Forecast) -> list[str]:
    if not outlook.question.byzantine:
        return []
    row = outlook.hardened
    if row.alone is None and row.together is None:
        return [f"No shift up to {SHIFTS[-1]} sigma/sqrt(N) is found in {SURE:.0%} of cases."]
    return [
        f"A Byzantine node off by less than {_shift(row.alone)} sigma/sqrt(N) by itself, or {_shift(row.together)} with all "
        "others one way, may stay unseen; only more samples N per detection make that smaller."
    ]


def _shift(value: float | None) -> str:
    return f"> {SHIFTS[-1]}" if value is None else f"{value:g}"
