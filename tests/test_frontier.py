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
from bymi.paper.study_attack_search import FAMILIES, PLACES, RUNS, RUNS_ELSEWHERE, Frontier, attack_of, build_frontier


def test_draws_are_the_same_in_every_search_and_differ_from_each_other() -> None:
    few, fast = build_frontier(runs=RUNS_ELSEWHERE + 1), find_study("frontier", fast=True)
    assert isinstance(fast, Frontier)
    first, *elsewhere = PLACES
    here = [trial.spec for trial in few.trials if trial.place == first]
    assert [spec.digest for spec in fast.specs] == [spec.digest for spec in here[: 2 * len(FAMILIES)]]
    assert len({spec.digest for spec in few.specs}) == len(few.trials) == len(FAMILIES) * (21 + 20 * len(elsewhere))
    assert [trial.family for trial in few.trials[: len(FAMILIES)]] == list(FAMILIES)
    assert {trial.place for trial in few.trials[: len(FAMILIES) * len(PLACES)]} == set(PLACES)
    assert len({str(attack_of("wobble", number)) for number in range(RUNS)}) > 0.95 * RUNS  # rounded to three digits
    only = build_frontier(only=["kin"], runs=2)
    assert only.specs == [trial.spec for trial in few.trials if trial.family == "kin"][: 2 * len(PLACES)]
    with pytest.raises(InputError, match="--only: got 'gods'"):
        build_frontier(only=["gods"])


def test_the_page_and_the_figure(tmp_path: Path) -> None:
    study = build_frontier(runs=1)
    trials = []
    for trial in study.trials[:3]:
        values = trial.spec.model_dump(mode="json")
        values.update(nodes=24, steps=60, graph="erdos-renyi:p=0.8", record_every=60)
        values["warm_up"]["steps"] = 20
        values["watch"].update(every=20)
        trials.append(dataclasses.replace(trial, spec=read_spec(values)))
    study = dataclasses.replace(study, trials=trials)
    results = run_all(study.specs, tmp_path, jobs=1)
    page, data, figure = frontier.draw(study, tmp_path, "bymi reproduce frontier")
    values = json.loads(data.read_text())
    assert frontier.page("frontier", values) == page.read_text(), "the page is a function of the JSON"
    assert figure.stat().st_size > 10_000
    worst = max(result["gap"] for result in results if isinstance(result, dict))
    assert f"| all | 3 | {worst:.1e} |" in page.read_text()
    assert f"| ratio 0.2, degree 75 | 3 | 3.7e-03 | {worst:.1e} (" in page.read_text()
    values["runs"][0]["place"] = "ratio 0.3, degree 75"
    assert "| ratio 0.3, degree 75 | 1 | 4.3e-03 |" in frontier.page("frontier", values)
    assert "Made were 2 of\n2,000 there, and 1 of 600 elsewhere." in frontier.page("frontier", values)
    assert "late push" not in frontier.page("frontier", values)
    values["runs"][0] |= {"found": 1.0, "attack": {"last": 2}, "core_byzantine": 3}
    assert "undo their late push, at: ratio 0.3, degree 75.\n" in frontier.page("frontier", values)
    row = next(line for line in frontier.page("frontier", values).splitlines() if line.startswith("| ratio 0.3"))
    assert row.endswith("| 1 | 0 |"), "infiltrated, not diverged"
    values["before"] = [{**values["runs"][0], "gap": None, "outcome": "diverged"}]
    assert "| 1 | diverged |" in frontier.page("frontier", values)
