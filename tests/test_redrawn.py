"""Graphs that take turns: messages of a round over its graph, detection over the union, and what cannot be had with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bymi import RULES, Adversary, ErdosRenyi, LocalNetwork, Plan, Ring, Round, simulate
from bymi.core.errors import InputError
from bymi.core.random_streams import stream
from bymi.core.time_varying_graph import RedrawnGraph, RedrawnNetwork
from bymi.core.topic import PARAMETERS
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.experiment.train import train
from bymi.node.roster import edges_of
from bymi.runs import run_all
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import engine_of

SMALL = ["nodes=24", "steps=60", "data.dim=4", "data.samples=60", "redraw_every=5", "redraw_graphs=3", "graph.p=0.5"]
DRAWN = RedrawnGraph.draw(ErdosRenyi(0.4), 12, every=3, graphs=3, seed=7)


def literal_round(vectors: np.ndarray, step: int) -> np.ndarray:
    """Metropolis averages over the graph of a round, from its edges alone, node by node."""
    hears = DRAWN.graphs[(step // 3) % 3].hears.numpy()
    degree, output = hears.sum(1), np.zeros_like(vectors)
    for i in range(12):
        own = 1.0
        for j in range(12):
            if hears[i, j]:
                weight = 1 / (1 + max(degree[i], degree[j]))
                output[i] += weight * vectors[j]
                own -= weight
        output[i] += own * vectors[i]
    return output


def test_rounds_are_over_the_graph_of_their_turn() -> None:
    network, vectors = RedrawnNetwork.of(DRAWN), stream(1, "vectors").normal(12, 5)
    expected = vectors.numpy()
    for step in range(20):
        (inbox,) = network.exchange(step, {PARAMETERS: vectors})
        vectors, expected = RULES["average"]()(inbox, Round(step, 20)), literal_round(expected, step)
        np.testing.assert_allclose(vectors.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["ios", "trimmed-mean", "krum", "drsa", "bulyan", "nnm+krum"])
def test_rules_see_the_neighbours_of_their_turn(name: str) -> None:
    vectors, rule = stream(2, "vectors").normal(12, 5), RULES[name]()
    for step in (0, 4, 8, 9):
        (inbox,) = RedrawnNetwork.of(DRAWN).exchange(step, {PARAMETERS: vectors})
        (plain,) = LocalNetwork(DRAWN.at(step)).exchange(step, {PARAMETERS: vectors})
        nodes = torch.arange(12)
        assert torch.equal(rule(inbox, Round(step, 20, nodes=nodes)), rule(plain, Round(step, 20, nodes=nodes)))


def test_the_first_graph_is_that_of_a_run_without_turns() -> None:
    assert torch.equal(DRAWN.graphs[0].hears, ErdosRenyi(0.4).draw(12, seed=7).hears)
    assert torch.equal(DRAWN.union.hears, DRAWN.graphs[0].hears | DRAWN.graphs[1].hears | DRAWN.graphs[2].hears)
    assert len({str(graph.hears.tolist()) for graph in DRAWN.graphs}) == 3


def test_a_detection_judges_all_neighbours_of_a_window_and_cuts_them_in_every_turn() -> None:
    scene = set_up_run(load(None, [*SMALL, "method=drsgd-bymi", "attack=ipm:a=5.0", "watch.every=20"]).resolved)
    assert scene.redrawn is not None
    for snapshot in simulate(scene.problem, scene.redrawn, scene.plan, scene.adversary):
        if snapshot.phase == "detection":
            assert snapshot.verdict is not None
            flagged, network = snapshot.verdict.flagged, snapshot.network
        if snapshot.phase == "optimisation":
            assert snapshot.inbox is not None
            turn = scene.redrawn.at(snapshot.step - 1)
            assert torch.equal(snapshot.inbox.expected, turn.hears)
            assert not bool(snapshot.inbox.weight[flagged].any())
    honest = ~scene.byzantine
    judged = scene.redrawn.union.hears & honest[:, None]
    assert torch.equal(flagged & honest[:, None], judged & scene.byzantine)
    assert network is not None
    assert int(network.graph.core().members[scene.byzantine].sum()) == 0  # type: ignore[attr-defined]


def test_a_run_is_stored_and_takes_its_key(tmp_path: Path) -> None:
    spec = load(None, [*SMALL, "method=rule", "warm_up.rule=ios", "record_every=30"])
    assert (spec.resolved["redraw_every"], spec.resolved["redraw_graphs"]) == (5, 3)
    (summary,) = run_all([spec.resolved], tmp_path, jobs=1)
    assert isinstance(summary, dict)
    assert summary["outcome"] == "finished"
    assert "redraw_every" not in load(None, ["redraw_every=off"]).resolved.values, "digests of other runs stay"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "redraw_every: got 5, allowed: off, or method = dsgd, rule or drsgd-bymi with profile = hardened"),
        (["method=drsgd-bymi", "profile=paper"], "redraw_every: got 5, allowed: off, or method"),
        (["method=rule", "redraw_every=0"], "redraw_every: got 0, allowed"),
        (["method=rule", "redraw_graphs=1"], "redraw_graphs: got 1, allowed"),
    ],
)
def test_what_follows_one_graph_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(None, [*SMALL, *words])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_other_networks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load(None, [*SMALL, "method=rule"]).resolved
    pair = Group()
    monkeypatch.setattr("bymi.runs.run_setup.default_layout", lambda *_: object())
    with pytest.raises(InputError, match="redraw_every: got 5, allowed: off with several ranks"):
        engine_of(spec, Host(), pair)
    with pytest.raises(InputError, match="redraw_every: got 5, allowed: off with real nodes"):
        edges_of(spec, 24, None)
    with pytest.raises(InputError, match=r"redraw_every: got .3 with a graph that is not drawn"):
        RedrawnGraph.draw(Ring(), 12, every=3)
    with pytest.raises(InputError, match=r"redraw_every: got .3 with neighbour lists"):
        RedrawnGraph.draw(ErdosRenyi(0.01), 1200, every=3, graphs=2)


def test_a_plan_with_a_tracker_is_refused() -> None:
    scene = set_up_run(load(None, [*SMALL[:4], "method=drsgd-bymi", "profile=paper"]).resolved)
    redrawn = RedrawnGraph.draw(ErdosRenyi(0.5), 24, every=5)
    assert isinstance(scene.plan, Plan)
    with pytest.raises(InputError, match=r"detection\.pruning: got 'directed', allowed: mutual"):
        next(simulate(scene.problem, redrawn, scene.plan, Adversary(scene.byzantine, None)))
    data, graph = (stream(1, "inputs").normal(12, 8, 3), stream(1, "targets").normal(12, 8, 1)), DRAWN.union
    with pytest.raises(InputError, match="redraw_every"):
        train(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, graph=graph, steps=8, redraw_every=5)
