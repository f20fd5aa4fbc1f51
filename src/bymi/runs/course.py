"""How the rounds of a run are walked through: in this process, or by several that hold a part of its nodes each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from torch import Tensor

from bymi.engine.group import Group
from bymi.engine.host import Host
from bymi.engine.records import Due, Held, Models, Moment, Scattered, whole_rounds
from bymi.errors import BymiError, error_of, system_refusal
from bymi.network import LocalNetwork
from bymi.runs.checkpoints import Place
from bymi.runs.metrics import Recorder
from bymi.runs.outcome import is_lost
from bymi.runs.packing import Frame
from bymi.runs.scene import Given, Scene, build_scene
from bymi.runs.sheet import Sheet
from bymi.runs.simulate import local_network, sharded_run, simulate
from bymi.state import State
from bymi.topic import PARAMETERS


class Course(Protocol):
    """`places`: the shards held by this process of the `group`, whose states are stored and taken up again."""

    scene: Scene
    places: Sequence[Place]
    group: Group

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[Moment]:
        """All rounds, or those after `states`; `wants`: whether this process would store a round."""
        ...

    def models(self, states: Sequence[State]) -> Models:
        """The models in the states of the shards held here."""
        ...


Plot = Callable[[Sheet, Host], Course]
"""Lays out the course of a run."""


class Alone:
    """All nodes in this process."""

    def __init__(self, scene: Scene, sheet: Sheet) -> None:
        self.scene, self.group = scene, Group()
        self.places: Sequence[Place] = [Place(LocalNetwork(scene.graph).nodes)]

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[Moment]:
        scene = self.scene
        state = None if states is None else states[0]
        for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary, state):
            here = [] if snapshot.state is None else [snapshot.state]
            yield Moment(snapshot, Held(snapshot.theta), here, partial(wants, snapshot.step, snapshot.phase))
            del snapshot, here  # a round is not kept while the next one is computed

    def models(self, states: Sequence[State]) -> Models:
        return Held(states[0].theta)


class Together:
    """The nodes spread over all ranks of a group."""

    def __init__(self, scene: Scene, sheet: Sheet, group: Group) -> None:
        assert scene.layout is not None
        scene = replace(scene, yardstick=scene.yardstick.shared(group, scene.layout))
        self.scene, self.group, self._sheet = scene, group, sheet
        self._spread = sharded_run(scene.problem, scene.graph, scene.adversary, group, layout=scene.layout)
        networks, columns = (
            self._spread.networks,
            self._spread.wires.columns(PARAMETERS, varied=scene.adversary.differs(PARAMETERS)),
        )
        self.places: Sequence[Place] = [
            Place(network.nodes, network.shard, self._spread.shards, some)
            for network, some in zip(networks, columns, strict=True)
        ]

    def rounds(self, states: Sequence[State] | None, wants: Due) -> Iterator[Moment]:
        watched = ~self.scene.byzantine

        def lost(lengths: Tensor) -> bool:
            return is_lost(lengths[watched])

        due = partial(Recorder.due, steps=self._sheet.steps, every=self._sheet["record_every"])
        return whole_rounds(self._spread, self.scene.plan, states, due=due, lost=lost, wants=wants)

    def models(self, states: Sequence[State]) -> Models:
        return Scattered([state.theta for state in states], self._spread.wires)


def alone(sheet: Sheet, host: Host, given: Given | None = None) -> Course:
    """The course of a run in this process."""
    return Alone(build_scene(sheet, host, given=given), sheet)


def lay_out(sheet: Sheet, host: Host, group: Group) -> Course:
    """The course of a run over a group. One rank that computes all nodes at once is a process like any other."""
    scene = _by_all(group, lambda: build_scene(sheet, host, group))
    return Alone(scene, sheet) if scene.layout is None else Together(scene, sheet, group)


def _by_all(group: Group, build: Callable[[], Scene]) -> Scene:
    """What each process builds for itself. A mistake that one of them meets, such as in its own data, stops all."""
    scene, mistake = None, None
    try:
        scene = build()
    except BymiError as problem:
        mistake = [problem.exit_code, str(problem)]
    except (OSError, MemoryError, RuntimeError) as problem:
        refused = system_refusal(problem)
        if refused is None:
            raise
        mistake = [refused.exit_code, str(refused)]
    mistakes = [words["mistake"] for words in group.tell({"mistake": mistake}) if words["mistake"]]
    if mistakes or scene is None:
        raise error_of(*mistakes[0])
    return scene


def frame_of(scene: Scene) -> Frame:
    """What states of a scene look like, whoever holds which nodes."""
    return Frame.of(scene.problem, local_network(scene.graph, scene.adversary), scene.plan)
