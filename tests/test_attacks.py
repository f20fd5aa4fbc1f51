"""Attacks against their formulas, and the adversary against its borders."""

from __future__ import annotations

import pytest
import torch

from bymi import Adversary, Complete, LocalNetwork
from bymi.attacks import CovariateAttack, DataAttack, GradientAttack, InnerProductManipulation, ParameterAttack
from bymi.core.random_streams import stream
from bymi.core.topic import GRADIENT, PARAMETERS
from bymi.problems import LinearShard, linear_shard


@pytest.fixture
def shard() -> LinearShard:
    return linear_shard(torch.arange(4), dim=30, samples=25, seed=0)


def rewrite(attack: DataAttack, shard: LinearShard, seed: int = 0) -> LinearShard:
    """The shard as a run hands it to the attack: one stream for all nodes, and one key for each."""
    nodes = torch.arange(len(shard.features))
    wrong: LinearShard = attack(shard, stream(seed, "attack"), stream(seed, "attack data", node=nodes))
    return wrong


def test_scenario_a_answers_from_the_wrong_parameter(shard: LinearShard) -> None:
    wrong = rewrite(ParameterAttack(share=0.4, mu=5.0), shard)
    parameter = torch.zeros(30, dtype=torch.float64)
    parameter[:12] = 5.0
    noise = shard.targets - shard.features @ shard.parameter
    assert torch.allclose(wrong.targets, shard.features @ parameter + noise)
    assert torch.equal(wrong.features, shard.features)


def test_scenario_a_with_the_true_parameter_is_no_attack(shard: LinearShard) -> None:
    assert torch.equal(rewrite(ParameterAttack(share=0.1, mu=1.0), shard).targets, shard.targets)


@pytest.mark.parametrize(("share", "entries"), [(0.02, 0), (0.05, 1), (0.1, 3), (0.6, 18), (1.0, 30)])
def test_scenario_a_counts_entries_by_floor(shard: LinearShard, share: float, entries: int) -> None:
    plain = LinearShard(shard.features, torch.zeros_like(shard.targets), torch.zeros_like(shard.parameter))
    moved = rewrite(ParameterAttack(share=share, mu=1.0), plain).targets
    assert torch.allclose(moved, shard.features[:, :, :entries].sum(2))


def test_scenario_b_in_both_readings(shard: LinearShard) -> None:
    draws = stream(7, "attack").uniform(30)
    direction = draws / draws.norm()
    replaced = rewrite(CovariateAttack(response="replaced"), shard, seed=7)
    original = rewrite(CovariateAttack(response="original"), shard, seed=7)
    features = 0.8 * shard.features + 3 * direction
    noise = shard.targets - shard.features @ shard.parameter
    assert torch.allclose(replaced.features, features)
    assert torch.allclose(original.features, features)
    assert torch.allclose(original.targets, shard.targets + 1)
    assert torch.allclose(replaced.targets, features @ shard.parameter + noise + 1)
    assert (direction > 0).all()


def test_ipm_is_minus_a_times_the_mean() -> None:
    clean = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    forged = InnerProductManipulation(a=0.5)(clean, torch.zeros(3, 2), stream(0, "shared"), stream(0, "fresh"))
    assert forged.tolist() == [[-1.0, -1.5]] * 3


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_gradient_attack_moments(per_coordinate: bool) -> None:
    """Mean 0.5 mean + 20 std z with one z a run, noise of one std: six standard errors, false alarm below 1e-7 in all."""
    dim, attackers = 50, 400
    clean = stream(0, "clean").normal(300, dim) * torch.linspace(0.5, 3, dim) + 1.0
    nodes = torch.arange(attackers)
    attack = GradientAttack(per_coordinate=per_coordinate)
    shared = stream(1, "attack")
    sent = attack(clean, torch.zeros(attackers, dim), shared, stream(1, "fresh", node=nodes, step=0))
    variance = (clean - clean.mean(0)).square()
    std = (variance.mean(0) if per_coordinate else variance.mean().expand(dim)).sqrt()
    centre = 0.5 * clean.mean(0) + 20 * std * shared.normal(dim)
    assert ((sent.mean(0) - centre).abs() < 6 * std / attackers**0.5).all()
    assert ((sent.var(0) / std**2 - 1).abs() < 6 * (2 / attackers) ** 0.5).all()
    again = attack(clean, torch.zeros(attackers, dim), shared, stream(1, "fresh", node=nodes, step=1))
    assert not torch.equal(sent, again)  # fresh noise
    assert ((again.mean(0) - sent.mean(0)).abs() < 9 * std / attackers**0.5).all()  # same direction


def adversary(mixing: str, pruning: str = "none") -> Adversary:
    members = torch.tensor([False, True, False, True])
    return Adversary(members, InnerProductManipulation(), mixing=mixing, pruning=pruning)  # type: ignore[arg-type]


def test_the_adversary_touches_its_own_rows_only() -> None:
    gradients = stream(0, "gradients").normal(4, 3)
    before = gradients.clone()
    forged = adversary("plain").gradients(gradients, torch.arange(4), GRADIENT, 0)
    assert torch.equal(gradients, before)
    assert torch.equal(forged[[0, 2]], gradients[[0, 2]])
    assert torch.allclose(forged[[1, 3]], -gradients[[0, 2]].mean(0).expand(2, 3))


@pytest.mark.parametrize("mixing", ["plain", "none", "rule"])
def test_what_byzantine_nodes_keep_after_a_round(mixing: str) -> None:
    vectors = stream(0, "vectors").normal(4, 3)
    graph = Complete().draw(4)
    (inbox,) = LocalNetwork(graph).exchange(0, {PARAMETERS: vectors})
    ruled = torch.zeros(4, 3, dtype=torch.float64)
    kept = adversary(mixing).keep(inbox, ruled, torch.arange(4))
    expected = {"plain": graph.mixing @ vectors, "none": vectors, "rule": ruled}[mixing]
    assert torch.allclose(kept[[1, 3]], expected[[1, 3]])
    assert torch.equal(kept[[0, 2]], ruled[[0, 2]])


@pytest.mark.parametrize(("pruning", "cut"), [("none", [0, 0]), ("all", [4, 4]), ("rule", [1, 2])])
def test_what_byzantine_nodes_cut(pruning: str, cut: list[int]) -> None:
    flagged = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]], dtype=torch.bool)
    really = adversary("plain", pruning).prune(flagged, torch.arange(4))
    assert really[[1, 3]].sum(1).tolist() == cut
    assert torch.equal(really[[0, 2]], flagged[[0, 2]])
