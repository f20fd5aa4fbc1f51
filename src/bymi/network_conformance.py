"""A conformance test for third-party networks: whether they deliver messages as LocalNetwork does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation import RULES
from bymi.core.graph import Graph
from bymi.core.inbox import Inbox, Mixture
from bymi.core.network import LocalNetwork, Network, Outgoing
from bymi.core.topic import FIRST_HALF, PARAMETERS, SECOND_HALF, Topic
from bymi.detection import Detector
from bymi.problems import linear_problem, linear_shard
from bymi.training.algorithm import drsgd_bymi
from bymi.training.plan import Optimisation, Plan, WarmUp

Build = Callable[[Graph], Sequence[Network]]
Observations = dict[str, Tensor]
"""Observations of the nodes of a network by name, [B, ...] each."""

_DIM = 5
_LOST = 2  # the node whose messages are lost
_POLL = 0.02  # seconds between polls of threads


def check_network(build: Build, *, timeout: float = 60.0) -> None:
    """Raise an AssertionError at the first difference between the networks and LocalNetwork on the same graph.

    `build(graph)`: the networks of all processes of a run, in the order of the nodes that they hold; each node is held by one
    of them. It is called several times, with graphs of a few nodes, and each network is used in its own thread, so that a call
    may wait for the calls of others. A check that takes longer than `timeout` seconds has failed.

    Numbers may differ by rounding. Not checked: speed, messages per receiver (`variants`), and the hardened profile.
    """
    for name, graph in _graphs().items():
        nodes = torch.cat([network.nodes for network in build(graph)])
        _require(nodes.tolist() == list(range(graph.size)), name, "nodes", "each node of the graph once, upwards")
        for check in _CHECKS:
            if check.symmetric and not graph.symmetric:
                continue
            expected = check.play(LocalNetwork(graph))
            parts = _side_by_side(build(graph), check.play, timeout, f"{name}: {check.name}")
            for key, rows in expected.items():
                observed = torch.cat([part[key] for part in parts])
                _require(
                    _alike(observed, rows), name, check.name, f"{key} of LocalNetwork, {rows.tolist()}, not {observed.tolist()}"
                )


def _graphs() -> dict[str, Graph]:
    """An undirected and a directed graph, both connected."""
    ring = torch.eye(7, dtype=torch.bool).roll(1, 1)
    one_way = ring | ring.roll(2, 1)
    two_ways = one_way | one_way.T
    return {"undirected graph": Graph.from_hears(two_ways), "directed graph": Graph.from_hears(one_way)}


def _vectors(nodes: Tensor, number: int, dim: int = _DIM) -> Tensor:
    """Rows [B, dim] without a pattern, different for every `number`."""
    return torch.sin((1.0 + number + nodes[:, None].double()) * (1.0 + torch.arange(dim)).square())


def _seen(inbox: Inbox, network: Network, name: str) -> Observations:
    """Nodes heard, and their messages and weights through random sums, which reveal a wrong message."""
    size = network.size
    weight = _vectors(network.nodes, 0, size)
    picked = Mixture(torch.zeros_like(inbox.self_weight), inbox.from_node(weight) * inbox.heard)
    average = inbox.average()
    return {
        f"own vectors ({name})": inbox.own,
        f"nodes heard ({name})": inbox.by_sender(inbox.heard, size),
        f"messages ({name})": inbox.mix(picked),
        f"weights ({name})": inbox.by_node(average.weight, size, 0.0),
        f"own weights ({name})": average.own,
        f"averages ({name})": inbox.mix(average),
    }


def _exchanged(network: Network, outgoing: dict[Topic, Tensor | Outgoing], step: int = 0) -> Observations:
    inboxes = network.exchange(step, outgoing)
    rows: Observations = {}
    for topic, inbox in zip(outgoing, inboxes, strict=True):
        rows |= _seen(inbox, network, topic.kind)
    return rows


def _arcs(network: Network) -> Observations:
    size = torch.full((len(network.nodes),), network.size)
    return {"size": size, "arcs": network.arcs}


def _one_topic(network: Network) -> Observations:
    return _exchanged(network, {PARAMETERS: _vectors(network.nodes, 1)})


def _many_rounds(network: Network) -> Observations:
    """Vectors of one round must not arrive in another."""
    rows: Observations = {}
    for step in range(3):
        rows |= {
            f"{key}, round {step}": row
            for key, row in _exchanged(network, {PARAMETERS: step + _vectors(network.nodes, 2)}).items()
        }
    return rows


def _lost(network: Network) -> Observations:
    """A message lost under one topic counts as lost under the other, too."""
    own = _vectors(network.nodes, 3)
    lost = network.nodes == _LOST
    sent = torch.where(lost[:, None], torch.nan, own)
    return _exchanged(network, {FIRST_HALF: own + 1, SECOND_HALF: Outgoing(own, sent, ~lost)})


def _unusable(value: float) -> Callable[[Network], Observations]:
    def play(network: Network) -> Observations:
        own = _vectors(network.nodes, 4)
        odd = network.nodes == _LOST
        return _exchanged(network, {PARAMETERS: Outgoing(own, torch.where(odd[:, None], value, own), ~odd)})

    return play


def _other(network: Network) -> Observations:
    """Some nodes send a vector other than their own, and keep their own."""
    own, same = _vectors(network.nodes, 5), network.nodes % 3 != 0
    return _exchanged(network, {PARAMETERS: Outgoing(own, torch.where(same[:, None], own, -own), same)})


def _asked(network: Network, *, changed: bool = False) -> Observations:
    """Replies at the point of the asker; `changed`: as the asker receives them through the hook `received`."""
    points, who = _vectors(network.nodes, 6), network.nodes != 1
    rows = {"asked": torch.zeros_like(who), "points": torch.zeros_like(points)}
    for number in (1, 2):
        rows[f"answers, topic {number}"], rows[f"own answers, topic {number}"] = points.new_zeros(2, *points.shape)
        rows[f"weights, topic {number}"] = points.new_zeros(len(who))
        rows[f"nodes asked, topic {number}"] = torch.zeros(len(who), network.size, dtype=torch.bool)

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        assert points.shape == (len(nodes), _DIM), "ask: answer gets one point per node that answers"
        return {FIRST_HALF: points * (1 + nodes[:, None]), SECOND_HALF: points - nodes[:, None] + askers[:, None]}

    def received(vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor:
        assert int(nodes[-1]) == asker, "ask: received gets the asker's own answer last"
        return torch.cat([vectors[:-1] * (2 + nodes[:-1, None]), vectors[-1:]])

    for reply in network.ask(3, points, answer, who, received if changed else None):
        position, senders = reply.receiver, torch.zeros(network.size, dtype=torch.bool)
        senders[reply.senders] = True
        rows["asked"][position], rows["points"][position] = True, reply.point
        for number, inbox in enumerate(reply.read(), start=1):
            weight = 1.0 + torch.arange(len(reply.senders), dtype=torch.float64)[None]
            mixed = inbox.mix(Mixture(torch.zeros_like(inbox.self_weight), weight))
            rows[f"answers, topic {number}"][position] = mixed[0]
            rows[f"own answers, topic {number}"][position] = inbox.own[0]
            rows[f"weights, topic {number}"][position] = inbox.weight.sum(1)[0]
            rows[f"nodes asked, topic {number}"][position] = senders
    return rows | _one_topic(network)


def _votes(network: Network) -> Observations:
    count = len(network.nodes)
    return {
        "agreement of all": torch.full((count,), network.all_agree(True)),
        "agreement of all but one": torch.full((count,), network.all_agree(not bool((network.nodes == _LOST).any()))),
        "count": torch.full((count,), network.count(network.nodes % 2 == 0)),
    }


def _flags(network: Network) -> Tensor:
    """Mask [B, M] of the first neighbour of all nodes and the last of some."""
    flagged = torch.zeros_like(network.arcs)
    for position, arcs in enumerate(network.arcs):
        heard = arcs.nonzero().flatten()
        flagged[position, heard[0]] = True
        flagged[position, heard[-1]] |= bool(network.nodes[position] % 3 == 0)
    return flagged


def _pruned(network: Network) -> Observations:
    after = network.prune(_flags(network))
    return _arcs(after) | _one_topic(after)


def _weighed(*, mutual: bool, exile: float | None = None) -> Callable[[Network], Observations]:
    def play(network: Network) -> Observations:
        flags = _flags(network)
        after = network.reweight(flags, mutual=mutual, exile=exile)
        again = after.reweight(flags.roll(1, 1) & network.arcs, mutual=mutual, exile=exile)
        last = {f"{key}, weighed again": row for key, row in (_arcs(again) | _one_topic(again)).items()}
        return _arcs(after) | last

    return play


def _run(plan: Plan) -> Callable[[Network], Observations]:
    def play(network: Network) -> Observations:
        shard = linear_shard(torch.arange(network.size), samples=24, dim=_DIM, seed=0)
        rows: Observations = {}
        for snapshot in drsgd_bymi(linear_problem(shard, seed=0), network, plan):
            rows[f"models after round {snapshot.step} ({snapshot.phase})"] = snapshot.theta
            if snapshot.verdict is not None:
                rows["neighbours flagged"] = snapshot.verdict.flagged
        return rows

    return play


@dataclass(frozen=True)
class _Check:
    """One check: `play` is called with each network, and with a LocalNetwork of all nodes."""

    name: str
    play: Callable[[Network], Observations]
    symmetric: bool = False  # for undirected graphs only


def _checks() -> Iterator[_Check]:
    yield _Check("nodes and arcs", _arcs)
    yield _Check("exchange of one topic", _one_topic)
    yield _Check("exchanges round after round", _many_rounds)
    yield _Check("exchange with a lost message", _lost)
    yield _Check("exchange of what is not held", _other)
    for value in (float("nan"), float("inf"), 1e30):
        yield _Check(f"exchange of {value}", _unusable(value))
    yield _Check("questions and answers", _asked)
    yield _Check("answers as received", lambda network: _asked(network, changed=True))
    yield _Check("all_agree and count", _votes)
    yield _Check("prune", _pruned)
    yield _Check("reweight", _weighed(mutual=False))
    yield _Check("reweight, mutual", _weighed(mutual=True), symmetric=True)
    yield _Check("reweight, mutual with exile", _weighed(mutual=True, exile=0.3), symmetric=True)
    yield _Check("a run of the average", _run(Plan(4, 4, WarmUp(RULES["average"](), batch=4), None)))
    for rule in ("ios", "median", "ubar"):
        yield _Check(f"a run of {rule}", _run(Plan(3, 3, WarmUp(RULES[rule](), batch=4), None)))
    points: tuple[Literal["sender", "receiver"], ...] = ("sender", "receiver")
    for point in points:
        detector = Detector(point=point)
        plan = Plan(6, 2, WarmUp(batch=4), detector, Optimisation(batch=4, premix_rounds=3), identification=12)
        yield _Check(f"a run with detection at the {point}'s point", _run(plan))


_CHECKS = tuple(_checks())


def _side_by_side(
    networks: Sequence[Network], play: Callable[[Network], Observations], timeout: float, name: str
) -> list[Observations]:
    """Results of `play` on each network, all run concurrently."""
    results: dict[int, Observations] = {}
    failures: list[BaseException] = []

    def run_one(index: int) -> None:
        torch.set_num_threads(1)
        try:
            results[index] = play(networks[index])
        except BaseException as problem:  # raised again below
            failures.append(problem)

    threads = [threading.Thread(target=run_one, args=(index,), daemon=True) for index in range(len(networks))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    while not failures and any(thread.is_alive() for thread in threads):
        if time.monotonic() > deadline:
            waiting = [index for index in range(len(networks)) if threads[index].is_alive()]
            raise AssertionError(f"{name}: networks {waiting} have not come to an end within {timeout:g} seconds")
        time.sleep(_POLL)
    if failures:
        raise AssertionError(f"{name}: {type(failures[0]).__name__}: {failures[0]}") from failures[0]
    return [results[index] for index in range(len(networks))]


def _alike(observed: Tensor, expected: Tensor) -> bool:
    if observed.shape != expected.shape or observed.dtype != expected.dtype:
        return False
    return (
        torch.allclose(observed, expected, rtol=1e-9, atol=1e-12)
        if observed.is_floating_point()
        else torch.equal(observed, expected)
    )


def _require(fits: bool, graph: str, check: str, allowed: str) -> None:
    if not fits:
        raise AssertionError(f"{graph}: {check}: allowed: {allowed}")
