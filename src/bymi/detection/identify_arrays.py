"""Identification on plain arrays: two half gradients per machine in, one verdict per machine out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from bymi.aggregation import Filtering
from bymi.aggregation.base import SetRule
from bymi.core.errors import InputError, is_integer, require
from bymi.core.linalg import VectorStack, inner_of_both, norms
from bymi.core.message_validity import OVERFLOW
from bymi.detection.array_verdict import NOT_FINITE, TOO_LARGE, ArrayVerdict, Profile, student_tail
from bymi.detection.detection_settings import Detector, Panel
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.half_gradient_tests import Findings, hear, least_cosine, noise_of
from bymi.detection.published_score import Centre, Identity, Products, Scale, multiply, threshold, weigh
from bymi.detection.robust_statistics import median
from bymi.detection.verdict import HARD, REASONS

_FEWEST = 3  # machines needed for a comparison
_COLUMNS = 1 << 12  # coordinates per block


@dataclass(frozen=True, eq=False)
class ArrayHalves:
    """The k comparable rows of n, in their input precision, and their positions."""

    first: Tensor  # [k, d]
    second: Tensor  # [k, d]
    at: Tensor  # [k] positions among all rows
    judged: Tensor  # [k] bool
    outcasts: dict[int, str]  # position and reason of each other row
    size: int  # n

    @staticmethod
    def read(first: Any, second: Any, own: int | None) -> ArrayHalves:
        """From any two matrices [n, d]; `own` is a row that is not judged. Copies only if needed."""
        one, two = _matrix(first, "first"), _matrix(second, "second")
        if one.shape != two.shape:
            raise InputError(f"first and second must have one shape, got {list(one.shape)} and {list(two.shape)}")
        size = len(one)
        if own is not None and not (is_integer(own) and 0 <= own < size):
            raise InputError(f"own: got {own}, must be a row number from 0 to {size - 1}")
        longest = torch.maximum(norms(one), norms(two))  # NaN and Inf propagate
        outcasts = {row: _reason(one[row], two[row]) for row in (~(longest <= OVERFLOW)).nonzero().flatten().tolist()}
        rows = [row for row in range(size) if row not in outcasts]
        if len(rows) < _FEWEST:
            allowed = f"finite values and a norm up to {OVERFLOW:g}"
            raise InputError(f"got {len(rows)} of {size} machines with {allowed}, need {_FEWEST} or more to compare")
        if own is not None and own in outcasts:
            raise InputError(f"own: row {own} is {outcasts[own]}, and nothing can be compared with it")
        at = torch.tensor(rows, dtype=torch.int64, device=one.device)
        if outcasts:
            one, two = one[at], two[at]
        if torch.equal(one, two):
            need = "gradients on two disjoint halves of each machine's samples"
            raise InputError(f"first and second are the same in all rows: nothing tells noise from a shift; need {need}")
        return ArrayHalves(one, two, at, at != (-1 if own is None else own), outcasts, size)

    @property
    def dim(self) -> int:
        return self.first.shape[1]

    @cached_property
    def difference2(self) -> Tensor:
        """|x1 - x2|^2 per row in float64 [k], in blocks of coordinates."""
        total = torch.zeros(len(self.at), dtype=torch.float64, device=self.first.device)
        for one, two in zip(self.first.split(_COLUMNS, 1), self.second.split(_COLUMNS, 1), strict=True):
            total += (one.to(torch.float64) - two.to(torch.float64)).square_().sum(1)
        return total

    def spread(self, values: Tensor, fill: float | bool) -> Tensor:
        """Values of the comparable rows [k] as values of all rows [n], `fill` elsewhere."""
        output = torch.full((self.size,), fill, dtype=values.dtype, device=values.device)
        output[self.at] = values
        return output

    def reasons(self, compared: Sequence[str]) -> tuple[str, ...]:
        """Reasons of all rows, from those of the comparable rows."""
        reasons = dict(zip(self.at.tolist(), compared, strict=True)) | self.outcasts
        return tuple(reasons[row] for row in range(self.size))


def _matrix(values: Any, name: str) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about read-only arrays, which are not written to here
            matrix = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"{name}: cannot be read as a matrix of numbers ({problem})") from None
    if matrix.ndim != 2 or matrix.shape[0] < _FEWEST or matrix.shape[1] < 1:
        raise InputError(f"{name}: got shape {list(matrix.shape)}, need a matrix [n, d] with n >= {_FEWEST} and d >= 1")
    if matrix.is_complex():
        raise InputError(f"{name}: got numbers of type {matrix.dtype}, allowed: real numbers")
    return matrix.detach() if matrix.is_floating_point() else matrix.to(torch.float64)


def _reason(one: Tensor, two: Tensor) -> str:
    return TOO_LARGE if bool(torch.isfinite(one).all() & torch.isfinite(two).all()) else NOT_FINITE


PANEL = Panel(dimension_free=True, mixed=None)
"""Panel of the hardened profile on arrays."""

_FEW_DIMENSIONS = 10  # below, two halves are often close by chance: too little noise is no reason
_TIGHTER, _WIDER = 0.8, 1.25  # factors on all bounds: machines whose verdict changes are borderline
_FREEDOM = 0.2  # degrees of freedom per machine of the noise estimate, a median over half of the scores
_NO_NEGATIVE = 0.7 * 1.4826  # noise over the median score, if no score is negative
_COSTLY = 0.5  # noise units of bias from which there is a warning
_TAILS = ("kept", "score", "extreme score", "direction", "inconsistent", "alike", "too good")  # reasons with a tail


def identify(
    first: Any,
    second: Any,
    *,
    profile: Profile = "hardened",
    fdr_level: float = 0.2,
    names: Sequence[str] | None = None,
    own: int | None = None,
    panel: Panel | None = None,
    offset: int | None = None,
    cross_fit: bool | None = None,
    centre: Centre | None = None,
    scale: Scale | None = None,
) -> ArrayVerdict:
    """Verdict on the rows of two half-sample gradient matrices [n, d], n >= 3: which come from another distribution.

    Row j of `first` and of `second` are the mean gradients of machine j on two disjoint random halves of its samples, at one
    common parameter. Rows with NaN or Inf are flagged as such and the rest is judged. `own`: a row that enters the robust mean
    but is not judged. float32 input is not copied. The same rows in both halves, all of them, are refused.

    `profile`: "hardened" runs a `panel` of tests, `PANEL` by default, and rarely flags anything in a clean set with noise close
    to normal; heavy tails cost false flags. "published" is the score and threshold of the paper with its `offset` (default 0),
    `centre` and `scale`; with offset 0 a clean set loses one or two machines on average. There `cross_fit` (default True)
    compares second halves with a centre of second halves. False is the exact form of the paper, which misses the level in many
    dimensions. ADR 0014.

    Examples:
        >>> first = [[0.3, -0.8], [-0.5, 0.4], [0.9, 0.1], [-0.2, -0.6], [0.1, 0.7], [9.2, 8.8]]
        >>> second = [[-0.4, 0.2], [0.6, -0.1], [-0.3, 0.8], [0.5, 0.3], [-0.7, -0.5], [9.1, 9.3]]
        >>> verdict = identify(first, second)
        >>> verdict.flagged.tolist(), verdict.reasons[5]
        ([False, False, False, False, False, True], 'direction')
    """
    require(profile in get_args(Profile), "profile", profile, ", ".join(get_args(Profile)))
    given = Filtering() if centre is None else centre, Identity() if scale is None else scale
    level: Any = 0 if offset is None else offset
    detector = Detector(fdr_level, level, *given)  # checks ranges and resolves names
    options = {"offset": offset, "cross_fit": cross_fit, "centre": centre, "scale": scale}
    for name, value in options.items() if profile == "hardened" else [("panel", panel)]:
        other = "published" if profile == "hardened" else "hardened"
        require(value is None, name, value, f"with profile {other} only")
    halves = ArrayHalves.read(first, second, own)
    labels = _names(names, halves.size)
    if profile == "hardened":
        return _assemble(halves, labels, _hardened(halves, fdr_level, panel or PANEL), profile=profile, fdr_level=fdr_level)
    shift, fit = offset or 0, cross_fit is not False
    judgement = _published(halves, fdr_level, detector.centre, detector.scale, offset=shift, cross_fit=fit)
    return _assemble(halves, labels, judgement, profile=profile, fdr_level=fdr_level, offset=shift, cross_fit=fit)


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The result of a profile on the k comparable rows."""

    scores: Tensor  # [k]
    counted: Tensor  # [k] bool: judged, and not flagged for a HARD reason
    flagged: Tensor  # [k] bool
    reasons: list[str]
    statistic: Tensor  # [k], NaN: the score in noise units
    borderline: Tensor  # [k] bool
    limit: float  # score from which a row alone is flagged
    shift: float  # norm of the shift with such a score
    notes: tuple[str, ...] = ()
    bounds: dict[str, float] = field(default_factory=dict)


