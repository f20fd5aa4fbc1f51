"""Attacks that know the hardened detection: when they push, and what they answer, each against its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi.attacks import ATTACKS, Adaptive, Adversary, AttackContext, Timetable
from bymi.attacks.detection_aware import Copies, Frame, Inflate, Kin, Retreat, Rotation, ShiftWithDecoys, Wobble
from bymi.core.errors import InputError
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, SECOND_HALF
from bymi.experiment import load
from bymi.runs.run_setup import set_up_run

NODES, DIM, SEED = 40, 8, 3
MEMBERS = torch.arange(NODES) % 4 == 1
OWN, OTHERS = MEMBERS.nonzero().flatten(), (~MEMBERS).nonzero().flatten()
VECTORS = stream(0, "vectors").normal(NODES, DIM) + 0.5
TIMES = Timetable((10, 20, 30, 40), tuple(0.1 if step < 35 else 0.05 for step in range(45)))
EVERYBODY = torch.arange(NODES)


def push(attack: Adaptive, step: int, timetable: Timetable | None = TIMES) -> Tensor:
    """What is added to training gradients, in spreads along the common direction [b]."""
    moment = AttackContext("training", OTHERS, OWN, MEMBERS, SEED, step, timetable)
    sent = attack.act(VECTORS[OTHERS], VECTORS[OWN], stream(SEED, "attack"), stream(SEED, "x", node=OWN), moment)
    draw = stream(SEED, "attack").normal(1, DIM)[0]
    honest = VECTORS[OTHERS].numpy()
    spread = float(np.sqrt(np.mean([np.sum((row - honest.mean(0)) ** 2) for row in honest])))
    return (sent - VECTORS[OWN]) @ (draw / draw.norm()) / spread


def test_a_wobble_sums_to_zero_over_every_window_and_not_over_its_end() -> None:
    steps = torch.tensor(TIMES.steps, dtype=torch.float64)
    sizes = torch.stack([push(Wobble(size=2.0), step) for step in range(45)])[:, 0]
    torch.testing.assert_close(sizes.abs(), torch.where(torch.arange(45) < 10, 0.0, 2.0).double())
    for start, end in ((10, 20), (20, 30)):
        assert abs(float((steps * sizes)[start:end].sum())) < 1e-12
        assert sizes[start:end].tolist() == pytest.approx([-2.0] * 5 + [2.0] * 5)
    # 5 rounds of 0.1 and 5 of 0.05: half of the sum is reached within the fourth round.
    assert sizes[30:40].tolist() == pytest.approx([-2.0] * 4 + [2.0] * 6)


def test_teams_take_turns_and_a_retreat_uses_the_last_windows_only() -> None:
    for step in range(10, 45):
        acting = push(Rotation(teams=3, size=1.0), step) > 0.5
        assert acting.tolist() == [rank % 3 == (step // 10 - 1) % 3 for rank in range(10)]
        acting = push(Retreat(size=1.0), step) > 0.5
        assert acting.tolist() == [20 <= step < 40 and rank % 2 == (step // 10 - 1) % 2 for rank in range(10)]
    assert float(push(Retreat(), 0, None).min()) > 1  # a timetable that is not known: always


def test_decoys_push_the_other_way() -> None:
    sizes = push(ShiftWithDecoys(size=0.4, decoys=0.3), 12)
    torch.testing.assert_close(sizes.abs(), torch.full((10,), 0.4, dtype=torch.float64))
    assert int((sizes < 0).sum()) == 3


def answers(attack: Adaptive, asker: int, updates: Tensor | None = None, step: int = 20) -> tuple[Tensor, Tensor]:
    """Both halves that the attackers send to one asker [b, D] each, from true halves around a common mean."""
    adversary = Adversary(MEMBERS, attack, seed=SEED, timetable=TIMES)
    first, second = halves()
    sent = [
        adversary.gradients(half, EVERYBODY, topic.to(asker), step, updates)
        for half, topic in ((first, FIRST_HALF), (second, SECOND_HALF))
    ]
    assert torch.equal(sent[0][OTHERS], first[OTHERS])
    return sent[0][OWN], sent[1][OWN]


def halves() -> tuple[Tensor, Tensor]:
    noise = stream(1, "halves").normal(2, NODES, DIM)
    return noise[0], noise[1]


def test_inflated_halves_have_the_shift_as_mean_and_additional_noise() -> None:
    first, second = halves()
    one, two = answers(Inflate(size=0.7, noise=3.2), 0)
    draw = stream(SEED, "attack").normal(1, DIM)[0]
    along = draw / draw.norm()
    spreads = [float((half[OTHERS] - half[OTHERS].mean(0)).square().sum(1).mean().sqrt()) for half in (first, second)]
    extra = [
        sent - true[OWN] - 0.7 * spread * along for sent, true, spread in zip((one, two), (first, second), spreads, strict=True)
    ]
    for noise, spread in zip(extra, spreads, strict=True):
        # 4 |e|^2 = (3.2 - 1) |x1 - x2|^2, where two honest halves are sqrt 2 spreads apart; 36 % of it along the push
        torch.testing.assert_close(noise.square().sum(1), torch.full((10,), 1.1 * spread**2, dtype=torch.float64))
        torch.testing.assert_close((noise @ along).square(), torch.full((10,), 0.36 * 1.1 * spread**2, dtype=torch.float64))
    torch.testing.assert_close(extra[0] / spreads[0], -extra[1] / spreads[1])


def test_framing_attackers_stand_just_below_the_median_residual() -> None:
    """The residuals as tests/reference would compute them, about the honest centre and the attackers' claims."""
    from bymi.aggregation import GeometricMedian
    from bymi.core.linalg import VectorStack

    first, second = halves()
    claims = (first + second) / 2
    updates = -0.9 * claims + 0.2 * stream(2, "batches").normal(NODES, DIM)
    one, two = answers(Frame(), 0, updates)
    claims[OWN] = (one + two) / 2
    weights = GeometricMedian(iterations=200, tolerance=1e-12).coefficients(
        VectorStack(updates), torch.ones(1, NODES, dtype=torch.bool)
    )[0]
    residuals = []
    for q, g in zip(updates - weights @ updates, claims - weights @ claims, strict=True):
        kappa = min(max(-float(q @ g) / float(g @ g), 0.7), 2.0)
        residuals.append(float((q + kappa * g).square().sum()))
    values = torch.tensor(residuals)
    middle = values[OTHERS].median()
    assert float((values[OWN] / middle).min()) > 0.7
    assert float((values[OWN] / middle).max()) < 1.0


