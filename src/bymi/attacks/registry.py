"""Attacks by name, and the options of an adversary that go with them."""

from __future__ import annotations

from typing import Literal, get_args

from bymi.attacks.base import PARTS, Level, PerReceiver, VectorAttack
from bymi.attacks.common_small_shift import Shift, Steer, TrainingShift, Victim
from bymi.attacks.data import CovariateAttack, DataAttack, LabelFlip, OutOfDistribution, ParameterAttack, ResponseFlip
from bymi.attacks.detection_aware import (
    Adaptive,
    Copies,
    Fitted,
    Flip,
    Frame,
    Inflate,
    Kin,
    Retreat,
    Rotation,
    ShiftWithDecoys,
    Wobble,
    WobbleFrame,
)
from bymi.attacks.gradient import (
    ALIE,
    Gaussian,
    GradientAttack,
    InnerProductManipulation,
    Mimic,
    MinMax,
    SameValue,
    SignFlip,
    Zero,
)
from bymi.attacks.half_gradient_attacks import Decorrelated, Decoy, NegativeInjection
from bymi.attacks.parameter_poisoning import Dissensus, Isolation, Poison
from bymi.attacks.perron_tracker_poisoning import TrackerPoison
from bymi.attacks.unusable_messages import Huge, Inf, MessageAttack, Misshapen, NaN, Silent
from bymi.core.errors import is_integer, require
from bymi.core.named_parts import Table

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


_ATTACKS: dict[str, type[Attack]] = {
    "parameter": ParameterAttack,
    "covariate": CovariateAttack,
    "ood": OutOfDistribution,
    "label-flip": LabelFlip,
    "response-flip": ResponseFlip,
    "gradient": GradientAttack,
    "ipm": InnerProductManipulation,
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "zero": Zero,
    "same-value": SameValue,
    "alie": ALIE,
    "min-max": MinMax,
    "mimic": Mimic,
    "shift": Shift,
    "deed": TrainingShift,
    "steer": Steer,
    "victim": Victim,
    "negative-injection": NegativeInjection,
    "decorrelated": Decorrelated,
    "decoy": Decoy,
    "poison": Poison,
    "dissensus": Dissensus,
    "isolation": Isolation,
    "y-poison": TrackerPoison,
    "adaptive": Adaptive,
    "wobble": Wobble,
    "inflate": Inflate,
    "fitted": Fitted,
    "frame": Frame,
    "wobble-frame": WobbleFrame,
    "retreat": Retreat,
    "flip": Flip,
    "rotation": Rotation,
    "copies": Copies,
    "kin": Kin,
    "shift-decoys": ShiftWithDecoys,
    "nan": NaN,
    "inf": Inf,
    "huge": Huge,
    "misshapen": Misshapen,
    "silent": Silent,
}
ATTACKS: Table[Attack] = Table(Attack, _ATTACKS, "bymi.attacks")

ALIASES: dict[str, str] = {
    "scenario-a": "parameter",
    "scenario-b": "covariate",
    "empire": "ipm",
    "crash": "silent",
    "little": "alie",
    "bit-flip": "sign-flip",
    "sub-threshold": "shift",
}
