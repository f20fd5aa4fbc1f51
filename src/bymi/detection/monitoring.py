"""Settings of monitoring after the first detection."""

from __future__ import annotations

from dataclasses import dataclass

from bymi.core.named_parts import Checked, bounded


@dataclass(frozen=True)
class Watch(Checked):
    """Bounds of clipping and of the tests on the update history; None switches one off.

    `every`: rounds between detections, with an additional one a quarter of that after the first and one a tenth of it before
    the end; None for a single detection. `fuse`: messages are clipped to 1.25 median distances, and a neighbour farther than
    `fuse` medians in more than `fuse_share` of the rounds is flagged. `drift`, `deed`: bounds in spreads on the distance of an
    update history from the centre, and on its mismatch with the claimed gradients; `joint`: on its shift along one direction.
    `fade`: beside the plain mean over a window, these tests look at one in which a round counts exp(fade) times as much as a
    round a window earlier, since a model forgets early pushes. `longest`: the most windows that a severe flag lasts; 1 ends all
    flags at the next detection. `retreat`: at the last detection, a node returns to the best of its last parameters, by the
    length of the mean gradient that trusted neighbours claimed there, if more than this share of the neighbours it used are
    flagged for their updates, since no rounds are left to recover.
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
