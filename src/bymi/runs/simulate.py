"""Run a plan on a graph with an adversary: all nodes in this process, or sharded over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from bymi.attacks import Adversary, SimulatedAdversary, SimulatedDeviation
from bymi.core.errors import require
from bymi.core.graph import Graph
from bymi.core.list_graph import GraphLike, as_graph
from bymi.core.network import LocalNetwork, Observable
from bymi.distributed.group import Group
from bymi.distributed.router import STAY
from bymi.distributed.shard_layout import ShardLayout
from bymi.distributed.sharded_run import SHARDS, ShardedRun
from bymi.problems import Problem
from bymi.training.algorithm import drsgd_bymi
from bymi.training.plan import Plan
from bymi.training.state import Snapshot, State


def simulate(
    problem: Problem, graph: GraphLike, plan: Plan, adversary: Adversary | None = None, state: State | None = None
) -> Iterator[Snapshot]:
    """Run a plan on a graph, with or without an adversary, and yield a Snapshot after every round (after `state`, if given).

    The graph may be a bymi Graph, a networkx graph or an adjacency array; it must be connected, and as large as the problem and
    the adversary's mask.
    """
    network = local_network(graph, adversary)
    deviation = network.deviation if isinstance(network, SimulatedAdversary) else None
    return drsgd_bymi(problem, network, plan, deviation, state)


def local_network(graph: GraphLike, adversary: Adversary | None = None) -> LocalNetwork | SimulatedAdversary:
    """The network of all nodes of a graph in this process, wrapped by the adversary if there is one."""
    graph = as_graph(graph)
    check_adversary(adversary, graph.size)
    if adversary is None:
        return LocalNetwork(graph)
    return SimulatedAdversary(LocalNetwork(graph, variants=adversary.layout(graph)), adversary)


def sharded_run(
    problem: Problem,
    graph: Graph,
    adversary: Adversary | None = None,
    group: Group | None = None,
    *,
    shards: int = SHARDS,
    layout: ShardLayout | None = None,
) -> ShardedRun:
    """A graph's nodes sharded over the ranks of a group, with the adversary if there is one. See ShardedRun."""
    check_adversary(adversary, graph.size)
    if adversary is None:
        return ShardedRun(problem, graph, group, shards=shards, layout=layout)

    def wrap(network: Observable) -> tuple[SimulatedAdversary, SimulatedDeviation]:
        wrapped = SimulatedAdversary(network, adversary)
        return wrapped, wrapped.deviation

    variants, everywhere = adversary.layout(graph), adversary.needs_all(STAY)
    return ShardedRun(problem, graph, group, shards=shards, layout=layout, variants=variants, everywhere=everywhere, wrap=wrap)


def check_adversary(adversary: Adversary | None, size: int) -> None:
    """Raise InputError unless `adversary` is None or has a mask of `size` nodes."""
    if adversary is not None:
        require(isinstance(adversary, Adversary), "adversary", adversary, "an Adversary or None")
        count = len(adversary.members)
        require(count == size, "adversary", f"a mask of {count} nodes", f"a mask of the {size} nodes of the graph")
