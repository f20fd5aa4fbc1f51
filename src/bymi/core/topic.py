"""Topics: what a message contains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["gradient", "parameters", "direction", "premix", "tracker", "first half", "second half"]

Part = Literal["training", "first half", "second half", "message", "tracker"]
"""Where in the protocol a vector is used: training, a half of detection, or sent as parameters, directions, tracker."""

_PARTS: dict[Kind, Part] = {
    "gradient": "training",
    "parameters": "message",
    "direction": "message",
    "premix": "tracker",
    "tracker": "tracker",
    "first half": "first half",
    "second half": "second half",
}


@dataclass(frozen=True)
class Topic:
    """The content of a message. `at_start`: a gradient at the common start. `asker`: the only node that receives it.

    Examples:
        >>> Topic("first half").to(17).stream_name()
        'first half for 17'
    """

    kind: Kind
    at_start: bool = False
    asker: int | None = None

    def to(self, asker: int) -> Topic:
        """The same topic in a reply to one node."""
        return replace(self, asker=asker)

    @property
    def part(self) -> Part:
        """Where in the protocol the vector is used."""
        return _PARTS[self.kind]

    def stream_name(self) -> str:
        """The topic as text. It names random streams and traffic, so it must not change."""
        words = f"{self.kind} at the start" if self.at_start else self.kind
        return words if self.asker is None else f"{words} for {self.asker}"


GRADIENT = Topic("gradient")
PARAMETERS = Topic("parameters")
DIRECTION = Topic("direction")
PREMIX = Topic("premix")
TRACKER = Topic("tracker")
FIRST_HALF = Topic("first half")
SECOND_HALF = Topic("second half")
