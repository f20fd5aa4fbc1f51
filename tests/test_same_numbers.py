"""1, 2 and 4 ranks give the same bits in float64, and one process gives the same numbers to rounding."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bymi.aggregation import RULES
from bymi.experiment import Spec, load
from bymi.runs import run_all, write_resolved_specs
from bymi.runs.run_folder import METRICS, SUMMARY, VERDICT, folder_of, read_json, read_rows
from tests.forked import call

SIZES = (1, 2, 4)
SMALL = ["nodes=12", "steps=5", "warm_up.steps=2", "record_every=1", "graph.p=0.9", "data.samples=24", "attack=ipm:a=2.0"]
WHOLE = "method=drsgd-bymi"
HARDENED = [WHOLE, "watch.every=2"]
PAPER = [WHOLE, "profile=paper"]
RECEIVER = [*PAPER, "detection.point=receiver"]
LONG = ["data.dim=100", "graph.p=0.9"]  # slices of rows pay, and products of all pairs as well
KINDS_OF_RULES = ("average", "balance", "ubar", "median", "filtering")  # weights, losses, coordinates, sets
# Enough neighbours for medians and spreads that rounding does not decide.
CASES: dict[str, list[str]] = {
    **{rule: ["method=rule", f"warm_up.rule={rule}"] for rule in RULES},
    **{f"{rule} of long rows": ["method=rule", f"warm_up.rule={rule}", *LONG] for rule in KINDS_OF_RULES},
    "hardened": HARDENED,
    "paper": PAPER,
    "receiver": RECEIVER,
    "pca, cross-fitted": [*PAPER, "detection.scale=pca", "detection.cross_fit=true"],
    "median as centre": [*RECEIVER, "detection.centre=median"],
    "noise on the wire": [*HARDENED, "attack=gaussian", "byzantine_level=message"],
    "two faces": [*HARDENED, "attack=gaussian", "byzantine_faces=two"],
    "two faces, receiver": [*RECEIVER, "attack=alie", "byzantine_faces=two"],
    "tailored": [*HARDENED, "attack=dissensus"],
    "tailored, paper": [*PAPER, "attack=dissensus"],
    "silent": [*HARDENED, "attack=silent"],
    "not a number": [*RECEIVER, "attack=nan"],
    "tracker": [*PAPER, "attack=y-poison", "optimisation.premix_rounds=2"],
    "diverging": ["method=dsgd", "attack=same-value:value=1e12", "byzantine_level=message"],
    "who lies follows the rule": [*HARDENED, "byzantine_mixing=rule", "byzantine_pruning=rule", "byzantine_start=3"],
    "paper, long rows": [*PAPER, *LONG],
    "receiver, long rows": [*RECEIVER, *LONG],
    "who lies follows the rule, long rows": [*PAPER, *LONG, "byzantine_mixing=rule", "byzantine_pruning=rule"],
    "silent, long rows": ["method=rule", "attack=silent", "byzantine_start=2", *LONG],
    "not a number, long rows": ["method=dsgd", "attack=nan", "byzantine_start=2", *LONG],
    "diverging, long rows": ["method=dsgd", "attack=same-value:value=1e12", "byzantine_start=2", *LONG],
    "paper, again": [*PAPER, "detection.every=1"],
    "receiver, again, long rows": [*RECEIVER, *LONG, "detection.every=2"],
    "stopped": [*PAPER, "stop.on=movement", "stop.tolerance=1.0", "stop.patience=1"],
    "rule, stopped": ["method=rule", "stop.tolerance=100.0", "stop.patience=3"],
    "ring": ["method=rule", "graph=ring"],
    "ring, pruned": [*PAPER, "graph=ring"],
    "sparse, placed": [*RECEIVER, "nodes=24", "graph.p=0.12"],
}
SLICED = ("average of long rows", "median of long rows", "balance of long rows", "paper, long rows")
LENET = [
    "nodes=5",
    "steps=3",
    "warm_up.steps=2",
    "record_every=1",
    "graph=complete",
    "data.samples=40",
    "data.identification=20",
]
IMAGES: dict[str, list[str]] = {
    **{rule: ["method=rule", f"warm_up.rule={rule}", "steps=2", "warm_up.steps=1"] for rule in KINDS_OF_RULES},
    "paper": PAPER,
    "hardened, other data": [*HARDENED, "attack=ood"],
    "receiver, other labels, few of them": [*RECEIVER, "attack=label-flip", "data.partition=label-shards:shards=2"],
}


def launch(jobs: Sequence[dict[str, Any]], limit: float = 240) -> subprocess.CompletedProcess[str]:
    return call("-m", "tests.launcher", json.dumps(list(jobs)), cwd=Path(__file__).parents[1], timeout=limit)


@pytest.fixture(scope="module")
def specs() -> dict[str, Spec]:
    found = {}
    for name, words in CASES.items():
        (found[name],) = load(None, [*SMALL, *words], 0).expand()
    return found


@pytest.fixture(scope="module")
def image_specs() -> dict[str, Spec]:
    pytest.importorskip("sklearn")
    found = {}
    for name, words in IMAGES.items():
        (found[name],) = load("digits", [*LENET, *words], 0).expand()
    return found


@pytest.fixture(scope="module")
def runs(specs: dict[str, Spec], image_specs: dict[str, Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of all specs, from one process and from each number of ranks."""
    place = tmp_path_factory.mktemp("ranks")
    resolved = [spec.resolved for spec in (*specs.values(), *image_specs.values())]
    write_resolved_specs(place / "specs.json", resolved)
    jobs: list[dict[str, Any]] = [
        {"size": size, "specs": str(place / "specs.json"), "out": str(place / str(size))} for size in SIZES
    ]
    jobs.append({"size": 2, "specs": str(place / "specs.json"), "out": str(place / "apart"), "apart": True})
    write_resolved_specs(place / "ring.json", [specs["ring"].resolved])
    jobs.append({"size": 2, "specs": str(place / "ring.json"), "out": str(place / "ring")})
    for name in SLICED:
        write_resolved_specs(place / f"{name}.json", [specs[name].resolved])
        jobs.append({"size": 4, "specs": str(place / f"{name}.json"), "out": str(place / name)})
    done = launch(jobs, 480)
    codes = [json.loads(line).get("code", 0) for line in done.stdout.splitlines()]
    assert not any(codes), done.stderr[-3000:]
    assert all(isinstance(result, dict) for result in run_all(resolved, place / "alone", jobs=1))
    return place


