"""How a run ended: a value with a sentence, never a stack trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ending = Literal["finished", "diverged", "fragmented", "isolated"]

ENDING_CODES: dict[Ending, int] = {"finished": 0, "diverged": 3, "fragmented": 4, "isolated": 5}


@dataclass(frozen=True)
class Outcome:
    """The ending of a run and what happened, for a person."""

    ending: Ending
    sentence: str

    @property
    def exit_code(self) -> int:
        return ENDING_CODES[self.ending]