@pytest.mark.parametrize("asker", [0, 7])
def test_every_four_copies_are_of_one_honest_node_with_a_larger_number(asker: int) -> None:
    true, (one, two) = halves(), answers(Copies(), asker)
    for group in range(0, 10, 4):
        distance = (true[0] - one[group]).square().sum(1)
        victim = int(distance.argmin())
        assert not MEMBERS[victim]
        assert victim > int(OWN[group])
        for member in range(group, min(group + 4, 10)):
            assert torch.equal(one[member], true[0][victim])
            assert torch.equal(two[member], true[1][victim])


def test_victims_of_copies_differ_by_asker() -> None:
    assert not torch.equal(answers(Copies(), 0)[0], answers(Copies(), 7)[0])


def test_kin_have_one_difference_between_those_of_two_honest_nodes() -> None:
    first, second = halves()
    one, two = answers(Kin(), 5)
    difference = one - two
    assert float(difference.std(0).max()) < 0.05 * float(difference.norm(dim=1).mean())
    true = (first - first[OTHERS].mean(0) - second + second[OTHERS].mean(0))[OTHERS]
    mean = (one - two - first[OTHERS].mean(0) + second[OTHERS].mean(0)).mean(0)
    pairs = (true[:, None] + true[None]) / 2**0.5
    nearest = (pairs - mean).norm(dim=2).min()
    assert float(nearest) < 0.2 * float(mean.norm())


def test_without_updates_or_asker_made_up_answers_are_honest() -> None:
    first, _ = halves()
    assert torch.equal(answers(Frame(), 0)[0], first[OWN])
    adversary = Adversary(MEMBERS, Copies(), seed=SEED, timetable=TIMES)
    assert torch.equal(adversary.gradients(first, EVERYBODY, FIRST_HALF, 20), first)


def test_the_timetable_of_a_run_is_that_of_its_plan() -> None:
    words = ["nodes=10", "steps=40", "warm_up.steps=10", "watch.every=12", "attack=wobble", "data.dim=3", "data.samples=8"]
    setup = set_up_run(load(None, words).expand()[0].resolved)
    times = setup.adversary.timetable
    assert times is not None
    assert list(times.detections) == setup.plan.detections
    assert len(times.steps) == 40
    assert times.steps[10] == setup.plan.optimisation.step_size.at(0, 30)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"size": -1.0}, "size: got -1.0, allowed: 0 or above"),
        ({"teams": 0}, "teams: got 0, allowed: an integer, 1 or more"),
        ({"last": 0}, "last: got 0, allowed: an integer, 1 or more"),
        ({"decoys": 1.5}, "decoys: got 1.5, allowed: 0 to 1"),
        ({"answers": "none"}, "answers: got 'none', allowed: honest, shifted, fitted, framed, copied, kin"),
        ({"noise": 0.5}, "noise: got 0.5, allowed: 1 or above"),
    ],
)
def test_parameters_are_checked(words: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as problem:
        ATTACKS["wobble"](**words)
    assert str(problem.value) == line
