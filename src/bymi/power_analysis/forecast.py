"""Forecast of a detection: every rule in ideal neighbourhoods without, with far and with near Byzantine nodes, by degree."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bymi.distributed.device_and_thread_settings import one_thread
from bymi.power_analysis.ideal_neighbourhoods import JUDGES, Judge, Row, Ways, draw, found, rates
from bymi.power_analysis.network_setting import Setting

FAR = 30.0  # sigma / sqrt(N): three times what a score needs
SHIFTS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20)  # sigma / sqrt(N), each tried
SURE = 0.95
MOST_LOST_WITHOUT, MOST_LOST = 0.01, 0.05  # honest edges: what is required without Byzantine nodes, and with them
RARE = 0.001  # share of nodes that may have more Byzantine neighbours than any rule can handle

_DEGREES = (5, 10, 15, 20, 30, 40, 60, 80, 120)
_NEIGHBOURS, _BYZANTINE = 9_000, 120  # simulated per set of neighbourhoods, and at each shift
_FEWEST, _MOST = 60, 400  # receivers per set of neighbourhoods
_FEWEST_NEAR, _MOST_NEAR = 6, 30  # receivers per shift


@dataclass(frozen=True)
class Forecast:
    """What each rule reaches, how often no rule can work, and which degree suffices. Shares, not percent."""

    question: Setting
    rows: tuple[Row, ...]
    outnumbered: float  # honest nodes with more Byzantine than honest neighbours
    overwhelmed: float  # honest nodes with more Byzantine neighbours than the filter may remove
    anywhere: float  # probability that some honest node is overwhelmed
    enough: int | None  # the smallest degree tried at which the hardened rule does what is required
    bearable: float  # the largest ratio (in steps of 0.01) at which overwhelmed nodes are rare at this degree

    @property
    def hardened(self) -> Row:
        return self.rows[-1]

    @property
    def does(self) -> bool:
        """Whether the hardened rule does what is required at this degree."""
        return _does(self.hardened)


def forecast(question: Setting, *, seed: int = 0) -> Forecast:
    """Simulate a setting, in a second or two: what a degree and a ratio allow, not what heavy-tailed data will do."""
    with one_thread(), torch.no_grad():
        rows = _rows(question, JUDGES, seed, near=question.byzantine > 0)
        enough = _enough(question, rows[-1], seed)
    overwhelmed = question.overwhelmed()
    anywhere = question.anywhere(overwhelmed)
    return Forecast(question, rows, question.outnumbered(), overwhelmed, anywhere, enough, _bearable(question))


def _rows(question: Setting, judges: Sequence[Judge], seed: int, *, near: bool) -> tuple[Row, ...]:
    """What each rule reaches in the same neighbourhoods; `near`: also the smallest shift it finds, twice the time."""
    level, receivers = question.fdr_level, max(_FEWEST, min(_MOST, _NEIGHBOURS // question.degree))
    calm = draw(replace(question, ratio=0.0), receivers, 0.0, seed=seed)
    far = draw(question, receivers, FAR, seed=seed)
    # All shifts at once, each on its own receivers.
    each = max(_FEWEST_NEAR, min(_MOST_NEAR, math.ceil(_BYZANTINE / max(1.0, question.ratio * question.degree))))
    shifts = torch.tensor(SHIFTS, dtype=torch.float64).repeat_interleave(each)
    ways: tuple[Ways, ...] = ("apart", "together") if near else ()
    clouds = [draw(question, len(shifts), shifts, ways=way, seed=seed) for way in ways]
    rows = []
    for judge in judges:
        wrong_without, fdp_without, _ = rates(calm, judge.flag(calm, level))
        wrong, fdp, sure = rates(far, judge.flag(far, level))
        lost_without, lost = (min(1.0, judge.looks * share) for share in (wrong_without, wrong))
        least = [_smallest(found(cloud, judge.flag(cloud, level), len(SHIFTS)).tolist()) for cloud in clouds] or [None, None]
        rows.append(Row(judge.name, lost_without, fdp_without, lost, fdp, sure, *least))
    return tuple(rows)


def _smallest(shares: Sequence[float]) -> float | None:
    """The smallest of SHIFTS at which a share SURE of the Byzantine nodes is found."""
    return next((float(shift) for shift, share in zip(SHIFTS, rising(shares), strict=True) if share >= SURE), None)


def rising(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence (least squares), against the noise of few cases per shift.

    >>> rising([0.5, 1.0, 0.5, 1.0])
    [0.5, 0.75, 0.75, 1.0]
    """
    means = {(i, k): sum(values[i : k + 1]) / (k + 1 - i) for i in range(len(values)) for k in range(i, len(values))}
    places = range(len(values))
    return [max(min(means[i, k] for k in places[at:]) for i in places[: at + 1]) for at in places]


def _does(row: Row) -> bool:
    return row.lost_without <= MOST_LOST_WITHOUT and row.lost <= MOST_LOST and row.sure >= SURE


def _enough(question: Setting, current: Row, seed: int) -> int | None:
    """The smallest degree that suffices, by bisection: below this one if it suffices, else above."""
    suffices = _does(current)
    tried = [
        degree for degree in _DEGREES if (degree < question.degree if suffices else question.degree < degree < question.nodes)
    ]

    def does(place: int) -> bool:
        other = replace(question, degree=tried[place])
        return _does(_rows(other, JUDGES[-1:], seed, near=False)[0])

    first = bisect_left(range(len(tried)), True, key=does)
    if first < len(tried):
        return tried[first]
    return question.degree if suffices else None


def _bearable(question: Setting) -> float:
    percent = bisect_left(range(50), True, key=lambda each: replace(question, ratio=each / 100).overwhelmed() > RARE)
    return max(0, percent - 1) / 100
