"""Runs over ranks that were broken off: the same command goes on from the last complete checkpoint, with the same bits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bymi.experiment import Spec, load
from bymi.runs import write_resolved_specs
from bymi.runs.run_folder import METRICS, VERDICT, checkpoints_of, folder_of, read_json
from bymi.runs.run_setup import set_up_run
from bymi.runs.trained_models import MODEL, NODES
from tests.forked import call

ROOT = Path(__file__).parents[1]
EVERY = 3
SPECS = {
    "hardened": ["method=drsgd-bymi", "watch.every=8", "attack=dissensus"],
    "paper": ["method=drsgd-bymi", "profile=paper", "attack=ipm:a=2.0", "optimisation.premix_rounds=2"],
}
SMALL = ["nodes=12", "steps=24", "warm_up.steps=6", "record_every=4", "graph.p=0.9", "data.samples=24"]


@dataclass(frozen=True)
class Fault:
    """What breaks a run over `before` ranks, and over how many it then goes on."""

    spec: str
    breaks: list[Any] | None
    codes: dict[int, int]  # by rank, of the run that breaks
    goes_on_from: int  # the step
    before: int = 2
    after: int = 2
    says: tuple[str, ...] = ()
    later: tuple[str, ...] = field(default=())  # what is said when it goes on


KILLED, LOST = -9, 6
FAULTS = {
    "killed in the warm-up": Fault("hardened", ["killed", 1, "parameters", 5], {0: LOST, 1: KILLED}, 3),
    "killed in a detection": Fault("hardened", ["killed", 0, "answers", 1], {0: KILLED, 1: LOST}, 6),
    "killed in a later detection": Fault("hardened", ["killed", 1, "answers", 3], {0: LOST, 1: KILLED}, 12),
    "killed in the optimisation": Fault("paper", ["killed", 1, "tracker", 11], {0: LOST, 1: KILLED}, 15),
    "rank 0 killed in the optimisation": Fault("hardened", ["killed", 0, "parameters", 24], {0: KILLED, 1: LOST}, 18),
    "told to stop": Fault(
        "hardened", ["stopped", 1, "parameters", 13], {0: LOST, 1: LOST}, 11, says=("stopped after round 11; the same command",)
    ),
    "killed between two writes": Fault(
        "hardened",
        ["killed", 1, "checkpoint", 9],
        {0: LOST, 1: KILLED},
        12,
        later=("checkpoint round-00000015 not used (2 of 4 shards are there); going on from round-00000012",),
    ),
    "killed between two writes of one rank": Fault(
        "hardened", ["killed", 0, "checkpoint", 10], {0: KILLED, 1: LOST}, 12, later=("3 of 4 shards are there",)
    ),
    "four ranks, then two": Fault(
        "hardened", ["killed", 3, "parameters", 20], {0: LOST, 1: LOST, 2: LOST, 3: KILLED}, 15, before=4, after=2
    ),
    "two ranks, then three": Fault("paper", ["killed", 1, "tracker", 14], {0: LOST, 1: KILLED}, 18, after=3),
    "three ranks, then one": Fault(
        "hardened", ["killed", 0, "parameters", 20], {0: KILLED, 1: LOST, 2: LOST}, 15, before=3, after=1
    ),
    "a disk is full": Fault(
        "hardened",
        ["full", 1, "checkpoint", 5],
        {0: 0, 1: 0},
        24,
        says=("no checkpoint of round 9: No space left on device; the run goes on without",),
    ),
}


@dataclass(frozen=True)
class Runs:
    place: Path
    specs: dict[str, Spec]
    codes: dict[int, dict[int, int]]  # by job and rank

    def result(self, name: str, spec: str) -> tuple[Any, ...]:
        folder = folder_of(self.place / name, self.specs[spec].resolved)
        return (*((folder / file).read_bytes() for file in (METRICS, MODEL, NODES)), read_json(folder / VERDICT))

    def exchanges(self, name: str) -> int:
        """How often parameters travelled since the run was taken up: once a round and, hardened, a detection."""
        sent = json.loads((self.place / name / "traffic-0.json").read_text())
        return int(sent["parameters"]["calls"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every fault, each followed by the same command once more, from one launcher: what takes long is to read torch."""
    place, specs, jobs = tmp_path_factory.mktemp("broken"), {}, []
    for name, words in SPECS.items():
        (specs[name],) = load(None, [*SMALL, *words], 0).expand()
        write_resolved_specs(place / f"{name}.json", [specs[name].resolved])
        jobs.append({"size": 2, "specs": str(place / f"{name}.json"), "out": str(place / f"whole {name}"), "every": 0})
    for name, fault in FAULTS.items():
        job = {"specs": str(place / f"{fault.spec}.json"), "out": str(place / name), "every": EVERY}
        first = {"breaks": fault.breaks, "said": str(place / f"{name}.first")}
        jobs.append({**job, **first, "size": fault.before, "patience": 3.0 if fault.says else 0.3})
        jobs.append({**job, "size": fault.after, "said": str(place / f"{name}.second")})
    done = call("-m", "tests.launcher", json.dumps(jobs), cwd=ROOT, timeout=900)
    codes: dict[int, dict[int, int]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        if "code" in line:
            codes.setdefault(line["job"], {})[line["rank"]] = line["code"]
    assert len(codes) == len(jobs), done.stderr[-2000:]
    return Runs(place, specs, codes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_over_ranks_goes_on_with_the_same_bits(name: str, runs: Runs) -> None:
    fault, job = FAULTS[name], len(SPECS) + 2 * list(FAULTS).index(name)
    first, second = ((runs.place / f"{name}.{part}").read_text() for part in ("first", "second"))
    assert runs.codes[job] == fault.codes, first
    killed = next((rank for rank, code in fault.codes.items() if code == KILLED), None)
    if killed is not None and (fault.before == 2 or killed == 0):  # else a survivor that is slow may be blamed as well
        assert first.count(f"no word from rank {killed} (") == fault.before - 1, first
    assert set(runs.codes[job + 1].values()) == {0}, second
    assert runs.result(name, fault.spec) == runs.result(f"whole {fault.spec}", fault.spec)
    assert all(line in first for line in fault.says), first
    assert all(line in second for line in fault.later), second
    assert not checkpoints_of(runs.place / name, runs.specs[fault.spec].resolved).exists()
    assert "Traceback" not in first + second


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.goes_on_from < 24 and fault.after > 1])
def test_nothing_before_the_last_complete_checkpoint_is_computed_again(name: str, runs: Runs) -> None:
    fault = FAULTS[name]
    detections = set_up_run(runs.specs[fault.spec].resolved).plan.detections if fault.spec == "hardened" else ()
    assert runs.exchanges(name) == 24 - fault.goes_on_from + sum(step >= fault.goes_on_from for step in detections)
