"""Options of an adversary, and which of them go together."""

from __future__ import annotations

from typing import Literal, get_args

from bymi.attacks.base import PerReceiver, VectorAttack
from bymi.attacks.data import DataAttack
from bymi.attacks.levels import PARTS, Level
from bymi.attacks.message import MessageAttack
from bymi.core.errors import is_integer, require

Attack = DataAttack | VectorAttack | PerReceiver | MessageAttack
Mixing = Literal["plain", "none", "rule"]
Pruning = Literal["none", "all", "rule"]
Shown = Literal["one", "two"]


def check_options(attack: Attack | None, level: Level | None, start: int, period: int | None, faces: Shown) -> None:
    """Raise InputError, with the keys of a spec, unless the options fit the attack."""
    require(level is None or (isinstance(level, str) and level in PARTS), "byzantine_level", level, ", ".join(PARTS))
    require(is_integer(start) and start >= 0, "byzantine_start", start, "an integer, 0 or more")
    require(period is None or (is_integer(period) and period >= 2), "byzantine_period", period, "an integer, 2 or more")
    require(isinstance(faces, str) and faces in get_args(Shown), "byzantine_faces", faces, ", ".join(get_args(Shown)))
    if isinstance(attack, DataAttack):
        only = "with attacks on vectors or messages, not on data, which are rewritten before the run"
        require(level is None, "byzantine_level", level, only)
        require(start == 0, "byzantine_start", start, f"{only}; 0 here")
        require(period is None, "byzantine_period", period, only)
        require(faces == "one", "byzantine_faces", faces, only)
    elif isinstance(attack, PerReceiver) and attack.tailored:
        require(level in (None, "message"), "byzantine_level", level, "message for an attack that differs by receiver")
    elif isinstance(attack, MessageAttack):
        allowed = [name for name in PARTS if name != "training"]
        require(level in (None, *allowed), "byzantine_level", level, f"{', '.join(allowed)}: training gradients are not sent")
