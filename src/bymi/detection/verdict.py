"""The verdict of a detection, the reasons for its flags, and the suspensions that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bymi.core.inbox import Inbox

REASONS = (
    "kept",
    "score",
    "not heard",
    "absurd",
    "duplicate",
    "inconsistent",
    "too good",
    "extreme score",
    "direction",
    "fuse",
    "drift",
    "deed",
    "suspended",
    "alike",
    "far",
    "backward",
    "joint update",
)
"""Meaning of the codes in `Verdict.reason`. A neighbour whose halves were not heard is flagged, since it cannot be judged.

Codes are stored, so that places stay: "backward" was a test of the panel up to 0.15, and is no longer found.
"fuse": clipped as far out too often; "drift", "deed", "joint update": update history far off, not matching claimed gradients,
shifted along one direction; "suspended": flagged earlier, and that flag still lasts."""

SUSPENDED = "suspended"
"""Reason for a neighbour whose flag of an earlier detection still lasts."""

SEVERE = ("absurd", "inconsistent", "too good", "extreme score", "fuse", "drift", "deed")
"""Reasons out of reach of honest noise: they suspend a node for 4, 8, 16 windows instead of one."""

MILD = ("score", "direction", "joint update", "duplicate", "alike", "far")
"""Reasons that honest noise may reach now and then, but hardly twice: the second time they last for four windows."""

_AGAIN = 4  # windows of a second mild flag

HARD = ("not heard", "absurd", "duplicate", "inconsistent", "alike", "too good")
"""Reasons that need no centre: they stay where a majority is flagged, which means that the centre has failed."""

FIRM = ("not heard", "absurd", "duplicate", "inconsistent", "too good", "extreme score")
"""Reasons far beyond any bound: exact copies, but neither resemblance to others nor a narrow margin."""

DEEDS = ("fuse", "drift", "deed", "joint update")
"""Reasons found in messages that were already used: the update history."""


CODES = {name: code for code, name in enumerate(REASONS)}
"""Code of each reason in `Verdict.reason`."""


def has_reason(code: Tensor, names: tuple[str, ...]) -> Tensor:
    """Mask of the codes that stand for one of these reasons."""
    return torch.isin(code, torch.tensor([CODES[name] for name in names], dtype=code.dtype, device=code.device))


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
    different: Tensor = field(default_factory=lambda: torch.empty(0))  # [B] bool: the data of honest neighbours differ
    bound: Tensor = field(default_factory=lambda: torch.empty(0))  # [B, J] of the statistic, NaN where the test has none

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
        reason = torch.where(added, CODES[SUSPENDED], self.reason)
        return replace(self, flagged=self.flagged | added, reason=reason)


@dataclass(frozen=True, eq=False)
class Suspensions:
    """Remaining windows of suspension and number of severe flags, per neighbour [B, M].

    A mild flag, which an honest node may get by chance, ends at the next detection. A severe one lasts 4, 8, ... windows, up to
    `longest`: with shorter terms teams of attackers could take turns. Teams that claim what they do get mild ones only: so a
    second one, before `longest` clean detections have passed, lasts four windows. Its node is judged in them, unlike suspended
    ones: without a part of it the rest of a crowd would be too few to be seen. Where the data of honest nodes differ, some of
    them stand out for a while like attackers: severe flags last 1, 2, 4, ... windows there, mild ones always one.
    """

    left: Tensor  # [B, M] int64: detections for which the node stays flagged
    strikes: Tensor  # [B, M] int64: severe flags, less clean detections
    recent: Tensor  # [B, M] int64: clean detections until a mild flag is forgotten; above `longest` the node stays flagged
    longest: int = 16

    @property
    def suspended(self) -> Tensor:
        """Mask [B, M] of nodes that stay flagged at the next detection in any case, and are not judged there."""
        return self.left > 0

    @property
    def held(self) -> Tensor:
        """Mask [B, M] of nodes that stay flagged at the next detection in any case, and are judged there."""
        return self.recent > self.longest

    @staticmethod
    def blank(arcs: Tensor, longest: int) -> Suspensions:
        """Suspensions before the first detection: none."""
        nothing = torch.zeros(arcs.shape, dtype=torch.int64, device=arcs.device)
        return Suspensions(nothing, nothing, nothing, longest)

    def add(self, verdict: Verdict) -> tuple[Suspensions, Verdict]:
        """The suspensions after one more detection, and the verdict with suspended nodes flagged."""
        mild, severe = (has_reason(verdict.reason, names) for names in (MILD, SEVERE))
        # A clean detection removes one strike.
        clean = ~verdict.flagged & ~self.suspended
        recent = torch.where(mild, self.longest, (self.recent - clean.to(torch.int64)).clamp_min(0))
        again = mild & (self.recent > 0)
        if verdict.different.numel():
            again = again & ~verdict.different[:, None]
        recent = recent + again * (min(_AGAIN, self.longest) - 1)
        strikes = (self.strikes + severe.to(torch.int64) - clean.to(torch.int64)).clamp_min(0)
        less = 2 * verdict.different.to(strikes)[:, None] if verdict.different.numel() else 0
        terms = (2 ** (1 + strikes.clamp_max(30) - less).clamp_min(0)).clamp_max(self.longest)
        left = torch.where(severe, torch.maximum(terms, self.left), self.left)
        return Suspensions((left - 1).clamp_min(0), strikes, recent, self.longest), verdict.keeping((left > 0) | self.held)
