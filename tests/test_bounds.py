"""Every number of a spec has bounds, stated in the line that refuses what is beyond; what is within them runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from bymi import BymiError, InputError, aggregation, attacks, detection
from bymi.core import topology
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, read_spec
from bymi.experiment import spec as sections
from bymi.runs import run, tasks
from bymi.runs.run_setup import set_up_run
from tests.idx_files import write_image_set

SECTIONS = {
    "": sections.Spec,
    "warm_up.": sections.WarmUp,
    "detection.": sections.Detection,
    "panel.": sections.Panel,
    "watch.": sections.Watch,
    "optimisation.": sections.Optimisation,
}
TABLES = {
    "attack": attacks.ATTACKS,
    "warm_up.rule": aggregation.RULES,
    "graph": topology.TOPOLOGIES,
    "detection.centre": detection.CENTRES,
    "detection.scale": detection.SCALES,
    "data": tasks.TASKS,
}
BESIDE = {"attack=ood": ["data=mnist"], "attack=label-flip": ["data=mnist"], "data=mnist": ["attack=ipm"]}
BESIDE |= {"data=fashion-mnist": ["attack=ipm"], "data=digits": ["attack=ipm"], "graph=file": []}


def mentions(hint: Any, kind: type) -> bool:
    return hint is kind or any(mentions(inner, kind) for inner in get_args(hint))


def keys(kind: type) -> Iterator[str]:
    """All keys that take such a number, as a user writes them before the value."""
    for before, section in SECTIONS.items():
        hints = get_type_hints(section, include_extras=True)
        yield from (f"{before}{name}=" for name in section.model_fields if mentions(hints[name], kind))
    for key, table in TABLES.items():
        for name, entry in table.items():
            hints = get_type_hints(entry)
            yield from (
                f"{key}={name}:{field.name}=" for field in dataclasses.fields(entry) if mentions(hints[field.name], kind)
            )


def beside(key: str) -> list[str]:
    words = BESIDE.get(key.split(":")[0], [])
    return [*words, "profile=paper"] if key.startswith(("detection.centre", "detection.scale")) else words


def refusal(key: str, value: str) -> str:
    path = " graph=file:path=x,directed=false" if key.startswith("graph=file") else ""
    with pytest.raises(InputError) as caught:
        load(None, [*beside(key), f"{key}{value}{path}"])
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


def test_no_number_in_the_schema_lacks_a_bound() -> None:
    """Of all sections and parts, as pydantic itself has them."""
    found = 0

    def walk(part: Any, where: str) -> None:
        nonlocal found
        if isinstance(part, dict):
            if part.get("type") in ("integer", "number") and "enum" not in part:
                found += 1
                assert part.keys() & {"maximum", "exclusiveMaximum"}, where
                assert part.keys() & {"minimum", "exclusiveMinimum"}, where
            for key, inner in part.items():
                walk(inner, f"{where}.{key}")
        elif isinstance(part, list):
            for inner in part:
                walk(inner, where)

    walk(Spec.model_json_schema(), "spec")
    assert found > 80, "the walk sees them"


@pytest.mark.parametrize("key", sorted(keys(int)))
def test_an_integer_beyond_its_bound_is_refused(key: str) -> None:
    bound = {"seed=": 2**63 - 1, "steps=": 10**7, "optimisation.premix_rounds=": 10**6, "redraw_graphs=": 1000}.get(key, 10**9)
    for value in (bound + 1, 2**63, 10**30):
        line = refusal(key, str(value))
        assert f"got {value}, allowed: " in line
        assert f"less than or equal to {bound}" in line


@pytest.mark.parametrize("key", sorted(keys(float)))
def test_a_number_near_the_limits_of_float64_is_refused(key: str) -> None:
    assert "allowed: " in refusal(key, "1e308")
    assert "allowed: " in refusal(key, "-1e308")
    assert "allowed: " in refusal(key, "9" * 400)


@pytest.mark.parametrize("word", ["attack=ipm:a=1e308", "panel.duplicate=1e308"])
def test_the_bound_of_numbers_is_stated(word: str) -> None:
    with pytest.raises(InputError, match=r"allowed: less than or equal to 1e100$"):
        load(None, [word])


@pytest.mark.parametrize(
    "word", ["nodes=" + "9" * 5000, "seed=" + "9" * 5000, "panel=" + "[" * 5000, "attack.mu=" + "9" * 5000]
)
def test_words_that_no_number_can_be_are_refused(word: str) -> None:
    with pytest.raises(InputError) as caught:
        load(None, [word])
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


SMALL = ["nodes=8", "steps=6", "warm_up.steps=2", "data.dim=3", "data.samples=12", "record_every=6", "graph=complete"]
LINEAR = [key for key in sorted(keys(float)) if not key.startswith(("attack=ood", "data=mnist", "data=fashion", "data=digits"))]


@pytest.mark.parametrize("key", LINEAR)
def test_the_largest_and_the_smallest_numbers_are_refused_or_run(key: str, tmp_path: Path) -> None:
    whole = [*SMALL, "method=drsgd-bymi", *beside(key)]
    whole += [] if "profile=paper" in whole else ["watch.every=2"]
    for value in ("1e100", "5e-324"):
        try:
            spec = load(None, [*whole, f"{key}{value}"])
            summary = run(spec.resolved, tmp_path, host=Host(checkpoint_every=0))
            ended = str(summary["outcome"])
        except BymiError as problem:
            ended = "refused" if "allowed: " in str(problem) else str(problem)
        assert ended in ("finished", "diverged", "fragmented", "isolated", "infiltrated", "refused")


INTEGERS = [
    *("record_every=", "byzantine_start=", "byzantine_period=", "watch.every=", "watch.longest=", "detection.sample="),
    *("warm_up.batch=", "optimisation.batch=", "data.dim=", "data.samples=", "data.identification=", "graph=regular:degree="),
    *("warm_up.steps=", "nodes=", "warm_up.rule=geometric-median:iterations="),
]


@pytest.mark.parametrize("key", INTEGERS)
def test_the_largest_integers_are_refused_or_run(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some by the estimate of memory, on any machine with less than 100 GB."""
    monkeypatch.setattr("bymi.runs.memory_estimate.available", lambda: 10**10)
    try:
        spec = load(None, [*SMALL, "attack=ipm", "method=drsgd-bymi", f"{key}1000000000"])
        summary = run(spec.resolved, tmp_path, host=Host(checkpoint_every=0))
        ended = f"{summary['steps_done']} rounds"
    except BymiError as problem:
        ended = str(problem)
    assert ended == "6 rounds" or "allowed: " in ended or "it needs about " in ended


