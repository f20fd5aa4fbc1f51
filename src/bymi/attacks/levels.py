"""Where in the protocol an attack acts: its level, and the parts of the protocol that each level covers."""

from __future__ import annotations

from typing import Literal

from bymi.core.topic import Part

Level = Literal["gradient", "training", "pair", "message", "tracker"]
"""gradient: gradients used in training and both detection halves; training: those of training alone, with true halves; pair:
detection halves alone; message: parameters, and directions of gradient tracking, as they are sent; tracker: tracker vectors as
they are sent.
"""

PARTS: dict[Level, frozenset[Part]] = {
    "gradient": frozenset({"training", "first half", "second half"}),
    "training": frozenset({"training"}),
    "pair": frozenset({"first half", "second half"}),
    "message": frozenset({"message"}),
    "tracker": frozenset({"tracker"}),
}
