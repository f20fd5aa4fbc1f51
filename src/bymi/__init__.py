"""bymi: decentralised learning in which some nodes lie, and the others find out who.

The names here need torch, numpy and networkx only; `train` also needs pydantic, as all of `bymi.experiment` does. Names
are looked up at their first use (PEP 562), so that `import bymi` and `bymi --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from bymi.attacks import ATTACKS, Adversary, SimulatedAdversary
    from bymi.detection import ArrayVerdict, Detector, Identity, Panel, Principal, Verdict, Watch, identify
    from bymi.errors import BymiError, GraphError, InputError
    from bymi.experiment.train import TrainedRun, train
    from bymi.graph import Core, Graph, MatrixGraph
    from bymi.inbox import Inbox, Mixture, Round
    from bymi.network import LocalNetwork, Network, Outgoing
    from bymi.phases import Forge, Snapshot
    from bymi.plan import Optimisation, Plan, StepSize, Stop, WarmUp
    from bymi.problems import LinearProblem, ModuleProblem, Problem, Shards
    from bymi.runs.models import load_model
    from bymi.runs.simulate import simulate
    from bymi.sparse import SparseGraph
    from bymi.state import State
    from bymi.streams import Stream, stream
    from bymi.topic import Topic
    from bymi.topology import TOPOLOGIES, Complete, EdgeFile, ErdosRenyi, Regular, Ring

__version__ = "0.11.0"

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
    "MatrixGraph",
    "Mean",
    "Median",
    "Mixture",
    "ModuleProblem",
    "Network",
    "Optimisation",
    "Outgoing",
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
    "SimulatedAdversary",
    "Snapshot",
    "SparseGraph",
    "State",
    "StepSize",
    "Stop",
    "Stream",
    "Topic",
    "TrMean",
    "TrainedRun",
    "Verdict",
    "WarmUp",
    "Watch",
    "WeightedRule",
    "drsgd_bymi",
    "identify",
    "load_model",
    "simulate",
    "stream",
    "train",
]

_ROOMS = (
    *("errors", "streams", "graph", "sparse", "topology", "inbox", "topic", "network", "aggregation", "problems", "detection"),
    *("attacks", "plan", "state", "phases", "algorithm", "engine", "runs.models", "runs.simulate", "experiment.train"),
)
"""Where the names are; the first room that has one counts."""


def __getattr__(name: str) -> Any:
    """A public name or one of the rooms, imported at its first use."""
    if name in _ROOMS:
        return importlib.import_module(f"bymi.{name}")
    for room in _ROOMS if name in __all__ else ():
        found = vars(importlib.import_module(f"bymi.{room}"))
        if name in found:
            return globals().setdefault(name, found[name])
    raise AttributeError(f"module 'bymi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
