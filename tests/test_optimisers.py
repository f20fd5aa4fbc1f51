"""Optimisers of the third phase: against their transcriptions, over lists, and where gradient tracking is exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Detector, Graph, InputError, LinearProblem, ListGraph, LocalNetwork, Optimisation, Panel, Plan, StepSize, Watch
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.random_streams import stream
from bymi.experiment import load
from bymi.problems import linear_problem, linear_shard
from bymi.training.algorithm import drsgd_bymi
from bymi.training.decentralised_optimisers import OPTIMISERS
from bymi.training.phases import optimise
from tests.reference import graphs, optimisers
from tests.reference.scenes import draw_scene
from tests.test_optimisation_reference import Slopes, pruned

ROUNDS, NODES = 7, 14
MUTUAL: dict[str, Any] = {"detector": Detector(pruning="mutual", panel=Panel(few=None)), "watch": Watch(every=None, fuse=None)}
FREE: dict[str, Any] = {"max_local_step": 1e9, "min_weight": 1e-9}  # cap and floor out of reach


def plan_of(how: Optimisation, rounds: int = ROUNDS, **detection: Any) -> Plan:
    return Plan(rounds + 1, 1, optimisation=how, **(detection or {"detector": Detector()}))


def rows(network: LocalNetwork, problem: Any, plan: Plan, start: Tensor) -> list[Tensor]:
    return [snapshot.theta for snapshot in optimise(problem, network, plan, start, FollowsProtocol())]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("method", "order"),
    [
        ("dsgd", "combine-then-adapt"),
        ("dsgd:momentum=0.8", "combine-then-adapt"),
        ("dgd-rs", "combine-then-adapt"),
        ("frost", "combine-then-adapt"),
        ("frost:heavy_ball=0.4,spread=0.6", "combine-then-adapt"),
        ("frost:heavy_ball=0.2", "adapt-then-combine"),
        ("ab", "combine-then-adapt"),
        ("ab", "adapt-then-combine"),
        ("push-pull", "combine-then-adapt"),
    ],
)
def test_rounds_are_those_of_the_transcription(method: str, order: Any, directed: bool) -> None:
    """After one-sided cuts, with y from e_i on, a falling step and the step sizes of the papers."""
    scene = draw_scene(nodes=NODES, dim=4, directed=directed, losses=False, seed=3)
    network, mixing = pruned(scene, seed=4)
    name, _, words = method.partition(":")
    options = {key: float(value) for key, _, value in (word.partition("=") for word in words.split(",") if word)}
    rate = 0.002 if name in ("frost", "dgd-rs") else 0.03
    convention: Any = "paper" if name in ("frost", "dgd-rs") else "mean"
    how = Optimisation(StepSize(rate, "linear"), 2, convention, premix_rounds=0, order=order, method=method, **FREE)
    problem, rates = Slopes(scene.targets), [rate * (1 - number / ROUNDS) for number in range(ROUNDS)]
    found = rows(network, problem, plan_of(how), torch.from_numpy(scene.vectors))

    given, first = (
        (scene.vectors, problem.by_node, mixing),
        order == "adapt-then-combine" or name == "push-pull",
    )  # its only order
    if name == "dsgd":
        expected = optimisers.dsgd(*given, rates, **options)
    elif name == "dgd-rs":
        expected = optimisers.dgd_rs(*given, rates)
    elif name == "frost":
        spread = options.pop("spread", 0.0)
        factors = [1 + spread * (2 * float(stream(0, "step sizes", node=node).uniform(1)) - 1) for node in range(NODES)]
        expected = optimisers.frost(*given, rates, factors, adapt_first=first, **options)
    else:
        columns = optimisers.push_weights(network.graph.hears.numpy())
        expected = optimisers.ab(*given, columns, rates, adapt_first=first)
    for got, literal in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), literal, rtol=0, atol=1e-9)


def test_a_spec_says_the_order_that_push_pull_has() -> None:
    for words in ([], ["optimisation.order=combine-then-adapt"]):
        (spec,) = load(None, ["profile=paper", "method=drsgd-bymi", "optimisation.method=push-pull", *words]).expand()
        assert spec.resolved["optimisation"]["order"] == "adapt-then-combine"


@pytest.mark.parametrize("heavy_ball", [0.0, 0.3])
def test_gradient_tracking_on_the_mutually_pruned_graph(heavy_ball: float) -> None:
    """FROST's transcription with doubly stochastic weights and y = 1 / m throughout is DIGing."""
    scene = draw_scene(nodes=NODES, dim=4, directed=False, losses=False, seed=5)
    flagged = np.random.default_rng(6).random(scene.hears.shape) < 0.1
    graph = Graph.from_hears(torch.from_numpy(scene.hears)).prune_mutually(torch.from_numpy(flagged))
    mixing = graphs.metropolis(scene.hears & ~flagged & ~flagged.T)
    how = Optimisation(StepSize(0.03), 2, method=f"gradient-tracking:heavy_ball={heavy_ball}")
    problem = Slopes(scene.targets)
    found = rows(LocalNetwork(graph), problem, plan_of(how, **MUTUAL), torch.from_numpy(scene.vectors))
    z = problem.by_node(scene.vectors)
    theta = previous = scene.vectors
    for got in found:
        after = mixing @ theta - 0.03 * z + heavy_ball * (theta - previous)
        z = mixing @ z + problem.by_node(after) - problem.by_node(theta)
        previous, theta = theta, after
        np.testing.assert_allclose(got.numpy(), theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_lists_give_what_matrices_give(name: str) -> None:
    scene = draw_scene(nodes=NODES, dim=4, directed=False, losses=False, seed=7)
    dense, _ = pruned(scene, seed=8)
    mutual = OPTIMISERS[name].doubly_stochastic
    graph = Graph.from_hears(dense.graph.hears & dense.graph.hears.T) if mutual else dense.graph
    lists = LocalNetwork(ListGraph.of_graph(graph))
    how = Optimisation(StepSize(0.004), 2, method=name, **FREE)
    problem, start = Slopes(scene.targets), torch.from_numpy(scene.vectors)
    pair = [rows(net, problem, plan_of(how, **(MUTUAL if mutual else {})), start) for net in (LocalNetwork(graph), lists)]
    for one, two in zip(*pair, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-11)


def mixed_problem() -> LinearProblem:
    """Least squares on 24 nodes whose targets come from parameters of their own, so that local minimisers differ."""
    shard = linear_shard(torch.arange(24), dim=3, samples=30, seed=1)
    own = shard.parameter + stream(2, "own parameters").normal(24, 3)
    targets = shard.targets + torch.einsum("bsd,bd->bs", shard.features, own - shard.parameter)
    return linear_problem(shard._replace(targets=targets), seed=1)


def gaps(method: str, network: LocalNetwork, **detection: Any) -> list[float]:
    """Largest excess risk of any node after 100, 200, ... 500 rounds, with full gradients and a constant step."""
    problem, nodes = mixed_problem(), torch.arange(24)
    best = problem.minimiser(nodes)
    how = Optimisation(StepSize(0.05), "all", order="adapt-then-combine", method=method, **FREE)
    found = rows(network, problem, plan_of(how, 500, **detection), problem.initial(nodes))
    return [max(float(problem.excess(row, best, nodes)) for row in theta) for theta in found[99::100]]


def test_tracking_is_exact_with_a_constant_step_where_drsgd_stops() -> None:
    """A gap below 1e-12 at a linear rate, whatever the local minimisers, after one-sided and after mutual cuts."""
    scene = draw_scene(nodes=24, dim=1, directed=False, losses=False, seed=1)
    one_sided, _ = pruned(scene, seed=2)
    assert bool(one_sided.graph.core().members.all())
    graph = Graph.from_hears(one_sided.graph.mutual)
    assert bool(graph.core().members.all())
    mutual = LocalNetwork(graph)
    stops = gaps("drsgd", one_sided)
    assert stops[-1] > 1e-5, "a constant step leaves a bias"
    assert stops[-1] == pytest.approx(stops[-2], rel=1e-3), "which is not a matter of time"
    for method, network, detection in (("frost", one_sided, {}), ("ab", one_sided, {}), ("gradient-tracking", mutual, MUTUAL)):
        found = gaps(method, network, **detection)
        assert found[-1] < 1e-12, method
        logs = np.log(found[:3])
        assert logs[1] - logs[0] == pytest.approx(logs[2] - logs[1], rel=0.25), "linear: equal ratios over equal times"


def test_dsgd_converges_to_another_point_after_one_sided_cuts() -> None:
    """With a falling step DRSGD reaches the optimum of the plain sum, DSGD that of a weighted one."""
    scene = draw_scene(nodes=24, dim=1, directed=False, losses=False, seed=1)
    network, _ = pruned(scene, seed=2)
    problem, nodes = mixed_problem(), torch.arange(24)
    best, gap = problem.minimiser(nodes), {}
    for method in ("dsgd", "drsgd"):
        how = Optimisation(StepSize(0.05, "linear"), "all", method=method, **FREE)
        last = rows(network, problem, plan_of(how, 1500), problem.initial(nodes))[-1]
        gap[method] = float(problem.excess(last.mean(0), best, nodes))
    assert gap["drsgd"] < 1e-5 < 1e-4 < gap["dsgd"]


def test_local_momentum_averages_the_noise_of_mini_batches() -> None:
    """Over the last rounds parameters scatter less, with the same mean step."""
    problem, nodes = mixed_problem(), torch.arange(24)
    network = LocalNetwork(Graph.from_hears(~torch.eye(24, dtype=torch.bool)))
    spread = []
    for momentum in (0.0, 0.95):
        how = Optimisation(StepSize(0.2), 1, method=f"drsgd:momentum={momentum}", **FREE)
        found = rows(network, problem, plan_of(how, 400), problem.initial(nodes))
        moves = [(two - one).norm() for one, two in pairwise(found[200:])]
        spread.append(float(torch.stack(moves).mean()))
    assert spread[1] < 0.5 * spread[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["profile=paper", "optimisation.method=gradient-tracking"],
            "optimisation.method: got 'gradient-tracking', allowed: with detection.pruning = 'mutual'; frost, ab or push-pull",
        ),
        (["optimisation.method=dgd-rs", "optimisation.order=adapt-then-combine"], "optimisation.order"),
        (["optimisation.method=frosty"], "did you mean"),
        (["optimisation.method=frost:heavy_ball=1.0"], "heavy_ball"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match="optimisation") as refused:
        load(None, ["method=drsgd-bymi", *words])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pushing_needs_a_graph_in_which_arcs_have_their_reverse() -> None:
    ring = Graph.from_adjacency(torch.roll(torch.eye(6), 1, 1))
    problem = linear_problem(linear_shard(torch.arange(6), dim=2, samples=12, seed=0), seed=0)
    plan = replace(plan_of(Optimisation(method="ab")), identification=4)
    with pytest.raises(InputError, match=r"optimisation\.method: got .*AB.*, allowed: frost"):
        drsgd_bymi(problem, LocalNetwork(ring), plan)


def test_labels_name_the_optimiser() -> None:
    def label(*words: str) -> str:
        return load(None, ["method=drsgd-bymi", *words]).label

    assert label() == "BALANCE-hardened-ByMI"
    assert label("optimisation.method=gradient-tracking") == "BALANCE-hardened-GRADIENT-TRACKING-ByMI"
    assert label("profile=paper") == label("profile=paper", "optimisation.method=drsgd") == "BALANCE-DRSGD-ByMI"
    assert label("profile=paper", "optimisation.method=frost") == "BALANCE-FROST-ByMI"
