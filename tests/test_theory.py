"""The numbers of the convergence theorem against literal transcriptions, and what a run puts into its summary."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bymi import Complete, ErdosRenyi, Graph, Ring, simulate
from bymi.core.graph import Core
from bymi.core.list_graph import ListGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.distributed.collectives import Group
from bymi.distributed.shard_layout import ShardLayout
from bymi.experiment import Spec, load, run
from bymi.problems import linear_problem, linear_shard
from bymi.runs import run_folder as store
from bymi.runs.convergence_theory import (
    THEORY_KEYS,
    Constants,
    Contraction,
    Look,
    Mixing,
    block_of,
    bound_distance,
    bound_gradient,
    contractions,
    demands,
    inverse_diagonal,
    mean_over,
    mixing_of,
    premix_rounds,
    second_eigenvalue,
    theory_of,
)
from bymi.runs.evaluators import Average, LinearEvaluator, look
from bymi.runs.metrics import spaced
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.runs.run_setup import set_up_run
from tests.reference import theory as slow

NOBODY = torch.zeros(14, dtype=torch.bool)


def pruned(kind: str) -> Graph:
    """A graph of 14 nodes with arcs cut in one direction, or edges cut in both."""
    graph = ErdosRenyi(0.6).draw(14, seed=2)
    cuts = stream(1, "cuts").uniform(14, 14) < 0.25
    if kind == "ring":
        return Ring().draw(14)
    found = graph.prune(cuts) if kind == "directed" else graph.prune_mutually(cuts & (cuts.sum(1, keepdim=True) < 4))
    assert bool(found.core().members.all())
    return found


KINDS = ("directed", "mutual", "ring")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_of_a_graph(kind: str) -> None:
    graph = pruned(kind)
    core = graph.core()
    mixing, block = mixing_of(graph, core), graph.mixing.numpy()
    perron = slow.left_perron(block)
    assert mixing.nodes == 14
    assert mixing.least_perron == pytest.approx(14 * min(perron))
    assert mixing.perron_norm == pytest.approx(sum(perron**2) ** 0.5)
    assert mixing.lambda_2 == second_eigenvalue(graph.mixing) == pytest.approx(slow.second_modulus(block))
    assert mixing.inverse_diagonal == pytest.approx(max(slow.sup_inverse_diagonal(block, 64), 1 / min(perron)))
    assert mixing.inverse_diagonal == inverse_diagonal(graph.mixing, core.perron)
    for one, two in zip(mixing.contractions, contractions(graph.mixing, core.perron), strict=True):
        assert one == pytest.approx(two)
    if kind != "directed":
        assert mixing.least_perron == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_bounds_every_power(kind: str) -> None:
    """c and rho are such that ||A^k - 1 v'|| <= c rho^k, with equality somewhere, and rho is above |lambda_2|."""
    graph = pruned(kind)
    lengths = slow.distances(graph.mixing.numpy(), 60)
    pairs = contractions(graph.mixing, graph.core().perron)
    assert len(pairs) >= 30
    for c, rho in pairs:
        assert slow.second_modulus(graph.mixing.numpy()) <= rho * (1 + 1e-9) < 1
        room = [c * rho**k - length for k, length in enumerate(lengths)]
        assert min(room) > -1e-12
        assert min(abs(gap) for gap in room[:33]) < 1e-12
    if kind != "directed":  # symmetric: the norm of a power is the power of the norm
        assert pairs[0] == pytest.approx((1.0, slow.second_modulus(graph.mixing.numpy())))


def test_the_block_of_lists_is_that_of_matrices() -> None:
    graph = pruned("directed")
    members = torch.arange(14) % 3 > 0
    assert torch.equal(block_of(ListGraph.of_graph(graph), members), graph.mixing[members][:, members])
    assert torch.equal(block_of(graph, members), graph.mixing[members][:, members])


