"""The panel of the hardened detection: tests on the two halves, each of which can be switched off, and their order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.aggregation.base import SetRule
from bymi.core.linalg import ascending_among
from bymi.detection.detection_settings import Panel
from bymi.detection.duplicates import duplicates, repeats
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.noise_bounded_mean import Centre, NoiseEdge
from bymi.detection.published_score import threshold
from bymi.detection.robust_statistics import deviation, directions, log, median, robust_z, spread, uniform
from bymi.detection.verdict import CODES

_SEVERE = 3.0  # times the bound of a strong score: out of reach of honest noise
_EDGE = 1.2  # noise edge of the directional test if there is no filter


@dataclass(frozen=True, eq=False)
class Findings:
    """Result of the panel: reason codes, statistics and bounds [b, n], and what it did to its estimates [b]."""

    code: Tensor  # [b, n] int8
    statistic: Tensor  # [b, n] float64: statistic in spreads or units of noise; the score if kept
    scores: Tensor  # [b, n] float64
    filtered_weight: Tensor  # [b] share of weight that the filter removed
    guard_acted: Tensor  # [b] bool: the guard acted
    weights: Tensor  # [b, n] of the centre
    pull: Tensor  # [b] length of a shift of a neighbour's gradient whose score is at the bound
    degree: Tensor  # [b, 1] of heterogeneity
    bound: Tensor  # [b, n] float64: bound of the statistic, negative where too little counts; NaN for none

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
    known_degree: Tensor | None = None,
) -> Findings:
    """Judge every neighbour: the first test that flags it gives the reason, and flagged rows leave later estimates.

    `known_degree` [b, 1]: degree of heterogeneity at another point, which counts where it is the larger one. Data that differ
    do so at every point, but gradients at a trained model may be too short to show it.

    `answers_differ`: neighbours may tell each receiver something else, so that one can repeat another to have it flagged.
    Copies, and rows alike, then leave the estimates but are not flagged for that alone: their updates decide.
    """
    code = torch.zeros(evidence.valid.shape, dtype=torch.int8, device=evidence.valid.device)
    statistic = torch.zeros_like(evidence.first[:, 0])
    bounds = torch.full_like(statistic, torch.nan)
    aside = copies = torch.zeros_like(evidence.valid)
    original: Tensor | None = None

    def note(flagged: Tensor, name: str, value: Tensor, bound: Tensor | float, together: Tensor | None = None) -> None:
        """Flags of a test, with the bound that counted: the lower one, `together`, where only that was reached."""
        new = flagged & (code == 0)
        code.masked_fill_(new, CODES[name])
        statistic.copy_(torch.where(new, value, statistic))
        bound = bound if together is None else torch.where(value >= bound, bound, together)
        bounds.copy_(torch.where(new, bound, bounds))

    if panel.absurd is not None:
        size = absurd(evidence)
        note(evidence.judged & (size > panel.absurd), "absurd", size, panel.absurd)

    def inherit() -> None:
        """A copy shares the verdict on the row that it repeats."""
        if original is not None:
            new = copies & (code == 0)
            for values in (statistic, bounds):
                values.copy_(torch.where(new, values.gather(1, original), values))
            code.copy_(torch.where(new, code.gather(1, original), code))

    if panel.duplicate is not None and answers_differ:
        left = evidence.without(code != 0)
        copies, original = repeats((left.first, left.second), left.valid, left.judged, panel.duplicate)
        aside, of_own = copies, copies & ~left.judged.gather(1, original)
        note(of_own, "duplicate", torch.zeros_like(statistic), torch.nan)
    elif panel.duplicate is not None:
        flagged, z = duplicates(evidence.without(code != 0), panel.duplicate)
        note(flagged, "duplicate", z, panel.duplicate)
    screened = evidence.without((code != 0) | aside)
    wider = panel.wider(screened.count)
    high, low = (wider * (torch.inf if bound is None else bound) for bound in (panel.high, panel.low))
    flagged, z = inconsistent(screened, high, low)
    note(flagged, "inconsistent", z, torch.where(z > 0, high, -low))
    if panel.alike is not None:
        flagged, z = alike(evidence.without((code != 0) | aside), panel.alike * wider)
        if answers_differ:
            aside = aside | flagged
        else:
            note(flagged, "alike", z, panel.alike * wider)
    middle = _centre(evidence.without((code != 0) | aside), panel, centre)
    flagged, z = too_good(evidence.without((code != 0) | aside), middle.weights, low)
    if bool(flagged.any()):
        note(flagged, "too good", z, -low)
        middle = _centre(evidence.without((code != 0) | aside), panel, centre)
    inherit()

    # From here on evidence is soft: it depends on the centre.
    hard, remaining = code.clone(), evidence.without((code != 0) | aside)
    wider = panel.wider(remaining.count)
    degree, weights = torch.zeros_like(wider), middle.weights
    if panel.mixed is not None:
        degree, weights = heterogeneity(remaining, middle.weights, panel.mixed, known_degree)
    different = torch.zeros_like(degree, dtype=torch.bool) if panel.mixed is None else degree > panel.mixed
    scores, lengths = remaining.scores(weights, cross_fit=cross_fit), remaining.lengths(weights)
    if panel.strong is None:
        limit = threshold(torch.where(remaining.judged, scores, 0.0), remaining.judged, fdr_level=fdr_level, offset=offset)
        units, bound, weak, unit = scores, limit[:, None], limit[:, None], torch.ones_like(wider)
        flagged = remaining.judged & (scores >= bound)
    else:
        bound, weak, unit = panel.strong * wider, panel.weak * wider, noise_of(scores, remaining.judged)
        enough = weak if panel.dimension_free else None
        flagged, units = outstanding(
            scores, lengths, remaining.judged, fdr_level=fdr_level, strong=bound, weak=weak, enough=enough
        )
        note(flagged & ~different & (units >= _SEVERE * bound), "extreme score", units, bound)
    note(flagged & ~different, "score", units, bound, weak)
    if bool(different.any()):
        usual = usual_distance(scores, remaining.judged, (panel.strong or 0.0) / panel.far)
        far = farther(scores, lengths, remaining.judged, usual, panel.far * wider, panel.far_joint * wider)
        bound, unit = torch.where(different, panel.far * wider, bound), torch.where(different, usual, unit)
        units = torch.where(different, scores / usual, units)
        note(far & different & (units >= _SEVERE * bound), "extreme score", units, bound)
        note(far & different, "far", units, bound, panel.far_joint * wider)
    if panel.direction is not None:
        # Alike nodes only: where data differ a little, bounds are wider, and where they differ by more, there is no test.
        stretch = 1.0 if panel.mixed is None else 1 / (1 - degree.clamp_min(0.0) / panel.mixed).clamp_min(0.0)
        strong, weak = panel.direction * wider * stretch, panel.joint * wider * stretch
        middle = replace(middle, stretched=middle.stretched & ~different.squeeze(1))
        # Without rows of extreme score, which would raise the number of flags that the rate allows. Half the level, since the
        # direction was selected for its variance.
        without_extreme = remaining.without(code == CODES["extreme score"])
        if panel.dimension_free:  # with more dimensions than rows, fewer rows have a larger noise edge
            middle = replace(middle, noise=NoiseEdge().noise(without_extreme))
        flagged, z = shifted(
            without_extreme, middle, edge=panel.edge or _EDGE, strong=strong, weak=weak, fdr_level=fdr_level / 2
        )
        note(flagged, "direction", z, strong, weak)
    inherit()
    guard_acted = torch.zeros(len(code), dtype=torch.bool, device=code.device)
    if panel.guard is not None:
        code, guard_acted = _guard(code, hard, screened, remaining, panel.guard)
    kept = (code == 0) & remaining.judged
    statistic, bounds = torch.where(kept, units, statistic), torch.where(kept, bound, bounds)
    scores, pull = torch.where(evidence.judged, scores, torch.nan), (bound * unit).clamp_min(0.0).sqrt().squeeze(1)
    return Findings(code, statistic, scores, middle.filtered_weight, guard_acted, weights, pull, degree, bounds)


def absurd(evidence: Evidence) -> Tensor:
    """|x1| + |x2| per row as a multiple of the neighbourhood's median [b, n], about a central point."""
    lengths = sum(p.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt() for p in (evidence.first, evidence.second))
    assert isinstance(lengths, Tensor)
    return lengths / median(lengths, evidence.valid)


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


