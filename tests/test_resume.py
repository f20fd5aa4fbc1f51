"""A run that is entered in the middle gives, bit by bit, the numbers of one that was never left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch

from bymi import Snapshot, State, simulate
from bymi.experiment import load
from bymi.runs.scene import Scene, build_scene

SMALL = ("nodes=16", "steps=40", "data.dim=4", "data.samples=40")
WATCHED = ("method=drsgd-bymi", "watch.every=10", "warm_up.steps=6")
RUNS: dict[str, tuple[str, ...]] = {
    "dsgd": ("profile=paper", "method=dsgd"),
    "rule": ("profile=paper", "method=rule"),
    "paper": ("profile=paper", "method=drsgd-bymi"),
    "paper, tracker on the move": ("profile=paper", "method=drsgd-bymi", "optimisation.premix_rounds=2"),
    "hardened": WATCHED,
    "hardened, directed": (*WATCHED, "detection.pruning=directed"),
    "hardened, two faces": (*WATCHED, "attack=ipm", "byzantine_faces=two"),
    "hardened, a message for each": (*WATCHED, "attack=dissensus"),
    "hardened, poisoned": (*WATCHED, "attack=poison", "watch.retreat=0.001"),
}


@cache
def scene_of(name: str) -> Scene:
    return build_scene(load(None, [*SMALL, *RUNS[name]]).sheet)


def rounds_of(name: str, state: State | None = None) -> Iterator[Snapshot]:
    scene = scene_of(name)
    return simulate(scene.problem, scene.graph, scene.plan, scene.adversary, state)


@cache
def undisturbed(name: str) -> list[tuple[Snapshot, State]]:
    """Every round with a state that was kept, as a run goes on from the one it gave out."""
    kept = []
    for snapshot in rounds_of(name):
        assert snapshot.state is not None
        kept.append((snapshot, snapshot.state.copy()))
    return kept


def tensors_in(value: object) -> dict[str, torch.Tensor]:
    """All tensors in a state or verdict, by name, those of its parts included."""
    found = {}
    for name, part in vars(value).items():
        if isinstance(part, torch.Tensor):
            found[name] = part
        elif name in ("record", "trail", "verdict") and part is not None:
            found.update({f"{name}.{inner}": tensor for inner, tensor in tensors_in(part).items()})
    return found


def assert_same(one: Snapshot, two: Snapshot, state: State) -> None:
    """The same round in all bits, and after it the same state."""
    assert (one.step, one.phase) == (two.step, two.phase)
    assert one.state is not None
    for mine, other in ((one, two), (one.state, state)):
        left, right = tensors_in(mine), tensors_in(other)
        assert left.keys() == right.keys()
        for name in left:
            assert torch.equal(left[name].nan_to_num(-1.0), right[name].nan_to_num(-1.0)), name
    assert (one.state.judged, one.state.settled) == (state.judged, state.settled)
    if state.trail is not None and one.state.trail is not None:
        assert (one.state.trail.rounds, one.state.trail.steps) == (state.trail.rounds, state.trail.steps)


@pytest.mark.parametrize("name", RUNS)
def test_every_round_follows_from_the_state_before_it(name: str) -> None:
    """Round and state after each state are those of the whole run; so, by induction, are all later ones."""
    whole = undisturbed(name)
    detections = len(scene_of(name).plan.detections)
    assert detections == {"dsgd": 0, "rule": 0}.get(name, 5 if "hardened" in name else 1)
    assert len(whole) == 40 + detections
    for (_, before), (snapshot, after) in pairwise(whole):
        assert_same(next(rounds_of(name, before)), snapshot, after)
    assert list(rounds_of(name, whole[-1][1])) == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_its_end(name: str) -> None:
    whole = undisturbed(name)
    for place in (2, len(whole) // 2):
        rest = list(rounds_of(name, whole[place][1]))
        assert [(one.step, one.phase) for one in rest] == [(one.step, one.phase) for one, _ in whole[place + 1 :]]
        assert_same(rest[-1], *whole[-1])


@pytest.mark.parametrize("name", ["hardened", "hardened, directed"])
def test_the_memory_of_a_run_is_needed(name: str) -> None:
    """Without flags or tracker later rounds come out otherwise: that they are equal above is no accident."""
    whole = undisturbed(name)
    place = next(at for at, (_, state) in enumerate(whole) if state.judged == 6 and state.step == 12)
    state, expected = whole[place][1], whole[place + 1][0]
    assert state.trail is not None
    assert state.trail.rounds == 6
    forgot = replace(state, flagged=torch.zeros(16, 16, dtype=torch.bool))
    assert not torch.equal(next(rounds_of(name, forgot)).theta, expected.theta)
    if name == "hardened, directed":
        skewed = replace(state, tracker=torch.eye(16, dtype=torch.float64))
        assert not torch.equal(next(rounds_of(name, skewed)).theta, expected.theta)


def test_a_state_that_was_handed_over_is_left_alone() -> None:
    state = undisturbed("hardened")[9][1]
    assert state.trail is not None
    assert state.trail.own is not None
    before, rounds = state.trail.own.clone(), state.trail.rounds
    for snapshot in rounds_of("hardened", state):
        if snapshot.phase == "detection":
            break
    assert torch.equal(state.trail.own, before)
    assert state.trail.rounds == rounds


def test_some_of_these_runs_go_back() -> None:
    """The last detection sends misled nodes back to where they stood at the one before: that place is in the state."""
    whole = undisturbed("hardened, poisoned")
    at = next(at for at, (one, _) in enumerate(whole) if (one.step, one.phase) == (39, "detection"))
    assert bool((whole[at][0].theta != whole[at - 1][0].theta).any())
