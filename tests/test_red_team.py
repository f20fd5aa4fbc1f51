"""The red-team studies: every row is a spec that stands, and the page says what the runs say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bymi.attacks import ATTACKS as ATTACK_CLASSES
from bymi.core.errors import InputError
from bymi.experiment import run_all
from bymi.experiment.spec import read_spec
from bymi.paper import page_red_team as red_team
from bymi.paper.find_study import find_study
from bymi.paper.page_red_team import harmless, image_verdict, on_common_seeds, verdict
from bymi.paper.study_red_team import (
    ABLATED,
    ATTACKS,
    BELOW_NOISE,
    COLUMNS,
    LIMITS,
    PIECES,
    SHOWN_AS,
    WHOLE,
    RedTeam,
    build_red_team,
)
from bymi.runs.run_setup import set_up_run

IMAGES_ONLY = {"ood", "label-flip"}
BESIDE = {"misshapen": "silent"}  # the same to whoever does not hear them


def test_every_attack_on_the_linear_problem_has_a_row() -> None:
    used = {str(change["attack"]).split(":")[0] for change in ATTACKS.values()}
    assert used == set(ATTACK_CLASSES) - IMAGES_ONLY - set(BESIDE)
    assert set(BELOW_NOISE) < set(ATTACKS)


def test_sizes_of_the_studies() -> None:
    assert len(find_study("red-team").specs) == 5 * len(ATTACKS) * len(COLUMNS)
    assert len(find_study("red-team-limits").specs) == 5 * sum(len(rows) for _, rows in LIMITS.values())
    assert len(find_study("red-team-pieces", seeds=1).specs) == (1 + len(PIECES)) * len(ABLATED)
    assert {trial.column for trial in build_red_team("red-team", only=["published"]).trials} == {"published"}
    assert len(build_red_team("red-team", fast=True).trials) < 50
    assert {row for _, rows in LIMITS.values() for row in rows} < set(ATTACKS)


def test_every_piece_changes_the_spec() -> None:
    specs = {(trial.row, trial.column): trial.spec for trial in build_red_team("red-team-pieces", seeds=1).trials}
    assert len({spec.digest for spec in specs.values()}) == len(specs), "no two are the same run"
    assert {row for row, _ in specs} == {WHOLE, *PIECES}
    assert specs["probe point", "sign flip, data differ"].data.model_dump()["optimum_spread"] == 0.3


@pytest.mark.parametrize(("only", "name"), [(["gods"], "red-team"), (["published"], "red-team-pieces")])
def test_only_what_there_is(only: list[str], name: str) -> None:
    with pytest.raises(InputError, match="--only: got"):
        find_study(name, only=only)


def small(study: RedTeam, rows: list[str]) -> RedTeam:
    """Some rows with few nodes and rounds."""
    trials = []
    for trial in study.trials:
        if trial.row in rows:
            values = trial.spec.model_dump(mode="json")
            values.update(nodes=24, steps=60, graph="erdos-renyi:p=0.8", record_every=60)
            values["warm_up"]["steps"] = 20
            if values["watch"] is not None:
                values["watch"].update(every=20)
            trials.append(dataclasses.replace(trial, spec=read_spec(values)))
    return dataclasses.replace(study, trials=trials)


@pytest.mark.parametrize("row", ATTACKS)
def test_every_row_can_be_built(row: str) -> None:
    trials = [trial for trial in build_red_team("red-team", seeds=1, only=["hardened"]).trials if trial.row == row]
    scene = set_up_run(trials[0].spec.resolved)
    assert scene.plan.detections == [300, 375, 600, 900, 1200, 1500, 1800, 1970]


def test_the_page_of_attacks(tmp_path: Path) -> None:
    study = small(build_red_team("red-team", seeds=1), ["no attackers", "sign flip", "dissensus"])
    results = run_all(study.specs, tmp_path, jobs=1)
    page, data = red_team.draw(study, tmp_path, "bymi reproduce red-team")
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    assert "12 runs" in page.read_text()
    hardened = [result for result in results if isinstance(result, dict) and "hardened" in result["method"]]
    for line, summary in zip(lines[2:], hardened, strict=True):
        assert f"{summary['gap']:.1e}" in line
        assert f"{100 * summary['fdp']:.1f}" in line
    assert '"column": "hardened"' in data.read_text()
    assert red_team.page("red-team", json.loads(data.read_text())) == page.read_text(), "the page is a function of the JSON"


@pytest.mark.parametrize(
    ("name", "rows"), [("red-team-limits", ["no attackers", "ALIE"]), ("red-team-pieces", [WHOLE, "probe point"])]
)
def test_the_other_pages(name: str, rows: list[str], tmp_path: Path) -> None:
    study = build_red_team(name, seeds=1)
    columns = {*LIMITS, "sign flip", "no attackers"}
    study = small(dataclasses.replace(study, trials=[trial for trial in study.trials if trial.column in columns]), rows)
    run_all(study.specs, tmp_path, jobs=1)
    page, _ = red_team.draw(study, tmp_path, f"bymi reproduce {name}")
    assert page.read_text().count("\n|") >= 3


def test_what_a_piece_buys() -> None:
    whole = [{**summary(gap=1e-5), "seed": seed} for seed in (0, 1)]
    less = [{**summary(pa=0.5, worst_edge_loss=0.0, gap=4e-4), "seed": seed} for seed in (1, 2)]
    assert red_team.without(whole, whole) == {}
    assert red_team.without(whole, less) == {True: "P_a 100.0, 50.0; gap 1.0e-05, 4.0e-04"}, "one point of edges is none"
    assert red_team.without(less, whole) == {False: "P_a 50.0, 100.0; gap 4.0e-04, 1.0e-05"}
    assert red_team.without(whole, [{**whole[0], "gap": 9e-5}]) == {}, "gaps below 1e-4 are equal"
    assert "diverged" in red_team.without(whole, [{**whole[0], "gap": None, "outcome": "diverged"}])[True]


def summary(**changes: Any) -> dict[str, Any]:
    whole = {"core_size": 120, "core_byzantine": 0, "honest": 120}
    return {"outcome": "finished", "pa": 1.0, "worst_edge_loss": 0.01, "gap": 1.0, **whole, **changes}


@pytest.mark.parametrize(
    ("row", "runs", "word"),
    [
        ("sign flip", [summary()], "stopped"),
        ("sign flip", [summary(pa=0.94)], "**through**"),
        ("sign flip", [summary(worst_edge_loss=0.06)], "**through**"),
        ("sign flip", [summary(worst_edge_loss=0.06, gap=1e-5)], "**edges lost**"),
        ("sign flip", [summary(pa=0.5, gap=3.7e-3)], "harmless"),
        ("sign flip", [summary(pa=0.5, gap=3.8e-3)], "**through**"),
        ("joint shift 0.3", [summary(pa=0.5, gap=1.0)], "below the noise"),
        ("sign flip", [summary(), summary(outcome="diverged")], "**diverged**"),
        ("sign flip", [summary(core_size=113)], "**core lost**"),
        ("sign flip", [summary(core_size=120, core_byzantine=7)], "**core lost** (1 infiltrated of 1)"),
        (
            "sign flip",
            [summary(), summary(outcome="infiltrated", core_size=123, core_byzantine=3)],
            "stopped (1 infiltrated of 2)",
        ),
        ("sign flip", [summary(core_size=123, core_byzantine=3, pa=0.5, gap=1e-5)], "harmless (1 infiltrated of 1)"),
        ("joint shift 0.3", [summary(core_size=150, core_byzantine=30, pa=0.0)], "below the noise (1 infiltrated of 1)"),
        ("sign flip", [summary(), summary(outcome="isolated", core_size=119)], "stopped (1 isolated of 2)"),
        ("sign flip", [summary(pa=0.5, gap=None), summary(pa=0.5, gap=1e-5)], "**through**"),
        (
            "sign flip",
            [summary(outcome="diverged"), summary(outcome="infiltrated", core_byzantine=1)],
            "**diverged** (1 infiltrated of 2)",
        ),
        ("sign flip", [summary(core_size=114)], "stopped"),
        ("sign flip", [summary(core_size=108), summary(core_size=120)], "stopped"),
        ("joint shift 0.3", [summary(pa=0.5, core_size=100)], "**core lost**"),
        ("sign flip", [summary(outcome="diverged", core_size=None, core_byzantine=None)], "**diverged**"),
        ("sign flip", [summary(pa=None, core_size=None, core_byzantine=None)], "**through**"),
        ("no attackers", [summary(gap=1e-5)], "calm"),
        ("no attackers", [summary(pa=None, worst_edge_loss=None, core_size=None)], "calm"),
        ("no attackers", [summary(gap=1e-5, worst_edge_loss=0.011)], "**edges lost**"),
        ("no attackers", [summary(worst_edge_loss=0.011, core_size=100)], "**core lost**"),
    ],
)
def test_how_an_attack_ended(row: str, runs: list[dict[str, Any]], word: str) -> None:
    assert verdict(row, runs, 1e-5) == word


def test_a_mean_that_stops_an_attack_hides_no_run() -> None:
    infiltrated = summary(outcome="infiltrated", core_size=123, core_byzantine=3)
    cells = {"ALIE": [{**summary(), "seed": 0}], "wobble": [infiltrated, {**summary(pa=0.94, worst_edge_loss=0.07), "seed": 4}]}
    flaws = "1 infiltrated of 2, P_a 94.0 % in seed 4, 7.0 % of edges lost in seed 4"
    assert red_team.not_in_every_run(cells) == [f"wobble ({flaws})"]


def test_the_page_of_pieces_names_runs_that_are_in_no_row() -> None:
    runs = [{"seed": 0, **summary()}]
    keys = [(WHOLE, "ALIE"), (WHOLE, "kin"), ("deed test", "ALIE"), ("backward test", "ALIE")]
    cells = [{"row": row, "column": column, "runs": runs} for row, column in keys]
    page = red_team.page("red-team-pieces", {"command": "", "cells": cells})
    assert "in no row: kin.\n" in page
    assert "in no row: backward test (1 attacks).\n" in page
    assert "| claim mismatch | 1 | none | none |" in page
    assert set(SHOWN_AS) < set(PIECES)


def test_a_held_image_run_with_attackers_in_its_core_says_so() -> None:
    runs = [{**summary(core_size=123, core_byzantine=3), "acc_normal": 0.97}]
    assert image_verdict(runs, 0.97) == "held (1 infiltrated of 1)"
    assert image_verdict([{**summary(), "acc_normal": 0.97}], 0.97) == "held"


def test_values_that_are_missing_are_counted() -> None:
    runs = [summary(gap=0.5), summary(pa=None, gap=None, core_size=None)]
    assert red_team._share(runs, "pa") == "100.0 (1 of 2)"
    assert red_team._share(runs[1:], "pa") == "-"
    assert red_team._gap(runs) == "5.0e-01 (1 of 2)"
    assert red_team._gap(runs[1:]) == "not finite"
    assert red_team._core(runs) == "100 (1 of 2)"
    assert red_team._gap([*runs, summary(outcome="diverged")]) == "diverged (1 of 3)"


def test_what_counts_as_harmless() -> None:
    assert harmless(1e-5, 120) == pytest.approx(3 * 30 / (2 * 120 * 100))
    assert harmless(1e-3, 120) == pytest.approx(1e-2)


def test_defences_are_compared_on_the_seeds_that_all_of_them_have() -> None:
    runs = {("push", "BALANCE"): [{"seed": seed} for seed in range(5)], ("push", "hardened"): [{"seed": 1}, {"seed": 4}]}
    apart = {("poison", "BALANCE"): [{"seed": 0}], ("poison", "hardened"): [{"seed": 1}]}
    both = [{"seed": 1}, {"seed": 4}]
    assert on_common_seeds({**runs, **apart}) == {("push", "BALANCE"): both, ("push", "hardened"): both}
