"""Run a plan on a graph with an adversary: all nodes in this process, or sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from bymi.attacks import Adversary, SimulatedAdversary, SimulatedDeviation
from bymi.core.errors import BymiError, error_of, require, system_refusal
from bymi.core.graph import Graph
from bymi.core.list_graph import GraphLike, as_graph
from bymi.core.network import LocalNetwork, Observable
from bymi.core.time_varying_graph import RedrawnGraph, RedrawnNetwork
from bymi.core.topic import PARAMETERS
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.gathered_snapshots import Due, GatheredRound, Models, whole_rounds
from bymi.distributed.router import SHARDED_TOPICS
from bymi.distributed.shard_layout import ShardLayout
from bymi.distributed.sharded_run import SHARDS, ShardedRun
from bymi.problems import Problem
from bymi.runs.checkpoints import Place
from bymi.runs.metrics import Recorder, is_lost
from bymi.runs.pack_state import StateShape
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import Given, RunSetup, set_up_run
from bymi.training.algorithm import drsgd_bymi
from bymi.training.plan import Plan
from bymi.training.state import Snapshot, State


def simulate(
    problem: Problem,
    graph: GraphLike | RedrawnGraph,
    plan: Plan,
    adversary: Adversary | None = None,
    state: State | None = None,
) -> Iterator[Snapshot]:
    """Run a plan on a graph, with or without an adversary, and yield a Snapshot after every round (after `state`, if given).

    The graph may be a bymi Graph, a RedrawnGraph, a networkx graph or an adjacency array; it must be connected, and as large as
    the problem and the adversary's mask.
    """
    return _rounds(problem, local_network(graph, adversary), plan, state)


def _rounds(
    problem: Problem, network: LocalNetwork | SimulatedAdversary, plan: Plan, state: State | None
) -> Iterator[Snapshot]:
    deviation = network.deviation if isinstance(network, SimulatedAdversary) else None
    return drsgd_bymi(problem, network, plan, deviation, state)


def local_network(graph: GraphLike | RedrawnGraph, adversary: Adversary | None = None) -> LocalNetwork | SimulatedAdversary:
    """The network of all nodes of a graph in this process, wrapped by the adversary if there is one."""
    redrawn = graph if isinstance(graph, RedrawnGraph) else None
    whole = graph.union if isinstance(graph, RedrawnGraph) else as_graph(graph)
    check_adversary(adversary, whole.size)
    variants = None if adversary is None else adversary.layout(whole)
    network = LocalNetwork(whole, variants=variants) if redrawn is None else RedrawnNetwork.of(redrawn, variants=variants)
    return network if adversary is None else SimulatedAdversary(network, adversary)


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

    variants, everywhere = adversary.layout(graph), adversary.needs_all(SHARDED_TOPICS)
    return ShardedRun(problem, graph, group, shards=shards, layout=layout, variants=variants, everywhere=everywhere, wrap=wrap)


def check_adversary(adversary: Adversary | None, size: int) -> None:
    """Raise InputError unless `adversary` is None or has a mask of `size` nodes."""
    if adversary is not None:
        require(isinstance(adversary, Adversary), "adversary", adversary, "an Adversary or None")
        count = len(adversary.members)
        require(count == size, "adversary", f"a mask of {count} nodes", f"a mask of the {size} nodes of the graph")


class Engine(Protocol):
    """Computes the rounds of a run.

    `places`: the shards held by this process of the `group`, whose states are checkpointed. `shape`: shapes of states, however
    nodes are sharded.
    """

    setup: RunSetup
    places: Sequence[Place]
    shape: StateShape
    group: Group

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        """Yield all rounds, or those after `states`; `wants`: whether this process would store a round."""
        ...

    def models(self, states: Sequence[State]) -> Models:
        """The models in the states of this process's shards."""
        ...


class OneProcess:
    """Engine with all nodes in this process."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup, self.group = setup, Group()
        self._network = local_network(setup.redrawn or setup.graph, setup.adversary)
        self.places: Sequence[Place] = [Place(self._network.nodes)]
        self.shape = StateShape.of(setup.problem, self._network, setup.plan)

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        setup = self.setup
        state = None if states is None else states[0]
        for snapshot in _rounds(setup.problem, self._network, setup.plan, state):
            states_here = [] if snapshot.state is None else [snapshot.state]
            yield GatheredRound(snapshot, Models([snapshot.theta]), states_here, partial(wants, snapshot.step, snapshot.phase))
            del snapshot, states_here  # do not keep a round in memory while the next one is computed

    def models(self, states: Sequence[State]) -> Models:
        return Models([states[0].theta])


class ManyProcesses:
    """Engine with the nodes sharded over all ranks of a group."""

    def __init__(self, setup: RunSetup, spec: ResolvedSpec, group: Group) -> None:
        assert setup.layout is not None
        setup = replace(setup, evaluator=setup.evaluator.shared(group, setup.layout))
        self.setup, self.group, self._spec = setup, group, spec
        self.shape = StateShape.of(setup.problem, local_network(setup.graph, setup.adversary), setup.plan)
        self._sharded_run = sharded_run(setup.problem, setup.graph, setup.adversary, group, layout=setup.layout)
        columns = self._sharded_run.router.columns(PARAMETERS, varied=setup.adversary.differs(PARAMETERS))
        self.places: Sequence[Place] = [
            Place(network.nodes, network.shard, self._sharded_run.shards, held_columns)
            for network, held_columns in zip(self._sharded_run.networks, columns, strict=True)
        ]

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        honest = ~self.setup.byzantine
        due = partial(Recorder.due, steps=self._spec["steps"], every=self._spec["record_every"])
        return whole_rounds(
            self._sharded_run, self.setup.plan, states, due=due, lost=lambda lengths: is_lost(lengths[honest]), wants=wants
        )

    def models(self, states: Sequence[State]) -> Models:
        return Models([state.theta for state in states], self._sharded_run.router)


def engine_of(spec: ResolvedSpec, host: Host, group: Group | None = None, given: Given | None = None) -> Engine:
    """The engine of a run: all nodes in this process, or sharded over the ranks of a `group`, which call this together."""
    if group is None:
        return OneProcess(set_up_run(spec, host, given=given))
    setup = _by_all(group, lambda: set_up_run(spec, host, group))
    return OneProcess(setup) if setup.layout is None else ManyProcesses(setup, spec, group)


def _by_all(group: Group, build: Callable[[], RunSetup]) -> RunSetup:
    """What `build` returns on each process. Collective: an error on one of them, such as in its own data, is raised on all."""
    setup, error = None, None
    try:
        setup = build()
    except BymiError as problem:
        error = [problem.exit_code, str(problem)]
    except (OSError, MemoryError, RuntimeError) as problem:
        refused = system_refusal(problem)
        if refused is None:
            raise
        error = [refused.exit_code, str(refused)]
    errors = [words["mistake"] for words in group.tell({"mistake": error}) if words["mistake"]]
    if errors or setup is None:
        raise error_of(*errors[0])
    return setup
