"""Real nodes over mutual TLS get the numbers of the simulator, and pass the conformance test for networks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi import Graph, LocalNetwork, Plan, Snapshot, drsgd_bymi
from bymi.core.network import Network
from bymi.network_conformance import check_network
from bymi.problems import LinearProblem, ModuleProblem, Shards, linear_problem, linear_shard, start_of
from bymi.training.plan import Optimisation, StepSize, WarmUp
from tests.peer_networks import Nodes

NODES, STEPS, WARM_UP = 6, 24, 8
RULES = ("balance", "ios", "median")
METHODS: dict[str, Any] = {
    "published": lambda **given: Plan.paper(STEPS, WARM_UP, identification=20, **given),
    "receiver": lambda **given: Plan.paper(STEPS, WARM_UP, identification=20, detection={"point": "receiver"}, **given),
    "hardened": lambda **given: Plan.hardened(STEPS, WARM_UP, **given),
}


@pytest.fixture
def built() -> Iterator[list[Nodes]]:
    """Nodes that a test builds, closed at its end."""
    nodes: list[Nodes] = []
    yield nodes
    for one in nodes:
        one.close()


def test_conformance(built: list[Nodes]) -> None:
    def build(graph: Graph) -> list[Any]:
        while built:
            built.pop().close()
        built.append(Nodes(graph).connect())
        return built[0].networks

    check_network(build)


def problem() -> LinearProblem:
    """Least squares; the targets of the last node are wrong, so that there is something to find."""
    shard = linear_shard(torch.arange(NODES), samples=40, dim=10, seed=1)
    shard.targets[-1].mul_(-8).sub_(20)
    return linear_problem(shard, seed=1)


def play(network: Network, plan: Plan) -> list[Snapshot]:
    return [replace(snapshot, inbox=None, network=None, state=None) for snapshot in drsgd_bymi(problem(), network, plan)]


def side_by_side(networks: list[Any], plan: Plan, work: Callable[..., list[Snapshot]] = play) -> list[list[Snapshot]]:
    """Snapshots of each node, each in a thread of its own."""
    rows: dict[int, list[Snapshot]] = {}

    def run(index: int) -> None:
        rows[index] = work(networks[index], plan)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(networks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [rows[index] for index in range(len(networks))]


def module_problem() -> ModuleProblem:
    """The same in float32, as a module."""
    shard = linear_shard(torch.arange(NODES), samples=40, dim=9, seed=1)
    shard.targets[-1].mul_(-8).sub_(20)
    shards, model = Shards(shard.features.float(), shard.targets.float()[..., None]), nn.Linear(9, 1)
    return ModuleProblem(model, nnf.mse_loss, shards, start=start_of(model, seed=1), gradients="loop", threads=1)


def test_same_numbers_in_float32() -> None:
    """Parameters to 1e-6 after every round, the same verdicts."""
    plan = METHODS["receiver"](
        warm_up=WarmUp("balance", StepSize(0.05, "sqrt"), batch=8), optimisation=Optimisation(premix_rounds=4)
    )
    graph = Graph.from_hears(~torch.eye(NODES, dtype=torch.bool))

    def work(network: Network, plan: Plan) -> list[Snapshot]:
        return list(drsgd_bymi(module_problem(), network, plan))

    expected = work(LocalNetwork(graph), plan)
    with Nodes(graph, dim=10, dtype=torch.float32) as nodes:
        parts = side_by_side(nodes.networks, plan, work)
        assert nodes.events == []
    for number, one in enumerate(expected):
        theta = torch.cat([part[number].theta for part in parts])
        assert theta.dtype == torch.float32
        torch.testing.assert_close(theta, one.theta, rtol=0, atol=1e-6)
        if one.verdict is not None:
            assert torch.equal(torch.cat([part[number].verdict.flagged for part in parts]), one.verdict.flagged)
            assert bool(one.verdict.flagged[:-1, -1].all())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_same_numbers(method: str, rule: str) -> None:
    """Parameters to 1e-12 in float64 after every round, the same verdicts with the same reasons."""
    warm_up = WarmUp(rule, StepSize(0.05, "sqrt"), batch=8)  # type: ignore[arg-type]
    plan = METHODS[method](warm_up=warm_up, optimisation=Optimisation(premix_rounds=4))
    graph = Graph.from_hears(~torch.eye(NODES, dtype=torch.bool))
    expected = play(LocalNetwork(graph), plan)
    with Nodes(graph, dim=10) as nodes:
        parts = side_by_side(nodes.networks, plan)
        assert nodes.events == []
        # Nothing in a run may depend on votes, about which neighbours can lie.
        assert all("votes" not in session._exchanges for session in nodes.sessions.values())
    flagged = 0
    for number, one in enumerate(expected):
        rows = [part[number] for part in parts]
        assert {(row.step, row.phase) for row in rows} == {(one.step, one.phase)}
        torch.testing.assert_close(torch.cat([row.theta for row in rows]), one.theta, rtol=0, atol=1e-12)
        if one.verdict is not None:
            for key in ("flagged", "reason"):
                observed: list[Tensor] = [getattr(row.verdict, key) for row in rows]
                assert torch.equal(torch.cat(observed), getattr(one.verdict, key))
            flagged += int(one.verdict.flagged[:-1, -1].sum())
    assert expected[-1].step == STEPS
    assert flagged >= NODES - 1  # every node found the last one


def test_messages_in_several_pieces() -> None:
    """Parameters, sealed halves and questions of more than a piece each: the numbers of the simulator."""
    graph, dim = Graph.from_hears(~torch.eye(3, dtype=torch.bool)), 150_000
    shard = linear_shard(torch.arange(3), samples=6, dim=dim, seed=1)
    plan = Plan.paper(2, 1, identification=4, detection={"point": "receiver"}, optimisation=Optimisation(premix_rounds=1))

    def work(network: Network, plan: Plan) -> list[Snapshot]:
        return list(drsgd_bymi(linear_problem(shard, seed=1), network, plan))

    expected = work(LocalNetwork(graph), plan)[-1]
    with Nodes(graph, dim=dim) as nodes:
        parts = [row[-1] for row in side_by_side(nodes.networks, plan, work)]
        assert nodes.events == []
    torch.testing.assert_close(torch.cat([part.theta for part in parts]), expected.theta, rtol=1e-12, atol=1e-12)
