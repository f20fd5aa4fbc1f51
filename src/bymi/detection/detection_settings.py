"""Settings of detection: the detector, the panel of tests, monitoring, and tables of their parts by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from bymi.aggregation import ALIASES, CAF, Filtering, GeometricMedian, Mean, Median, SetRule, TrMean
from bymi.core.errors import is_integer, require
from bymi.core.named_parts import Checked, Table, bounded, check_fields, part_by_name
from bymi.detection.published_score import (
    Centre,
    Identity,
    MedianDeviation,
    Principal,
    Projected,
    PublishedThreshold,
    Scale,
    Threshold,
)
from bymi.detection.robust_means import AgnosticFilter, BudgetFilter, NoRegret, SpectralSolver, StabilityFilter

CENTRES: Table[Centre] = Table(
    Centre,
    {
        "filtering": Filtering,
        "caf": CAF,
        "agnostic-filter": AgnosticFilter,
        "budget-filter": BudgetFilter,
        "no-regret": NoRegret,
        "spectral-solver": SpectralSolver,
        "stability-filter": StabilityFilter,
        "geometric-median": GeometricMedian,
        "mean": Mean,
        "median": Median,
        "trimmed-mean": TrMean,
    },
)

SCALES: Table[Scale] = Table(Scale, {"identity": Identity, "pca": Principal, "projected": Projected, "mad": MedianDeviation})

THRESHOLDS: Table[Threshold] = Table(Threshold, {"published": PublishedThreshold}, "bymi.thresholds")


_MANY = 60  # neighbours from which bounds are not widened
_SCALED = ("absurd", "high", "low", "alike", "strong", "weak", "direction", "joint", "far", "far_joint")


@dataclass(frozen=True)
class Panel(Checked):
    """Bounds of the tests; None switches a test off. docs/hardened.md explains the order, ADR 0010 the numbers.

    `absurd`: length of the halves over the usual one. `duplicate`: distance to another row over the usual one. `high`, `low`:
    halves that differ by too much or too little, in spreads of the logarithm. `alike`: differences of halves that resemble
    those of others, in spreads. `edge`, `most`: the filter's noise edge and the largest share it may remove; edge None for the
    detector's own centre. `strong`, `weak`: scores in units of noise; strong None for the published threshold. `direction`,
    `joint`: shifts in one direction, alone and together with others, in spreads. `mixed`: degree of heterogeneity
    (`heterogeneity`) from which nodes do not count as alike; None: they always do. `far`, `far_joint`: where they do not,
    scores over the median one that are flagged, alone and together with others, in place of the tests on score and direction.
    `guard`: share of neighbours above which flags are taken for a failure of the estimate. `widen`: bounds grow by widen / n
    with few neighbours n. `few`: a node with fewer neighbours keeps the warm-up rule as its mixing, since it cannot judge them
    reliably. `dimension_free`: cosines and the noise edge in units that do not change with the number of dimensions, ADR 0014.
    On for plain arrays; off in networks, whose bounds were chosen without it.
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
    far: float = bounded(96.0, gt=0)
    far_joint: float = bounded(60.0, gt=0)
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
        }


