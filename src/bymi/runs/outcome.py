"""How a run ended: a value with a sentence, never a stack trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Ending = Literal["finished", "diverged", "fragmented", "isolated", "infiltrated"]

ENDING_CODES: dict[Ending, int] = {"diverged": 3, "fragmented": 4, "isolated": 5, "infiltrated": 8, "finished": 0}
"""Exit code of each ending, the worst ending first."""

RUNAWAY = 1e9
"""A parameter this long has left the problem for good."""


def is_lost(lengths: Tensor) -> bool:
    """Whether a model of these lengths [n] has left all bounds; NaN has."""
    return not bool((lengths < RUNAWAY).all())


@dataclass(frozen=True)
class Outcome:
    """The ending of a run and what happened, for a person."""

    ending: Ending
    sentence: str


def worst(endings: Iterable[str]) -> int:
    """The exit code of several runs: that of the worst ending among them."""
    found = set(endings)
    return next(code for ending, code in ENDING_CODES.items() if ending in found)
