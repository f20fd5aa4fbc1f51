"""The one door for messages: as many of them as the arcs are about, or nothing is delivered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from bymi import Graph, Inbox
from bymi.attacks import ATTACKS, Adversary
from bymi.core.errors import InputError
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import Network
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import PARAMETERS
from bymi.core.topology import Regular
from bymi.problems import linear_problem, linear_shard
from bymi.runs.simulate import local_network, sharded_run

NODES = 12
BYZANTINE = torch.arange(NODES) < 3
VECTORS = torch.arange(NODES * 4, dtype=torch.float64).reshape(NODES, 4)
FORMS = ("matrices", "lists")


def graph_of(form: str, monkeypatch: pytest.MonkeyPatch) -> Graph | ListGraph:
    if form == "lists":
        monkeypatch.setattr(LIMITS, "lists_from", 1)
        monkeypatch.setattr(LIMITS, "nodes_per_place", 0)
    return Regular(6).draw(NODES, seed=0)


def receive(form: str, messages: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Inbox:
    graph = graph_of(form, monkeypatch)
    arcs = {"expected": graph.hears, "weight": graph.weight, "self_weight": graph.self_weight, "lists": graph.lists}
    return Inbox.receive(VECTORS, messages, **{**arcs, **changes})


@pytest.mark.parametrize("form", FORMS)
def test_one_message_too_few_is_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was left out: all columns after it would be shifted by one."""
    assert receive(form, VECTORS, monkeypatch).complete
    for missing in range(NODES):
        shifted = torch.cat([VECTORS[:missing], VECTORS[missing + 1 :]])
        with pytest.raises(InputError, match="messages: got 11, allowed: 12"):
            receive(form, shifted, monkeypatch)
        with pytest.raises(InputError, match="messages: got 11, allowed: 12"):
            receive(form, list(shifted), monkeypatch)


@pytest.mark.parametrize("form", FORMS)
def test_one_message_too_many_is_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists may leave messages out, so there the numbers of the senders say how many there are."""
    senders = torch.arange(NODES)
    with pytest.raises(InputError, match="messages: got 13, allowed: 12"):
        receive(form, torch.cat([VECTORS[:1], VECTORS]), monkeypatch, senders=senders)


def test_weights_and_lists_have_the_shape_of_the_arcs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("lists", monkeypatch)
    with pytest.raises(InputError, match="weight: got"):
        receive("lists", VECTORS, monkeypatch, weight=graph.weight[:, 1:])
    assert graph.lists is not None
    with pytest.raises(InputError, match="lists: got"):
        receive("lists", VECTORS, monkeypatch, lists=NeighbourLists(graph.lists.index[:, 1:], graph.lists.mask[:, 1:]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", [{"attack": ATTACKS["dissensus"]()}, {"attack": ATTACKS["silent"](), "faces": "two"}])
@pytest.mark.parametrize("shards", [None, 4])
def test_further_messages_beside_the_wrong_rows_are_refused(
    form: str, how: dict[str, Any], shards: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Senders who tell different receivers different things, and one message of theirs that gets lost on the way."""
    graph, adversary, show = graph_of(form, monkeypatch), Adversary(BYZANTINE, **how), Adversary.show

    def exchange() -> None:
        if shards is None:
            local_network(graph, adversary).exchange(0, {PARAMETERS: VECTORS})
            return
        problem = linear_problem(linear_shard(torch.arange(NODES), samples=4, dim=2, seed=0), seed=0)
        spread = sharded_run(problem, graph, adversary, shards=shards)

        def rounds(network: Network) -> Iterator[tuple[Inbox, ...]]:
            yield network.exchange(0, {PARAMETERS: VECTORS[network.nodes]})

        list(spread.router.lockstep.walk([partial(rounds, network) for network, _ in spread.wrapped]))

    def one_less(self: Adversary, *given: Any) -> Any:
        return show(self, *given)[1:]

    exchange()
    monkeypatch.setattr(Adversary, "show", one_less)
    with pytest.raises(InputError, match="messages: got"):
        exchange()
