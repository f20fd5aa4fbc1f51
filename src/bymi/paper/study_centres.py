"""Robust means of detection: error against the share of outliers and the dimension."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.core.linalg import VectorStack
from bymi.core.random_streams import stream
from bymi.detection import CENTRES
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.noise_bounded_mean import NoiseEdge
from bymi.paper.computed_study import ComputedStudy, paragraph
from bymi.report.tables import markdown_table

NAME = "centres"
SHOWS = "Robust means of detection: error against the share of outliers and the dimension."
POINTS, DRAWS = 60, 10
SHARES, DIMS = (0.0, 0.1, 0.2, 0.3, 0.4), (10, 100, 1000)
KINDS = {"far": 20.0, "near": 1.0}
"""Distance of the outliers from the mean, in noise norms sqrt(d); they share one point, plus noise of half the size."""

EDGE = "noise edge"


def points(fast: bool) -> list[dict[str, Any]]:
    dims, shares = ((100,), (0.0, 0.2)) if fast else (DIMS, SHARES)
    names = [*CENTRES, EDGE]
    return [
        {"centre": name, "kind": kind, "share": share, "dim": dim}
        for kind in KINDS
        for dim in dims
        for share in shares
        for name in names
        if kind == "far" or share > 0
    ]


def measure(point: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Median over draws of the error of a centre over that of the mean of the good points."""
    ratios = []
    for draw in range(DRAWS):
        first, second, bad = _cloud(point["kind"], point["share"], point["dim"], draw)
        best = float(first[bad:].mean(0).norm())
        ratios.append(float(_centre(point["centre"], first, second).norm()) / best)
    return {"error": median(ratios), "largest": max(ratios)}


def _cloud(kind: str, share: float, dim: int, draw: int) -> tuple[Tensor, Tensor, int]:
    """Halves [n, d] of standard normal noise about zero, and how many of the first rows are outliers."""
    bad = round(share * POINTS)
    first, second = (stream(draw, f"centres {half}").normal(POINTS, dim) for half in ("first", "second"))
    way = stream(draw, "centres way").normal(dim)
    shift = KINDS[kind] * dim**0.5 * way / way.norm()
    for half in (first, second):
        half[:bad] = shift + half[:bad] / 2
    return first, second, bad


def _centre(name: str, first: Tensor, second: Tensor) -> Tensor:
    member = torch.ones(1, len(first), dtype=torch.bool)
    if name == EDGE:
        gram, other, cross = first @ first.T, second @ second.T, first @ second.T
        evidence = Evidence(gram[None], other[None], cross[None], member, member)
        return NoiseEdge().weights(evidence).weights[0] @ first
    rule = CENTRES[name]()
    if isinstance(rule, SetRule):
        return rule.coefficients(VectorStack(first), member)[0] @ first
    return rule.centre(VectorStack(first), member)[0]


_SETTING = f"""{POINTS} points of standard normal noise about zero, of which a share are outliers that share one point, at 20
(far) or 1 (near) times the norm of the noise, with half of its size. Entries: error |centre| over that of the plain mean of the
good points, median over {DRAWS} draws. 1 is as good as an oracle. Each centre has its default parameters; *noise edge* is the
filter of the hardened panel, which also uses second halves to measure the noise. `filtering`, `budget-filter`,
`spectral-solver`, `no-regret`, `trimmed-mean` and `caf` are told a share (0.45, 0.24, 0.4, 1/12, 0.35, 0.35); the others are
told none."""


def page(values: dict[str, Any]) -> str:
    """The page, every number on it from the values."""
    shown = values["points"]
    dims, shares = sorted({point["dim"] for point in shown}), sorted({point["share"] for point in shown})
    lines = [
        "# Robust means of detection",
        "",
        f"`{values['command']}`. Every value: [JSON]({NAME}.json).",
        "",
        paragraph(_SETTING),
        "",
    ]
    for kind in KINDS:
        for dim in dims:
            rows = []
            for name in dict.fromkeys(point["centre"] for point in shown):
                cells = {p["share"]: p["error"] for p in shown if (p["centre"], p["kind"], p["dim"]) == (name, kind, dim)}
                rows.append([name, *(f"{cells[share]:.2f}" if share in cells else "-" for share in shares)])
            lines += [f"## Outliers {kind}, d = {dim}", "", markdown_table(["centre", *(f"{s:.0%}" for s in shares)], rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


STUDY = ComputedStudy(NAME, SHOWS, points, measure, page)
