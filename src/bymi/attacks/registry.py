"""Attacks by name."""

from __future__ import annotations

from bymi.attacks.adaptive import (
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
from bymi.attacks.collusion import Shift, Steer, TrainingShift, Victim
from bymi.attacks.data import CovariateAttack, LabelFlip, OutOfDistribution, ParameterAttack, ResponseFlip
from bymi.attacks.gradient import GradientAttack, InnerProductManipulation
from bymi.attacks.halves import Decorrelated, Decoy, NegativeInjection
from bymi.attacks.message import Huge, Inf, Misshapen, NaN, Silent
from bymi.attacks.options import Attack
from bymi.attacks.parameters import Dissensus, Isolation, Poison
from bymi.attacks.simple import Gaussian, SameValue, SignFlip, Zero
from bymi.attacks.statistical import ALIE, Mimic, MinMax
from bymi.attacks.tracker import TrackerPoison
from bymi.core.named_parts import Table

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