_TINY = torch.finfo(torch.float64).tiny
# Tests before scoring: two halves of one honest sample differ by noise of the usual size, neither more nor less.

_MOST_ALIKE, _EXCESS = 0.5, 2.5  # so at least six copies
_LEAST = math.log(2.5)  # differences within a factor of 2.5 of the usual are not flagged
_PASSES = 3  # flagged rows leave the estimate, after which others may stand out


def inconsistent(evidence: Evidence, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose halves differ too much or too little [b, n], and their signed robust z [b, n].

    A two-sided test on log |x1 - x2|^2. Large: halves in opposite directions, which inflate the count of negative scores.
    Small: a mean over many nodes in place of one node's noise, as inner product manipulation and ALIE send it. `high` and `low`
    [b, 1] are the bounds.
    """
    return _screen(evidence, log(evidence.difference2), high, low)


def too_good(evidence: Evidence, weights: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows too close to the centre [b, n] to be the mean of an honest sample, and their robust z [b, n]."""
    nearest = [evidence.about(weights, half, half) for half in (0, 1)]
    return _screen(evidence, log(torch.minimum(*nearest)), torch.full_like(low, torch.inf), low)


def alike(evidence: Evidence, high: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose x1 - x2 resembles that of others [b, n], and their robust z [b, n].

    Noise of different nodes is independent; colluding nodes share it, even where their halves point apart and no score reveals
    them. The statistic is the sum of squared cosines with all others, each at most `_MOST_ALIKE`, and must exceed the median by
    `_EXCESS`: a few Byzantine nodes that copy the difference of an honest node must not get it flagged with them.
    """
    products = evidence.difference  # a new tensor, which may be overwritten
    # Roots first: for equal halves, or padding, a product of squares would underflow to zero.
    length = products.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt()
    square = products.div_(length[:, :, None] * length[:, None, :]).square_().clamp_max_(_MOST_ALIKE)
    flagged = torch.zeros_like(evidence.valid)
    z = torch.zeros_like(length)
    for _ in range(_PASSES):
        remaining = evidence.valid & ~flagged
        kinship = (square @ remaining.to(square)[:, :, None]).squeeze(2) - square.diagonal(dim1=1, dim2=2) * remaining
        z = robust_z(kinship, remaining)
        new = evidence.judged & (z > high) & (kinship - median(kinship, remaining) > _EXCESS) & ~flagged
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


def _screen(evidence: Evidence, values: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Rows beyond the bounds and beyond `_LEAST`, and their robust z.

    Without `_LEAST`, Byzantine nodes with one common difference could make every honest node stand out: a group at one value
    near the median leaves almost no spread, and with each honest node flagged it comes closer to a majority.
    """
    flagged = torch.zeros_like(evidence.valid)
    for _ in range(_PASSES):
        remaining = evidence.valid & ~flagged
        difference = values - median(values, remaining)
        z = difference / deviation(difference, remaining)
        new = evidence.judged & (((z > high) & (difference > _LEAST)) | ((z < -low) & (difference < -_LEAST))) & ~flagged
        if not bool(new.any()):
            return flagged, z
        flagged = flagged | new
    return flagged, robust_z(values, evidence.valid & ~flagged)


# Honest nodes whose data differ: how much they do, and tests in units of the spread between nodes instead of noise.
# Model: half gradients of node j are x_j = mu + b_j + noise, with b_j the same in both halves. For alike nodes b_j = 0.

_QUANTILE = 0.3  # with 40 % of Byzantine rows above it, it is the median of the honest ones
_ERRORS = 2.0
_LEAST_COSINE = 0.4  # below it a shift is smaller than the noise
_CROWD, _CROWD_SHARE = 4, 0.08  # rows, and share of all, that make a crowd
_MIDDLE = GeometricMedian(iterations=100, tolerance=1e-9)


def heterogeneity(evidence: Evidence, weights: Tensor, mixed: float, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Degree of heterogeneity [b, 1], and weights [b, n] of the centre: `weights` [b, n], or a geometric median.

    The degree is the 30 % quantile over nodes of the cosine of x1 - c1 and x2 - c2, which estimates |b|^2 / (|b|^2 +
    |noise|^2), minus twice its error: zero or less for alike nodes, up to 1. It is the smaller of those about the centre of
    `weights` and about the geometric median, which is the centre where the degree exceeds `mixed`: a noise edge does not exist
    there. A `known` degree [b, 1] counts where it is larger.
    """
    degree = _quantile(evidence.cosines(weights), evidence.valid)
    known = degree.clamp_max(0.0) if known is None else known
    active = (torch.maximum(degree, known) > 0).squeeze(1).nonzero().flatten()
    if len(active):
        part = evidence.of(active)
        middle = _MIDDLE.weights(part.first, part.valid)
        both = torch.minimum(degree[active], _quantile(part.cosines(middle), part.valid))
        both = torch.maximum(both, known[active])
        degree = degree.index_copy(0, active, both)
        weights = weights.index_copy(0, active, torch.where(both > mixed, middle, weights[active]))
    return degree, weights


def _quantile(values: Tensor, among: Tensor) -> Tensor:
    """The lower 30 % quantile minus twice its error [b, 1]; 0 for a row without any."""
    ordered, count = ascending_among(values, among)
    at = (_QUANTILE * (count - 1)).floor().long().clamp_min(0)
    return torch.where(count > 0, ordered.gather(1, at) - _ERRORS * spread(values, among) / count.clamp_min(1).sqrt(), 0.0)


def usual_distance(scores: Tensor, judged: Tensor, noise_share: float) -> Tensor:
    """Unit of scores where data differ [b, 1]: the median score, which estimates the usual |b|^2, or a share of their noise.

    At a trained model gradients are short, and the median score can be near zero. With the share strong / far as the least
    unit, no bound is below that of alike nodes.
    """
    noise = noise_of(scores, judged).nan_to_num(0.0)
    return torch.maximum(median(scores, judged), noise_share * noise).clamp_min(_TINY)


def farther(scores: Tensor, lengths: Tensor, judged: Tensor, unit: Tensor, alone: Tensor, together: Tensor) -> Tensor:
    """Rows to flag [b, n]: scores of `alone` units [b, 1], and of `together` units if a crowd has them.

    Both halves must point the same way, by a cosine for vectors of these `lengths` |x1 - c1| |x2 - c2| [b, n].
    """
    far = judged & (scores >= _LEAST_COSINE * lengths)
    joint = far & (scores >= together * unit)
    return far & (scores >= alone * unit) | joint & _crowd(joint, judged)


def _crowd(rows: Tensor, judged: Tensor) -> Tensor:
    """Whether so many rows are a crowd [b, 1]."""
    least = (_CROWD_SHARE * judged.sum(1, keepdim=True)).clamp_min(_CROWD)
    return rows.sum(1, keepdim=True) >= least


# The test on scores: strong outliers by themselves, weaker ones as far as the false discovery rate allows.

_FLOOR = 0.7  # least noise, as a share of that of all scores
_BOLD = 2.5  # times the usual cosine of two honest halves


def noise_of(scores: Tensor, judged: Tensor) -> Tensor:
    """Usual size of an honest score [b, 1], from the negative ones, which Byzantine nodes gain nothing by. NaN without any.

    At least `_FLOOR` of that of all scores, or tiny negative scores of Byzantine nodes would make every honest score look
    large.
    """
    negative = median(scores.abs(), judged & (scores < 0))
    return 1.4826 * torch.maximum(negative, _FLOOR * median(scores.abs(), judged))


def least_cosine(usual: Tensor, enough: Tensor | None) -> Tensor:
    """Cosine of two halves that a score needs [b, 1], from the `usual` one [b, 1]."""
    least = (_BOLD * usual).clamp_min(_LEAST_COSINE)
    return least if enough is None else torch.minimum(least, enough * usual)


def outstanding(
    scores: Tensor,
    lengths: Tensor,
    judged: Tensor,
    *,
    fdr_level: float,
    strong: Tensor,
    weak: Tensor,
    enough: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and each score in units of noise [b, n].

    Flagged: scores of `strong` [b, 1] units; and of `weak` units if they also pass the threshold with offset 1, which alone
    would flag honest nodes in every clean neighbourhood, and none where few are Byzantine. Paper: eq:thold.

    A score must also be large for vectors of its `lengths` |x1 - c1| |x2 - c2| [b, n]: late in training one hard sample makes
    an honest node's gradient many times longer than usual, and its score large with either sign, but its halves no more alike.
    That is a cosine of `_LEAST_COSINE` and of `_BOLD` times the usual one, or of `enough` [b, 1] times the usual one, if that
    is less: in d dimensions usual cosines are about 1 / sqrt(d), and shifts of many noise units have cosines below
    `_LEAST_COSINE`.
    """
    units = scores / noise_of(scores, judged)
    cosines = scores / lengths.clamp_min(_TINY)
    usual = noise_of(cosines, judged)
    bold = cosines >= least_cosine(usual, enough)
    limit = threshold(torch.where(judged, scores, 0.0), judged, fdr_level=fdr_level, offset=1)
    passed = (units >= strong) | ((units >= weak) & (scores >= limit[:, None]))
    return judged & passed & bold, units


# The test against many small shifts in one direction, each too small for its own score.

_DIRECTIONS = 3
_NOTHING = 1e-12  # of a direction's variance: with less noise, z is undefined


def shifted(
    evidence: Evidence, centre: Centre, *, edge: float, strong: Tensor, weak: Tensor, fdr_level: float
) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and the largest |z| of each over the tested directions [b, n].

    Colluding nodes stretch the cloud: the directions u are the top eigenvectors of a half's covariance whose variance exceeds
    `edge` times that of noise. Each half is projected on the direction found on the other, so that a row's noise does not shape
    its own direction. z is the mean of both projections over the spread of half their difference, which is noise alone; for a
    row whose halves differ by more than usual, over as much more.

    Flagged are rows beyond `strong` [b, 1], and rows beyond `weak` as far as the false discovery rate allows, estimated from
    the other side. Only the side with more rows far out is flagged: an honest node that Byzantine ones try to push out is on
    the other.
    """
    flagged, largest = torch.zeros_like(evidence.valid), torch.zeros_like(centre.weights)
    active = centre.stretched.nonzero().flatten()
    if not len(active):
        return flagged, largest
    valid, judged, weights = evidence.valid[active], evidence.judged[active], centre.weights[active]
    first, second, cross = evidence.first, evidence.second, evidence.cross
    points: tuple[Tensor | None, Tensor | None] = (None, None)
    if evidence.points is not None:
        points = evidence.points[0][active], evidence.points[1][active]
    if len(active) < len(flagged):
        cross = cross[active]
        if evidence.points is None:  # not used where there are points
            first, second = first[active], second[active]
    ones = directions(first, points[0], uniform(valid), _DIRECTIONS)
    usual = median(evidence.difference2[active], valid)
    noise_ratio = (evidence.difference2[active] / usual).clamp_min(1.0).sqrt()
    twos = torch.stack([own for _, own in directions(second, points[1], uniform(valid), _DIRECTIONS)], 1)
    for value, one in ones:
        tested = value > edge * centre.noise[active]
        likeness = (twos @ cross.mT @ one[:, :, None]).squeeze(2)
        best = likeness.abs().argmax(1, keepdim=True)
        two = twos.gather(1, best[:, :, None].expand(-1, -1, twos.shape[2])).squeeze(1) * likeness.gather(1, best).sign()
        forward, backward = _project(cross, one, weights), _project(cross.mT, two, weights)
        width = spread((forward - backward) / 2, valid)
        tested = tested & (width.square() > _NOTHING * value)
        z = (forward + backward) / 2 / width
        z = (z - median(z, valid)) / noise_ratio
        z = z * _heavier(z, judged, weak[active])
        limit = threshold(torch.where(judged, z, 0.0), judged, fdr_level=fdr_level, offset=1)
        new = tested & judged & ((z > strong[active]) | ((z > weak[active]) & (z >= limit[:, None])))
        flagged[active] |= new
        largest[active] = torch.where(tested, torch.maximum(largest[active], z.abs()), largest[active])
    return flagged, largest


def _heavier(z: Tensor, judged: Tensor, beyond: Tensor) -> Tensor:
    """Sign [b, 1] of the side with more rows beyond the bound; on a tie, of the side with the farthest row."""
    up, down = ((judged & (side > beyond)).sum(1, keepdim=True) for side in (z, -z))
    top, bottom = (torch.where(judged, side, -torch.inf).amax(1, keepdim=True) for side in (z, -z))
    return torch.where((up > down) | ((up == down) & (top >= bottom)), 1.0, -1.0).to(z)


def _project(products: Tensor, combination: Tensor, weights: Tensor) -> Tensor:
    """Products of u with rows, minus their weighted mean [b, n], where u combines the rows of the first side."""
    along = (combination[:, None, :] @ products).squeeze(1)
    return along - (along * weights).sum(1, keepdim=True)
