"""The stopping criterion: what it is, who can influence it, and what is left of a run that it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bymi import Average, Complete, InputError, Plan, Snapshot, StepSize, Stop, WarmUp, drsgd_bymi, simulate
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load, run
from bymi.runs import run_folder as store
from bymi.runs.observers import RunStatus
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import local_network, sharded_run
from tests.reference.stopping import first_rest

SMALL = ["nodes=20", "steps=120", "warm_up.steps=20", "data.dim=4", "data.samples=40", "record_every=50"]
KINDS = {
    "rule": ["method=rule"],
    "paper": ["method=drsgd-bymi", "profile=paper"],
    "paper, sum of gradients": [
        *("method=drsgd-bymi", "profile=paper", "optimisation.convention=paper"),
        *("optimisation.step_size=0.003", "optimisation.schedule=constant"),
    ],
    "hardened": ["method=drsgd-bymi", "watch.every=30"],
}


def rounds(words: list[str], stop: Stop | None) -> tuple[Plan, list[Snapshot]]:
    scene = set_up_run(load(None, [*SMALL, *words]).resolved)
    plan = replace(scene.plan, stop=stop)
    return plan, list(simulate(scene.problem, scene.graph, plan, scene.adversary))


@pytest.mark.parametrize("on", ["gradient", "movement"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_where_most_nodes_rest(kind: str, on: Any) -> None:
    """Against the parameters of the run that goes on to the end. The tolerance is one that half of the nodes reach half-way."""
    plan, whole = rounds(KINDS[kind], None)
    first = plan.stop_from
    assert first == (0 if kind == "rule" else 20)
    start = set_up_run(load(None, [*SMALL, *KINDS[kind]]).resolved).problem.initial(torch.arange(20))
    by_step = {0: start.numpy()} | {one.step: one.theta.numpy() for one in whole if one.phase != "detection"}
    thetas = [by_step[step] for step in range(first, 121)]
    if kind == "rule":
        rates = [plan.rule_step(step, 20) for step in range(120)]
    else:
        rates = [plan.optimisation.step_size.at(step, 100) * (20 if "sum" in kind else 1) for step in range(100)]
    some = {"on": on, "patience": 10}
    tolerance = next(
        size
        for size in np.geomspace(1e-4, 10, 200)
        if (first_rest(thetas, rates, tolerance=float(size), **some)[0] or 1000) < len(rates) * 0.7
    )
    expected, counts = first_rest(thetas, rates, tolerance=float(tolerance), **some)
    assert expected is not None
    assert len(counts) > 1
    _, ended = rounds(KINDS[kind], Stop(float(tolerance), on, 10))
    assert ended[-1].step == first + expected
    assert [one.stopped for one in ended] == [False] * (len(ended) - 1) + [True]
    for one, other in zip(ended, whole, strict=False):
        assert torch.equal(one.theta, other.theta)
    assert rounds(KINDS[kind], Stop(1e-12, on, 10))[1][-1].step == 120


def test_the_estimate_is_the_gradient_norm() -> None:
    """f(theta) = |theta - t|^2 / 2 on every node, without noise, short steps: the norm of the gradient is |theta - t|."""
    target = torch.arange(4, dtype=torch.float64)

    class Problem:
        dim, samples = 4, 10
        initial = staticmethod(lambda nodes: torch.zeros(len(nodes), 4, dtype=torch.float64))
        gradient = staticmethod(lambda theta, nodes, chosen: theta - target)
        losses = None

    rule = WarmUp(Average(), StepSize(0.01), 2)
    norm = float(target.norm()) * 0.99**90  # after 90 rounds; in the next 10 it falls by another tenth
    for tolerance, end in ((0.9 * norm, None), (1.0 * norm, 100)):
        plan = Plan(100, 100, rule, None, stop=Stop(tolerance, "gradient", 10))
        last = list(simulate(Problem(), Complete().draw(6), plan))[-1]  # type: ignore[arg-type]
        assert (last.step, last.stopped) == (100, end == 100)


@pytest.mark.parametrize("count", [9, 10, 11, 20])
def test_a_minority_neither_ends_a_run_nor_keeps_it_going(count: int) -> None:
    """Whatever 9 of 20 nodes do, the other 11 decide: as many as `count` are at rest, others run about."""
    scene = set_up_run(load(None, [*SMALL, "method=dsgd", "byzantine_ratio=0.0", "attack=zero"]).resolved)

    class Problem:
        dim, samples = scene.problem.dim, scene.problem.samples
        initial = staticmethod(lambda nodes: torch.zeros(len(nodes), 4, dtype=torch.float64))
        losses = None
        gradient = staticmethod(lambda theta, nodes, chosen: (1e6 * (nodes >= count)).double()[:, None].expand_as(theta))

    class Lonely:
        """Averages with nobody."""

        gradients = staticmethod(lambda vectors, nodes, topic, step: vectors)
        keep = staticmethod(lambda inbox, aggregated, nodes, *, averaged, step: inbox.own)
        asks = prune = None

    plan = replace(scene.plan, stop=Stop(1.0, "gradient", 10))
    last = list(drsgd_bymi(Problem(), local_network(scene.graph), plan, Lonely()))[-1]  # type: ignore[arg-type]
    assert last.step == (10 if count > 10 else 120)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_end_together(kind: str) -> None:
    scene = set_up_run(load(None, [*SMALL, *KINDS[kind]]).resolved)
    plan = replace(scene.plan, stop=Stop(0.2, "movement", 10))
    alone = list(simulate(scene.problem, scene.graph, plan, scene.adversary))
    spread = list(sharded_run(scene.problem, scene.graph, scene.adversary, shards=4).walk(plan))
    assert alone[-1].stopped
    assert [one.step for one in alone] == [parts[0].step for parts in spread]
    assert all(part.stopped for part in spread[-1])


def test_there_is_nothing_after_the_end() -> None:
    scene = set_up_run(load(None, [*SMALL, *KINDS["paper"], "stop.tolerance=1.0", "stop.on=movement"]).resolved)
    last = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))[-1]
    assert last.state is not None
    assert (last.step, last.state.stopped) == (70, True)
    assert list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary, last.state)) == []


@pytest.mark.parametrize("checkpoint_every", [None, 10])
def test_the_folder_of_a_run_that_was_ended(checkpoint_every: int | None, tmp_path: Path) -> None:
    """The last round has its row, and the summary says so."""
    spec = load(None, [*SMALL, *KINDS["rule"], "stop.tolerance=2.0", "stop.on=movement", "stop.patience=55"])
    told: list[RunStatus] = []
    summary = run(spec, tmp_path, told.append, Host(checkpoint_every=checkpoint_every))
    assert (summary["outcome"], summary["steps_done"]) == ("finished", 55)
    assert summary["sentence"] == "stopped after round 55 of 120: most nodes had come to rest"
    rows = store.read_rows(store.folder_of(tmp_path, spec) / store.METRICS)
    assert [row["step"] for row in rows] == [50, 55]
    assert sum(status.rounds for status in told) == 120  # the bar comes to its end


def test_settings() -> None:
    assert load(None, ["stop=off"]).stop is None
    assert load(None, ["stop.tolerance=0.1"]).resolved["stop"] == {"on": "gradient", "tolerance": 0.1, "patience": 50}
    for words, message in {
        "stop.patience=3": "stop.tolerance: missing",
        "stop.tolerance=0": "stop.tolerance: got 0, allowed: greater than 0",
        "stop.on=time stop.tolerance=0.1": "stop.on: got 'time'",
        "stop=soon": "stop: got 'soon'",
    }.items():
        with pytest.raises(InputError, match=message):
            load(None, words.split())
    for how, message in (({"tolerance": 0.0}, "tolerance: got 0.0"), ({"tolerance": 1.0, "patience": 0}, "patience: got 0")):
        with pytest.raises(InputError, match=message):
            Stop(**how)  # type: ignore[arg-type]
