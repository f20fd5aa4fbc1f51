"""Why a neighbour is not heard any more: one word a test."""

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
)
"""What the codes in `Verdict.why` mean. A neighbour whose halves were not heard cannot be vouched for: it is flagged."""

SEVERE = ("absurd", "inconsistent", "too good", "extreme score", "fuse")
"""Reasons that no good node gives by bad luck: flagged for longer and longer, not for one window."""


HARD = ("not heard", "absurd", "duplicate", "inconsistent", "alike", "too good")
"""Reasons that need no centre: they stand where a majority is flagged, which means that the centre has failed."""

FIRM = ("not heard", "absurd", "duplicate", "inconsistent", "too good", "extreme score")
"""Reasons far beyond any bound: exact copies, but no mere resemblance to others, and nothing by a narrow margin."""

DEEDS = ("fuse", "drift", "deed")
"""Reasons that lie in messages already used."""


def reason_code(name: str) -> int:
    """The code of a reason."""
    return REASONS.index(name)