@dataclass(frozen=True)
class Watch(Checked):
    """Bounds of clipping and of the tests on the update history; None switches one off.

    `every`: rounds between detections, with an additional one a quarter of that after the first and one a tenth of it before
    the end; None for a single detection. `fuse`, `fuse_share`: messages are clipped to 1.25 median distances, and a neighbour
    farther than `fuse` medians in more than `fuse_share` of the rounds is flagged. `drift`, `deed`: bounds in spreads on the
    distance of an update history from the centre, and on its mismatch with the claimed gradients; `joint`: bound in spreads on
    its shift along one direction. `fade`: beside the plain mean over a window, these tests look at one in which a round counts
    exp(fade) times as much as a round a window earlier, since a model forgets early pushes. `longest`: the most windows that a
    severe flag lasts, and the clean detections for which a mild one is remembered, since a second one lasts four windows; 1
    ends all flags at the next detection. `retreat`: at the last detection, a node returns to the best of
    its last parameters, by the length of the mean gradient that trusted neighbours claimed there, if more than this share of
    the neighbours it used are flagged for their updates, since no rounds are left to recover.
    """

    every: int | None = bounded(300, ge=1)
    fuse: float | None = bounded(3.0, gt=0)
    fuse_share: float = bounded(0.2, gt=0, lt=1)
    drift: float | None = bounded(5.0, gt=0)
    deed: float | None = bounded(5.0, gt=0)
    joint: float | None = bounded(4.5, gt=0)
    fade: float | None = bounded(4.0, gt=0, le=100)
    longest: int = bounded(16, ge=1)
    retreat: float | None = bounded(0.05, gt=0, lt=1)

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates at which update histories fade."""
        return (0.0,) if self.fade is None else (0.0, self.fade)


Point = Literal["sender", "receiver"]

Pruning = Literal["directed", "mutual"]


@dataclass(frozen=True)
class Detector:
    """Settings of detection: level of the false discovery rate, threshold and its offset, robust mean and Omega.

    `centre`, `scale` and `threshold` may be names in CENTRES, SCALES and THRESHOLDS: "trimmed-mean:share=0.2", "pca". `point`:
    where neighbours take their half gradients. "sender", as published: at their own parameters, so that models that still
    disagree look Byzantine. "receiver": at the parameters of the judging node, at the cost of one gradient per neighbour and
    half. `cross_fit`: compare second halves with the centre's weights on second halves, not with the centre of the first.
    `every`: repeat the detection after this many rounds, on fresh random halves of the identification set, among the remaining
    neighbours; flags accumulate, and so do false ones. None: one detection. With a panel, Watch sets the interval.

    The rest is the hardened profile. `panel`: tests that replace score and threshold. `probe`: a second set of gradients at the
    common start, which reveals false gradients that vanish at an optimum. `sample`: fresh random samples per node and detection
    (a number, or "all") instead of the identification set. `pruning`: "mutual" cuts an edge if either end flags the other;
    `exile`: a node cut by more than this share of its neighbours keeps receiving from those that it trusts.
    """

    fdr_level: float = bounded(0.2, gt=0, lt=1)
    offset: Literal[0, 1] = 0
    centre: Centre = field(default_factory=Filtering)
    scale: Scale = field(default_factory=Identity)
    point: Point = "sender"
    cross_fit: bool = False
    panel: Panel | None = None
    probe: bool = False
    sample: int | Literal["identification", "all"] = bounded("identification", ge=2)
    pruning: Pruning = "directed"
    exile: float | None = bounded(0.5, gt=0, le=1)
    every: int | None = bounded(None, ge=1)
    threshold: Threshold = field(default_factory=PublishedThreshold)

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", part_by_name("centre", self.centre, Centre, CENTRES, ALIASES))
        object.__setattr__(self, "scale", part_by_name("scale", self.scale, Scale, SCALES, {}))
        object.__setattr__(self, "threshold", part_by_name("threshold", self.threshold, Threshold, THRESHOLDS, {}))
        require(is_integer(self.offset) and self.offset in (0, 1), "offset", self.offset, "0 (paper) or 1 (knockoff+)")
        object.__setattr__(self, "offset", int(self.offset))
        check_fields(self)
        if self.cross_fit:
            require(isinstance(self.centre, SetRule), "cross_fit", True, "with a centre that is a weighted mean")
        if self.panel is None:
            require(not self.probe, "probe", self.probe, "with a panel only")
        else:
            require(self.every is None, "every", self.every, "none with a panel: Watch(every=...) repeats its detection")
            require(isinstance(self.scale, Identity), "scale", type(self.scale).__name__, "identity with a panel")
            published = isinstance(self.threshold, PublishedThreshold)
            require(published, "threshold", type(self.threshold).__name__, "published with a panel, which has its own bounds")
            require(isinstance(self.centre, SetRule), "centre", type(self.centre).__name__, "a weighted mean with a panel")
