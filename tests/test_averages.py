"""Models that are scattered over ranks: some coordinates of all of them at a time, and the records of one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bymi.core import message_usage as usage
from bymi.core.list_graph import ListGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.distributed.gathered_snapshots import whole_rounds
from bymi.experiment import load
from bymi.runs.evaluators import Average, look
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import sharded_run


class InBlocks:
    def __init__(self, theta: Tensor, size: int) -> None:
        self._theta, self._size = theta, size

    def blocks(self) -> object:
        return iter(self._theta.split(self._size, dim=1))


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_averages_and_distances_do_not_depend_on_the_blocks(size: int) -> None:
    theta = stream(1, "theta").normal(9, 7)
    some, weights = torch.arange(9) % 3 > 0, stream(2, "weights").uniform(9)
    averages = [Average(some), Average(some, weights), Average(torch.ones_like(some))]
    found, apart, _ = look(InBlocks(theta, size), averages, some)  # type: ignore[arg-type]
    expected = [theta[some].mean(0), (weights[:, None] * theta)[some].sum(0), theta.mean(0)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    mean = theta[some].mean(0)
    torch.testing.assert_close(apart, (theta[some] - mean).norm(dim=1))


@pytest.mark.parametrize("numbers", [1, 40, 1 << 23])
def test_no_rank_has_all_models_at_once(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds over four shards: blocks are as large as allowed, and together they are what the shards hold."""
    monkeypatch.setattr(LIMITS, "models", numbers)
    words = ["nodes=10", "steps=4", "warm_up.steps=2", "graph=complete", "data.samples=20", "data.dim=6"]
    scene = set_up_run(load(None, ["method=drsgd-bymi", "profile=paper", *words]).resolved)
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=4)
    seen = 0
    for moment in whole_rounds(
        spread, scene.plan, None, due=lambda *_: True, lost=lambda lengths: False, wants=lambda *_: False
    ):
        blocks = list(moment.models.blocks())
        assert all(block.numel() <= max(numbers, scene.graph.size) for block in blocks)
        whole = torch.cat(blocks, 1)
        assert whole.shape == (10, 6)
        torch.testing.assert_close(torch.linalg.vector_norm(whole, dim=1), moment.snapshot.theta.squeeze(1))
        seen += 1
    assert seen > 4


@pytest.mark.parametrize("words", [["graph=complete"], ["graph=regular:degree=8"]], ids=["matrix", "lists"])
def test_own_vectors_of_others_come_by_some_coordinates(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where messages are shortened, a shard looks at all receivers: a few coordinates at a time give what all of them give."""
    if "regular" in words[0]:
        monkeypatch.setattr(LIMITS, "lists_from", 1)
        monkeypatch.setattr(LIMITS, "nodes_per_place", 0)
    keys = ["nodes=20", "steps=9", "warm_up.steps=2", "data.samples=20", "data.dim=6", "watch.every=3", "attack=parameter"]
    scene = set_up_run(load(None, ["method=drsgd-bymi", *keys, *words]).resolved)
    assert isinstance(scene.graph, ListGraph) == ("regular" in words[0])

    def ends() -> tuple[list[Tensor], int]:
        seen = []
        blocks = usage._OwnVectors.blocks

        def counted(self: usage._OwnVectors) -> object:
            found = list(blocks(self))
            seen.append(len(found))
            return iter(found)

        monkeypatch.setattr(usage._OwnVectors, "blocks", counted)
        spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=4)
        *_, last = spread.walk(scene.plan, None)
        monkeypatch.setattr(usage._OwnVectors, "blocks", blocks)
        return [part.theta for part in last], max(seen)

    whole, once = ends()
    monkeypatch.setattr(LIMITS, "remote_vectors", 50)
    parts, often = ends()
    assert once == 1
    assert often == 3
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
