"""Checks before the first round of a run: that problem, network, plan and state fit together."""

from __future__ import annotations

import torch

from bymi.core.deviation import Deviation
from bymi.core.errors import GraphError, require
from bymi.core.graph import NOT_MUTUAL, Graph
from bymi.core.list_graph import check_connected
from bymi.core.network import Network
from bymi.problems import Problem
from bymi.training.plan import Plan
from bymi.training.state import State

_PROBLEM = ("dim", "samples", "initial", "gradient", "losses")
_NETWORK = ("nodes", "size", "arcs", "exchange", "ask", "all_agree", "prune", "reweight")
_DEVIATION = ("gradients", "keep", "asks", "prune")


def check_run(problem: Problem, network: Network, plan: Plan, deviation: Deviation | None, state: State | None) -> None:
    """Raise an InputError unless `drsgd_bymi` can run with these arguments."""
    require(_has(problem, _PROBLEM), "problem", problem, "a LinearProblem, a ModuleProblem or any Problem")
    require(_has(network, _NETWORK), "network", network, "a Network, such as LocalNetwork(graph)")
    require(isinstance(plan, Plan), "plan", plan, "a Plan")
    require(deviation is None or _has(deviation, _DEVIATION), "deviation", deviation, "an Adversary or None")
    _check_nodes(problem, network)
    _check_samples(problem.samples, plan)
    if state is not None:
        require(isinstance(state, State), "state", state, "the State of a Snapshot, or None")
        shape = (len(network.nodes), problem.dim)
        require(state.theta.shape == shape, "state", f"models of shape {list(state.theta.shape)}", f"{list(shape)}")
    graph = getattr(network, "graph", None)
    if isinstance(graph, Graph) and getattr(network, "whole_here", False):
        check_connected(graph)
        mutual = plan.detector is not None and plan.detector.pruning == "mutual"
        if mutual and not graph.symmetric:
            raise GraphError(NOT_MUTUAL)
        if plan.optimisation.method.push and plan.detector is not None:
            name = type(plan.optimisation.method).__name__
            require(graph.symmetric, "optimisation.method", name, "frost on a graph in which some arcs have no reverse")


def _has(thing: object, names: tuple[str, ...]) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, name) for name in names)


def _check_nodes(problem: Problem, network: Network) -> None:
    """Check `problem.node_numbers` [M], if given: it has samples of all nodes held here, and of none beyond the network."""
    numbers = getattr(problem, "node_numbers", None)
    if numbers is not None:
        fits = int(numbers.max()) < network.size and bool(torch.isin(network.nodes, numbers.to(network.nodes.device)).all())
        require(fits, "problem", f"samples of {len(numbers)} nodes", f"samples of the {network.size} nodes of the graph")


def _check_samples(samples: int, plan: Plan) -> None:
    """Check sample counts: detection needs 2 per node and at most all; the published one leaves some for the warm-up."""
    if plan.detector is None:
        return
    if plan.watch is None:
        most = samples + samples % 2 - 1
        require(plan.identification <= most, "identification", plan.identification, f"2 to {most} with {samples} samples")
    elif plan.detector.sample != "all":
        name = "identification" if plan.detector.sample == "identification" else "sample"
        count = plan.identification if plan.detector.sample == "identification" else plan.detector.sample
        require(2 <= int(count) <= samples, name, count, f"2 to {samples}, all samples of a node")
