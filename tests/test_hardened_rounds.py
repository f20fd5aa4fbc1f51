"""Runs of the hardened profile on the linear problem: 50 nodes, degree about 34, 400 rounds, four detections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from bymi import (
    Adversary,
    Average,
    Graph,
    LinearProblem,
    LocalNetwork,
    Optimisation,
    Plan,
    Snapshot,
    StepSize,
    WarmUp,
    simulate,
)
from bymi.attacks import ATTACKS
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.random_streams import stream
from bymi.core.topology import ErdosRenyi
from bymi.detection import Detector, Panel, Verdict, Watch
from bymi.detection.verdict import REASONS
from bymi.problems import linear_problem, linear_shard
from bymi.training import phases as phases_module
from bymi.training.phases import optimise, warm_up

NODES, BYZANTINE, DIM, SAMPLES = 50, 10, 10, 100
DETECTOR = Detector(point="receiver", cross_fit=True, panel=Panel(), probe=True, sample="all", pruning="mutual")
PLAN = Plan(
    steps=400,
    warm_up_steps=100,
    warm_up=WarmUp(Average(), StepSize(0.05), batch=8),
    detector=DETECTOR,
    optimisation=Optimisation(StepSize(0.05, "linear"), batch=8),
    watch=Watch(every=100),
)


@cache
def stage(seed: int) -> tuple[LinearProblem, Graph]:
    shard = linear_shard(torch.arange(NODES), dim=DIM, samples=SAMPLES, seed=seed)
    return linear_problem(shard, seed=seed), ErdosRenyi(0.7).draw(NODES, seed=seed)


def members(seed: int, count: int = BYZANTINE) -> Tensor:
    chosen = stream(seed, "liars").permutation(NODES)[:count]
    return torch.zeros(NODES, dtype=torch.bool).index_fill(0, chosen, True)


@dataclass(frozen=True)
class Run:
    seed: int
    byzantine: Tensor
    theta: Tensor
    detections: list[Snapshot]

    @property
    def gap(self) -> float:
        """Mean excess risk of the honest nodes over the best parameter for their pooled samples."""
        problem, honest = stage(self.seed)[0], (~self.byzantine).nonzero().flatten()
        best = problem.minimiser(honest)
        return sum(float(problem.excess(self.theta[node], best, honest)) for node in honest.tolist()) / len(honest)

    def verdicts(self) -> list[Verdict]:
        found = [snapshot.verdict for snapshot in self.detections]
        assert all(verdict is not None for verdict in found)
        return found  # type: ignore[return-value]

    def arcs(self, senders: Tensor) -> Tensor:
        """Arcs from such senders to honest receivers."""
        return stage(self.seed)[1].hears & ~self.byzantine[:, None] & senders[None, :]

    def found(self, place: int) -> float:
        """The share of arcs from Byzantine nodes that were flagged."""
        arcs = self.arcs(self.byzantine)
        return float((self.verdicts()[place].flagged & arcs).sum() / arcs.sum())

    def lost(self, place: int) -> float:
        """The share of arcs between honest nodes that were flagged."""
        arcs = self.arcs(~self.byzantine)
        return float((self.verdicts()[place].flagged & arcs).sum() / arcs.sum())


def walk(seed: int, plan: Plan, adversary: Adversary | None) -> Iterator[Snapshot]:
    problem, graph = stage(seed)
    return simulate(problem, graph, replace(plan, seed=seed), adversary)


def run(seed: int, attack: str | None = None, plan: Plan = PLAN, **how: Any) -> Run:
    byzantine = members(seed, BYZANTINE if attack else 0)
    adversary = Adversary(byzantine, ATTACKS[attack](), **how) if attack else None
    snapshots = list(walk(seed, plan, adversary))
    detections = [snapshot for snapshot in snapshots if snapshot.phase == "detection"]
    assert [snapshot.step for snapshot in detections] == plan.detections
    return Run(seed, byzantine, snapshots[-1].theta, detections)


@cache
def plain(seed: int) -> float:
    """The gap of DSGD: the same warm-up, then the same steps on the same samples over the whole graph, nobody judged."""
    problem, graph = stage(seed)
    plan, network, deviation = replace(PLAN, seed=seed), LocalNetwork(graph), FollowsProtocol()
    pool = torch.arange(SAMPLES).expand(NODES, -1)
    *_, warm = warm_up(problem, network, plan, pool, deviation, rounds=plan.warm_up_steps)
    unwatched = replace(plan, watch=Watch(every=None, fuse=None))
    *_, last = optimise(problem, network, unwatched, warm.theta, deviation)
    return Run(seed, members(seed, 0), last.theta, []).gap


def loosely(seed: int, attack: str, **how: Any) -> Run:
    """A run in which honest nodes come as close as DSGD without anybody; fewer of them have less data: twice the gap."""
    finished = run(seed, attack, **how)
    assert finished.gap < 2 * plain(seed)
    assert all(finished.lost(place) < 0.05 for place in range(4))
    return finished


@pytest.mark.parametrize("seed", [0, 1])
def test_without_attackers_it_is_dsgd(seed: int) -> None:
    """Measured for seeds 0 to 3: 0.96, 0.96, 0.97 and 1.15 times the gap of DSGD; at most 1.6 % of arcs flagged.

    More than in the default run, whose windows are three times as long: deeds of 25 rounds are noisy.
    """
    finished = run(seed)
    assert finished.gap < 1.2 * plain(seed)
    assert all(finished.lost(place) < 0.02 for place in range(len(finished.detections)))


def test_sign_flip_is_found_at_every_receiver() -> None:
    finished = loosely(1, "sign-flip")
    assert [finished.found(place) for place in range(4)] == [1.0, 1.0, 1.0, 1.0]


def test_a_sleeper_is_out_by_the_second_detection_after_it_wakes() -> None:
    """Awake from round 150 on: nobody had a reason at 100, everybody has one by 300."""
    finished = loosely(0, "sign-flip", start=150)
    assert finished.found(0) < 0.02
    assert finished.found(2) == 1.0


def test_nan_is_harmless() -> None:
    finished = loosely(0, "nan")
    assert bool(torch.isfinite(finished.theta[~finished.byzantine]).all())
    for verdict in finished.verdicts():
        codes = verdict.reason[finished.arcs(finished.byzantine)].unique().tolist()
        assert {REASONS[code] for code in codes} <= {"not heard"}


def test_two_faces() -> None:
    """Sign flip shown to half of the honest nodes, which flag it; to the others Byzantine nodes are nodes like any other.

    So their samples are in the mean: 4.7 times the gap was measured, 10 times is what counts as harmless.
    """
    finished = run(0, "sign-flip", faces="two")
    fooled = Adversary(finished.byzantine, ATTACKS["sign-flip"](), faces="two").fooled
    seen = finished.arcs(finished.byzantine) & fooled[:, None]
    for place, verdict in enumerate(finished.verdicts()):
        assert bool(verdict.flagged[seen].all())
        assert finished.lost(place) < 0.05
    assert finished.gap < 10 * plain(0)


def test_whoever_is_flagged_by_mistake_is_back_at_the_next_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    """All neighbours flag node 7 once, for its score: it is in exile for one window, listens, and is taken back by all."""
    honest_sit, calls = phases_module.judge_neighbours, []

    def mistaken(*arguments: Any) -> Verdict:
        verdict = honest_sit(*arguments)
        calls.append(1)
        if len(calls) == 1:
            verdict.flagged[:, 7] = arguments[1][:, 7]
            verdict.reason[:, 7] = arguments[1][:, 7].to(torch.int8) * REASONS.index("score")
        return verdict

    monkeypatch.setattr(phases_module, "judge_neighbours", mistaken)
    finished = run(1)
    hears = stage(1)[1].hears
    first, second, *_ = finished.detections
    assert first.verdict is not None
    assert torch.equal(first.verdict.flagged[:, 7], hears[:, 7])
    cut, back = (snapshot.network.graph for snapshot in (first, second))  # type: ignore[union-attr]
    assert not bool(cut.hears[:, 7].any())
    assert torch.equal(cut.hears[7], hears[7] & ~first.verdict.flagged[7])
    assert not bool(second.verdict.flagged[:, 7].any())  # type: ignore[union-attr]
    assert torch.equal(back.hears[:, 7], hears[:, 7] & ~second.verdict.flagged[7])  # type: ignore[union-attr]
    assert finished.gap < 1.2 * plain(1)


def test_weights_are_doubly_stochastic_outside_exiled_rows() -> None:
    finished = run(0, "sign-flip", pruning="rule")
    graph = stage(0)[1]
    ones = torch.ones(NODES, dtype=torch.float64)
    for snapshot in finished.detections:
        assert snapshot.verdict is not None
        cut = snapshot.verdict.flagged & graph.hears
        exiled = cut.sum(0) > 0.5 * graph.hears.sum(0)
        assert torch.equal(exiled, finished.byzantine)
        mixing = snapshot.network.graph.mixing  # type: ignore[union-attr]
        even = graph.prune_mutually(snapshot.verdict.flagged).mixing
        assert torch.allclose(even.sum(0), ones, atol=1e-12)
        assert torch.allclose(even.sum(1), ones, atol=1e-12)
        assert torch.equal(mixing[~exiled], even[~exiled])
        # Nobody honest hears a Byzantine node: their own block is doubly stochastic by itself.
        block = mixing[~exiled][:, ~exiled]
        assert torch.allclose(block.sum(0), ones[: len(block)], atol=1e-12)


@pytest.mark.parametrize("attack", [None, "sign-flip"])
def test_the_same_run_twice_gives_the_same_bits(attack: str | None) -> None:
    short = replace(PLAN, steps=90, warm_up_steps=30, watch=Watch(every=25))
    one, two = (run(2, attack, short) for _ in range(2))
    assert torch.equal(one.theta, two.theta)
    for left, right in zip(one.verdicts(), two.verdicts(), strict=True):
        assert torch.equal(left.reason, right.reason)
        assert torch.equal(left.scores.nan_to_num(7.0), right.scores.nan_to_num(7.0))
        assert torch.equal(left.statistic.nan_to_num(7.0), right.statistic.nan_to_num(7.0))


def test_one_detection_and_the_other_switches() -> None:
    """Once only, without deeds and fuse, at the sender's point, cutting one way: the pieces can be had one by one."""
    bare = replace(
        PLAN,
        detector=replace(DETECTOR, point="sender", probe=False, sample="identification", pruning="directed"),
        watch=Watch(every=None, fuse=None, drift=None, deed=None),
    )
    finished = run(1, plan=bare)
    assert len(finished.detections) == 1
    assert finished.gap < 2 * plain(1)
