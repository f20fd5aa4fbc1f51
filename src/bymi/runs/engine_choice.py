"""Engines of a run: all nodes in this process, or sharded over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from torch import Tensor

from bymi.core.errors import BymiError, error_of, system_refusal
from bymi.core.network import LocalNetwork
from bymi.core.topic import PARAMETERS
from bymi.distributed.gathered_rounds import Due, GatheredRound, Held, Models, Scattered, whole_rounds
from bymi.distributed.group import Group
from bymi.distributed.host import Host
from bymi.runs.checkpoints import Place
from bymi.runs.metrics import Recorder
from bymi.runs.outcome import is_lost
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import Given, RunSetup, set_up_run
from bymi.runs.simulate import local_network, sharded_run, simulate
from bymi.runs.state_schema import StateShape
from bymi.training.state import State


class Engine(Protocol):
    """Computes the rounds of a run. `places`: the shards held by this process of the `group`, whose states are checkpointed."""

    scene: RunSetup
    places: Sequence[Place]
    group: Group

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        """Yield all rounds, or those after `states`; `wants`: whether this process would store a round."""
        ...

    def models(self, states: Sequence[State]) -> Models:
        """The models in the states of this process's shards."""
        ...


EngineMaker = Callable[[ResolvedSpec, Host], Engine]
"""Builds the engine of a run."""


class OneProcess:
    """Engine with all nodes in this process."""

    def __init__(self, scene: RunSetup, spec: ResolvedSpec) -> None:
        self.scene, self.group = scene, Group()
        self.places: Sequence[Place] = [Place(LocalNetwork(scene.graph).nodes)]

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        setup = self.scene
        state = None if states is None else states[0]
        for snapshot in simulate(setup.problem, setup.graph, setup.plan, setup.adversary, state):
            states_here = [] if snapshot.state is None else [snapshot.state]
            yield GatheredRound(snapshot, Held(snapshot.theta), states_here, partial(wants, snapshot.step, snapshot.phase))
            del snapshot, states_here  # do not keep a round in memory while the next one is computed

    def models(self, states: Sequence[State]) -> Models:
        return Held(states[0].theta)


class ManyProcesses:
    """Engine with the nodes sharded over all ranks of a group."""

    def __init__(self, scene: RunSetup, spec: ResolvedSpec, group: Group) -> None:
        assert scene.layout is not None
        scene = replace(scene, evaluator=scene.evaluator.shared(group, scene.layout))
        self.scene, self.group, self._spec = scene, group, spec
        self._sharded_run = sharded_run(scene.problem, scene.graph, scene.adversary, group, layout=scene.layout)
        networks, columns = (
            self._sharded_run.networks,
            self._sharded_run.router.columns(PARAMETERS, varied=scene.adversary.differs(PARAMETERS)),
        )
        self.places: Sequence[Place] = [
            Place(network.nodes, network.shard, self._sharded_run.shards, held_columns)
            for network, held_columns in zip(networks, columns, strict=True)
        ]

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[GatheredRound]:
        watched = ~self.scene.byzantine

        def lost(lengths: Tensor) -> bool:
            return is_lost(lengths[watched])

        due = partial(Recorder.due, steps=self._spec.steps, every=self._spec["record_every"])
        return whole_rounds(self._sharded_run, self.scene.plan, states, due=due, lost=lost, wants=wants)

    def models(self, states: Sequence[State]) -> Models:
        return Scattered([state.theta for state in states], self._sharded_run.router)


def alone(spec: ResolvedSpec, host: Host, given: Given | None = None) -> Engine:
    """The engine of a run in this process."""
    return OneProcess(set_up_run(spec, host, given=given), spec)


def lay_out(spec: ResolvedSpec, host: Host, group: Group) -> Engine:
    """The engine of a run over a group; a single rank that computes all nodes at once uses OneProcess. Collective."""
    setup = _by_all(group, lambda: set_up_run(spec, host, group))
    return OneProcess(setup, spec) if setup.layout is None else ManyProcesses(setup, spec, group)


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


def frame_of(scene: RunSetup) -> StateShape:
    """The shapes of states of a run, however its nodes are sharded."""
    return StateShape.of(scene.problem, local_network(scene.graph, scene.adversary), scene.plan)