def _hardened(halves: ArrayHalves, fdr_level: float, panel: Panel) -> _Judgement:
    if halves.dim < _FEW_DIMENSIONS:
        panel = replace(panel, low=None)
    products = inner_of_both(halves.first, halves.second, VectorStack(halves.first).origin)
    first, second, cross = (part[None] for part in products)
    evidence = Evidence(first, second, cross, torch.ones_like(halves.judged)[None], halves.judged[None])

    def judge(bounds: Panel) -> Findings:
        return hear(evidence, bounds, fdr_level=fdr_level, offset=1, centre=Filtering(), cross_fit=True)

    findings = judge(panel)
    flagged = findings.flagged[0]
    alternatives = [judge(panel.times(factor)).flagged[0] for factor in (_TIGHTER, _WIDER)]
    reasons = [REASONS[code] for code in findings.code[0].tolist()]
    hard = torch.tensor([reason in HARD for reason in reasons], device=flagged.device)
    remaining = evidence.without(hard[None])
    bounds = panel.bounds(float(panel.wider(remaining.count)))
    limit = bounds["score"] * _noise(findings.scores[0], remaining.judged[0])
    notes: tuple[str, ...] = ()
    if bool(findings.guard_acted[0]):
        notes = ("a majority looked off, so the estimates cannot be trusted: only flags that need no estimate are left",)
    return _Judgement(
        scores=findings.scores[0],
        counted=remaining.judged[0],
        flagged=flagged,
        reasons=reasons,
        statistic=torch.where(flagged, findings.statistic[0], torch.nan),
        borderline=(alternatives[0] != flagged) | (alternatives[1] != flagged),
        limit=limit,
        shift=_smallest_shift(remaining, findings, limit, bounds["joint score"]),
        notes=notes,
        bounds=bounds,
    )


