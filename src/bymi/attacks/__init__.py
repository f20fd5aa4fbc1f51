"""Attacks by what they touch: data, gradients, messages. To add one: write it and list it in ATTACKS."""

from __future__ import annotations

from bymi.attacks.adversary import Adversary, Attack
from bymi.attacks.data import CovariateAttack, DataAttack, OutOfDistribution, ParameterAttack
from bymi.attacks.gradient import GradientAttack, InnerProductManipulation, VectorAttack
from bymi.attacks.message import Huge, Inf, MessageAttack, Misshapen, NaN, Silent

ATTACKS: dict[str, type[Attack]] = {
    "parameter": ParameterAttack,
    "covariate": CovariateAttack,
    "ood": OutOfDistribution,
    "gradient": GradientAttack,
    "ipm": InnerProductManipulation,
    "nan": NaN,
    "inf": Inf,
    "huge": Huge,
    "misshapen": Misshapen,
    "silent": Silent,
}

ALIASES: dict[str, str] = {"scenario-a": "parameter", "scenario-b": "covariate", "empire": "ipm", "crash": "silent"}

__all__ = [
    "ALIASES",
    "ATTACKS",
    "Adversary",
    "Attack",
    "CovariateAttack",
    "DataAttack",
    "GradientAttack",
    "Huge",
    "Inf",
    "InnerProductManipulation",
    "MessageAttack",
    "Misshapen",
    "NaN",
    "OutOfDistribution",
    "ParameterAttack",
    "Silent",
    "VectorAttack",
]