KNOWN = Constants(smoothness=1.7, noise=0.8, heterogeneity=0.3, gap=0.4)
LETTERS = {"L": 1.7, "sigma": 0.8**0.5, "zeta": 0.3**0.5, "gap": 0.4}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 3, -1])
def test_the_constants_of_the_theorem(kind: str, number: int) -> None:
    graph = pruned(kind)
    mixing = mixing_of(graph, graph.core())
    pair, perron = mixing.contractions[number], slow.left_perron(graph.mixing.numpy())
    assert mixing.inverse_diagonal is not None
    c, rho, w = pair.factor, pair.rate, mixing.inverse_diagonal
    found = demands(mixing, pair, KNOWN)
    assert found["d1"] == pytest.approx(slow.d1(14, c, rho, w, **LETTERS))
    assert found["d2"] == pytest.approx(slow.d2(14, c, rho, w, **LETTERS))
    assert found["d3"] == pytest.approx(slow.d3(14, c, rho, w, 1.7))
    assert found["d4"] == pytest.approx(slow.d4(c, rho, w, 1.7))
    assert found["least_rounds"] == max(*(found[key] for key in ("d1", "d2", "d3", "d4")), 4 * 14 * 1.7**2)
    assert premix_rounds(mixing, pair) == slow.t0(14, c, rho, w, perron)
    assert bound_gradient(mixing, KNOWN, 500) == pytest.approx(slow.bound(14, w, perron, 1.7, 0.8**0.5, 0.4, 500))
    letters = {"v": perron, **LETTERS, "K": 500}
    assert bound_distance(mixing, pair, KNOWN, 500) == pytest.approx(slow.bound_consensus(14, c, rho, w, **letters))


def test_no_round_of_mixing_where_the_start_is_the_limit() -> None:
    """The formula for t_0 is negative there: the paper's has no lower end."""
    assert premix_rounds(Mixing(100, 1.0, 0.1, 0.0, 1.0), Contraction(1.0, 0.5)) == 0
    graph = Complete().draw(6)
    assert mixing_of(graph, graph.core()).contractions[0].rate < 1e-15


@pytest.mark.parametrize(("nodes", "samples", "dim"), [(5, 20, 4), (3, 4, 9)])
def test_the_constants_of_least_squares(nodes: int, samples: int, dim: int) -> None:
    shard = linear_shard(torch.arange(nodes + 1), dim=dim, samples=samples, seed=3)
    byzantine = torch.arange(nodes + 1) == nodes
    evaluator = LinearEvaluator(linear_problem(shard, seed=0), byzantine)
    smoothness, sigma, zeta, theta = slow.loss_constants(shard.features[:-1].numpy(), shard.targets[:-1].numpy(), 8)
    loss = evaluator.loss
    assert loss is not None
    assert loss.smoothness == pytest.approx(smoothness)
    assert loss.node_variance / 8 == pytest.approx(sigma**2)
    assert 4 * loss.variance / loss.samples == pytest.approx(zeta**2)
    layout = ShardLayout.even(nodes + 1, 3, 1, torch.arange(nodes + 1))
    assert evaluator.shared(Group(), layout).loss == pytest.approx(loss)
    assert theta.shape == (dim,)


def test_means_over_a_run_by_hand() -> None:
    points: list[tuple[int, float | None]] = [(10, 2.0), (20, 1.0), (40, 1.0)]
    assert mean_over(points) == pytest.approx((10 * 1.5 + 20 * 1) / 30)
    assert mean_over(points[:1]) == 2.0
    assert mean_over([]) is None
    assert mean_over([*points, (50, None)]) is None


def test_rounds_looked_at_are_enough_for_what_falls_fast() -> None:
    """exp(-k / T), for short and long T, and a floor below: within 2 % of the mean over all rounds."""
    chosen = sorted(spaced(2700))
    assert chosen[:8] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(chosen) < 40
    chosen = sorted({*chosen, *range(0, 2701, 50), 2700})
    for time in (2.0, 10.0, 100.0, 1000.0):
        values = {step: 4 * math.exp(-step / time) + 1e-4 for step in range(2701)}
        every = mean_over(list(values.items()))
        assert mean_over([(step, values[step]) for step in chosen]) == pytest.approx(every, rel=0.02)


