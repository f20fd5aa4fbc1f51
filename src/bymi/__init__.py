"""bymi: decentralised learning in which some nodes lie, and the others find out who.

The names here need torch, numpy and networkx only. Experiments, with their files and figures, are in `bymi.experiment`.
"""

from __future__ import annotations

from bymi.aggregation import (
    BALANCE,
    IOS,
    RULES,
    UBAR,
    Average,
    CoordinateRule,
    Filtering,
    GeometricMedian,
    Mean,
    Median,
    Rule,
    SetRule,
    TrMean,
    WeightedRule,
)
from bymi.algorithm import drsgd_bymi
from bymi.attacks import ATTACKS, Adversary
from bymi.detection import ArrayVerdict, Detector, Identity, Panel, Principal, Verdict, Watch, identify
from bymi.engine import simulate
from bymi.errors import BymiError, GraphError, InputError
from bymi.graph import Core, Graph
from bymi.inbox import Inbox, Mixture, Round
from bymi.network import LocalNetwork, Network
from bymi.phases import Forge, Snapshot
from bymi.plan import Optimisation, Plan, StepSize, WarmUp
from bymi.problems import LinearProblem, ModuleProblem, Problem, Shards
from bymi.sparse import SparseGraph
from bymi.state import State
from bymi.streams import Stream, stream
from bymi.topology import TOPOLOGIES, Complete, EdgeFile, ErdosRenyi, Regular, Ring

__version__ = "0.10.0"

__all__ = [
    "ATTACKS",
    "BALANCE",
    "IOS",
    "RULES",
    "TOPOLOGIES",
    "UBAR",
    "Adversary",
    "ArrayVerdict",
    "Average",
    "BymiError",
    "Complete",
    "CoordinateRule",
    "Core",
    "Detector",
    "EdgeFile",
    "ErdosRenyi",
    "Filtering",
    "Forge",
    "GeometricMedian",
    "Graph",
    "GraphError",
    "Identity",
    "Inbox",
    "InputError",
    "LinearProblem",
    "LocalNetwork",
    "Mean",
    "Median",
    "Mixture",
    "ModuleProblem",
    "Network",
    "Optimisation",
    "Panel",
    "Plan",
    "Principal",
    "Problem",
    "Regular",
    "Ring",
    "Round",
    "Rule",
    "SetRule",
    "Shards",
    "Snapshot",
    "SparseGraph",
    "State",
    "StepSize",
    "Stream",
    "TrMean",
    "Verdict",
    "WarmUp",
    "Watch",
    "WeightedRule",
    "drsgd_bymi",
    "identify",
    "simulate",
    "stream",
]
