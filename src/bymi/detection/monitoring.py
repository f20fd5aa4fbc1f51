"""Settings of what goes on after the first detection."""

from __future__ import annotations

from dataclasses import dataclass

from bymi.core.named_parts import Checked, bounded


@dataclass(frozen=True)
class Watch(Checked):
    """Bounds of the tests on deeds; None switches one off.

    `every`: rounds between detections, with one more a quarter of that after the first and one a tenth of it before the end;
    None for one detection only. `fuse`: no
    message pulls farther than 1.25 median distances, and a neighbour that is farther off than `fuse` of them in more than
    `fuse_share` of the rounds is flagged. `drift`, `deed`: standing off for long, and otherwise than claimed, in spreads.
    `longest`: windows that a severe flag can last; 1 forgives everything at the next detection. `retreat`: at the last
    detection a node goes back to where it stood at the one before if more than this share of those it listened to are flagged
    for what they did: no time is left to heal.
    """

    every: int | None = bounded(300, ge=1)
    fuse: float | None = bounded(3.0, gt=0)
    fuse_share: float = bounded(0.2, gt=0, lt=1)
    drift: float | None = bounded(5.0, gt=0)
    deed: float | None = bounded(5.0, gt=0)
    longest: int = bounded(16, ge=1)
    retreat: float | None = bounded(0.05, gt=0, lt=1)