def test_distances_to_the_weighted_mean() -> None:
    theta = stream(1, "theta").normal(9, 7)
    members, weights = torch.arange(9) % 3 > 0, stream(2, "weights").uniform(9)
    weights = weights * members / weights[members].sum()

    class Blocks:
        @staticmethod
        def blocks() -> object:
            return iter(theta.split(3, dim=1))

    _, _, found = look(Blocks(), [], members, Average(members, weights))  # type: ignore[arg-type]
    mean = sum(weights[i] * theta[i] for i in range(9) if members[i])
    expected = sum(float((theta[i] - mean).square().sum()) for i in range(9) if members[i]) / int(members.sum())
    assert float(found) == pytest.approx(expected)  # type: ignore[arg-type]


SMALL = ["method=drsgd-bymi", "nodes=24", "steps=60", "warm_up.steps=20", "data.dim=5", "data.samples=40", "graph.p=0.8"]


@pytest.mark.parametrize("words", [["profile=paper"], ["watch.every=15"], ["profile=paper", "detection.every=20"]])
def test_a_run_tells_its_theory(words: list[str], tmp_path: Path) -> None:
    """Every number again from the snapshots of the run, with every round recorded."""
    spec = load(None, [*SMALL, *words, "record_every=1"])
    summary = run(spec, tmp_path)
    assert set(SUMMARY_KEYS) <= set(summary)
    theory = summary["theory"]
    assert tuple(theory) == THEORY_KEYS
    scene = set_up_run(spec.resolved)
    honest = (~scene.byzantine).nonzero().flatten()
    smoothness, sigma, zeta, theta = slow.loss_constants(
        scene.problem.features[honest].numpy(),  # type: ignore[attr-defined]
        scene.problem.targets[honest].numpy(),  # type: ignore[attr-defined]
        scene.plan.optimisation.batch,
    )
    hessian = scene.problem.curvature(honest).numpy()  # type: ignore[attr-defined]
    slopes, far, gaps, core = [], [], [], None
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        if snapshot.network is not None:
            graph = snapshot.network.graph  # type: ignore[attr-defined]
            core = graph.core()
        if core is not None:
            members = core.members.numpy()
            block = graph.mixing.numpy()[members][:, members]
            rows = snapshot.theta.numpy()[members]
            mean = slow.left_perron(block) @ rows
            slopes.append((snapshot.step, float(np.sum((hessian @ (mean - theta)) ** 2))))
            far.append((snapshot.step, float(((rows - mean) ** 2).sum() / len(rows))))
            gaps.append(float((mean - theta) @ hessian @ (mean - theta) / 2))
    assert core is not None
    c, rho, w, v = theory["contraction_factor"], theory["contraction_rate"], theory["inverse_diagonal"], slow.left_perron(block)
    letters = {"L": smoothness, "sigma": sigma, "zeta": zeta, "gap": gaps[0]}
    m_g = int(members.sum())
    assert theory["holds"] == (core.closed and torch.equal(core.members, ~scene.byzantine))
    assert theory["nodes"] == m_g
    assert theory["least_perron"] == pytest.approx(m_g * min(v))
    assert theory["lambda_2"] == pytest.approx(slow.second_modulus(block))
    assert [theory[key] for key in ("smoothness", "noise", "heterogeneity", "start_gap")] == pytest.approx(
        [letters[key] for key in ("L", "sigma", "zeta", "gap")]
    )
    assert theory["premix_rounds"] == slow.t0(m_g, c, rho, w, v)
    assert theory["d1"] == pytest.approx(slow.d1(m_g, c, rho, w, **letters))
    assert theory["least_rounds"] >= max(theory[f"d{number}"] for number in (1, 2, 3, 4))
    assert (theory["rounds"], theory["looks"]) == (40, len(slopes))
    assert theory["step"] == pytest.approx(math.sqrt(m_g / 40))
    for key, points in (("mean_gradient", slopes), ("mean_distance", far)):
        steps, values = zip(*points, strict=True)
        assert theory[key] == pytest.approx(float(np.trapezoid(values, steps)) / 40)
    assert theory["bound_gradient"] == pytest.approx(slow.bound(m_g, w, v, smoothness, sigma, gaps[0], 40))
    assert theory["bound_distance"] == pytest.approx(slow.bound_consensus(m_g, c, rho, w, v, **letters, K=40))
    # Of all pairs the one that asks for least.
    others = [
        max(slow.d1(m_g, *pair, w, **letters), slow.d2(m_g, *pair, w, **letters), slow.d3(m_g, *pair, w, smoothness))
        for pair in contractions(graph.mixing[core.members][:, core.members], core.perron[core.members])
    ]
    assert theory["least_rounds"] == pytest.approx(min(others))


