"""Graphs of lists over ranks: 1, 2 and 4 give the same bits, one process gives the same numbers, and nothing is [M, M]."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi.core.list_graph import ListGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import PARAMETERS
from bymi.detection.update_history import UpdateHistory
from bymi.distributed.gathered_snapshots import whole_rounds
from bymi.experiment import Spec, load
from bymi.runs import run_all, write_resolved_specs
from bymi.runs.metrics import Recorder
from bymi.runs.run_folder import METRICS, VERDICT, checkpoints_of, folder_of, read_json
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import OneProcess, sharded_run, simulate
from tests.launcher import Largest
from tests.test_same_numbers import CASES, HARDENED, PAPER, RECEIVER, SIZES, SMALL, alike, launch, read

# Beside those that matrices are tested with: attacks on lists of few neighbours, where shards hear different nodes.
WIDE = ["nodes=24", "graph=regular:degree=8"]
LISTED: dict[str, list[str]] = {
    **CASES,
    "sign-flip": [*HARDENED, *WIDE, "attack=sign-flip"],
    "poison": [*HARDENED, *WIDE, "attack=poison"],
    "silent, not heard in premixing": [*PAPER, *WIDE, "attack=silent"],
    "not a number, in premixing": [*RECEIVER, *WIDE, "attack=nan"],
    "far off": [*HARDENED, *WIDE, "attack=same-value:value=1e4", "byzantine_level=message"],
    "noise on the wire, few neighbours": [*HARDENED, *WIDE, "attack=gaussian", "byzantine_level=message"],
    "tailored, few neighbours": [*HARDENED, *WIDE, "attack=poison:how=fuse"],
    "two faces, few neighbours": [*HARDENED, *WIDE, "attack=sign-flip", "byzantine_faces=two", "byzantine_level=message"],
}
BROKEN: dict[str, tuple[list[str], list[Any], int]] = {
    "hardened": ([*WIDE, *HARDENED, "watch.every=8", "attack=dissensus"], ["killed", 3, "parameters", 20], 2),
    "paper": ([*WIDE, *PAPER, "attack=silent"], ["killed", 2, "parameters", 17], 3),
}
"""What is run over four ranks until one of them is killed, and then over another number."""


@pytest.fixture(scope="module")
def lists() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LIMITS, "lists_from", 1)
        patch.setattr(LIMITS, "nodes_per_place", 0)
        yield


def drawn(words: list[str], seed: int = 0) -> Spec:
    (spec,) = load(None, [*SMALL, *words], seed).expand()
    return spec


@pytest.fixture(scope="module")
def specs() -> dict[str, Spec]:
    return {name: drawn(words) for name, words in LISTED.items()}


@pytest.fixture(scope="module")
def broken() -> dict[str, Spec]:
    return {name: drawn(["steps=24", "warm_up.steps=6", "record_every=4", *words]) for name, (words, _, _) in BROKEN.items()}


@pytest.fixture(scope="module")
def runs(lists: None, specs: dict[str, Spec], broken: dict[str, Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of all specs, from one process and from each number of ranks, and of those that were broken off."""
    place = tmp_path_factory.mktemp("lists")
    resolved = [spec.resolved for spec in specs.values()]
    write_resolved_specs(place / "specs.json", resolved)
    jobs: list[dict[str, Any]] = [
        {"size": size, "specs": str(place / "specs.json"), "out": str(place / str(size)), "lists": True} for size in SIZES
    ]
    for name, spec in broken.items():
        write_resolved_specs(place / f"{name}.json", [spec.resolved])
        job = {"specs": str(place / f"{name}.json"), "every": 3, "lists": True, "said": str(place / f"{name}.said")}
        _, breaks, after = BROKEN[name]
        jobs.append({**job, "size": 2, "out": str(place / f"whole {name}"), "every": 0})
        jobs.append({**job, "size": 4, "out": str(place / name), "breaks": breaks, "patience": 0.3})
        jobs.append({**job, "size": after, "out": str(place / name)})
    done = launch(jobs)
    codes: dict[int, list[int]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        if "code" in line:
            codes.setdefault(line["job"], []).append(line["code"])
    killed = [len(SIZES) + 3 * number + 1 for number in range(len(broken))]
    assert len(codes) == len(jobs), done.stderr[-3000:]
    assert all(any(some) == (job in killed) for job, some in codes.items()), done.stderr[-3000:]
    assert all(-9 in codes[job] for job in killed)
    assert all(isinstance(result, dict) for result in run_all(resolved, place / "alone", jobs=1))
    return place


@pytest.mark.parametrize("name", LISTED)
def test_the_number_of_ranks_changes_no_bit(name: str, specs: dict[str, Spec], runs: Path) -> None:
    one, two, four = (read(folder_of(runs / str(size), specs[name])) for size in SIZES)
    assert one == two
    assert one == four


@pytest.mark.parametrize("name", LISTED)
def test_one_process_gives_the_same_numbers_to_rounding(name: str, specs: dict[str, Spec], runs: Path) -> None:
    assert isinstance(set_up_run(specs[name].resolved).graph, ListGraph)
    alone, spread = (read(folder_of(runs / place, specs[name])) for place in ("alone", "4"))
    assert alike(alone, spread, 1e-9)


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_was_broken_off_goes_on_over_another_number_of_ranks(name: str, broken: dict[str, Spec], runs: Path) -> None:
    whole, again = (folder_of(runs / place, broken[name].resolved) for place in (f"whole {name}", name))
    assert (whole / METRICS).read_bytes() == (again / METRICS).read_bytes()
    assert read_json(whole / VERDICT) == read_json(again / VERDICT)
    sent = json.loads((runs / name / "traffic-0.json").read_text())
    assert sent["parameters"]["calls"] < 24 - 12, (runs / f"{name}.said").read_text()
    assert not checkpoints_of(runs / name, broken[name].resolved).exists()


# Inside one process


@pytest.mark.parametrize("name", ["hardened", "two faces, few neighbours", "not a number, in premixing", "ring, pruned"])
def test_any_cut_into_shards_gives_the_numbers_of_one_process(
    name: str, lists: None, specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one number a turn everybody asks in a turn of its own."""
    scene = set_up_run(specs[name].resolved)
    alone = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))
    monkeypatch.setattr(LIMITS, "answers", 1)
    for shards in (1, 3, scene.graph.size):
        spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=shards)
        order = torch.cat([network.nodes for network in spread.networks])
        for whole, parts in zip(alone, spread.walk(scene.plan), strict=True):
            torch.testing.assert_close(torch.cat([part.theta for part in parts]), whole.theta[order], rtol=1e-9, atol=1e-12)
            if whole.verdict is not None:
                why = torch.cat([part.verdict.reason for part in parts if part.verdict is not None])
                assert torch.equal(why, whole.verdict.reason[order])


def test_trails_do_not_depend_on_who_holds_whom(lists: None) -> None:
    """A far message is taken at the length at which all of its receivers used it, not those who are held here."""
    scene = set_up_run(drawn([*LISTED["far off"], "watch.every=4", "steps=9"]).resolved)
    histories: dict[int, UpdateHistory] = {}
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        if snapshot.state is not None and snapshot.state.history is not None and snapshot.state.history.rounds:
            histories[snapshot.step] = snapshot.state.history.copy()
    spread, compared = sharded_run(scene.problem, scene.graph, scene.adversary, shards=5), 0
    columns = spread.router.columns(PARAMETERS, varied=scene.adversary.differs(PARAMETERS))
    for parts in spread.walk(scene.plan):
        for part, some, network in zip(parts, columns, spread.networks, strict=True):
            history, whole = part.state.history if part.state is not None else None, histories.get(part.step)
            if history is None or whole is None or not history.rounds:
                continue
            for name, rows in (("messages", some), ("times", some), ("own", network.nodes), ("refused", network.nodes)):
                torch.testing.assert_close(getattr(history, name), getattr(whole, name)[rows], rtol=1e-10, atol=1e-10)
            compared += 1
    assert compared > 5


def walk(scene: RunSetup, steps: int) -> None:
    """A run over a group of one, as its recorder sees it."""
    spread = sharded_run(scene.problem, scene.graph, scene.adversary, shards=1)
    recorder = Recorder(scene.evaluator, scene.graph, scene.byzantine, steps=steps, every=steps)
    OneProcess(scene)
    for moment in whole_rounds(
        spread, scene.plan, None, due=lambda *_: True, lost=lambda lengths: False, wants=lambda *_: False
    ):
        recorder.see(moment.snapshot, moment.models)
    recorder.summary()


@pytest.mark.parametrize("words", [["profile=paper"], ["watch.every=off", "attack=dissensus"]])
def test_nothing_grows_with_the_square_of_the_nodes(words: list[str]) -> None:
    nodes = 1200
    shape = [f"nodes={nodes}", "graph=regular:degree=4", "data.dim=2", "data.samples=12", "steps=4", "warm_up.steps=2"]
    scene = set_up_run(load(None, ["method=drsgd-bymi", "attack=silent", *shape, *words]).resolved)
    assert isinstance(scene.graph, ListGraph)
    with Largest() as seen:
        walk(scene, 4)
    assert nodes < seen.entries < nodes**2 / 4
