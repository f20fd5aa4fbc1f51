"""When detections take place and how long steps are: public settings of a run, which attackers know."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Timetable:
    """Rounds before which a detection takes place, ascending, and the step size of every round of the run."""

    detections: tuple[int, ...]
    steps: tuple[float, ...]

    def window(self, step: int) -> int:
        """Number of the window that a round belongs to: window i follows detection i; -1 before the first detection."""
        return bisect_right(self.detections, step) - 1

    def is_late(self, step: int) -> bool:
        """Whether a round is in the second half of its window, by the sum of the step sizes."""
        number = self.window(step)
        start = self.detections[number] if number >= 0 else 0
        end = self.detections[number + 1] if number + 1 < len(self.detections) else len(self.steps)
        return 2 * (self._sums[step] - self._sums[start]) >= self._sums[end] - self._sums[start]

    @cached_property
    def _sums(self) -> list[float]:
        return list(accumulate(self.steps, initial=0.0))
