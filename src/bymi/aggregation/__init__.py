"""Aggregation rules, one per file. To add one, write it and list it in RULES; every property test then runs on it."""

from __future__ import annotations

from bymi.aggregation.balance import BALANCE
from bymi.aggregation.base import (
    Around,
    CoordinateRule,
    DistanceRule,
    NeighbourhoodRule,
    Order,
    OwnCoordinateRule,
    Rule,
    SetRule,
    WeightedRule,
)
from bymi.aggregation.bravo import BravoLSVRG, BravoSAGA
from bymi.aggregation.bridge import BridgeB, BridgeK, BridgeM, BridgeT
from bymi.aggregation.bucketing import Bucketing
from bymi.aggregation.bulyan import Bulyan
from bymi.aggregation.byrdie import ByRDiE
from bymi.aggregation.caf import CAF
from bymi.aggregation.callables import CallableRule, as_rule
from bymi.aggregation.centered_clipping import CenteredClipping
from bymi.aggregation.cge import CGE
from bymi.aggregation.chain import WRAPPERS, Chain, RuleTable
from bymi.aggregation.clip_before_rule import Clipping
from bymi.aggregation.faba import FABA
from bymi.aggregation.geometric_median import GeometricMedian
from bymi.aggregation.gradient_estimators import LocalGradient, LocalSamples, Memory
from bymi.aggregation.ios import IOS
from bymi.aggregation.krum import Krum
from bymi.aggregation.mda import MDA
from bymi.aggregation.meamed import Meamed
from bymi.aggregation.mean import Mean
from bymi.aggregation.median import Median
from bymi.aggregation.mixing_average import Average
from bymi.aggregation.momentum import Momentum
from bymi.aggregation.monna import MoNNA
from bymi.aggregation.multi_krum import MultiKrum
from bymi.aggregation.nnm import NNM
from bymi.aggregation.rtc import RTC
from bymi.aggregation.scclip import SCCLIP
from bymi.aggregation.spectral_filtering import Filtering
from bymi.aggregation.trimmed_mean import TrMean
from bymi.aggregation.tv_norm import DRSA, RSA
from bymi.aggregation.ubar import UBAR
from bymi.aggregation.wrapper import Wrapper

_RULES: dict[str, type[Rule]] = {
    "average": Average,
    "ubar": UBAR,
    "ios": IOS,
    "balance": BALANCE,
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrMean,
    "geometric-median": GeometricMedian,
    "filtering": Filtering,
    "scclip": SCCLIP,
    "rtc": RTC,
    "drsa": DRSA,
    "rsa": RSA,
    "bravo-saga": BravoSAGA,
    "bravo-lsvrg": BravoLSVRG,
    "bridge-t": BridgeT,
    "bridge-m": BridgeM,
    "bridge-k": BridgeK,
    "bridge-b": BridgeB,
    "byrdie": ByRDiE,
    "faba": FABA,
    "monna": MoNNA,
    "meamed": Meamed,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "bulyan": Bulyan,
    "centered-clipping": CenteredClipping,
    "cge": CGE,
    "caf": CAF,
    "mda": MDA,
}
RULES: RuleTable = RuleTable(Rule, _RULES, "bymi.rules")

ALIASES: dict[str, str] = {
    "dsgd": "average",
    "mozi": "ubar",
    "trmean": "trimmed-mean",
    "rfa": "geometric-median",
    "clipped-gossip": "scclip",
    "dsgd-rtc": "rtc",
    "tv": "drsa",
    "multikrum": "multi-krum",
    "cc": "centered-clipping",
}

__all__ = [
    "ALIASES",
    "BALANCE",
    "CAF",
    "CGE",
    "DRSA",
    "FABA",
    "IOS",
    "MDA",
    "NNM",
    "RSA",
    "RTC",
    "RULES",
    "SCCLIP",
    "UBAR",
    "WRAPPERS",
    "Around",
    "Average",
    "BravoLSVRG",
    "BravoSAGA",
    "BridgeB",
    "BridgeK",
    "BridgeM",
    "BridgeT",
    "Bucketing",
    "Bulyan",
    "ByRDiE",
    "CallableRule",
    "CenteredClipping",
    "Chain",
    "Clipping",
    "CoordinateRule",
    "DistanceRule",
    "Filtering",
    "GeometricMedian",
    "Krum",
    "LocalGradient",
    "LocalSamples",
    "Meamed",
    "Mean",
    "Median",
    "Memory",
    "MoNNA",
    "Momentum",
    "MultiKrum",
    "NeighbourhoodRule",
    "Order",
    "OwnCoordinateRule",
    "Rule",
    "SetRule",
    "TrMean",
    "WeightedRule",
    "Wrapper",
    "as_rule",
]
