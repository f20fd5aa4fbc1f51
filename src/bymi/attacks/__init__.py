"""Attacks by what they change: data, gradients, halves, messages, trackers. To add one: write it, list it in ATTACKS."""

from __future__ import annotations

from bymi.attacks.base import AttackContext, Level, PerReceiver, RoleAttack, Timetable, VectorAttack
from bymi.attacks.common_small_shift import Shift, Steer, TrainingShift, Victim
from bymi.attacks.data import CovariateAttack, DataAttack, LabelFlip, OutOfDistribution, ParameterAttack, ResponseFlip
from bymi.attacks.detection_aware import Adaptive
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
from bymi.attacks.placement import PLACEMENTS, Placement, place
from bymi.attacks.registry import ALIASES, ATTACKS, Attack, Shown, check_options
from bymi.attacks.simulated_adversary import Adversary, SimulatedAdversary, SimulatedDeviation
from bymi.attacks.unusable_messages import Huge, Inf, MessageAttack, Misshapen, NaN, Silent

__all__ = [
    "ALIASES",
    "ALIE",
    "ATTACKS",
    "PLACEMENTS",
    "Adaptive",
    "Adversary",
    "Attack",
    "AttackContext",
    "CovariateAttack",
    "DataAttack",
    "Decorrelated",
    "Decoy",
    "Dissensus",
    "Gaussian",
    "GradientAttack",
    "Huge",
    "Inf",
    "InnerProductManipulation",
    "Isolation",
    "LabelFlip",
    "Level",
    "MessageAttack",
    "Mimic",
    "MinMax",
    "Misshapen",
    "NaN",
    "NegativeInjection",
    "OutOfDistribution",
    "ParameterAttack",
    "PerReceiver",
    "Placement",
    "Poison",
    "ResponseFlip",
    "RoleAttack",
    "SameValue",
    "Shift",
    "Shown",
    "SignFlip",
    "Silent",
    "SimulatedAdversary",
    "SimulatedDeviation",
    "Steer",
    "Timetable",
    "TrackerPoison",
    "TrainingShift",
    "VectorAttack",
    "Victim",
    "Zero",
    "check_options",
    "place",
]
