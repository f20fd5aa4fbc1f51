"""Attacks by what they touch: data, gradients, halves, messages, trackers. To add one: write it and list it in ATTACKS."""

from __future__ import annotations

from bymi.attacks.adversary import Adversary
from bymi.attacks.base import Moment, PerReceiver, Plot, VectorAttack
from bymi.attacks.collusion import Deed, Shift, Steer, Victim
from bymi.attacks.data import CovariateAttack, DataAttack, LabelFlip, OutOfDistribution, ParameterAttack, ResponseFlip
from bymi.attacks.gradient import GradientAttack, InnerProductManipulation
from bymi.attacks.levels import Level
from bymi.attacks.message import Huge, Inf, MessageAttack, Misshapen, NaN, Silent
from bymi.attacks.options import Attack, Shown, check_options
from bymi.attacks.pair import Decorrelated, Decoy, NegativeInjection
from bymi.attacks.parameters import Dissensus, Isolation, Poison
from bymi.attacks.placement import PLACEMENTS, Placement, place
from bymi.attacks.simple import Gaussian, SameValue, SignFlip, Zero
from bymi.attacks.simulated import Deviation, SimulatedAdversary
from bymi.attacks.statistical import ALIE, Mimic, MinMax
from bymi.attacks.table import ALIASES, ATTACKS
from bymi.attacks.tracker import TrackerPoison

__all__ = [
    "ALIASES",
    "ALIE",
    "ATTACKS",
    "PLACEMENTS",
    "Adversary",
    "Attack",
    "CovariateAttack",
    "DataAttack",
    "Decorrelated",
    "Decoy",
    "Deed",
    "Deviation",
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
    "Moment",
    "NaN",
    "NegativeInjection",
    "OutOfDistribution",
    "ParameterAttack",
    "PerReceiver",
    "Placement",
    "Plot",
    "Poison",
    "ResponseFlip",
    "SameValue",
    "Shift",
    "Shown",
    "SignFlip",
    "Silent",
    "SimulatedAdversary",
    "Steer",
    "TrackerPoison",
    "VectorAttack",
    "Victim",
    "Zero",
    "check_options",
    "place",
]
