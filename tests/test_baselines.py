"""Baselines take the steps of the method: a rule alone is compared at the same step sizes, batches and rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bymi import Average, Complete, Detector, LocalNetwork, Optimisation, Plan, StepSize, Watch, drsgd_bymi
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.detection import Panel
from bymi.experiment import Spec, load, run
from bymi.experiment.recipes import RECIPES
from bymi.paper.study_images import image_spec
from bymi.problems import linear_problem, linear_shard
from bymi.runs.run_setup import set_up_run
from bymi.training.phases import optimise
from bymi.training.plan import WarmUp

NODES = torch.arange(10)
PROBLEM = linear_problem(linear_shard(NODES, dim=4, samples=30, seed=1), seed=1)
NETWORK = LocalNetwork(Complete().draw(10))
HOW = Optimisation(StepSize(0.06, "linear"), batch=16)
ALONE = Plan(30, 10, WarmUp(Average(), StepSize(0.1, "sqrt"), 4), detector=None, optimisation=HOW, seed=3)


def plan_of(*words: str) -> Plan:
    return set_up_run(load(None, ["nodes=20", *words]).resolved).plan


def test_steps_round_by_round() -> None:
    assert [ALONE.rule_step(step, 10) for step in (0, 3, 9)] == pytest.approx([0.1, 0.05, 0.1 / 10**0.5])
    assert [ALONE.rule_step(step, 10) for step in (10, 20, 29)] == pytest.approx([0.06, 0.03, 0.003])
    paper = replace(ALONE, optimisation=replace(HOW, convention="paper", step_size=StepSize(0.006)))
    assert paper.rule_step(10, 10) == pytest.approx(0.06), "eta / [y]_ii, about m eta"
    assert replace(ALONE, optimisation=replace(HOW, max_local_step=0.05)).rule_step(10, 10) == 0.05, "the cap holds for all"
    whole = replace(ALONE, detector=Detector())
    assert whole.rule_step(20, 10) == pytest.approx(0.1 / 21**0.5), "with a detector there is a warm-up and nothing else"
    assert replace(ALONE, warm_up_steps=30).rule_step(29, 10) == pytest.approx(0.1 / 30**0.5), "steps of its own"


@pytest.mark.parametrize("convention", ["mean", "paper"])
def test_after_the_warm_up_dsgd_does_what_the_optimisation_does_with_nobody_flagged(convention: str) -> None:
    """The same update, steps, batches and samples: over doubly stochastic weights the two are one algorithm."""
    size = 0.06 if convention == "mean" else 0.006
    how = replace(HOW, convention=convention, step_size=StepSize(size, "linear"))  # type: ignore[arg-type]
    baseline = replace(ALONE, optimisation=how)
    rounds = list(drsgd_bymi(PROBLEM, NETWORK, baseline))
    assert [snapshot.step for snapshot in rounds] == list(range(1, 31))
    watch = Watch(every=None, fuse=None)
    method = replace(baseline, detector=Detector(panel=Panel(), pruning="mutual"), watch=watch)
    *_, last = optimise(PROBLEM, NETWORK, method, rounds[9].theta, FollowsProtocol())
    assert torch.allclose(rounds[-1].theta, last.theta, atol=1e-12)
    moved = replace(baseline, optimisation=replace(how, batch=15))
    *_, other = drsgd_bymi(PROBLEM, NETWORK, moved)
    assert not torch.allclose(other.theta, last.theta, atol=1e-6), "the batch is that of the optimisation"


@pytest.mark.parametrize("stop", [4, 10, 11, 23])
def test_a_baseline_goes_on_from_any_round(stop: int) -> None:
    rounds = list(drsgd_bymi(PROBLEM, NETWORK, ALONE))
    rest = list(drsgd_bymi(PROBLEM, NETWORK, ALONE, state=rounds[stop - 1].state))
    assert [snapshot.step for snapshot in rest] == list(range(stop + 1, 31))
    assert torch.equal(rest[-1].theta, rounds[-1].theta)


def test_steps_of_its_own_last_for_all_rounds() -> None:
    """alone = {} are those of the default warm-up, as if it never ended."""
    plan = plan_of("method=rule", "alone={}")
    assert (plan.warm_up.step_size, plan.warm_up.batch, plan.handover) == (StepSize(0.05, "sqrt"), 8, 3000)
    plan = plan_of("method=dsgd", "alone.step_size=0.1", "alone.schedule=trapezoid", "alone.batch=32")
    assert (plan.warm_up.step_size, plan.warm_up.batch, plan.handover) == (StepSize(0.1, "trapezoid"), 32, 3000)
    assert plan.rule_step(2700, 20) == pytest.approx(0.05)
    assert plan_of("method=drsgd-bymi", "alone.step_size=0.1") == plan_of("method=drsgd-bymi"), "the method has its own"
    assert plan_of("method=rule").handover == 300
    assert plan_of("method=rule", "alone=off") == plan_of("method=rule")


def test_the_theorems_step_serves_baselines_too() -> None:
    words = ("optimisation.convention=paper", "optimisation.step_size=theorem", "optimisation.max_local_step=1.0")
    assert plan_of("method=rule", *words).rule_step(300, 20) == pytest.approx((20 / 2700) ** 0.5)


@pytest.mark.parametrize("column", ["undefended", "alone", "alone-global"])
@pytest.mark.parametrize("attack", ["ipm", "ood"])
def test_baselines_on_images_have_steps_of_their_own(column: str, attack: str) -> None:
    spec = image_spec("mnist", attack, "balance", 0.2, column, 0)
    assert spec.alone is not None
    assert spec.alone.model_dump() == {"step_size": 0.1, "schedule": "trapezoid", "batch": 32}


def test_recipes_compare_at_the_steps_of_the_method() -> None:
    assert {name: recipe().alone for name, recipe in RECIPES.items()} == dict.fromkeys(RECIPES)


def test_without_attackers_the_baselines_do_as_well_as_the_method(tmp_path: Path) -> None:
    """On steps that fall to zero DSGD ends where the hardened run ends, and BALANCE near; on those of the warm-up far off."""

    def gap(*words: str) -> float:
        shape = ("nodes=40", "steps=1000", "data.dim=10", "attack=zero", "byzantine_ratio=0.0", "record_every=1000")
        return float(run(load(None, [*shape, *words]), tmp_path)["gap"])

    method = gap("method=drsgd-bymi")
    for baseline, times in (("dsgd", 2), ("rule", 5)):
        fair, unfair = gap(f"method={baseline}"), gap(f"method={baseline}", "alone={}")
        assert fair < times * method
        assert unfair > 50 * fair


def test_a_spec_says_whether_baselines_have_steps_of_their_own() -> None:
    assert Spec().alone is None
    assert load(None, ["alone.batch=9"]).resolved["alone"] == {"step_size": 0.05, "schedule": "sqrt", "batch": 9}
