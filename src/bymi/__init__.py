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
    from bymi.attacks import ATTACKS, Adversary, SimulatedAdversary
    from bymi.core.byzantine_hooks import Deviation
    from bymi.core.errors import BymiError, GraphError, InputError
    from bymi.core.graph import Core, Graph, MatrixGraph
    from bymi.core.inbox import Inbox, Mixture, Round
    from bymi.core.list_graph import ListGraph
    from bymi.core.network import LocalNetwork, Network, Outgoing
    from bymi.core.random_streams import Stream, stream
    from bymi.core.time_varying_graph import RedrawnGraph
    from bymi.core.topic import Topic
    from bymi.core.topology import TOPOLOGIES, Complete, EdgeFile, ErdosRenyi, Regular, Ring
    from bymi.detection import ArrayVerdict, Detector, Identity, Panel, Principal, Verdict, Watch, identify
    from bymi.experiment.train import TrainedRun, train
    from bymi.problems import LinearProblem, ModuleProblem, Problem, Shards
    from bymi.runs.results_table import ResultsTable, results
    from bymi.runs.simulate import simulate
    from bymi.runs.trained_models import load_model
    from bymi.training.algorithm import drsgd_bymi
    from bymi.training.plan import Optimisation, Plan, StepSize, Stop, WarmUp
    from bymi.training.state import Snapshot, State

__version__ = "0.16.1"

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
    "Deviation",
    "EdgeFile",
    "ErdosRenyi",
    "Filtering",
    "GeometricMedian",
    "Graph",
    "GraphError",
    "Identity",
    "Inbox",
    "InputError",
    "LinearProblem",
    "ListGraph",
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
    "RedrawnGraph",
    "Regular",
    "ResultsTable",
    "Ring",
    "Round",
    "Rule",
    "SetRule",
    "Shards",
    "SimulatedAdversary",
    "Snapshot",
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
    "results",
    "simulate",
    "stream",
    "train",
]

_ROOMS = (
    *("core.errors", "core.random_streams", "core.graph", "core.list_graph", "core.topology", "core.inbox", "core.topic"),
    *("core.network", "core.time_varying_graph", "aggregation", "problems", "detection", "attacks"),
    *("training.plan", "training.state", "training.phases", "training.algorithm"),
    *("runs.trained_models", "runs.results_table", "runs.simulate", "experiment.train"),
)
"""Where the names are; the first room that has one counts."""

_PACKAGES = ("datasets", "runs", "power_analysis", "experiment")
"""Packages with more than the names here: `bymi.experiment.load`."""


def __getattr__(name: str) -> Any:
    """A public name, one of the rooms or another package, imported at its first use."""
    if name in _ROOMS or name in _PACKAGES:
        return importlib.import_module(f"bymi.{name}")
    for room in _ROOMS if name in __all__ else ():
        found = vars(importlib.import_module(f"bymi.{room}"))
        if name in found:
            return globals().setdefault(name, found[name])
    raise AttributeError(f"module 'bymi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
