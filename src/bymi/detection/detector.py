"""Settings of detection, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation import ALIASES, Filtering, SetRule
from bymi.core.errors import is_integer, require
from bymi.core.inbox import Inbox
from bymi.core.named_parts import bounded, check_fields, part_by_name
from bymi.detection.half_products import Centre
from bymi.detection.panel import Panel
from bymi.detection.reasons import reason_code
from bymi.detection.registry import CENTRES, SCALES, THRESHOLDS
from bymi.detection.scale import Identity, Scale
from bymi.detection.threshold import PublishedThreshold, Threshold

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


@dataclass(frozen=True, eq=False)
class Verdict:
    """Scores, thresholds and flags, one row per receiver.

    On a ListGraph, [B, J] is per place: column k of a row is the node at place k of that receiver's list.
    """

    scores: Tensor  # [B, J] float64, NaN where not scored
    threshold: Tensor  # [B] float64, +inf where no score qualifies
    flagged: Tensor  # [B, J] bool
    reason: Tensor  # [B, J] int8: index into REASONS
    statistic: Tensor = field(
        default_factory=lambda: torch.empty(0)
    )  # [B, J] float64: of the test that decided; empty: the scores
    filtered_weight: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] share of weight that the filter removed
    guard_acted: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] bool: the guard acted on a flagged majority
    by_rule: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] bool: too few to judge, mixes by the warm-up rule
    pull: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] shift of a gradient below which one neighbour is kept
    mean_claim: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] length of the mean gradient that kept nodes claim

    def by_node(self, inbox: Inbox, size: int) -> Verdict:
        """The verdict per sender, from one per message."""
        return Verdict(
            inbox.by_node(self.scores, size, torch.nan),
            self.threshold,
            inbox.by_sender(self.flagged, size),
            inbox.by_node(self.reason, size, 0),
        )

    def keeping(self, earlier: Tensor) -> Verdict:
        """The verdict in which nodes flagged earlier [B, J] stay flagged."""
        added = earlier & ~self.flagged
        reason = torch.where(added, reason_code("serving time"), self.reason)
        return replace(self, flagged=self.flagged | added, reason=reason)