def _smallest_shift(remaining: Evidence, findings: Findings, limit: float, enough: float) -> float:
    """Norm of the shift at which one row's score reaches the limit and its halves have the cosine that a score needs."""
    lengths = remaining.lengths(findings.weights)
    usual = noise_of(findings.scores / lengths, remaining.judged)
    cosine = float(least_cosine(usual, torch.full_like(usual, enough)))
    noise2 = float(median(lengths, remaining.judged))
    # Halves with noise of norm e and a common shift s have the cosine s^2 / (s^2 + e^2).
    needed = noise2 * cosine / (1 - cosine) if cosine < 1 else math.inf
    return math.sqrt(max(limit, needed))


def _published(
    halves: ArrayHalves, fdr_level: float, centre: Centre, scale: Scale, *, offset: int, cross_fit: bool
) -> _Judgement:
    """Score and threshold as published, about a cross-fitted centre or that of the paper. Paper: eq:score, eq:thold."""
    first, second = (VectorStack(half) for half in scale.rescale(halves.first, halves.second))
    judged = halves.judged[None]
    member = torch.ones_like(judged)
    products = multiply(first, second, member, centre, cross_fit=cross_fit)
    scores = scale.scores(products, member)
    limit = threshold(torch.where(judged, scores, 0.0), judged, fdr_level=fdr_level, offset=offset)
    flagged = (judged & (scores >= limit[:, None]))[0]
    scores = torch.where(judged, scores, torch.nan)[0]
    # The threshold is the smallest flagged score. Every value above the next smaller absolute score flags the same machines.
    lowest = scores.abs()[scores.abs() < limit].max() if bool((scores.abs() < limit).any() & limit.isfinite()) else limit
    return _Judgement(
        scores=scores,
        counted=halves.judged,
        flagged=flagged,
        reasons=["score" if flag else "kept" for flag in flagged.tolist()],
        statistic=torch.full_like(scores, torch.nan),
        borderline=torch.where(flagged, scores < _WIDER * lowest, scores >= _TIGHTER * limit),
        limit=float(limit),
        shift=math.sqrt(float(lowest)),
        notes=() if cross_fit else _cost(halves, first, products, centre),
    )