def test_the_largest_seed_runs(tmp_path: Path) -> None:
    spec = load(None, [*SMALL, "method=dsgd"], seed=2**63 - 1)
    assert run(spec.resolved, tmp_path)["seed"] == 2**63 - 1
    with pytest.raises(InputError, match=f"seed: got {2**63}, allowed: less than or equal to {2**63 - 1}"):
        load(None, [], seed=2**63)


@pytest.mark.parametrize(
    "partition", ["label-shards:shards=1000000000", "label-shards:shards=1" + "0" * 30, "dirichlet:dirichlet_alpha=1e308"]
)
def test_the_parameters_of_a_partition_have_bounds_too(partition: str, tmp_path: Path) -> None:
    write_image_set(tmp_path / "mnist", train=120, test=20)
    words = [*SMALL, "data=mnist:samples=12,identification=4", "attack=ipm", "method=dsgd"]
    with pytest.raises(InputError, match=r"partition|shards"):
        set_up_run(load(None, [*words, f"data.partition='{partition}'"]).resolved, Host(device="cpu", data=tmp_path))


def test_a_spec_made_in_python_has_the_same_bounds() -> None:
    with pytest.raises(InputError, match="nodes: got 1000000001, allowed: less than or equal to 1000000000"):
        read_spec({"nodes": 10**9 + 1})
