"""Settings of what goes on after the first detection."""

from __future__ import annotations

from dataclasses import dataclass

from bymi.errors import require
from bymi.parts import Checked


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

    every: int | None = 300
    fuse: float | None = 3.0
    fuse_share: float = 0.2
    drift: float | None = 5.0
    deed: float | None = 5.0
    longest: int = 16
    retreat: float | None = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("every", "fuse", "drift", "deed"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or none to switch it off")
        require(0 < self.fuse_share < 1, "fuse_share", self.fuse_share, "strictly between 0 and 1")
        if self.retreat is not None:
            require(0 < self.retreat < 1, "retreat", self.retreat, "strictly between 0 and 1, or none to switch it off")
        require(self.longest >= 1, "longest", self.longest, "1 or more")
