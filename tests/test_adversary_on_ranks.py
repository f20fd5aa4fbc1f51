"""What a process has to be told so that simulated Byzantine nodes can lie: no more than their lies are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from bymi.attacks import SimulatedAdversary
from bymi.core.network import Outgoing
from bymi.core.topic import PARAMETERS, Topic
from bymi.distributed.router import Router
from bymi.experiment import load
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import sharded_run, simulate

WORDS = ["nodes=30", "graph=ring", "data.dim=5", "data.samples=20", "method=rule", "warm_up.rule=median", "steps=3"]
SHARDS = 5
SEES: dict[str, tuple[list[str], str]] = {
    "not a number": (["attack=nan"], "nothing"),
    "silent": (["attack=silent"], "nothing"),
    "misshapen": (["attack=misshapen"], "nothing"),
    "sign": (["attack=sign-flip", "byzantine_level=message"], "nothing"),
    "noise": (["attack=gaussian", "byzantine_level=message"], "mean"),
    "against the mean": (["attack=ipm", "byzantine_level=message"], "mean"),
    "within the spread": (["attack=alie", "byzantine_level=message"], "all"),
    "for each receiver": (["attack=dissensus"], "all"),
    "two faces": (["attack=sign-flip", "byzantine_faces=two", "byzantine_level=message"], "all"),
}


def scene_of(words: Sequence[str]) -> RunSetup:
    return set_up_run(load(None, [*WORDS, *words]).resolved)


@pytest.mark.parametrize("name", SEES)
def test_all_vectors_are_gathered_only_for_who_looks_at_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, sees = SEES[name]
    scene = scene_of(words)
    gathered, summed = [], []
    gather, total = Router.gather, Router.total

    def spy(router: Router, parts: Sequence[Tensor], name: str) -> Tensor:
        gathered.append(name)
        return gather(router, parts, name)

    def spy_on_sums(router: Router, parts: Sequence[Tensor], name: str) -> Tensor:
        summed.append(name)
        return total(router, parts, name)

    monkeypatch.setattr(Router, "gather", spy)
    monkeypatch.setattr(Router, "total", spy_on_sums)
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=SHARDS)
    alone = simulate(scene.problem, scene.graph, scene.plan, scene.adversary)
    for snapshot, parts in zip(alone, spread.walk(scene.plan), strict=True):
        together = torch.empty_like(snapshot.theta)
        for network, part in zip(spread.networks, parts, strict=True):
            together[network.nodes] = part.theta
        torch.testing.assert_close(together, snapshot.theta, rtol=1e-12, atol=1e-12)
    assert ("parameters" in gathered) == (sees == "all")
    assert ("parameters for those who lie" in summed) == (sees == "mean")


def test_a_mean_of_nothing_is_no_lie() -> None:
    """With all honest vectors gone there is nothing to lie about."""
    scene = scene_of(["attack=ipm", "byzantine_level=message"])
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=SHARDS)
    held = torch.where(scene.byzantine[:, None], 1.0, torch.full((30, 5), torch.nan, dtype=torch.float64))

    def rounds(network: SimulatedAdversary) -> Iterator[Outgoing]:
        yield network._outgoing(held[network.nodes], PARAMETERS, 0)

    (sent,) = spread.router.lockstep.walk([partial(rounds, network) for network, _ in spread.wrapped])
    for outgoing, nodes in zip(sent, spread.router.nodes, strict=True):
        assert outgoing.same is None
        torch.testing.assert_close(outgoing.messages, held[nodes], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["for each receiver", "two faces"])
def test_each_shard_is_shown_what_its_nodes_hear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(SEES[name][0])
    adversary, asked = scene.adversary, []
    show = type(adversary).show

    def spy(self: object, vectors: Tensor, faces: object, graph: object, topic: Topic, step: int, which: Tensor) -> object:
        asked.append(which)
        return show(adversary, vectors, faces, graph, topic, step, which)  # type: ignore[arg-type]

    monkeypatch.setattr(type(adversary), "show", spy)
    spread = sharded_run(scene.problem, scene.graph, adversary, shards=SHARDS)
    next(iter(spread.walk(scene.plan)))
    faces = spread.router.variants
    assert faces is not None
    assert len(asked) == SHARDS
    wanted = torch.cat(asked)
    if name == "for each receiver":  # a message an arc, and each arc ends in one shard
        assert wanted.sort().values.tolist() == list(range(len(faces.senders)))
    else:
        assert all(len(some) < len(faces.senders) for some in asked)
