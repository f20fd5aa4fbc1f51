"""What a message is about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["gradient", "parameters", "premix", "tracker", "first half", "second half"]

Part = Literal["training", "first half", "second half", "message", "tracker"]
"""Where in the protocol a vector is used: in training, in one of the two detection halves, as parameters that are sent, or as a
tracker that is sent."""

_PARTS: dict[Kind, Part] = {
    "gradient": "training",
    "parameters": "message",
    "premix": "tracker",
    "tracker": "tracker",
    "first half": "first half",
    "second half": "second half",
}


@dataclass(frozen=True)
class Topic:
    """The subject of a vector. `at_start`: a gradient taken at the common start. `asker`: the one node that it is meant for.

    >>> Topic("first half").to(17).stream_name()
    'first half for 17'
    """

    kind: Kind
    at_start: bool = False
    asker: int | None = None

    def to(self, asker: int) -> Topic:
        """The same topic in an answer to one node."""
        return replace(self, asker=asker)

    @property
    def part(self) -> Part:
        return _PARTS[self.kind]

    def stream_name(self) -> str:
        """The topic in words. Random streams and traffic are named after it, so it must not change."""
        words = f"{self.kind} at the start" if self.at_start else self.kind
        return words if self.asker is None else f"{words} for {self.asker}"


GRADIENT = Topic("gradient")
PARAMETERS = Topic("parameters")
PREMIX = Topic("premix")
TRACKER = Topic("tracker")
FIRST_HALF = Topic("first half")
SECOND_HALF = Topic("second half")
