"""The verdict on machines whose half gradients are given as arrays: flags, reasons and statistics, as values and as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Profile = Literal["hardened", "published"]

NOT_FINITE, TOO_LARGE = "not finite", "too large"
"""Reasons for machines whose vectors cannot be compared."""

_LEAST_P = 1e-12  # smaller tails are printed as "< 1e-12"
_LONG = 1e6  # statistics from here on are printed with a power of ten

_SENTENCES = {
    "score": "both halves shifted the same way: {value} noise units, bound {bound:.1f} alone or {joint:.1f} with others",
    "extreme score": "both halves shifted the same way: {value} noise units, bound {bound:.1f}",
    "direction": "shifted by {value} spreads along one direction, bound {bound:.1f} alone or {joint:.1f} with others",
    "inconsistent": "its two halves differ {more} than usual: {value} spreads, bound {bound:.1f}",
    "alike": "difference of its halves resembles that of other machines: {value} spreads, bound {bound:.1f}",
    "too good": "closer to the centre than noise allows: {value} spreads, bound {bound:.1f}",
    "absurd": "{value} times as long as usual, bound {bound:g}",
    "duplicate": "a copy of another machine, as several others are",
    NOT_FINITE: "NaN or Inf",
    TOO_LARGE: "a norm above 1e+100",
}


@dataclass(frozen=True, eq=False)
class ArrayVerdict:
    """Which of n machines were flagged, and why. Row j of every tensor belongs to machine j.

    `noise_units`: scores over the estimated standard deviation of honest scores. `p`: approximate probability of so large a
    statistic for an honest machine, see `student_tail`. `borderline`: machines with another verdict if bounds were 20 % smaller
    or 25 % larger; in the published profile, flagged machines below 1.25 times the largest absolute score under the threshold
    and kept ones from 0.8 times the threshold on. `smallest_shift`: norm of the shift of one machine's mean whose score is at
    the bound, but for noise: such a machine is flagged about half of the time or less. Compare it with `noise_norm`, the usual
    norm of the noise of one half.
    """

    names: tuple[str, ...]
    flagged: Tensor  # [n] bool
    reasons: tuple[str, ...]  # "kept", or the test that flagged the machine
    scores: Tensor  # [n] float64, NaN where not judged
    noise_units: Tensor  # [n] float64
    statistic: Tensor  # [n] float64: statistic of the test that flagged it; noise units if kept
    p: Tensor  # [n] float64, NaN for reasons without a tail
    borderline: Tensor  # [n] bool
    threshold: Tensor  # [] float64: score from which a machine alone is flagged, +inf if none qualifies
    profile: Profile
    fdr_level: float
    dim: int
    noise_norm: float
    smallest_shift: float
    effective_dim: float
    offset: int | None = None  # this and the next: published profile only
    cross_fit: bool | None = None
    bounds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was done with the input; nothing to worry about

    @property
    def title(self) -> str:
        """The verdict in one line."""
        how = f"hardened, level {self.fdr_level:g}"
        if self.profile == "published":
            limit = float(self.threshold)
            fit = "cross-fitted" if self.cross_fit else "not cross-fitted"
            reached = f"threshold {limit:.4g}" if math.isfinite(limit) else "no threshold qualifies"
            how = f"published, level {self.fdr_level:g}, offset {self.offset}, {fit}; {reached}"
        return f"{int(self.flagged.sum())} of {len(self.names)} machines flagged in {self.dim} dimensions ({how})"

    @property
    def resolution(self) -> str:
        """The shift of one machine whose score is at the bound, in one line; the frequencies are of normal noise, simulated."""
        noise = f"the noise of one half has norm {self.noise_norm:.3g}"
        if self.profile == "published" and not math.isfinite(self.smallest_shift):
            return f"No score here qualifies as a threshold; {noise}."
        if not math.isfinite(self.smallest_shift):
            return f"No shift of one machine alone would be flagged with so few machines or dimensions; {noise}."
        if self.profile == "published":
            return f"A shift of norm {self.smallest_shift:.3g} scores about as much as this threshold needs; {noise}."
        half = f"A shift of norm {self.smallest_shift:.3g} of one machine alone is flagged about half of the time or less"
        return f"{half}, one of 1.4 times that nearly always; {noise}."

    @property
    def order(self) -> list[int]:
        """Rows in the order of a report: flagged ones first, then by descending noise units."""
        units = self.noise_units.nan_to_num(math.inf).tolist()
        flagged = self.flagged.tolist()
        return sorted(range(len(self.names)), key=lambda row: (not flagged[row], -units[row], row))

    def explain(self, row: int) -> str:
        """Why a machine was flagged, as a sentence with its statistics; empty for a kept one."""
        reason, value = self.reasons[row], float(self.statistic[row])
        if reason == "kept":
            return ""
        if self.profile == "published" and reason == "score":
            return f"score {float(self.scores[row]):.4g}, threshold {float(self.threshold):.4g}"
        bound = self.bounds.get("low" if reason == "inconsistent" and value < 0 else reason, math.nan)
        more = "less" if value < 0 else "more"
        return _SENTENCES[reason].format(
            value=_units(abs(value)), bound=bound, joint=self.bounds.get(f"joint {reason}", math.nan), more=more
        )

    def rows(self, *, flagged_only: bool = False) -> list[dict[str, Any]]:
        """One plain dictionary per machine, in the order of `order`; None where a statistic does not apply."""
        return [
            {
                "machine": self.names[row],
                "row": row,
                "verdict": "flagged" if bool(self.flagged[row]) else "kept",
                "borderline": bool(self.borderline[row]),
                "reason": None if self.reasons[row] == "kept" else self.reasons[row],
                "explanation": self.explain(row),
                "score": _number(self.scores[row]),
                "noise_units": _number(self.noise_units[row]),
                "statistic": _number(self.statistic[row]),
                "p": _number(self.p[row]),
            }
            for row in self.order
            if bool(self.flagged[row]) or not flagged_only
        ]

    def table(self, *, flagged_only: bool = False, advice: Sequence[str] = (), width: int | None = None) -> str:
        """The verdict as plain text: warnings, notes and advice first, then one line per machine.

        `width`: characters that a line may have. Where that is too few for a machine, it has several lines.
        """
        lines = [["machine", "verdict", "noise units", "p", "reason"]]
        for row in self.rows(flagged_only=flagged_only):
            verdict = f"{row['verdict']}{' (borderline)' if row['borderline'] else ''}"
            units = "-" if row["noise_units"] is None else _units(row["noise_units"])
            lines.append([row["machine"], verdict, units, _tail(row["p"]), _why(row)])
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        body = []
        for machine, verdict, units, tail, reason in lines:
            figures = f"{units:>{widths[2]}}  {tail:>{widths[3]}}"
            body.append(f"{machine:<{widths[0]}}  {verdict:<{widths[1]}}  {figures}  {reason}".rstrip())
        said = {"Warning": self.warnings, "Note": self.notes, "Advice": advice}
        remarks = [f"{kind}: {text}" for kind, texts in said.items() for text in texts]
        if width is not None and max(map(len, body)) > width:
            body = [line for row in lines[1:] for line in _block(row, width)]
            before, after = [*remarks, self.title], [self.resolution]
            return "\n".join([*_wrapped(before, width), *body, *_wrapped(after, width)])
        return "\n".join([*remarks, self.title, *body, self.resolution])


def student_tail(value: Tensor, freedom: float) -> Tensor:
    """Probability that a Student t variable with `freedom` degrees of freedom exceeds each value [n].

    With x = sqrt(freedom) / tan(phi) the tail is an integral of sin(phi)^(freedom - 1) from 0 to phi0, smooth and positive: 200
    Gauss-Legendre nodes give small tails to a few digits.
    """
    size = math.sqrt(freedom)
    end = torch.atan2(torch.full_like(value, size), value.abs())
    nodes, weights = (torch.from_numpy(part).to(value) for part in np.polynomial.legendre.leggauss(200))
    # Powers and constant as logarithms: both overflow float64 for many degrees of freedom.
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    phi = end[:, None] * (nodes + 1) / 2
    inside = torch.exp((freedom - 1) * phi.sin().log() + constant)
    tail = end / 2 * (inside @ weights)
    return torch.where(value >= 0, tail, 1 - tail)


def _number(value: Tensor) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


def _units(value: float) -> str:
    return f"{value:.1f}" if abs(value) < _LONG else f"{value:.3g}"


def _tail(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.1g}" if p >= _LEAST_P else f"< {_LEAST_P:.0e}"


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, width)]


def _block(row: Sequence[str], width: int) -> list[str]:
    """Lines of one machine: verdict and figures, then the reason."""
    machine, verdict, units, tail, reason = row
    figures = f"{machine}  {verdict}   noise units {units}   p {tail}"
    return [figures, *textwrap.wrap(reason, width, initial_indent="  ", subsequent_indent="  ")]


def _why(row: dict[str, Any]) -> str:
    return f"{row['reason']}: {row['explanation']}" if row["reason"] else ""
