"""Reasons for flags, one per test."""

from __future__ import annotations

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
    "serving time",
    "alike",
    "far",
    "backward",
    "joint update",
)
"""Meaning of the codes in `Verdict.reason`. A neighbour whose halves were not heard is flagged, since it cannot be judged.

"fuse": clipped as far out too often; "drift", "deed", "joint update": update history far off, not matching claimed gradients,
shifted along one direction; "serving time": suspended or flagged earlier."""

SEVERE = ("absurd", "inconsistent", "too good", "extreme score", "fuse", "drift", "deed")
"""Reasons out of reach of honest noise: they suspend a node for 4, 8, 16 windows instead of one."""


HARD = ("not heard", "absurd", "duplicate", "inconsistent", "alike", "too good")
"""Reasons that need no centre: they stay where a majority is flagged, which means that the centre has failed."""

FIRM = ("not heard", "absurd", "duplicate", "inconsistent", "too good", "extreme score")
"""Reasons far beyond any bound: exact copies, but neither resemblance to others nor a narrow margin."""

DEEDS = ("fuse", "drift", "deed", "joint update")
"""Reasons found in messages that were already used: the update history."""


def reason_code(name: str) -> int:
    """Index of a reason in REASONS."""
    return REASONS.index(name)
