"""Small runs of every kind for tests of checkpoints: their rounds, and the state after each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from bymi import Snapshot, State, simulate
from bymi.experiment import load
from bymi.runs.pack_state import StateShape
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import local_network

SMALL = ("nodes=16", "steps=40", "data.dim=4", "data.samples=40")
WATCHED = ("method=drsgd-bymi", "watch.every=10", "warm_up.steps=6")
RUNS: dict[str, tuple[str, ...]] = {
    "dsgd": ("profile=paper", "method=dsgd"),
    "rule": ("profile=paper", "method=rule"),
    "paper": ("profile=paper", "method=drsgd-bymi"),
    "paper, tracker on the move": ("profile=paper", "method=drsgd-bymi", "optimisation.premix_rounds=2"),
    "paper, again": ("profile=paper", "method=drsgd-bymi", "detection.every=12", "stop.tolerance=1e-9", "stop.patience=7"),
    "rule, looked at": ("profile=paper", "method=rule", "stop.tolerance=1e-9", "stop.patience=6"),
    "paper, frost": (
        "profile=paper",
        "method=drsgd-bymi",
        "optimisation.method=frost:heavy_ball=0.2",
        "optimisation.premix_rounds=2",
    ),
    "hardened": WATCHED,
    "hardened, tracking": (*WATCHED, "optimisation.method=gradient-tracking"),
    "hardened, directed": (*WATCHED, "detection.pruning=directed"),
    "hardened, two faces": (*WATCHED, "attack=ipm", "byzantine_faces=two", "byzantine_level=message"),
    "hardened, a message for each": (*WATCHED, "attack=dissensus"),
    "hardened, redrawn": (*WATCHED, "attack=dissensus", "redraw_every=3", "redraw_graphs=3", "graph=erdos-renyi:p=0.4"),
    "hardened, poisoned": (
        *WATCHED,
        *("attack=poison", "watch.retreat=0.001", "byzantine_start=36"),
        *("optimisation.step_size=0.4", "optimisation.max_local_step=0.5"),
    ),
}


@cache
def scene_of(name: str) -> RunSetup:
    return set_up_run(load(None, [*SMALL, *RUNS[name]]).resolved)


def frame_of(name: str) -> StateShape:
    scene = scene_of(name)
    return StateShape.of(scene.problem, local_network(scene.redrawn or scene.graph, scene.adversary), scene.plan)


def rounds_of(name: str, state: State | None = None) -> Iterator[Snapshot]:
    scene = scene_of(name)
    return simulate(scene.problem, scene.redrawn or scene.graph, scene.plan, scene.adversary, state)


@cache
def undisturbed(name: str) -> list[tuple[Snapshot, State]]:
    """Every round with a state that was kept, as a run goes on from the one it gave out."""
    kept = []
    for snapshot in rounds_of(name):
        assert snapshot.state is not None
        kept.append((snapshot, snapshot.state.copy()))
    return kept


def state_at(name: str, step: int, phase: str | None = None) -> State:
    """The state after a round; where that is also the round of a detection, the phase says which."""
    return next(state for _, state in undisturbed(name) if state.step == step and phase in (None, state.phase))


def tensors_in(value: object) -> dict[str, torch.Tensor]:
    """All tensors in a state or verdict, by name, those of its parts included."""
    found = {}
    for name, part in vars(value).items():
        if isinstance(part, torch.Tensor):
            found[name] = part
        elif name in ("record", "history", "verdict", "kept") and part is not None:
            found.update({f"{name}.{inner}": tensor for inner, tensor in tensors_in(part).items()})
        elif name == "memory":
            found.update({f"memory.{inner}": tensor for inner, tensor in part.items()})
    return found


def assert_alike(one: object, two: object) -> None:
    """The same tensors, bit by bit."""
    left, right = tensors_in(one), tensors_in(two)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name].nan_to_num(-1.0), right[name].nan_to_num(-1.0)), name


def assert_same_state(one: State | None, two: State) -> None:
    assert one is not None
    assert_alike(one, two)
    for key in ("step", "phase", "judged", "settled", "stopped"):
        assert getattr(one, key) == getattr(two, key)
    if two.history is not None:
        assert one.history is not None
        for key in ("rates", "rounds", "steps", "weights"):
            assert getattr(one.history, key) == getattr(two.history, key)
