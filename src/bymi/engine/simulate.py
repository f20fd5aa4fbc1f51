"""The one-process engine: every node of the graph in this process, on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bymi.algorithm import drsgd_bymi
from bymi.attacks import Adversary
from bymi.errors import require
from bymi.network import LocalNetwork
from bymi.plan import Plan
from bymi.problems import Problem
from bymi.sparse import GraphLike, as_graph
from bymi.state import Snapshot, State


def simulate(
    problem: Problem, graph: GraphLike, plan: Plan, adversary: Adversary | None = None, state: State | None = None
) -> Iterator[Snapshot]:
    """Run a plan on a graph, with or without an adversary, and yield a Snapshot after every round; after `state`, if given.

    The graph may be a Graph, a networkx graph or an adjacency array; it must be connected, and as large as the
    problem and the adversary's mask.
    """
    return drsgd_bymi(problem, local_network(graph, adversary), plan, adversary, state)


def local_network(graph: GraphLike, adversary: Adversary | None = None) -> LocalNetwork:
    """All nodes of a graph in this process, some of them the adversary's."""
    graph = as_graph(graph)
    check_adversary(adversary, graph.size)
    return LocalNetwork(graph, adversary.tamper if adversary is not None else None, adversary)


def check_adversary(adversary: Adversary | None, size: int) -> None:
    """Raise an InputError unless it is an adversary of a graph of so many nodes, or none."""
    if adversary is not None:
        require(isinstance(adversary, Adversary), "adversary", adversary, "an Adversary or None")
        count = len(adversary.members)
        require(count == size, "adversary", f"a mask of {count} nodes", f"a mask of the {size} nodes of the graph")


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block, then as many as before.

    Sums come out in an order that depends on the number of threads, so a run that is to give the same bits alone and beside
    others fixes it; at these sizes one thread is also the fastest.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
