"""Nodes with few neighbours cannot judge them: they keep the warm-up rule as their mixing, and the verdict says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bymi import Graph, LocalNetwork, Plan, WarmUp
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.detection import Detector, Panel, Suspensions, UpdateHistory, Watch
from bymi.experiment.loading import load
from bymi.problems import linear_problem, linear_shard
from bymi.runs import run_all
from bymi.runs import run_folder as store
from bymi.training.phases import apply_verdict, detect_hardened, optimise

NODES, DIM, FEW = 12, 4, 5


def hears() -> torch.Tensor:
    """Nodes 0 and 1 have four neighbours, all others ten or eleven."""
    arcs = ~torch.eye(NODES, dtype=torch.bool)
    for node in (0, 1):
        arcs[node, 6:] = arcs[6:, node] = False
    arcs[0, 1] = arcs[1, 0] = False
    return arcs


def plan_of(few: int | None, rule: str = "median", pruning: str = "mutual") -> Plan:
    detector = Detector(point="receiver", cross_fit=True, panel=Panel(few=few), probe=True, sample="all", pruning=pruning)
    return Plan(20, 10, warm_up=WarmUp(rule=rule), detector=detector, watch=Watch(every=None, fuse=None))


def one_round(plan: Plan) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Parameters before and after a round in which node 5 was cut by all, and the gradient steps."""
    problem = linear_problem(linear_shard(torch.arange(NODES), dim=DIM, samples=20, seed=0), seed=0)
    network, followed = LocalNetwork(Graph.from_hears(hears())), FollowsProtocol()
    flagged = torch.zeros(NODES, NODES, dtype=torch.bool)
    flagged[:, 5] = hears()[:, 5]
    pruned = apply_verdict(network, plan, flagged, followed, step=10)
    theta = torch.from_numpy(np.random.default_rng(1).standard_normal((NODES, DIM)))
    (after,) = optimise(problem, pruned, plan, theta, followed, steps=range(10, 11))
    (again,) = optimise(problem, LocalNetwork(Graph.from_hears(hears())), plan_of(None), theta, followed, steps=range(10, 11))
    mixed = again.inbox.mix(again.inbox.average())  # type: ignore[union-attr]
    return theta, after.theta, mixed - again.theta


def test_few_mix_by_the_rule_without_those_they_flagged() -> None:
    theta, after, step = one_round(plan_of(FEW))
    _, averaged, _ = one_round(plan_of(None))
    for node in (0, 1):
        kept = [other for other in range(NODES) if (hears()[node, other] and other != 5) or other == node]
        expected = np.median(theta[kept].numpy(), axis=0)
        np.testing.assert_allclose((after + step)[node].numpy(), expected, rtol=0, atol=1e-12)
        assert not torch.allclose(after[node], averaged[node])
    assert torch.equal(after[2:], averaged[2:])


@pytest.mark.parametrize("plan", [plan_of(FEW, "average"), plan_of(FEW, pruning="directed"), plan_of(None)])
def test_where_there_is_no_rule_to_keep(plan: Plan) -> None:
    """A plain average is no robust rule, and with a tracker weights have to be linear."""
    network = LocalNetwork(Graph.from_hears(hears()))
    problem = linear_problem(linear_shard(torch.arange(NODES), dim=DIM, samples=20, seed=0), seed=0)
    blank = Suspensions.blank(network.arcs, 16)
    snapshot, _ = detect_hardened(
        problem,
        network,
        plan,
        problem.initial(network.nodes),
        FollowsProtocol(),
        step=10,
        history=UpdateHistory(),
        record=blank,
    )
    assert snapshot.verdict is not None
    assert not bool(snapshot.verdict.by_rule.any())


def test_the_verdict_says_who_mixes_by_the_rule(tmp_path: Path) -> None:
    words = ["nodes=16", "graph=regular:degree=6", "steps=6", "warm_up.steps=3", "data.samples=16", "method=drsgd-bymi"]
    for few, mixing in ((7, "rule"), (6, "average")):
        spec = load(None, [*words, f"panel.few={few}"], 0)
        run_all([spec.resolved], tmp_path)
        verdict = json.loads((store.folder_of(tmp_path, spec) / store.VERDICT).read_text())
        assert {entry["mixing"] for entry in verdict["receivers"]} == {mixing}
        assert all(entry["pull"] is None or entry["pull"] > 0 for entry in verdict["receivers"])