def _cost(halves: ArrayHalves, first: VectorStack, products: Products, centre: Centre) -> tuple[str, ...]:
    """A warning if the centre of the paper raises the scores of rows outside of it by much. ADR 0014."""
    if not isinstance(centre, SetRule):
        return ()
    member = torch.ones_like(halves.judged)[None]
    weights = centre.coefficients(first, member)
    fitted = Identity().scores(weigh(products.first_first, products.first_second, weights, cross_fit=True), member)
    noise2 = float(median(halves.difference2[None], halves.judged[None])) / 2
    bias = noise2 * float(weights.square().sum()) / _noise(fitted[0], halves.judged)
    if not bias > _COSTLY:
        return ()
    return (f"without cross-fit, machines outside of the robust mean score {bias:.1f} noise units too high here",)


def _assemble(halves: ArrayHalves, names: tuple[str, ...], judgement: _Judgement, **settings: Any) -> ArrayVerdict:
    noise = _noise(judgement.scores, judgement.counted)
    units = judgement.scores / noise
    noise2 = float(median(halves.difference2[None], halves.judged[None])) / 2
    effective = min(float(halves.dim), max(1.0, (noise2 / noise) ** 2)) if noise > 0 else float(halves.dim)
    # Scores in d dimensions have the fourth moment of a t variable with d + 4 degrees of freedom; few machines leave few
    # degrees for the estimate of the scale.
    freedom = 1 / (1 / (effective + 4) + 1 / max(1.0, _FREEDOM * int(judgement.counted.sum())))
    statistic = torch.where(judgement.statistic.isnan(), units, judgement.statistic)
    size = torch.where(judgement.flagged, statistic.abs(), statistic)
    tailed = torch.tensor([reason in _TAILS for reason in judgement.reasons], device=size.device) & ~size.isnan()
    flagged = halves.spread(judgement.flagged, True)
    return ArrayVerdict(
        names=names,
        flagged=flagged,
        reasons=halves.reasons(judgement.reasons),
        scores=halves.spread(judgement.scores, torch.nan),
        noise_units=halves.spread(units, torch.nan),
        statistic=halves.spread(statistic, torch.nan),
        p=halves.spread(torch.where(tailed, student_tail(size.nan_to_num(0.0), freedom), torch.nan), torch.nan),
        borderline=halves.spread(judgement.borderline & judgement.counted, False),
        threshold=torch.tensor(judgement.limit, dtype=torch.float64),
        dim=halves.dim,
        noise_norm=math.sqrt(noise2),
        smallest_shift=judgement.shift,
        effective_dim=effective,
        bounds=judgement.bounds,
        warnings=(*_warnings(halves, settings["fdr_level"], flagged), *judgement.notes),
        **settings,
    )


def _warnings(halves: ArrayHalves, fdr_level: float, flagged: Tensor) -> list[str]:
    """Warnings about conditions that make a verdict unreliable."""
    lines = []
    equal = int((halves.difference2 == 0).sum())
    if equal:
        rows = f"{equal} of {halves.size} rows"
        lines.append(f"first and second are the same in {rows}; they must come from disjoint halves of a machine's samples")
    if halves.size < 1 / fdr_level - 1e-9:
        lines.append(
            f"{halves.size} machines are fewer than 1 / level = {1 / fdr_level:g}: too few for a level of {fdr_level:g}"
        )
    if 2 * int(flagged.sum()) > halves.size:
        lines.append(f"{int(flagged.sum())} of {halves.size} machines are flagged; no method can tell which half is good")
    return lines


def _noise(scores: Tensor, counted: Tensor) -> float:
    """Standard deviation of honest scores [k], estimated from the negative ones, or from all if none is negative."""
    estimate = float(noise_of(scores[None], counted[None]))
    return estimate if not math.isnan(estimate) else _NO_NEGATIVE * float(median(scores.abs()[None], counted[None]))


def _names(names: Sequence[str] | None, size: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(size)))
    given = tuple(map(str, names))
    require(len(given) == size, "names", f"{len(given)} names", f"one for each of {size} machines")
    repeated = sorted({name for name in given if given.count(name) > 1}) if len(set(given)) < size else []
    require(not repeated, "names", repeated[:1], "a different name for each machine")
    return given
