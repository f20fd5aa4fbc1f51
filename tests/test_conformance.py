"""The conformance test for networks of others: a correct one passes, and each mistake is found and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from bymi import Adversary, Graph, Inbox, LocalNetwork
from bymi.attacks import SimulatedAdversary
from bymi.core.network import Network, Outgoing
from bymi.core.topic import Topic
from bymi.distributed.sharded_run import ShardedRun
from bymi.network_conformance import check_network
from bymi.problems import linear_problem, linear_shard
from tests.queue_network import QueueNetwork, queue_networks


def test_one_node_per_thread() -> None:
    check_network(queue_networks)


def test_our_own() -> None:
    problem = linear_problem(linear_shard(torch.arange(7), samples=4, dim=5, seed=0), seed=0)
    check_network(lambda graph: [LocalNetwork(graph)])
    check_network(lambda graph: ShardedRun(problem, graph, shards=1).networks)


def test_an_adversary_without_nodes_changes_nothing() -> None:
    def build(graph: Graph) -> list[Network]:
        return [SimulatedAdversary(LocalNetwork(graph), Adversary(torch.zeros(graph.size, dtype=torch.bool), "silent"))]

    check_network(build)


class Shifted(QueueNetwork):
    """Takes each message for that of another sender."""

    def _inboxes(self, heard: Mapping[Topic, tuple[Tensor, list[Tensor]]]) -> tuple[Inbox, ...]:
        return super()._inboxes({topic: (own, messages[1:] + messages[:1]) for topic, (own, messages) in heard.items()})


class Unchecked(QueueNetwork):
    """Hands over what came without `Inbox.receive`'s look at it."""

    def _inboxes(self, heard: Mapping[Topic, tuple[Tensor, list[Tensor]]]) -> tuple[Inbox, ...]:
        clean = {
            topic: (own, list(torch.stack(rows).nan_to_num(0.0, 0.0).clamp(-9, 9))) for topic, (own, rows) in heard.items()
        }
        return super()._inboxes(clean)


class Apart(QueueNetwork):
    """Hears each topic by itself."""

    def _inboxes(self, heard: Mapping[Topic, tuple[Tensor, list[Tensor]]]) -> tuple[Inbox, ...]:
        return tuple(super(Apart, self)._inboxes({topic: rows})[0] for topic, rows in heard.items())


class Truthful(QueueNetwork):
    """Sends what nodes hold, whatever they send."""

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        return super().exchange(step, {topic: Outgoing.of(given).own for topic, given in vectors.items()})


class Deaf(QueueNetwork):
    """Leaves the hook for answers out."""

    def ask(self, *given: Any) -> Any:
        return super().ask(*given[:4])


class Hasty(QueueNetwork):
    """Takes its own vote for that of all."""

    def all_agree(self, flag: bool) -> bool:
        return flag


class Lenient(QueueNetwork):
    """Forgets what was flagged."""

    def prune(self, flagged: Tensor) -> QueueNetwork:
        return super().prune(torch.zeros_like(flagged))


class Cutting(QueueNetwork):
    """Does not listen any more to nodes that lost their weight."""

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> QueueNetwork:
        found = super().reweight(flagged, mutual=mutual, exile=exile)
        return replace(found, whole=found.graph_here)


class Silent(QueueNetwork):
    """Waits for a message that nobody sends."""

    def count(self, mask: Tensor) -> int:
        return int(self.queues[self.node, self.node].get())


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Shifted, "exchange of one topic"),
        (Unchecked, "exchange with a lost message"),
        (Apart, "exchange with a lost message"),
        (Truthful, "exchange with a lost message"),
        (Deaf, "answers as received"),
        (Hasty, "all_agree and count"),
        (Lenient, "prune"),
        (Cutting, "reweight"),
        (Silent, "all_agree and count: networks .* have not come to an end within 2 seconds"),
    ],
)
def test_mistakes_are_found(kind: type[QueueNetwork], what: str) -> None:
    with pytest.raises(AssertionError, match=f"undirected graph: {what}"):
        check_network(partial(queue_networks, kind=kind), timeout=2)


def test_nodes_that_nobody_holds() -> None:
    with pytest.raises(AssertionError, match="nodes: allowed: each node of the graph once"):
        check_network(lambda graph: queue_networks(graph)[1:])
