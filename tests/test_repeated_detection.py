"""The published detection every so many rounds: fresh halves, flags that add up, arcs that stay cut."""

from __future__ import annotations

import pytest
import torch

from bymi import Detector, InputError, Panel, Plan, SimulatedAdversary, Snapshot, simulate
from bymi.experiment import load
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import sharded_run
from bymi.training.samples import split_samples

SMALL = ["method=drsgd-bymi", "profile=paper", "nodes=30", "graph.p=0.8", "steps=60", "warm_up.steps=20", "data.dim=8"]
SMALL += ["data.samples=60"]
KINDS = {
    "sender": ["detection.every=15"],
    "receiver": ["detection.every=15", "detection.point=receiver"],
    "silent": ["detection.every=15", "attack=silent", "byzantine_start=30"],
    "two faces": ["detection.every=15", "attack=ipm", "byzantine_faces=two"],
    "rule": ["detection.every=15", "byzantine_pruning=rule"],
}


def scene_of(*words: str) -> RunSetup:
    return set_up_run(load(None, [*SMALL, *words]).resolved)


def rounds(scene: RunSetup) -> list[Snapshot]:
    return list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))


@pytest.mark.parametrize("kind", KINDS)
def test_flags_add_up_and_arcs_stay_cut(kind: str) -> None:
    scene = scene_of(*KINDS[kind])
    assert scene.plan.detections == [20, 35, 50]
    detections = [one for one in rounds(scene) if one.phase == "detection"]
    assert [one.step for one in detections] == [20, 35, 50]
    before = torch.zeros_like(scene.graph.hears)
    for number, one in enumerate(detections):
        assert one.verdict is not None
        assert isinstance(one.network, SimulatedAdversary)
        flagged = one.verdict.flagged
        assert bool((flagged >= before).all())
        # Whom a node has cut it does not hear: no score, and the word for an earlier flag.
        stays = scene.adversary.prune(before, torch.arange(30), one.step)
        assert bool(one.verdict.scores[stays].isnan().all())
        assert bool((one.verdict.reason[stays & flagged] != 0).all())
        if number:
            scored = ~one.verdict.scores.isnan()
            assert bool((scored <= scene.graph.hears & ~stays).all())
            assert bool(scored.any())
        cut = scene.adversary.prune(flagged, torch.arange(30), one.step)
        expected = scene.graph.prune(cut)
        assert torch.equal(one.network.graph.mixing, expected.mixing)  # type: ignore[union-attr]
        assert torch.equal(one.network.graph.hears, expected.hears)
        before = flagged
    if kind != "silent":
        assert int(before.sum()) > int(detections[0].verdict.flagged.sum())  # type: ignore[union-attr]


def test_the_first_one_is_the_only_one_of_the_usual_run() -> None:
    usual, repeated = rounds(scene_of()), rounds(scene_of("detection.every=15"))
    for one, other in zip(usual[:36], repeated[:36], strict=True):
        assert torch.equal(one.theta, other.theta)
    assert torch.equal(usual[20].verdict.scores.nan_to_num(), repeated[20].verdict.scores.nan_to_num())  # type: ignore[union-attr]
    assert not torch.equal(usual[-1].theta, repeated[-1].theta)
    assert [one.step for one in rounds(scene_of("detection.every=100")) if one.phase == "detection"] == [20]


def test_halves_are_drawn_from_the_identification_set_each_time() -> None:
    nodes = torch.tensor([3, 8, 1])
    split = split_samples(nodes, samples=20, identification=12, seed=4)
    again = {step: split.again(nodes, seed=4, step=step) for step in (10, 20)}
    for row in range(3):
        everything = set(torch.cat([split.first, split.second], 1)[row].tolist())
        for one in again.values():
            assert (one.first.shape, one.second.shape) == ((3, 6), (3, 6))
            assert set(one.first[row].tolist()) | set(one.second[row].tolist()) == everything
            assert torch.equal(one.warm_up, split.warm_up)
    firsts = [frozenset(one.first[0].tolist()) for one in (split, *again.values())]
    assert len(set(firsts)) == 3
    alone = split_samples(nodes[1:2], samples=20, identification=12, seed=4).again(nodes[1:2], seed=4, step=20)
    assert torch.equal(alone.first, again[20].first[1:2]), "a node's halves do not depend on who else is held here"


def test_whoever_wakes_up_later_is_found_later() -> None:
    """Sign flip from round 25 on: the detection before round 20 cannot see it, the one before round 50 does."""
    words = ["attack=sign-flip", "byzantine_start=25", "byzantine_mixing=none"]
    for every, found in (("off", 0.3), ("30", 0.9)):
        scene = scene_of(*words, f"detection.every={every}")
        last = [one for one in rounds(scene) if one.phase == "detection"][-1]
        assert last.verdict is not None
        byzantine = scene.byzantine
        arcs = scene.graph.hears & byzantine & ~byzantine[:, None]
        share = int((arcs & last.verdict.flagged).sum()) / int(arcs.sum())
        assert share < found if every == "off" else share > found


@pytest.mark.parametrize("kind", KINDS)
def test_shards_find_what_one_process_finds(kind: str) -> None:
    scene = scene_of(*KINDS[kind])
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=3)
    alone = rounds(scene)
    for one, parts in zip(alone, spread.walk(scene.plan), strict=True):
        nodes = torch.cat([network.nodes for network in spread.networks])
        theta = torch.empty_like(one.theta)
        theta[nodes] = torch.cat([part.theta for part in parts])
        torch.testing.assert_close(theta, one.theta, rtol=1e-9, atol=1e-9)
        if one.verdict is not None:
            flagged = torch.empty_like(one.verdict.flagged)
            flagged[nodes] = torch.cat([part.verdict.flagged for part in parts if part.verdict is not None])
            assert torch.equal(flagged, one.verdict.flagged)


def test_settings() -> None:
    assert Plan(100, 20, detector=Detector(every=30)).detections == [20, 50, 80]
    assert load(None, ["profile=paper", "detection.every=off"]).detection.every is None
    with pytest.raises(InputError, match="every: got 0, allowed: 1 or more"):
        Detector(every=0)
    with pytest.raises(InputError, match="every: got 5, allowed: none with a panel"):
        Detector(panel=Panel(), every=5)
    with pytest.raises(InputError, match=r"detection\.every: got 5, allowed: off with a panel; set watch\.every"):
        load(None, ["detection.every=5"])
    with pytest.raises(InputError, match=r"detection\.every: got 0"):
        load(None, ["profile=paper", "detection.every=0"])
