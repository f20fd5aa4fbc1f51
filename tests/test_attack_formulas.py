"""Attacks of colluders, on halves, on parameters and on trackers: each against its formula, written out node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi.attacks import (
    ALIE,
    ATTACKS,
    Adversary,
    AttackContext,
    Decorrelated,
    Decoy,
    Dissensus,
    Isolation,
    NegativeInjection,
    Poison,
    ResponseFlip,
    Shift,
    Steer,
    TrackerPoison,
    TrainingShift,
    VectorAttack,
    Victim,
)
from bymi.attacks.base import Part, directions
from bymi.core.errors import InputError
from bymi.core.random_streams import stream
from bymi.core.topology import ErdosRenyi
from bymi.problems import linear_shard

NODES, DIM, SEED = 20, 6, 4
MEMBERS = torch.tensor([number in (2, 5, 11, 17, 19) for number in range(NODES)])
HONEST = (~MEMBERS).nonzero().flatten()
OWN, OTHERS = MEMBERS.nonzero().flatten(), (~MEMBERS).nonzero().flatten()
VECTORS = stream(0, "vectors").normal(NODES, DIM) + 0.5
HALVES: tuple[Part, Part] = ("first half", "second half")


def send(attack: VectorAttack, part: Part = "training", vectors: Tensor = VECTORS, nodes: Tensor | None = None) -> Tensor:
    """What the attackers among `nodes` send, in order."""
    nodes = torch.arange(NODES) if nodes is None else nodes
    under = MEMBERS[nodes]
    moment = AttackContext(part, nodes[~under], nodes[under], MEMBERS, SEED)
    fresh = stream(SEED, f"attack {part}", node=nodes[under], step=0)
    return attack.act(vectors[nodes[~under]], vectors[nodes[under]], stream(SEED, "attack"), fresh, moment)


def spread() -> float:
    """Root mean square distance to the mean, one node after the other."""
    rows = VECTORS[OTHERS].numpy()
    return float(np.sqrt(np.mean([np.sum((row - rows.mean(0)) ** 2) for row in rows])))


def unit() -> Tensor:
    draw = stream(SEED, "attack").normal(1, DIM)[0]
    return draw / draw.norm()


def lasting(count: int) -> list[list[np.ndarray]]:
    """Gram and Schmidt for each attacker on its own stream."""
    found = []
    for node in OWN.tolist():
        basis: list[np.ndarray] = []
        for draw in stream(SEED, "attack node", node=node).normal(count, DIM).numpy():
            rest = draw - sum(((draw @ other) * other for other in basis), np.zeros(DIM))
            basis.append(rest / np.linalg.norm(rest))
        found.append(basis)
    return found


@pytest.mark.parametrize("attack", [Shift(size=0.3), TrainingShift(size=0.3)])
def test_a_shift_is_common_and_has_its_size(attack: Shift) -> None:
    moved = send(attack) - VECTORS[OWN]
    torch.testing.assert_close(moved, 0.3 * unit().expand(5, -1))
    torch.testing.assert_close(send(attack, "second half"), send(attack))


def test_steering_goes_along_the_widest_direction() -> None:
    honest = VECTORS[OTHERS].numpy()
    values, vectors = np.linalg.eigh(np.cov(honest.T, bias=True))
    along = vectors[:, values.argmax()]
    along = along * np.sign(along @ stream(SEED, "attack").normal(DIM).numpy())
    expected = np.stack([row + 2.0 * spread() * along for row in VECTORS[OWN].numpy()])
    torch.testing.assert_close(send(Steer(size=2.0)), torch.from_numpy(expected))


def test_steering_in_many_coordinates_is_the_same_vector() -> None:
    wide = stream(1, "wide").normal(NODES, 60)
    wide[OTHERS] -= wide[OTHERS].mean(0)
    moved = (send(Steer(size=1.0), vectors=wide) - wide[OWN])[0]
    honest = wide[OTHERS]
    largest = torch.linalg.eigvalsh(honest.T @ honest)[-1]
    along = moved / moved.norm()
    assert float(along @ honest.T @ honest @ along) == pytest.approx(float(largest), rel=1e-9)


def test_the_victim_is_one_honest_node_for_the_whole_run() -> None:
    honest = VECTORS[OTHERS]
    mean = honest.mean(0)
    victim = OTHERS[int(stream(SEED, "attack").integers(len(OTHERS), 1))]
    away = VECTORS[victim] - mean
    expected = VECTORS[OWN] + 1.5 * spread() * away / away.norm()
    torch.testing.assert_close(send(Victim(size=1.5)), expected)
    # Among fewer nodes it is the same one as long as it is there.
    fewer = torch.unique(torch.cat([OTHERS[::3], victim[None], OWN[:2]]))
    moved = (send(Victim(size=1.5), nodes=fewer) - VECTORS[OWN[:2]])[0]
    some = VECTORS[fewer[~MEMBERS[fewer]]]
    away = VECTORS[victim] - some.mean(0)
    torch.testing.assert_close(moved / moved.norm(), away / away.norm())
    without = fewer[fewer != victim]
    assert bool(torch.isfinite(send(Victim(), nodes=without)).all())


def test_injectors_have_opposite_halves_and_all_others_the_body() -> None:
    attack = NegativeInjection(injectors=0.4, strength=7.0, body=2.0)
    mean, scale = VECTORS[OTHERS].mean(0), spread()
    body = VECTORS[OWN] + 2.0 * scale * unit()
    first, second = (send(attack, half) for half in HALVES)
    for row, (direction,) in enumerate(lasting(1)):
        if row < 2:  # 0.4 of five attackers
            torch.testing.assert_close(first[row], mean + 7.0 * scale * torch.from_numpy(direction))
            torch.testing.assert_close(second[row], mean - 7.0 * scale * torch.from_numpy(direction))
            assert float((first[row] - mean) @ (second[row] - mean)) == pytest.approx(-((7.0 * scale) ** 2))
        else:
            torch.testing.assert_close(first[row], body[row])
            torch.testing.assert_close(second[row], body[row])
    torch.testing.assert_close(send(attack), body)


def test_injectors_are_the_same_nodes_in_every_neighbourhood() -> None:
    attack, some = NegativeInjection(injectors=0.4), torch.cat([OTHERS, OWN[[0, 3]]]).sort().values
    torch.testing.assert_close(send(attack, "first half", nodes=some), send(attack, "first half")[[0, 3]])


def test_decorrelated_halves_stand_at_right_angles() -> None:
    attack = Decorrelated(strength=4.0, body=2.0)
    mean, scale = VECTORS[OTHERS].mean(0), spread()
    first, second = (send(attack, half) for half in HALVES)
    for row, (one, other) in enumerate(lasting(2)):
        torch.testing.assert_close(first[row], mean + 4.0 * scale * torch.from_numpy(one))
        torch.testing.assert_close(second[row], mean + 4.0 * scale * torch.from_numpy(other))
        assert abs(float((first[row] - mean) @ (second[row] - mean))) < 1e-9
    torch.testing.assert_close(send(attack), VECTORS[OWN] + 2.0 * scale * unit())


def test_a_decoy_stands_far_out_and_its_accomplices_across() -> None:
    attack = Decoy(size=500.0, body=2.0)
    far, across = directions(stream(SEED, "attack"), 2, DIM, VECTORS)
    assert abs(float(far @ across)) < 1e-12
    pushed = VECTORS[OWN] + 2.0 * spread() * across
    for half in HALVES:
        sent = send(attack, half)
        torch.testing.assert_close(sent[0], VECTORS[OTHERS].mean(0) + 500.0 * spread() * far)
        torch.testing.assert_close(sent[1:], pushed[1:])
    torch.testing.assert_close(send(attack), pushed)


def test_poisoned_parameters() -> None:
    mean = VECTORS[OTHERS].mean(0)
    torch.testing.assert_close(send(Poison(size=8.0), "message"), (mean + 8.0 * unit()).expand(5, -1))
    torch.testing.assert_close(send(Poison("alie", z=1.5), "message"), send(ALIE(1.5), "message"))
    torch.testing.assert_close(send(Poison("alie", z=0.0), "message"), mean.expand(5, -1))


def test_wrong_trackers() -> None:
    trackers = torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64)
    unit_vectors = send(TrackerPoison("unit"), "tracker", trackers)
    assert torch.equal(unit_vectors, torch.eye(NODES, dtype=torch.float64)[OWN])
    wild = send(TrackerPoison("invalid", size=50.0), "tracker", trackers)
    for row, node in enumerate(OWN.tolist()):
        torch.testing.assert_close(wild[row], 50.0 * stream(SEED, "attack node", node=node).normal(NODES))
    assert bool(((wild < 0) | (wild > 1)).any(1).all())


GRAPH = ErdosRenyi(0.7).draw(NODES, seed=2, must_connect=~MEMBERS)


def told(attack: Dissensus | Isolation | Poison) -> np.ndarray:
    """One message for each honest node, in order."""
    return Adversary(MEMBERS, attack, seed=SEED)._tailor(attack, VECTORS, GRAPH, HONEST).numpy()


@pytest.mark.parametrize("eps", [0.0, 1.0, 1.5])
def test_dissensus_receiver_by_receiver(eps: float) -> None:
    messages, mixing, x = told(Dissensus(eps)), GRAPH.mixing.numpy(), VECTORS.numpy()
    for place, i in enumerate(OTHERS.tolist()):
        good = [j for j in OTHERS.tolist() if GRAPH.hears[i, j]]
        bad = [b for b in OWN.tolist() if GRAPH.hears[i, b]]
        assert bad, "every honest node has an attacker beside it, or less is tested"
        pull = sum((mixing[i, j] * (x[j] - x[i]) for j in good), np.zeros(DIM))
        expected = x[i] - eps * pull / sum(mixing[i, b] for b in bad)
        np.testing.assert_allclose(messages[place], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attack", [Dissensus(1.0), Isolation()])
def test_averages_stay_where_they_are(attack: Dissensus | Isolation) -> None:
    messages, mixing, x = told(attack), GRAPH.mixing.numpy(), VECTORS.numpy()
    for place, i in enumerate(OTHERS.tolist()):
        heard = {j: messages[place] if MEMBERS[j] else x[j] for j in range(NODES)}
        average = sum((mixing[i, j] * heard[j] for j in range(NODES) if j != i), mixing[i, i] * x[i])
        np.testing.assert_allclose(average, x[i], rtol=1e-9, atol=1e-12)


def test_just_under_the_fuse() -> None:
    messages, x = told(Poison("fuse", factor=3.0)), VECTORS.numpy()
    for place, i in enumerate(OTHERS.tolist()):
        distances = sorted(np.linalg.norm(x[j] - x[i]) for j in OTHERS.tolist() if GRAPH.hears[i, j])
        middle = distances[(len(distances) - 1) // 2]
        np.testing.assert_allclose(messages[place], x[i] + 0.95 * 3.0 * middle * unit().numpy(), rtol=1e-9, atol=1e-9)


def test_honest_nodes_that_diverged_teach_nothing() -> None:
    broken = VECTORS.clone()
    broken[OTHERS[0]] = torch.nan
    for attack in (Dissensus(), Isolation(), Poison("fuse")):
        assert bool(torch.isfinite(Adversary(MEMBERS, attack)._tailor(attack, broken, GRAPH, HONEST)).all())


def test_responses_are_flipped() -> None:
    shard = linear_shard(torch.arange(2), dim=3, samples=5, seed=0)
    flipped = ResponseFlip()(shard, stream(0, "attack"), stream(0, "attack data", node=torch.arange(2)))
    assert torch.equal(flipped.targets, -shard.targets)
    assert torch.equal(flipped.features, shard.features)


@pytest.mark.parametrize("name", ATTACKS)
def test_vectors_follow_their_dtype_and_are_left_alone(name: str) -> None:
    attack = ATTACKS[name]()
    if not isinstance(attack, VectorAttack):
        return
    part: Part = "tracker" if name == "y-poison" else "first half"
    single, before = VECTORS.repeat(1, 4)[:, :NODES].float(), VECTORS.repeat(1, 4)[:, :NODES].float()
    sent = send(attack, part, single)
    assert sent.dtype == torch.float32
    assert sent.shape == (len(OWN), NODES)
    assert torch.equal(single, before)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Shift(size=-1.0), "size: got -1.0, allowed: 0 or above"),
        (lambda: Steer(size=-1.0), "size: got -1.0, allowed: 0 or above"),
        (lambda: Victim(size=-1.0), "size: got -1.0, allowed: 0 or above"),
        (lambda: NegativeInjection(injectors=1.5), "injectors: got 1.5, allowed: 0 to 1"),
        (lambda: Decorrelated(strength=-1.0), "strength: got -1.0, allowed: 0 or above"),
        (lambda: Decoy(body=-2.0), "body: got -2.0, allowed: 0 or above"),
        (lambda: Poison("small"), "how: got 'small', allowed: large, fuse, alie"),
        (lambda: TrackerPoison("odd"), "kind: got 'odd', allowed: invalid, unit"),
        (lambda: Dissensus(eps=-0.5), "eps: got -0.5, allowed: 0 or above"),
    ],
)
def test_parameters_are_checked(make: object, line: str) -> None:
    assert callable(make)
    with pytest.raises(InputError) as problem:
        make()
    assert str(problem.value) == line
