"""The panel of the hardened detection: tests on the two halves, in order, each of which can be switched off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.core.named_parts import Checked, bounded
from bymi.detection.consistency import alike, inconsistent, too_good
from bymi.detection.direction import shifted
from bymi.detection.evidence import Evidence
from bymi.detection.gross_outliers import absurd, duplicates, repeated
from bymi.detection.heterogeneity import backward, farther, heterogeneity
from bymi.detection.noise_edge import Centre, NoiseEdge
from bymi.detection.reasons import reason_code
from bymi.detection.robust_statistics import median
from bymi.detection.score_test import noise_of, outstanding
from bymi.detection.threshold import threshold

_MANY = 60  # neighbours from which bounds are not widened
_SEVERE = 3.0  # times the bound of a strong score: out of reach of honest noise
_SCALED = ("absurd", "high", "low", "alike", "strong", "weak", "direction", "joint", "far", "far_joint", "backward")
_EDGE = 1.2  # noise edge of the directional test if there is no filter


@dataclass(frozen=True)
class Panel(Checked):
    """Bounds of the tests; None switches a test off. docs/hardened.md explains the order, ADR 0010 the numbers.

    `absurd`: length of the halves over the usual one. `duplicate`: distance to another row over the usual one. `high`, `low`:
    halves that differ by too much or too little, in spreads of the logarithm. `alike`: differences of halves that resemble
    those of others, in spreads. `edge`, `most`: the filter's noise edge and the largest share it may remove; edge None for the
    detector's own centre. `strong`, `weak`: scores in units of noise; strong None for the published threshold. `direction`,
    `joint`: shifts in one direction, alone and together with others, in spreads. `mixed`: degree of heterogeneity
    (heterogeneity.py) from which nodes do not count as alike: there scores of `far` times the median one are flagged, or of
    `far_joint` times with others, in place of the tests on score and direction; and at the probe gradients that point
    `backward`, in spreads. None: nodes are alike. `guard`: share of neighbours above which flags
    are taken for a failure of the estimate. `widen`: bounds grow by widen / n with few neighbours n. `few`: a node with fewer
    neighbours keeps the warm-up rule as its mixing, since it cannot judge them reliably. `dimension_free`: cosines
    and the noise edge in units that do not change with the number of dimensions, ADR 0014. On for plain arrays; off in
    networks, whose bounds were chosen without it.
    """

    absurd: float | None = bounded(1e3, gt=0)
    duplicate: float | None = bounded(1e-3, gt=0)
    high: float | None = bounded(5.0, gt=0)
    low: float | None = bounded(6.0, gt=0)
    alike: float | None = bounded(6.0, gt=0)
    edge: float | None = bounded(1.2, ge=1)
    most: float = bounded(0.49, ge=0, lt=0.5)
    strong: float | None = bounded(8.0, gt=0)
    weak: float = bounded(5.0, gt=0)
    direction: float | None = bounded(4.5, gt=0)
    joint: float = bounded(2.5, gt=0)
    mixed: float | None = bounded(0.05, gt=0, lt=1)
    far: float = bounded(24.0, gt=0)
    far_joint: float = bounded(15.0, gt=0)
    backward: float | None = bounded(3.0, gt=0)
    guard: float | None = bounded(0.5, gt=0)
    widen: float = bounded(10.0, ge=0)
    few: int | None = bounded(15, ge=1)
    dimension_free: bool = False

    def wider(self, neighbours: Tensor) -> Tensor:
        """Factor on all bounds for so many neighbours: medians and spreads of few are inaccurate."""
        return 1 + self.widen * (1 / neighbours.clamp_min(1) - 1 / _MANY).clamp_min(0)

    def times(self, factor: float) -> Panel:
        """A panel with all bounds wider by a factor."""
        grown = {name: factor * value for name in _SCALED if (value := getattr(self, name)) is not None}
        return replace(self, **grown, duplicate=self.duplicate and self.duplicate / factor)

    def bounds(self, wider: float) -> dict[str, float]:
        """Bound of each reason in its own units, with the factor `wider`; infinity for a test that is off."""
        off = math.inf
        strong = (self.strong or off) * wider
        return {
            "absurd": self.absurd or off,
            "inconsistent": (self.high or off) * wider,
            "low": (self.low or off) * wider,
            "too good": (self.low or off) * wider,
            "alike": (self.alike or off) * wider,
            "score": strong,
            "joint score": self.weak * wider,
            "extreme score": strong,
            "direction": (self.direction or off) * wider,
            "joint direction": self.joint * wider,
            "far": self.far * wider,
            "joint far": self.far_joint * wider,
            "backward": (self.backward or off) * wider,
        }


@dataclass(frozen=True, eq=False)
class Findings:
    """Result of the panel: reason codes and statistics [b, n], and what it did to its estimates [b]."""

    code: Tensor  # [b, n] int8
    statistic: Tensor  # [b, n] float64: statistic in spreads or units of noise; the score if kept
    scores: Tensor  # [b, n] float64
    filtered_weight: Tensor  # [b] share of weight that the filter removed
    guard_acted: Tensor  # [b] bool: the guard acted
    weights: Tensor  # [b, n] of the centre
    pull: Tensor  # [b] length of a shift of a neighbour's gradient whose score is at the bound

    @property
    def flagged(self) -> Tensor:
        return self.code != 0


def hear(
    evidence: Evidence,
    panel: Panel,
    *,
    fdr_level: float,
    offset: int,
    centre: SetRule,
    cross_fit: bool,
    answers_differ: bool = False,
) -> Findings:
    """Judge every neighbour: the first test that flags it gives the reason, and flagged rows leave later estimates.

    `answers_differ`: neighbours may tell each receiver something else, so that one can repeat another to have it flagged.
    Copies, and rows alike, then leave the estimates but are not flagged for that alone: their updates decide.
    """
    code = torch.zeros(evidence.valid.shape, dtype=torch.int8, device=evidence.valid.device)
    statistic = torch.zeros_like(evidence.first[:, 0])
    aside = copies = torch.zeros_like(evidence.valid)
    original: Tensor | None = None

    def note(flagged: Tensor, name: str, value: Tensor) -> None:
        new = flagged & (code == 0)
        code.masked_fill_(new, reason_code(name))
        statistic.copy_(torch.where(new, value, statistic))

    if panel.absurd is not None:
        size = absurd(evidence)
        note(evidence.judged & (size > panel.absurd), "absurd", size)

    def inherit() -> None:
        """A copy shares the verdict on the row that it repeats."""
        if original is not None:
            new = copies & (code == 0)
            statistic.copy_(torch.where(new, statistic.gather(1, original), statistic))
            code.copy_(torch.where(new, code.gather(1, original), code))

    if panel.duplicate is not None and answers_differ:
        copies, original, flagged = repeated(evidence.without(code != 0), panel.duplicate)
        note(flagged, "duplicate", torch.zeros_like(statistic))
        aside = copies
    elif panel.duplicate is not None:
        flagged, z = duplicates(evidence.without(code != 0), panel.duplicate)
        note(flagged, "duplicate", z)
    screened = evidence.without((code != 0) | aside)
    wider = panel.wider(screened.count)
    high, low = (wider * (torch.inf if bound is None else bound) for bound in (panel.high, panel.low))
    flagged, z = inconsistent(screened, high, low)
    note(flagged, "inconsistent", z)
    if panel.alike is not None:
        flagged, z = alike(evidence.without((code != 0) | aside), panel.alike * wider)
        if answers_differ:
            aside = aside | flagged
        else:
            note(flagged, "alike", z)
    middle = _centre(evidence.without((code != 0) | aside), panel, centre)
    flagged, z = too_good(evidence.without((code != 0) | aside), middle.weights, low)
    if bool(flagged.any()):
        note(flagged, "too good", z)
        middle = _centre(evidence.without((code != 0) | aside), panel, centre)
    inherit()

    # From here on evidence is soft: it depends on the centre.
    hard, remaining = code.clone(), evidence.without((code != 0) | aside)
    wider = panel.wider(remaining.count)
    degree, weights = torch.zeros_like(wider), middle.weights
    if panel.mixed is not None:
        degree, weights = heterogeneity(remaining, middle.weights, panel.mixed)
    different = torch.zeros_like(degree, dtype=torch.bool) if panel.mixed is None else degree > panel.mixed
    scores, lengths = remaining.scores(weights, cross_fit=cross_fit), remaining.lengths(weights)
    if panel.strong is None:
        limit = threshold(torch.where(remaining.judged, scores, 0.0), remaining.judged, fdr_level=fdr_level, offset=offset)
        units, bound, unit = scores, limit[:, None], torch.ones_like(wider)
        flagged = remaining.judged & (scores >= bound)
    else:
        bound, weak, unit = panel.strong * wider, panel.weak * wider, noise_of(scores, remaining.judged)
        enough = weak if panel.dimension_free else None
        flagged, units = outstanding(
            scores, lengths, remaining.judged, fdr_level=fdr_level, strong=bound, weak=weak, enough=enough
        )
        note(flagged & ~different & (units >= _SEVERE * bound), "extreme score", units)
    note(flagged & ~different, "score", units)
    if bool(different.any()):
        far, spreads = farther(scores, lengths, remaining.judged, panel.far * wider, panel.far_joint * wider)
        bound = torch.where(different, panel.far * wider, bound)
        unit = torch.where(different, median(scores, remaining.judged), unit)
        units = torch.where(different, spreads, units)
        note(far & different & (units >= _SEVERE * bound), "extreme score", units)
        note(far & different, "far", units)
        if panel.backward is not None and evidence.zero is not None:
            flagged, z = backward(evidence, remaining.judged, weights, panel.backward * wider)
            note(flagged & different, "backward", z)
    if panel.direction is not None:
        # Alike nodes only: where data differ a little, bounds are wider, and where they differ by more, there is no test.
        stretch = 1.0 if panel.mixed is None else 1 / (1 - degree.clamp_min(0.0) / panel.mixed).clamp_min(0.0)
        strong, weak = panel.direction * wider * stretch, panel.joint * wider * stretch
        middle = replace(middle, stretched=middle.stretched & ~different.squeeze(1))
        # Without rows of extreme score, which would raise the number of flags that the rate allows. Half the level, since the
        # direction was selected for its variance.
        without_extreme = remaining.without(code == reason_code("extreme score"))
        if panel.dimension_free:  # with more dimensions than rows, fewer rows have a larger noise edge
            middle = replace(middle, noise=NoiseEdge().noise(without_extreme))
        flagged, z = shifted(
            without_extreme, middle, edge=panel.edge or _EDGE, strong=strong, weak=weak, fdr_level=fdr_level / 2
        )
        note(flagged, "direction", z)
    inherit()
    guard_acted = torch.zeros(len(code), dtype=torch.bool, device=code.device)
    if panel.guard is not None:
        code, guard_acted = _guard(code, hard, screened, remaining, panel.guard)
    statistic = torch.where((code == 0) & remaining.judged, units, statistic)
    scores, pull = torch.where(evidence.judged, scores, torch.nan), (bound * unit).clamp_min(0.0).sqrt().squeeze(1)
    return Findings(code, statistic, scores, middle.filtered_weight, guard_acted, weights, pull)


def _centre(evidence: Evidence, panel: Panel, rule: SetRule) -> Centre:
    """The centre by the noise edge or, without it, by the detector's rule; noise and stretch are measured in both cases."""
    if panel.edge is not None:
        return NoiseEdge(panel.edge, panel.most).weights(evidence)
    return replace(NoiseEdge(_EDGE, 0.0).weights(evidence), weights=rule.weights(evidence.first, evidence.valid))


def _guard(code: Tensor, hard: Tensor, before: Evidence, left: Evidence, share: float) -> tuple[Tensor, Tensor]:
    """Reason codes after the guard, and whether it acted [b].

    A receiver with an honest majority is never right to flag a majority: its estimate has failed. Soft evidence is dropped if
    it is against more than `share` of the rows `left` by the screen, and the screen's own comparisons if they are against more
    than that of the rows `before` it.
    """
    soft = (code != 0) & (hard == 0)
    failed = soft.sum(1) > share * left.judged.sum(1)
    by_screen = (hard != 0) & before.judged
    worse = by_screen.sum(1) > share * before.judged.sum(1)
    dropped = (soft & (failed | worse)[:, None]) | (by_screen & worse[:, None])
    return torch.where(dropped, torch.zeros_like(code), code), failed | worse
