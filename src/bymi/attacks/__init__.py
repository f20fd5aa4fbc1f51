"""Attacks by what they touch: data, gradients, messages. To add one: write it and list it in ATTACKS."""

from __future__ import annotations

from bymi.attacks.adversary import Adversary, Attack
from bymi.attacks.data import CovariateAttack, DataAttack, LabelFlip, OutOfDistribution, ParameterAttack
from bymi.attacks.gradient import GradientAttack, InnerProductManipulation, VectorAttack
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
    "MessageAttack",
    "Mimic",
    "MinMax",
    "Misshapen",
    "NaN",
    "OutOfDistribution",
    "ParameterAttack",
    "SameValue",
    "SignFlip",
    "Silent",
    "VectorAttack",
    "Zero",
]
