"""Long rows of large graphs stay with their senders: the same numbers and bits, and no process ever has all rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi import LocalNetwork
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import FIRST_HALF, PARAMETERS, PREMIX
from bymi.core.topology import Complete
from bymi.detection.update_history import UpdateHistory
from bymi.distributed.collectives import Group
from bymi.distributed.coordinate_sharded_list_inbox import ShardedListInbox
from bymi.distributed.sharded_run import ShardedRun, default_layout
from bymi.experiment import Spec, load
from bymi.runs import run_all, write_resolved_specs
from bymi.runs.run_folder import METRICS, VERDICT, checkpoints_of, folder_of, read_json
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import sharded_run, simulate
from tests.test_same_numbers import HARDENED, KINDS_OF_RULES, LENET, PAPER, RECEIVER, SIZES, SMALL, alike, launch, read

WIDE = ["nodes=24", "graph=regular:degree=8"]
LONG = ["data.dim=150"]
SENDER = [*HARDENED, "detection.point=sender"]
CASES: dict[str, list[str]] = {
    **{rule: ["method=rule", f"warm_up.rule={rule}"] for rule in (*KINDS_OF_RULES, "krum", "scclip", "drsa", "cge", "bulyan")},
    "hardened": [*HARDENED, *WIDE],
    "hardened, at the senders' points": SENDER,
    "paper": PAPER,
    "receiver": RECEIVER,
    "pca, cross-fitted": [*PAPER, *WIDE, "detection.scale=pca", "detection.cross_fit=true"],
    "median as centre": [*PAPER, "detection.centre=median"],
    "noise on the wire": [*HARDENED, *WIDE, "attack=gaussian", "byzantine_level=message"],
    "noise on the wire, at the senders' points": [*SENDER, "attack=gaussian", "byzantine_level=message"],
    "the mean of others on the wire": [*HARDENED, "attack=ipm:a=2.0", "byzantine_level=message"],
    "far off": [*HARDENED, *WIDE, "attack=same-value:value=1e4", "byzantine_level=message"],
    "silent": [*HARDENED, "attack=silent"],
    "silent, paper": [*PAPER, *WIDE, "attack=silent"],
    "not a number": [*RECEIVER, *WIDE, "attack=nan"],
    "not a number, at the senders' points": [*SENDER, "attack=nan"],
    "diverging": ["method=dsgd", "attack=same-value:value=1e12", "byzantine_level=message"],
    "diverging, median": ["method=rule", "warm_up.rule=median", "attack=same-value:value=1e12", "byzantine_level=message"],
    "diverging, ios": ["method=rule", "warm_up.rule=ios", "attack=same-value:value=1e12", "byzantine_level=message"],
    "tracker": [*PAPER, "attack=y-poison", "optimisation.premix_rounds=2"],
    "who lies follows the rule": [*HARDENED, "byzantine_mixing=rule", "byzantine_pruning=rule", "byzantine_start=3"],
    "who lies keeps its own": [*HARDENED, *WIDE, "byzantine_mixing=none"],
}
MOVED = {
    "two faces": [*HARDENED, "attack=sign-flip", "byzantine_faces=two", "byzantine_level=message"],
    "tailored": [*HARDENED, "attack=dissensus"],
    "two faces in a detection": [*HARDENED, "attack=sign-flip", "byzantine_faces=two", "byzantine_level=pair"],
    "a lie made of all that others hold": [*HARDENED, "attack=alie", "byzantine_level=message"],
}
"""Where rows have to be where they are looked at."""

MANY = LIMITS.sharded_heard
ALWAYS = {
    "sharded_rows": 1,
    "sharded_heard": 0,
    "slice_sets": 2,
    "set_products": 512,  # products come in several pieces
}
WATCHED = [
    *WIDE,
    *HARDENED,
    "watch.every=8",
    "steps=24",
    "warm_up.steps=6",
    "record_every=4",
    "attack=sign-flip",
    "panel.few=off",
]


def drawn(words: list[str]) -> Spec:
    (spec,) = load(None, [*SMALL, *LONG, *words], 0).expand()
    return spec


def always(patch: pytest.MonkeyPatch) -> None:
    """Rows of lists stay where they are, however short and few they are."""
    patch.setattr(LIMITS, "lists_from", 1)
    patch.setattr(LIMITS, "nodes_per_place", 0)
    patch.setattr(LIMITS, "sharded_rows", 1)
    patch.setattr(LIMITS, "sharded_heard", 0)


@pytest.fixture(scope="module")
def staying() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        always(patch)
        yield


@pytest.fixture(scope="module")
def specs() -> dict[str, Spec]:
    return {name: drawn(words) for name, words in CASES.items()}


@pytest.fixture(scope="module")
def runs(staying: None, specs: dict[str, Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of all specs, from one process and from each number of ranks, and of one that was broken off."""
    place = tmp_path_factory.mktemp("staying")
    resolved = [spec.resolved for spec in specs.values()]
    write_resolved_specs(place / "specs.json", resolved)
    write_resolved_specs(place / "watched.json", [drawn(WATCHED).resolved])
    write_resolved_specs(place / "large.json", [load(None, LARGE).resolved])
    write_resolved_specs(place / "short.json", [load(None, [*LARGE, "method=rule", "steps=2"]).resolved])
    how = {"lists": True, "set": ALWAYS}
    jobs: list[dict[str, Any]] = [
        {"size": size, "specs": str(place / "specs.json"), "out": str(place / str(size)), **how} for size in SIZES
    ]
    watched = {"specs": str(place / "watched.json"), "every": 3, "said": str(place / "said"), **how}
    jobs.append({**watched, "size": 2, "out": str(place / "whole"), "every": 0})
    jobs.append({**watched, "size": 4, "out": str(place / "broken"), "breaks": ["killed", 3, "mixtures", 37], "patience": 0.3})
    # Three ranks hold one, one and two shards.
    some = {**how, "set": {**ALWAYS, "slice_turn": 500}}
    jobs.append({**watched, **some, "size": 3, "out": str(place / "broken")})
    (images,) = load("digits", IMAGES, 0).expand()
    write_resolved_specs(place / "images.json", [images.resolved])
    jobs += [
        {
            "size": size,
            "specs": str(place / "images.json"),
            "out": str(place / f"images {way} {size}"),
            "lists": True,
            "set": values,
        }
        for size in (2, 3)
        for way, values in (("rows", {}), ("strips", ALWAYS))
    ]
    # Without checkpoints, which a slow machine would get to: rank 0 holds all words of one, and shards are views in bytes.
    large = {"size": 8, "specs": str(place / "large.json"), "lists": True, "largest": True, "every": 0}
    little = {**dict.fromkeys(BUFFERS, SIZE // 16), "theory_size": 16}
    jobs.append({**large, "out": str(place / "strips"), "set": {**ALWAYS, **little}})
    jobs.append({**large, "specs": str(place / "short.json"), "out": str(place / "rows"), "set": little})
    done = launch(jobs)
    codes: dict[int, list[int]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        if "code" in line:
            codes.setdefault(line["job"], []).append(line["code"])
    assert len(codes) == len(jobs), done.stderr[-3000:]
    assert all(any(some) == (job == len(SIZES) + 1) for job, some in codes.items()), done.stderr[-3000:]
    assert all(isinstance(result, dict) for result in run_all(resolved, place / "alone", jobs=1))
    return place


IMAGES = [*LENET, "nodes=8", "graph=regular:degree=6", "steps=5", "record_every=5", *HARDENED, "attack=ood"]
BUFFERS = ("answers", "slice_turn", "models", "routed_rows", "remote_vectors", "moments")
NODES, DIM = 300, 130
SIZE = NODES * DIM
LARGE = [
    *("method=drsgd-bymi", "watch.every=2", "steps=4", "warm_up.steps=1", "record_every=4", "attack=sign-flip"),
    *(f"nodes={NODES}", "graph=regular:degree=10", f"data.dim={DIM}", "data.samples=4", "detection.sample=2"),
    *("warm_up.batch=1", "optimisation.batch=1", "panel.few=off"),
]


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_ranks_changes_no_bit(name: str, specs: dict[str, Spec], runs: Path) -> None:
    one, two, four = (read(folder_of(runs / str(size), specs[name])) for size in SIZES)
    assert one == two
    assert one == four


@pytest.mark.parametrize("name", CASES)
def test_one_process_gives_the_same_numbers_to_rounding(name: str, specs: dict[str, Spec], runs: Path) -> None:
    alone, spread = (read(folder_of(runs / place, specs[name])) for place in ("alone", "4"))
    assert alike(alone, spread, 1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_images_give_the_numbers_of_rows_that_travel(size: int, runs: Path) -> None:
    """Models in float32, what they did in float64."""
    (images,) = load("digits", IMAGES, 0).expand()
    rows, strips = (read(folder_of(runs / f"images {way} {size}", images)) for way in ("rows", "strips"))
    assert alike(rows, strips, 1e-5)
    sent = [json.loads((runs / f"images {way} {size}" / "traffic-0.json").read_text()) for way in ("rows", "strips")]
    assert ["mixtures" in names for names in sent] == [False, True]


def test_no_rank_ever_has_all_rows(runs: Path) -> None:
    """Of all tensors of a run with two detections; what is of a fixed size was made small. The data of a rank are half of all
    rows here."""
    strips, rows = (
        [json.loads((runs / way / f"largest-{rank}.json").read_text()) for rank in range(8)] for way in ("strips", "rows")
    )
    assert max(strips) < 0.6 * SIZE
    assert max(rows) >= 0.9 * SIZE


def test_what_travels_is_what_the_docs_say(runs: Path) -> None:
    """Bytes of all ranks in four rounds and two detections."""
    scene, ranks = set_up_run(load(None, LARGE).resolved), 8
    names = [json.loads((runs / "strips" / f"traffic-{rank}.json").read_text()) for rank in range(ranks)]
    sent = {
        name: sum(entry[name]["bytes"] for entry in names)
        for name in ("parameters", "mixtures", "products", "lengths", "weights")
    }
    blocks = default_layout(scene.graph, torch.float64, torch.device("cpu"), Group(0, ranks))
    assert blocks is not None
    away = [DIM - ((rank + 1) * DIM // ranks - rank * DIM // ranks) for rank in range(ranks)]  # coordinates of others
    rows = [len(nodes) for nodes in blocks.shards]
    mixed = [len(nodes) + int(scene.byzantine[nodes].sum()) for nodes in blocks.shards]
    others, places, rounds = ranks - 1, scene.graph.hears.shape[1], 4
    assert sent["parameters"] == rounds * sum(count * width * 8 for count, width in zip(rows, away, strict=True))
    assert sent["mixtures"] == rounds * sum(count * width * 8 for count, width in zip(mixed, away, strict=True))
    assert sent["products"] == rounds * 8 * int(scene.graph.hears.sum()) * others
    assert sent["lengths"] == (rounds + 2 * 3) * 16 * NODES * others
    assert sent["weights"] == rounds * (2 * NODES + 8 * NODES * places) * others


def test_a_run_that_was_broken_off_goes_on_over_another_number_of_ranks(runs: Path) -> None:
    """Trails are kept with those who left them, whoever these are with."""
    whole, again = (folder_of(runs / place, drawn(WATCHED).resolved) for place in ("whole", "broken"))
    assert (whole / METRICS).read_bytes() == (again / METRICS).read_bytes()
    assert read_json(whole / VERDICT) == read_json(again / VERDICT)
    sent = json.loads((runs / "broken" / "traffic-0.json").read_text())
    assert sent["lengths"]["calls"] < 24 - 6, (runs / "said").read_text()
    assert not checkpoints_of(runs / "broken", drawn(WATCHED).resolved).exists()


# Inside one process


def spread_over(scene: RunSetup, shards: int) -> ShardedRun:
    return sharded_run(scene.problem, scene.graph, scene.adversary, shards=shards)


@pytest.mark.parametrize("name", CASES)
def test_inboxes_have_no_rows(name: str, staying: None, specs: dict[str, Spec]) -> None:
    """Of anything that was sent, with lies or without."""
    seen = 0
    for parts in spread_over(set_up_run(specs[name].resolved), 3).walk(set_up_run(specs[name].resolved).plan):
        for part in parts:
            if part.phase != "detection":
                assert isinstance(part.inbox, ShardedListInbox)
                seen += 1
    assert seen == 3 * 5


@pytest.mark.parametrize("name", ["hardened", "ubar", "far off", "hardened, at the senders' points"])
def test_any_cut_into_shards_and_turns_gives_the_numbers_of_one_process(
    name: str, staying: None, specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = set_up_run(specs[name].resolved)
    alone = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))
    for name in ("answers", "slice_turn"):
        monkeypatch.setattr(LIMITS, name, 200)
    for shards in (2, 5, scene.graph.size):
        spread = spread_over(scene, shards)
        order = torch.cat([network.nodes for network in spread.networks])
        for whole, parts in zip(alone, spread.walk(scene.plan), strict=True):
            torch.testing.assert_close(torch.cat([part.theta for part in parts]), whole.theta[order], rtol=1e-9, atol=1e-12)
            if whole.verdict is not None:
                why = torch.cat([part.verdict.reason for part in parts if part.verdict is not None])
                assert torch.equal(why, whole.verdict.reason[order])


@pytest.mark.parametrize("rule", ["balance", "ios", "trimmed-mean", "ubar"])
def test_with_more_shards_than_coordinates_some_have_none(rule: str, staying: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "sharded_dim", 1)
    scene = set_up_run(drawn(["nodes=24", "graph=ring", "data.dim=13", "method=rule", f"warm_up.rule={rule}"]).resolved)
    spread = spread_over(scene, 24)
    assert spread.router.is_sharded(PARAMETERS)
    alone = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))
    order = torch.cat([network.nodes for network in spread.networks])
    for whole, parts in zip(alone, spread.walk(scene.plan), strict=True):
        torch.testing.assert_close(torch.cat([part.theta for part in parts]), whole.theta[order], rtol=1e-9, atol=1e-12)


def test_trails_are_those_of_one_process(staying: None) -> None:
    """A far message is taken at the length at which all of its receivers used it."""
    scene = set_up_run(drawn([*CASES["far off"], "watch.every=4", "steps=9"]).resolved)
    histories: dict[int, UpdateHistory] = {}
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        if snapshot.state is not None and snapshot.state.history is not None and snapshot.state.history.rounds:
            histories[snapshot.step] = snapshot.state.history.copy()
    spread, compared = spread_over(scene, 5), 0
    for parts in spread.walk(scene.plan):
        for part, network in zip(parts, spread.networks, strict=True):
            history, whole = part.state.history if part.state is not None else None, histories.get(part.step)
            if history is None or whole is None or not history.rounds:
                continue
            for name in ("messages", "times", "own", "refused"):
                expected = getattr(whole, name)[network.nodes]
                torch.testing.assert_close(getattr(history, name), expected, rtol=1e-10, atol=1e-10)
            compared += 1
    assert compared > 5


def test_deeds_come_with_answers_in_one_process_as_well() -> None:
    graph = Complete().draw(5)
    seen, own = torch.arange(5.0)[:, None].expand(-1, 3), 10 + torch.arange(5.0)[:, None].expand(-1, 3)
    who = torch.tensor([False, True, False, False, True])
    replies = LocalNetwork(graph).ask(0, seen, lambda points, nodes, askers: {FIRST_HALF: points}, who, None, (seen, own))
    found = {reply.receiver: reply.history() for reply in replies if reply.history is not None}
    assert {number: rows[:, 0].tolist() for number, rows in found.items()} == {1: [0, 2, 3, 4, 11], 4: [0, 1, 2, 3, 14]}


@pytest.mark.parametrize("name", MOVED)
def test_rows_come_where_lies_are_made_of_them(name: str, staying: None) -> None:
    scene = set_up_run(drawn(MOVED[name]).resolved)
    assert not spread_over(scene, 4).router.is_sharded(PARAMETERS)
    without = sharded_run(scene.problem, scene.graph, None, shards=4)
    assert without.router.is_sharded(PARAMETERS)
    assert not without.router.is_sharded(PREMIX)


@pytest.mark.parametrize(
    ("words", "shards", "stays"),
    [
        (WIDE, 4, True),
        (WIDE, 2, True),
        (WIDE, 1, False),
        ([*WIDE, "data.dim=100"], 4, False),
        (["nodes=120", "graph=ring"], 4, False),
    ],
)
def test_rows_stay_where_many_long_ones_would_have_to_come(
    words: list[str], shards: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "lists_from", 1)
    monkeypatch.setattr(LIMITS, "nodes_per_place", 0)
    monkeypatch.setattr(LIMITS, "sharded_rows", 1000)
    monkeypatch.setattr(LIMITS, "sharded_heard", MANY)
    assert spread_over(set_up_run(drawn([*words, "method=dsgd"]).resolved), shards).router.is_sharded(PARAMETERS) is stays
