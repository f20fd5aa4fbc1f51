"""Verdicts on plain arrays as JSON, as a figure of the scores, and with advice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

import bymi
from bymi.core.errors import InputError, require
from bymi.core.files import write_bytes
from bymi.detection import ArrayVerdict
from bymi.power_analysis import Setting, forecast
from bymi.power_analysis.forecast import FAR, SURE
from bymi.report.figures import COLOURS, render

_FEW = 20  # machines below which a forecast is made
_POOL, _SHARE = 1000, 0.2  # the forecast is for machines drawn from so many, with this share Byzantine
_MACHINES = 40  # lines in a figure
_NAME = 30  # characters of a name there
_WIDE = 40.0  # noise units beyond which the axis is logarithmic
_KINDS = (("kept", COLOURS[0], "o"), ("kept, borderline", COLOURS[1], "s"), ("flagged", COLOURS[4], "^"))


def verdict_json(verdict: ArrayVerdict, hints: list[str], *, flagged_only: bool = False) -> dict[str, Any]:
    """Settings, warnings, notes and a record per machine as JSON values; null for what does not apply."""
    names = verdict.names
    return {
        "version": bymi.__version__,
        "profile": verdict.profile,
        "level": verdict.fdr_level,
        "offset": verdict.offset,
        "cross_fit": verdict.cross_fit,
        "n": len(names),
        "d": verdict.dim,
        "warnings": list(verdict.warnings),
        "notes": list(verdict.notes),
        "advice": hints,
        "flagged": verdict.flagged.nonzero().flatten().tolist(),
        "flagged_names": [names[row] for row in verdict.flagged.nonzero().flatten().tolist()],
        "borderline_names": [names[row] for row in verdict.borderline.nonzero().flatten().tolist()],
        "threshold": _finite(float(verdict.threshold)),
        "noise_norm": _finite(verdict.noise_norm),
        "smallest_shift": _finite(verdict.smallest_shift),
        "effective_dim": _finite(verdict.effective_dim),
        "machines": verdict.rows(flagged_only=flagged_only),
    }


def advice(verdict: ArrayVerdict) -> list[str]:
    """What so few machines can show, from the forecast of `bymi plan`; empty where there are enough.

    The forecast has normal data in 30 dimensions, and a fifth of the machines Byzantine.
    """
    count = len(verdict.names)
    if count >= _FEW:
        return []
    outlook = forecast(Setting(_POOL, count - 1, _SHARE, verdict.fdr_level))
    row = outlook.rows[-1] if verdict.profile == "hardened" else outlook.rows[verdict.offset or 0]
    far = f"{FAR:g} standard errors off"
    lines = [
        f"with {count} machines, a fifth of them {far}, this profile finds all of them in {row.sure:.0%} of cases (bymi plan)"
    ]
    if row.sure < SURE and outlook.enough is not None and outlook.enough + 1 > count:
        lines.append(f"the hardened profile finds them in {SURE:.0%} of cases with about {outlook.enough + 1} machines")
    return lines


def draw_scores(verdict: ArrayVerdict, path: Path) -> None:
    """Write a figure of all scores in noise units, with the threshold and the names of flagged machines."""
    require(path.suffix in (".png", ".svg"), "--plot", str(path), "a name that ends in .png or .svg")
    (content,) = render(lambda: _figure(verdict), [path.suffix[1:]])
    try:
        write_bytes(path, content)
    except OSError as problem:
        raise InputError(f"--plot: cannot write {path}: {problem.strerror or problem}") from None


def _figure(verdict: ArrayVerdict) -> Figure:
    """A line per machine, flagged ones and high scores on top; a machine without a score has a note at the edge."""
    shown = verdict.order[:_MACHINES]
    units = [_finite(float(verdict.noise_units[row])) for row in shown]
    limit = _limit(verdict)
    figure = Figure(figsize=(8, 1.6 + 0.19 * len(shown)), layout="constrained")
    axes = figure.subplots()
    kinds = torch.where(verdict.flagged, 2, verdict.borderline.long())
    for kind, (label, colour, marker) in enumerate(_KINDS):
        places = [place for place, row in enumerate(shown) if units[place] is not None and int(kinds[row]) == kind]
        if places:
            along = [float(verdict.noise_units[shown[place]]) for place in places]
            axes.scatter(along, places, color=colour, marker=marker, s=26, label=label, zorder=3)
    sizes = [abs(value) for value in [*units, limit] if value is not None]
    if max(sizes, default=0.0) > _WIDE:
        axes.set_xscale("symlog", linthresh=_WIDE / 4)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    if limit is not None:
        label = "threshold" if verdict.profile == "published" else "threshold for one machine alone"
        axes.axvline(limit, color="0.2", linestyle="--", linewidth=1, label=f"{label}: {limit:.1f}")
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    for place, value in enumerate(units):
        if value is None:
            reason = verdict.reasons[shown[place]]
            words = "no score" if reason == "kept" else f"no score: {reason}"
            axes.annotate(words, (0.99, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [_label(verdict, row) for row in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.3, -0.7)
    left = len(verdict.names) - len(shown)
    axes.set_xlabel("score, noise units" + (f"; {left} machines with lower scores are not shown" if left else ""))
    axes.set_title(verdict.title, fontsize=9, loc="left")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _label(verdict: ArrayVerdict, row: int) -> str:
    """The name, with the test that flagged the machine where that is not the score."""
    reason = verdict.reasons[row]
    name = verdict.names[row]
    name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return name.replace("$", r"\$") + ("" if reason == "kept" or "score" in reason else f" ({reason})")


def _limit(verdict: ArrayVerdict) -> float | None:
    """The threshold in noise units."""
    ratios = verdict.noise_units / verdict.scores
    known = ratios[ratios.isfinite()]
    return _finite(float(verdict.threshold * known[0])) if len(known) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
