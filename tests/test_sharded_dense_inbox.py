"""Rounds by slices in one process of four shards, against all nodes at once; and when there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from bymi import Graph, Inbox, LocalNetwork, MatrixGraph
from bymi.aggregation import RULES, CoordinateRule, OwnCoordinateRule
from bymi.attacks import ATTACKS, Adversary
from bymi.core.inbox import Mixture, Round
from bymi.core.network import Network
from bymi.core.topic import PARAMETERS, TRACKER, Topic
from bymi.core.topology import Complete, ErdosRenyi, Ring
from bymi.distributed.coordinate_sharded_dense_inbox import DenseShardPlan, ShardedDenseInbox
from bymi.distributed.sharded_run import ShardedRun
from bymi.experiment import load
from bymi.problems import linear_problem, linear_shard
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import sharded_run, simulate
from tests.inbox_fixtures import quadratic
from tests.rule_kinds import KINDS

NODES, SHARDS = 13, 4
DENSE = ErdosRenyi(0.7).draw(NODES, seed=2)
DIMS = {"fewer than shards": 3, "few": 31, "many": 402}

Use = Callable[[Inbox, Tensor], Tensor]


def vectors_of(dim: int, dtype: torch.dtype = torch.float64, size: int = NODES) -> Tensor:
    generator = torch.Generator().manual_seed(dim)
    return (5 + torch.randn(size, dim, generator=generator, dtype=torch.float64)).to(dtype)


def spread_of(graph: Graph, *, shards: int = SHARDS, adversary: Adversary | None = None) -> ShardedRun:
    problem = linear_problem(linear_shard(torch.arange(graph.size), samples=4, dim=2, seed=0), seed=0)
    return sharded_run(problem, graph, adversary, shards=shards)


def by_shards(
    spread: ShardedRun, vectors: Tensor, use: Use, others: Mapping[Topic, Tensor] | None = None
) -> tuple[Tensor, list[Inbox]]:
    """What all shards make of one round, in order of nodes, and their inboxes."""

    def rounds(network: Network) -> Iterator[tuple[Tensor, Inbox]]:
        more = {topic: rows[network.nodes] for topic, rows in (others or {}).items()}
        inbox = network.exchange(0, {PARAMETERS: vectors[network.nodes], **more})[0]
        yield use(inbox, network.nodes), inbox

    (parts,) = spread.router.lockstep.walk([partial(rounds, network) for network, _ in spread.wrapped])
    found = torch.cat([part for part, _ in parts])
    return torch.empty_like(found).index_copy(0, torch.cat(spread.router.nodes), found), [inbox for _, inbox in parts]


def rule_use(name: str, targets: Tensor) -> Use:
    rule = RULES[name]()

    def use(inbox: Inbox, nodes: Tensor) -> Tensor:
        return rule(inbox, Round(losses=quadratic(targets[nodes])))

    return use


def alone(graph: Graph, vectors: Tensor, use: Use) -> Tensor:
    (inbox,) = LocalNetwork(graph).exchange(0, {PARAMETERS: vectors})
    return use(inbox, torch.arange(len(vectors)))


@pytest.mark.parametrize("graph", [DENSE, Complete().draw(NODES)], ids=["dense", "complete"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", RULES)
def test_every_rule_gives_the_numbers_of_one_process(name: str, dim: str, graph: Graph) -> None:
    vectors = vectors_of(DIMS[dim])
    use = rule_use(name, vectors.flip(0))
    found, inboxes = by_shards(spread_of(graph), vectors, use)
    torch.testing.assert_close(found, alone(graph, vectors, use), rtol=1e-9, atol=1e-12)
    assert all(isinstance(inbox, ShardedDenseInbox) for inbox in inboxes)
    if dim == "many":  # of long rows only those travel whole that somebody tries
        assert {inbox.shards.whole for inbox in inboxes if isinstance(inbox, ShardedDenseInbox)} == {
            name in ("ubar", "bulyan", "bridge-b", "cge")
        }
    if dim == "few":  # weights and products of all pairs would be more than rows
        expected = name not in ("average", "mean") and not issubclass(RULES[name], (CoordinateRule, OwnCoordinateRule))
        assert {inbox.shards.whole for inbox in inboxes if isinstance(inbox, ShardedDenseInbox)} == {expected}


@pytest.mark.parametrize("name", KINDS)
def test_in_float32(name: str) -> None:
    vectors = vectors_of(402, torch.float32)
    use = rule_use(name, vectors.flip(0))
    found, inboxes = by_shards(spread_of(DENSE), vectors, use)
    assert found.dtype == torch.float32
    assert all(isinstance(inbox, ShardedDenseInbox) for inbox in inboxes)
    torch.testing.assert_close(found, alone(DENSE, vectors, use), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("who", [[], [5], [0, 1, 2, 3, 12], list(range(NODES))])
def test_some_receivers_mix(who: list[int]) -> None:
    """Shards without any of them take part."""
    vectors = vectors_of(402)

    def use(inbox: Inbox, nodes: Tensor) -> Tensor:
        mine = torch.isin(nodes, torch.tensor(who, dtype=torch.int64)).nonzero().flatten()
        some = inbox.of(mine)
        far = some.dist2_to_own().sum(1, keepdim=True)
        weighed = some.mix(Mixture(some.self_weight / 2, some.weight / 3))
        return inbox.own.index_copy(0, mine, some.mix(some.average()) + weighed + far)

    found, inboxes = by_shards(spread_of(DENSE), vectors, use)
    torch.testing.assert_close(found, alone(DENSE, vectors, use), rtol=1e-9, atol=1e-12)
    assert not any(inbox.shards.whole for inbox in inboxes if isinstance(inbox, ShardedDenseInbox))


@pytest.mark.parametrize("name", KINDS)
def test_receivers_that_leave_messages_out(name: str) -> None:
    """One shard alone has receivers that do not hear all: the others do not know, and all come to the same end."""
    vectors = vectors_of(402)
    rule = rule_use(name, vectors.flip(0))

    def use(inbox: Inbox, nodes: Tensor) -> Tensor:
        senders = torch.arange(NODES) if inbox.senders is None else inbox.senders
        heard = inbox.heard & ~((nodes == 0)[:, None] & (senders < 6))
        return rule(replace(inbox, heard=heard, weight=inbox.weight * heard) if bool((nodes == 0).any()) else inbox, nodes)

    found, _ = by_shards(spread_of(DENSE), vectors, use)
    torch.testing.assert_close(found, alone(DENSE, vectors, use), rtol=1e-9, atol=1e-12)


def test_whole_messages_for_whoever_asks() -> None:
    vectors = vectors_of(31)
    _, inboxes = by_shards(spread_of(DENSE), vectors, lambda inbox, nodes: inbox.messages[inbox.own_column])
    for inbox in inboxes:
        assert torch.equal(inbox.messages, vectors[inbox.senders])
        assert torch.equal(inbox.rows.vectors[inbox.own_row], inbox.own)
        assert "messages=" not in repr(inbox)


@pytest.mark.parametrize("wild", [torch.nan, torch.inf, 1e30, 1e200])
@pytest.mark.parametrize("name", KINDS)
def test_rows_that_not_all_can_use_travel_whole(name: str, wild: float) -> None:
    vectors = vectors_of(402)
    vectors[4] = wild
    use = rule_use(name, vectors_of(402).flip(0))
    found, inboxes = by_shards(spread_of(DENSE), vectors, use)
    torch.testing.assert_close(found, alone(DENSE, vectors, use), rtol=1e-9, atol=1e-12, equal_nan=True)
    assert not any(isinstance(inbox, ShardedDenseInbox) for inbox in inboxes)
    assert any(bool(inbox.unheard.any()) for inbox in inboxes)


def test_when_there_are_no_slices() -> None:
    """Two shards, a graph on which few rows cross, lies on the wire, two faces: rows."""
    vectors, byzantine = vectors_of(402), torch.arange(NODES) < 3
    use = rule_use("average", vectors)
    for spread in (
        spread_of(DENSE, shards=2),
        spread_of(Ring().draw(NODES)),
        spread_of(DENSE, adversary=Adversary(byzantine, ATTACKS["silent"]())),
        spread_of(DENSE, adversary=Adversary(byzantine, ATTACKS["gaussian"](), level="message")),
        spread_of(DENSE, adversary=Adversary(byzantine, ATTACKS["alie"](), faces="two")),
        spread_of(DENSE, adversary=Adversary(byzantine, ATTACKS["dissensus"]())),
    ):
        _, inboxes = by_shards(spread, vectors, use)
        assert not any(isinstance(inbox, ShardedDenseInbox) for inbox in inboxes)
    # A lie about another topic of the same exchange, too: their inboxes are made alike.
    poison = Adversary(byzantine, ATTACKS["y-poison"]())
    assert isinstance(by_shards(spread_of(DENSE, adversary=poison), vectors, use)[1][0], ShardedDenseInbox)
    assert not isinstance(
        by_shards(spread_of(DENSE, adversary=poison), vectors, use, {TRACKER: vectors})[1][0], ShardedDenseInbox
    )


def test_rows_that_cross_shards_decide() -> None:
    """13 rows to 4 shards: slices there and back are 2 x 13 x 3/4 = 19.5 rows; a graph on which fewer cross has none."""
    for graph in (DENSE, Ring().draw(NODES), ErdosRenyi(0.2).draw(NODES, seed=1)):
        router = spread_of(graph).router
        crossing = sum(
            len({j for i in shard for j in range(NODES) if graph.hears[i, j]} - set(shard))
            for shard in (nodes.tolist() for nodes in router.lockstep.layout.shards)
        )
        assert DenseShardPlan(router).pays(vectors_of(100)) == (crossing > 19.5)


@pytest.mark.parametrize("profile", ["paper", "hardened"])
def test_the_hardened_profile_has_whole_messages(profile: str) -> None:
    """It keeps histories of them. The published one has slices in warm-up and, over the pruned graph, in the optimisation."""
    words = ["method=drsgd-bymi", "nodes=12", "steps=4", "warm_up.steps=2", "graph=complete", "data.samples=24", "attack=ipm"]
    (spec,) = load(None, [*words, "data.dim=100", f"profile={profile}"], 0).expand()
    scene = set_up_run(spec.resolved)
    assert isinstance(scene.graph, MatrixGraph)
    rounds = sharded_run(scene.problem, scene.graph, scene.adversary, shards=SHARDS).walk(scene.plan)
    for whole, parts in zip(simulate(scene.problem, scene.graph, scene.plan, scene.adversary), rounds, strict=True):
        torch.testing.assert_close(torch.cat([part.theta for part in parts]), whole.theta, rtol=1e-9, atol=1e-12)
        if whole.phase != "detection":
            assert {isinstance(part.inbox, ShardedDenseInbox) for part in parts} == {profile == "paper"}
