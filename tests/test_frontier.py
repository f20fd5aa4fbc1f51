"""The frontier: draws that stand and repeat themselves, a page that says what the runs say, and a figure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bymi.core.errors import InputError
from bymi.experiment import run_all
from bymi.experiment.spec import read_spec
from bymi.paper import page_attack_search as frontier
from bymi.paper.find_study import find_study
from bymi.paper.study_attack_search import FAMILIES, RUNS, Frontier, attack_of, build_frontier


def test_draws_are_the_same_in_every_search_and_differ_from_each_other() -> None:
    few, fast = build_frontier(runs=3), find_study("frontier", fast=True)
    assert isinstance(fast, Frontier)
    assert [spec.digest for spec in fast.specs] == [spec.digest for spec in few.specs[: 2 * len(FAMILIES)]]
    assert len({spec.digest for spec in few.specs}) == 3 * len(FAMILIES)
    assert [family for family, _ in few.trials[: len(FAMILIES)]] == list(FAMILIES)
    assert len({str(attack_of("wobble", number)) for number in range(RUNS)}) > 0.95 * RUNS  # rounded to three digits
    only = build_frontier(only=["kin"], runs=2)
    assert only.specs == [spec for family, spec in few.trials if family == "kin"][:2]
    with pytest.raises(InputError, match="--only: got 'gods'"):
        build_frontier(only=["gods"])


def test_the_page_and_the_figure(tmp_path: Path) -> None:
    study = build_frontier(runs=1)
    trials = []
    for family, spec in study.trials[:3]:
        values = spec.model_dump(mode="json")
        values.update(nodes=24, steps=60, graph="erdos-renyi:p=0.8", record_every=60)
        values["warm_up"]["steps"] = 20
        values["watch"].update(every=20)
        trials.append((family, read_spec(values)))
    study = dataclasses.replace(study, trials=trials)
    results = run_all(study.specs, tmp_path, jobs=1)
    page, data, figure = frontier.draw(study, tmp_path, "bymi reproduce frontier")
    values = json.loads(data.read_text())
    assert frontier.page("frontier", values) == page.read_text(), "the page is a function of the JSON"
    assert figure.stat().st_size > 10_000
    worst = max(result["gap"] for result in results if isinstance(result, dict))
    assert f"| all | 3 | {worst:.1e} |" in page.read_text()
    values["before"] = [{**values["runs"][0], "gap": None, "outcome": "diverged"}]
    assert "| 1 | diverged |" in frontier.page("frontier", values)
