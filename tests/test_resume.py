"""A run that is entered in the middle gives, bit by bit, the numbers of one that was never left."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.interruption_fixtures import RUNS, assert_alike, assert_same_state, rounds_of, scene_of, state_at, undisturbed


@pytest.mark.parametrize("name", RUNS)
def test_every_round_follows_from_the_state_before_it(name: str) -> None:
    """Round and state after each state are those of the whole run; so, by induction, are all later ones."""
    whole = undisturbed(name)
    detections = len(scene_of(name).plan.detections)
    assert detections == {"dsgd": 0, "rule": 0, "rule, looked at": 0, "paper, again": 3}.get(
        name, 6 if "hardened" in name else 1
    )
    assert len(whole) == 40 + detections
    for (_, before), (expected, after) in pairwise(whole):
        got = next(rounds_of(name, before))
        assert (got.step, got.phase) == (expected.step, expected.phase)
        assert_alike(got, expected)
        assert_same_state(got.state, after)
    assert list(rounds_of(name, whole[-1][1])) == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_its_end(name: str) -> None:
    whole = undisturbed(name)
    for place in (2, len(whole) // 2):
        rest = list(rounds_of(name, whole[place][1]))
        assert [(one.step, one.phase) for one in rest] == [(one.step, one.phase) for one, _ in whole[place + 1 :]]
        assert_same_state(rest[-1].state, whole[-1][1])


@pytest.mark.parametrize("name", ["hardened", "hardened, directed"])
def test_the_memory_of_a_run_is_needed(name: str) -> None:
    """Without flags or tracker later rounds come out otherwise: that they are equal above is no accident."""
    state, expected = state_at(name, 12), state_at(name, 13)
    assert state.history is not None
    assert state.history.rounds == 4, "since the detection before round 8"
    assert [state_at(name, step).history.rounds for step in (1, 5)] == [0, 0], "the warm-up leaves none"
    forgot = replace(state, flagged=torch.zeros(16, 16, dtype=torch.bool))
    assert not torch.equal(next(rounds_of(name, forgot)).theta, expected.theta)
    if name == "hardened, directed":
        skewed = replace(state, tracker=torch.eye(16, dtype=torch.float64))
        assert not torch.equal(next(rounds_of(name, skewed)).theta, expected.theta)


def test_a_state_that_was_handed_over_is_left_alone() -> None:
    state = state_at("hardened", 9)
    assert state.history is not None
    before = state.copy()
    for snapshot in rounds_of("hardened", state):
        if snapshot.phase == "detection":
            break
    assert_same_state(state, before)


def test_some_of_these_runs_go_back() -> None:
    """The last detection sends misled nodes back to where they stood at the one before: that place is in the state."""
    before, after = (state_at("hardened, poisoned", 39, phase) for phase in ("optimisation", "detection"))
    assert bool((before.theta != after.theta).any())


def test_some_of_these_runs_have_more_messages_than_nodes() -> None:
    for name in ("hardened, two faces", "hardened, a message for each"):
        assert rounds_of(name).__next__().inbox.messages.shape[0] > 16
