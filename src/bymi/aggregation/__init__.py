"""Aggregation rules, one per file. To add one, write it and list it in RULES; every property test then runs on it."""

from __future__ import annotations

from bymi.aggregation.average import Average
from bymi.aggregation.balance import BALANCE
from bymi.aggregation.base import CoordinateRule, Order, Rule, SetRule, WeightedRule
from bymi.aggregation.filtering import Filtering
from bymi.aggregation.geometric_median import GeometricMedian
from bymi.aggregation.ios import IOS
from bymi.aggregation.mean import Mean
from bymi.aggregation.median import Median
from bymi.aggregation.trimmed_mean import TrMean
from bymi.aggregation.ubar import UBAR
from bymi.core.named_parts import Table

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
}
RULES: Table[Rule] = Table(Rule, _RULES, "bymi.rules")

ALIASES: dict[str, str] = {
    "dsgd": "average",
    "mozi": "ubar",
    "trmean": "trimmed-mean",
    "rfa": "geometric-median",
}

__all__ = [
    "ALIASES",
    "BALANCE",
    "IOS",
    "RULES",
    "UBAR",
    "Average",
    "CoordinateRule",
    "Filtering",
    "GeometricMedian",
    "Mean",
    "Median",
    "Order",
    "Rule",
    "SetRule",
    "TrMean",
    "WeightedRule",
]