def read(folder: Path) -> tuple[list[dict[str, Any]], Any, dict[str, Any]]:
    summary = read_json(folder / SUMMARY)
    verdict = read_json(folder / VERDICT) if (folder / VERDICT).exists() else None
    return read_rows(folder / METRICS), verdict, {key: value for key, value in summary.items() if "seconds" not in key}


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_ranks_changes_no_bit(name: str, specs: dict[str, Spec], runs: Path) -> None:
    one, two, four = (read(folder_of(runs / str(size), specs[name])) for size in SIZES)
    assert one == two
    assert one == four


@pytest.mark.parametrize("name", CASES)
def test_one_process_gives_the_same_numbers_to_rounding(name: str, specs: dict[str, Spec], runs: Path) -> None:
    alone, spread = (read(folder_of(runs / place, specs[name])) for place in ("alone", "4"))
    assert alike(alone, spread, 1e-9)


def test_whole_runs_spread_over_ranks_give_the_bits_of_one_process(specs: dict[str, Spec], runs: Path) -> None:
    for spec in specs.values():
        assert read(folder_of(runs / "alone", spec)) == read(folder_of(runs / "apart", spec))


def test_only_rows_that_somebody_needs_travel(specs: dict[str, Spec], runs: Path) -> None:
    """On a ring cut in two each half hears two nodes of the other: of 12 nodes 4 rows cross, in both directions together."""
    sent = [json.loads((runs / "ring" / f"traffic-{rank}.json").read_text()) for rank in range(2)]
    rounds, dim, number = specs["ring"].steps, 30, 8
    assert sum(rank["parameters"]["bytes"] for rank in sent) == rounds * 4 * dim * number
    assert sum(rank["parameters"]["messages"] for rank in sent) == rounds * 2
    assert not any("mixtures" in rank for rank in sent)


@pytest.mark.parametrize("name", SLICED)
def test_slices_of_rows_travel_there_and_back(name: str, specs: dict[str, Spec], runs: Path) -> None:
    """Of each row three quarters leave their rank, and of each mixed row.

    Two of the 12 nodes mix once more, for themselves, where a rule gives something else than the average they keep.
    """
    sent = [json.loads((runs / name / f"traffic-{rank}.json").read_text()) for rank in range(4)]
    spec, part = specs[name], 100 * 8 * 3 // 4
    kept = 0 if spec.warm_up.rule.name == "average" else spec.warm_up.steps if spec.method == "drsgd-bymi" else spec.steps
    assert sum(rank["parameters"]["bytes"] for rank in sent) == spec.steps * 12 * part
    assert sum(rank["mixtures"]["bytes"] for rank in sent) == (spec.steps * 12 + kept * 2) * part
    assert all(("products" in rank) == (name not in SLICED[:2]) for rank in sent)


@pytest.mark.parametrize("name", IMAGES)
def test_models_in_float32_agree_to_1e_5(name: str, image_specs: dict[str, Spec], runs: Path) -> None:
    alone, one, two, four = (read(folder_of(runs / place, image_specs[name])) for place in ("alone", *map(str, SIZES)))
    for other in (one, two, four):
        assert alike(alone[0], other[0], 1e-5)
        assert alike(alone[2], other[2], 1e-5)


def alike(left: Any, right: Any, tolerance: float) -> bool:
    """Equal but for rounding in floats."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key], tolerance) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right, [tolerance] * len(left)))
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=tolerance, abs=tolerance)
    return bool(left == right)
