"""The standard gradient-level attacks by hand, and label flipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi.attacks import ALIE, Gaussian, LabelFlip, Mimic, MinMax, SameValue, SignFlip, VectorAttack, Zero
from bymi.core.errors import InputError
from bymi.core.random_streams import stream
from bymi.experiment import load
from bymi.problems import Shards

HONEST = torch.tensor([[1.0, 2.0], [3.0, 0.0], [2.0, 4.0]], dtype=torch.float64)
OWN = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)


def attack(how: VectorAttack, honest: Tensor = HONEST, own: Tensor = OWN, step: int = 0) -> Tensor:
    return how(honest, own, stream(3, "attack"), stream(3, "attack gradient", node=torch.arange(len(own)), step=step))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (SignFlip(), [[-1.0, 1.0], [-0.5, -2.0]]),
        (SignFlip(scale=4.0), [[-4.0, 4.0], [-2.0, -8.0]]),
        (Zero(), [[0.0, 0.0], [0.0, 0.0]]),
        (SameValue(value=7.0), [[7.0, 7.0], [7.0, 7.0]]),
        (Gaussian(sigma=0.0), [[2.0, 2.0], [2.0, 2.0]]),
        (ALIE(z=0.0), [[2.0, 2.0], [2.0, 2.0]]),
        (ALIE(z=1.5), [[2 - 1.5 * np.sqrt(2 / 3), 2 - 1.5 * np.sqrt(8 / 3)]] * 2),
    ],
)
def test_by_hand(how: VectorAttack, expected: list[list[float]]) -> None:
    torch.testing.assert_close(attack(how), torch.tensor(expected, dtype=torch.float64))


def test_gaussian_noise_is_new_for_every_attacker_and_round_and_has_its_size() -> None:
    """4000 draws: their standard deviation is within 8 % of 5 with a false-alarm probability below 1e-9."""
    honest, own = torch.zeros(3, 2000, dtype=torch.float64), torch.zeros(2, 2000, dtype=torch.float64)
    first, later = (attack(Gaussian(sigma=5.0), honest, own, step) for step in (0, 1))
    assert abs(float(first.std()) / 5 - 1) < 0.08
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, later)


def test_alies_own_factor_is_the_published_one() -> None:
    # n = 50, f = 10: s = 26 - 10 = 16, z = Phi^-1((40 - 16) / 40) = Phi^-1(0.6)
    assert ALIE._factor(40, 10) == pytest.approx(0.2533471, abs=1e-6)
    honest = stream(0, "honest").normal(40, 3)
    sent = attack(ALIE(), honest, torch.zeros(10, 3, dtype=torch.float64))
    torch.testing.assert_close(sent[0], honest.mean(0) - 0.2533471031 * honest.std(0, correction=0))
    assert torch.equal(sent, sent[:1].expand(10, -1))


def test_alie_with_hardly_anybody_to_hide_behind_stays_finite() -> None:
    assert bool(torch.isfinite(attack(ALIE(), HONEST[:1], OWN.repeat(10, 1))).all())


def test_min_max_is_as_far_as_the_two_farthest_honest_ones_and_no_farther() -> None:
    honest = stream(0, "honest").normal(20, 7)
    sent = attack(MinMax(), honest, torch.zeros(4, 7, dtype=torch.float64))[0]
    farthest = torch.cdist(honest, honest).max()
    assert float(torch.linalg.vector_norm(honest - sent, dim=1).max()) == pytest.approx(float(farthest), rel=1e-9)
    assert float(torch.linalg.vector_norm(sent - honest.mean(0))) > 0.5


def test_min_max_of_equal_gradients_sends_them() -> None:
    same = HONEST[:1].repeat(5, 1)
    torch.testing.assert_close(attack(MinMax(), same), same[:2])


def test_mimics_copy_one_honest_node_all_alike() -> None:
    sent = attack(Mimic())
    assert torch.equal(sent[0], sent[1])
    assert any(torch.equal(sent[0], row) for row in HONEST)


def test_flipped_labels() -> None:
    shard = Shards(torch.zeros(1, 3, 2), torch.tensor([[0, 9, 4]]))
    flipped = LabelFlip()(shard, stream(0, "attack"), stream(0, "attack data", node=torch.arange(1)))
    assert flipped.targets.tolist() == [[9, 0, 5]]
    assert torch.equal(flipped.inputs, shard.inputs)
    with pytest.raises(InputError, match="classes: got 1"):
        LabelFlip(classes=1)


@pytest.mark.parametrize(
    "name", ["sign-flip", "gaussian", "zero", "same-value", "alie", "min-max", "mimic", "little", "bit-flip"]
)
def test_they_are_named_in_specs(name: str) -> None:
    assert load(None, [f"attack={name}"]).attack.name == {"little": "alie", "bit-flip": "sign-flip"}.get(name, name)


def test_inputs_are_left_alone() -> None:
    honest, own = HONEST.clone(), OWN.clone()
    for how in (SignFlip(), Gaussian(), Zero(), SameValue(), ALIE(), MinMax(), Mimic()):
        attack(how, honest, own)
    assert torch.equal(honest, HONEST)
    assert torch.equal(own, OWN)
