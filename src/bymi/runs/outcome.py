"""How a run ended: an ending with a sentence, never a stack trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Ending = Literal["finished", "diverged", "fragmented", "isolated", "infiltrated"]

ENDING_CODES: dict[Ending, int] = {"diverged": 3, "fragmented": 4, "isolated": 5, "infiltrated": 8, "finished": 0}
"""Exit code per ending, the worst ending first."""

RUNAWAY = 1e9
"""Norm from which on a parameter vector counts as diverged."""


def is_lost(lengths: Tensor) -> bool:
    """Whether any model of these norms [n] has diverged; NaN counts as diverged."""
    return not bool((lengths < RUNAWAY).all())


@dataclass(frozen=True)
class Outcome:
    """The ending of a run, and a sentence on what happened."""

    ending: Ending
    sentence: str


def worst(endings: Iterable[str]) -> int:
    """The exit code of several runs: that of the worst ending."""
    present = set(endings)
    return next(code for ending, code in ENDING_CODES.items() if ending in present)