@pytest.mark.parametrize("method", ["dsgd", "rule"])
def test_a_rule_alone_has_none(method: str, tmp_path: Path) -> None:
    spec = load(None, [*SMALL[1:], f"method={method}"])
    assert run(spec, tmp_path)["theory"] is None


def facts(graph: Graph, core: Core) -> dict[str, Any]:
    return theory_of(graph, core, NOBODY, [Look(10, None, None, None)], None, 8)


def test_what_is_not_known_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = pruned("directed")
    found = facts(graph, graph.core())
    assert tuple(found) == THEORY_KEYS
    assert found["holds"] is True
    assert found["contraction_rate"] is not None
    for key in ("smoothness", "noise", "heterogeneity", "start_gap", "least_rounds", "d1", "bound_gradient", "mean_gradient"):
        assert found[key] is None
    # Without the constants of a loss: the pair with the least c / (1 - rho).
    pairs = contractions(graph.mixing, graph.core().perron)
    assert found["contraction_rate"] == min(pairs, key=lambda pair: pair.factor / (1 - pair.rate)).rate
    monkeypatch.setattr(LIMITS, "theory_size", 13)
    large = facts(graph, graph.core())
    assert large["least_perron"] == found["least_perron"]
    assert large["lambda_2"] is large["contraction_rate"] is large["premix_rounds"] is None


def test_a_core_that_hears_others_or_is_one_node() -> None:
    """A chain 0 <-> 1 -> 2: the core hears nobody; with 2 -> 0 cut and 3 heard, it does."""
    hears = torch.zeros(14, 14, dtype=torch.bool)
    hears[0, 1] = hears[1, 0] = hears[0, 2] = True
    graph = Graph.from_hears(hears)
    core = graph.core()
    assert (int(core.members.sum()), core.closed) == (2, False)
    found = facts(graph, core)
    assert (found["holds"], found["nodes"]) == (False, 2)
    assert found["lambda_2"] is None, "the block is not row-stochastic: the theorem says nothing"
    alone = Graph.from_hears(torch.zeros(14, 14, dtype=torch.bool))
    single = facts(alone, alone.core())
    assert (single["nodes"], single["least_perron"], single["lambda_2"]) == (1, 1.0, None)
    json.dumps(single, allow_nan=False)


def test_images_have_averages_and_no_constants(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    words = ["method=drsgd-bymi", "nodes=6", "steps=4", "warm_up.steps=2", "record_every=1", "graph=complete"]
    words += ["data.samples=40", "data.identification=20", "attack=ipm", "detection.fdr_level=0.6"]
    for profile in ("paper", "hardened"):
        spec: Spec = load("digits", [*words, f"profile={profile}", "warm_up.cool_down=0.0"])
        theory = run(spec, tmp_path)["theory"]
        rows = store.read_rows(store.folder_of(tmp_path, spec) / store.METRICS)
        after = [row for row in rows if row["phase"] != "warm-up"]
        assert all(row["grad_norm_weighted"] is None for row in rows if row["phase"] == "warm-up")
        if profile == "hardened":  # equal weights: the same point, to rounding of a float32 average
            assert all(row["grad_norm_weighted"] == row["grad_norm"] for row in after)
        else:
            assert any(row["grad_norm_weighted"] != row["grad_norm"] for row in after)
        assert theory["mean_gradient"] > 0
        assert theory["mean_distance"] > 0
        assert theory["least_rounds"] is None
