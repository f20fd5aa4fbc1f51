"""Attacks by what they touch: data, gradients, messages. To add one: write it and list it in ATTACKS."""

from __future__ import annotations

from bymi.attacks.adversary import Adversary, Attack, Shown, check_options
from bymi.attacks.base import Moment, PerReceiver, Plot, VectorAttack
from bymi.attacks.data import CovariateAttack, DataAttack, LabelFlip, OutOfDistribution, ParameterAttack
from bymi.attacks.gradient import GradientAttack, InnerProductManipulation
from bymi.attacks.levels import Level
from bymi.attacks.message import Huge, Inf, MessageAttack, Misshapen, NaN, Silent
from bymi.attacks.simple import Gaussian, SameValue, SignFlip, Zero
from bymi.attacks.statistical import ALIE, Mimic, MinMax

ATTACKS: dict[str, type[Attack]] = {
    "parameter": ParameterAttack,
    "covariate": CovariateAttack,
    "ood": OutOfDistribution,
    "label-flip": LabelFlip,
    "gradient": GradientAttack,
    "ipm": InnerProductManipulation,
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "zero": Zero,
    "same-value": SameValue,
    "alie": ALIE,
    "min-max": MinMax,
    "mimic": Mimic,
    "nan": NaN,
    "inf": Inf,
    "huge": Huge,
    "misshapen": Misshapen,
    "silent": Silent,
}

ALIASES: dict[str, str] = {
    "scenario-a": "parameter",
    "scenario-b": "covariate",
    "empire": "ipm",
    "crash": "silent",
    "little": "alie",
    "bit-flip": "sign-flip",
}

__all__ = [
    "ALIASES",
    "ALIE",
    "ATTACKS",
    "Adversary",
    "Attack",
    "CovariateAttack",
    "DataAttack",
    "Gaussian",
    "GradientAttack",
    "Huge",
    "Inf",
    "InnerProductManipulation",
    "LabelFlip",
    "Level",
    "MessageAttack",
    "Mimic",
    "MinMax",
    "Misshapen",
    "Moment",
    "NaN",
    "OutOfDistribution",
    "ParameterAttack",
    "PerReceiver",
    "Plot",
    "SameValue",
    "Shown",
    "SignFlip",
    "Silent",
    "VectorAttack",
    "Zero",
    "check_options",
]
