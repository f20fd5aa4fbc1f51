"""A plan on a graph some of whose nodes the adversary controls: all nodes in this process, or their shards over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from bymi.algorithm import drsgd_bymi
from bymi.attacks import Adversary, Deviation, SimulatedAdversary
from bymi.engine.distributed import SHARDS, Spread
from bymi.engine.group import Group
from bymi.engine.layout import Layout
from bymi.engine.wires import STAY
from bymi.errors import require
from bymi.graph import Graph
from bymi.network import LocalNetwork, Observable
from bymi.plan import Plan
from bymi.problems import Problem
from bymi.sparse import GraphLike, as_graph
from bymi.state import Snapshot, State


def simulate(
    problem: Problem, graph: GraphLike, plan: Plan, adversary: Adversary | None = None, state: State | None = None
) -> Iterator[Snapshot]:
    """Run a plan on a graph, with or without an adversary, and yield a Snapshot after every round; after `state`, if given.

    The graph may be a Graph, a SparseGraph, a networkx graph or an adjacency array; it must be connected, and as large as the
    problem and the adversary's mask.
    """
    network = local_network(graph, adversary)
    forge = network.deviation if isinstance(network, SimulatedAdversary) else None
    return drsgd_bymi(problem, network, plan, forge, state)


def local_network(graph: GraphLike, adversary: Adversary | None = None) -> LocalNetwork | SimulatedAdversary:
    """All nodes of a graph in this process, some of them the adversary's."""
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
    layout: Layout | None = None,
) -> Spread:
    """All nodes of a graph over the ranks of a group, some of them the adversary's. `shards`, `layout`: those of Spread."""
    check_adversary(adversary, graph.size)
    if adversary is None:
        return Spread(problem, graph, group, shards=shards, layout=layout)

    def wrap(network: Observable) -> tuple[SimulatedAdversary, Deviation]:
        wrapped = SimulatedAdversary(network, adversary)
        return wrapped, wrapped.deviation

    variants, everywhere = adversary.layout(graph), adversary.needs_all(STAY)
    return Spread(problem, graph, group, shards=shards, layout=layout, variants=variants, everywhere=everywhere, wrap=wrap)


def check_adversary(adversary: Adversary | None, size: int) -> None:
    """Raise an InputError unless it is an adversary of a graph of so many nodes, or none."""
    if adversary is not None:
        require(isinstance(adversary, Adversary), "adversary", adversary, "an Adversary or None")
        count = len(adversary.members)
        require(count == size, "adversary", f"a mask of {count} nodes", f"a mask of the {size} nodes of the graph")
