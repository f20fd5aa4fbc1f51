"""Rules decide rightly where rounding is a danger: vectors that agree to seven digits, and attackers that are far away."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import RULES, Round
from bymi.aggregation import WeightedRule
from bymi.core.message_validity import MAX_NORM_RATIO
from tests.inbox_fixtures import Lone, draw_lone
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
from tests.reference.rules import Node
from tests.rule_kinds import KINDS

OFFSET, SPREAD = 1e4, 1e-3
DRAWS = 40
FOLLOWERS = {"average", "mean"}  # any Byzantine node moves them, so that they have no decision to get wrong
SETTINGS: dict[str, dict[str, Any]] = {
    "balance": {"gamma": 1.4 * SPREAD / OFFSET},  # about as wide as the neighbours are apart
    "geometric-median": {"iterations": 2000, "tolerance": 1e-15},  # until it stands still, as its transcription does
}
ROBUST = {name: rule(**SETTINGS.get(name, {})) for name, rule in RULES.items() if name not in FOLLOWERS}
SEEDS = {name: DRAWS if name in KINDS else 6 for name in ROBUST}


@cache
def near_consensus(seed: int) -> Lone:
    """Nine neighbours that differ by SPREAD in each coordinate about a common point of size OFFSET, in 3 or 40 dimensions."""
    dim = (3, 40)[seed % 2]
    common = OFFSET * torch.from_numpy(np.random.default_rng(seed).standard_normal(dim))
    return draw_lone(neighbours=9, dim=dim, seed=seed).moved(scale=SPREAD, shift=common)


def direction(lone: Lone, seed: int) -> Tensor:
    """A random vector as long as the own one."""
    random = torch.from_numpy(np.random.default_rng(1000 + seed).standard_normal(len(lone.own)))
    return random * lone.own.norm() / random.norm()


def honest(lone: Lone, seed: int) -> Lone:
    return lone


def far(lone: Lone, seed: int) -> Lone:
    return lone.with_message(2, 1e3 * direction(lone, seed))


def almost_absurd(lone: Lone, seed: int) -> Lone:
    """As long as a message may be without being ignored."""
    return lone.with_message(2, 0.999 * MAX_NORM_RATIO * direction(lone, seed))


def mirrored(lone: Lone, seed: int) -> Lone:
    """As long as the others are, of median length even, and on the opposite side."""
    lengths = torch.stack([lone.own, *lone.messages]).norm(dim=1)  # type: ignore[list-item]
    return lone.with_message(2, -lone.own * lengths.median() / lone.own.norm())


def one_silent(lone: Lone, seed: int) -> Lone:
    return lone.with_message(2, None)


def most_silent(lone: Lone, seed: int) -> Lone:
    return replace(lone, messages=[message if place < 4 else None for place, message in enumerate(lone.messages)])


CIRCUMSTANCES = [honest, far, almost_absurd, mirrored, one_silent, most_silent]


def as_reference(lone: Lone, step: int, steps: int) -> Node:
    heard = [place for place, message in enumerate(lone.messages) if message is not None]
    target = lone.target.numpy()
    return Node(
        own=lone.own.double().numpy(),
        heard=[lone.messages[place].double().numpy() for place in heard],  # type: ignore[union-attr]
        weights=lone.weight[heard].tolist(),
        self_weight=float(lone.self_weight),
        loss=lambda vector: float(np.sum((vector - target) ** 2)),
        step=step,
        steps=steps,
    )


def rounded(lone: Lone) -> Lone:
    """The same round in float32."""
    messages = [None if message is None else message.float() for message in lone.messages]
    return replace(lone, own=lone.own.float(), messages=messages)


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("name", ROBUST)
def test_near_consensus_the_decision_is_that_of_the_definition(name: str, circumstance: Any) -> None:
    """A wrong choice would move the output by a tenth of SPREAD or so; double precision allows a ten-thousandth of it."""
    rule = ROBUST[name]
    for seed in range(SEEDS[name]):
        lone = circumstance(near_consensus(seed), seed)
        output = rule(lone.inbox(), Round(0, 1, lone.losses()))[0]
        expected = ALL_TRANSCRIPTIONS[name](as_reference(lone, 0, 1), **asdict(rule))  # type: ignore[call-overload]
        np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=1e-4 * SPREAD, err_msg=f"seed {seed}")


@pytest.mark.parametrize("circumstance", [honest, far, almost_absurd])
@pytest.mark.parametrize("name", [name for name, rule in ROBUST.items() if isinstance(rule, WeightedRule)])
def test_single_precision_decides_like_double(name: str, circumstance: Any) -> None:
    """Weights from float32 vectors are those from the same numbers in float64: the storage rounds, the decision does not."""
    rule = ROBUST[name]
    for seed in range(SEEDS[name]):
        single = rounded(circumstance(near_consensus(seed), seed))
        double = replace(single, own=single.own.double(), messages=[message.double() for message in single.messages])  # type: ignore[union-attr]
        weights = [rule.weigh(lone.inbox(), Round(0, 1, lone.losses())) for lone in (single, double)]  # type: ignore[attr-defined]
        assert torch.equal(weights[0].weight, weights[1].weight)
        assert torch.equal(weights[0].own, weights[1].own)


@pytest.mark.parametrize("circumstance", [far, almost_absurd])
@pytest.mark.parametrize("name", ["ubar", "ios", "balance"])
def test_a_far_attacker_gets_no_weight(name: str, circumstance: Any) -> None:
    """It is heard, and there is room in every quota to do without it."""
    for seed in range(DRAWS):
        for lone in (circumstance(near_consensus(seed), seed), rounded(circumstance(near_consensus(seed), seed))):
            inbox = lone.inbox()
            assert inbox.heard.all()
            mixture = ROBUST[name].weigh(inbox, Round(0, 1, lone.losses()))  # type: ignore[attr-defined]
            assert mixture.weight[0, 2] == 0
            others = torch.cat([mixture.weight[0, :2], mixture.weight[0, 3:]])
            assert others.sum() + mixture.own.sum() == pytest.approx(1, abs=1e-12)
