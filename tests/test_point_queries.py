"""Questions across shards in many turns, with shards that ask nothing and only answer, against one process."""

from __future__ import annotations

import pytest
import torch

from bymi.core.performance_thresholds import LIMITS
from bymi.distributed import gradient_queries as inquiry
from bymi.experiment import load
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import sharded_run, simulate

SMALL = ["nodes=9", "steps=5", "warm_up.steps=2", "graph.p=0.9", "data.samples=24", "method=drsgd-bymi", "attack=alie"]


@pytest.mark.parametrize("profile", [["watch.every=2"], ["profile=paper", "detection.point=receiver"]])
@pytest.mark.parametrize("shards", [1, 4, 9])
@pytest.mark.parametrize("long", [1, LIMITS.replies_alone], ids=["one asker at a time", "all at once"])
def test_turns_change_nothing(profile: list[str], shards: int, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shard a node those under attack ask nobody, and with one number a turn everybody asks in a turn of its own."""
    (spec,) = load(None, [*SMALL, *profile], 3).expand()
    scene = set_up_run(spec.resolved)
    parts = (scene.problem, scene.graph, scene.plan, scene.adversary)
    alone = list(simulate(*parts))
    monkeypatch.setattr(LIMITS, "answers", 1)
    monkeypatch.setattr(LIMITS, "replies_alone", long)
    turns = []
    take_turn = inquiry.PointQueries.take_turn
    monkeypatch.setattr(inquiry.PointQueries, "take_turn", lambda self: turns.append(self) or take_turn(self))
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=shards).walk(scene.plan)
    for whole, snapshots in zip(alone, spread, strict=True):
        theta = torch.cat([part.theta for part in snapshots])
        torch.testing.assert_close(theta, whole.theta, rtol=1e-9, atol=1e-12)
        if whole.verdict is not None:
            flagged = torch.cat([part.verdict.flagged for part in snapshots if part.verdict is not None])
            assert torch.equal(flagged, whole.verdict.flagged)
    askers = int((~scene.byzantine).sum())
    longest = max(int((~scene.byzantine[block]).sum()) for block in torch.arange(9).tensor_split(shards))
    assert 0 < askers < 9
    assert len(turns) == shards * longest * sum(snapshot.verdict is not None for snapshot in alone)
