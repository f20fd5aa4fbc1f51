"""Verdicts on the paper's claims, from JSON with known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bymi.paper import claim_verdicts as findings
from bymi.paper.claim_verdicts import CONFIRMED, NOT_CONFIRMED, NOTHING, PARTLY
from bymi.paper.claims import CLAIMS, claims
from bymi.paper.committed_results import NOT_MEASURED, Results, count_runs, middle, of, span
from bymi.paper.summary_blocks import published_step

ROOT = Path(__file__).parents[1]
GOOD = {"outcome": "finished", "fdp": 0.1, "pa": 1.0, "gap": 1e-5, "core_size": 120, "core_byzantine": 0, "core_closed": True}
LEARNT = {**GOOD, "acc_all": 0.98, "acc_normal": 0.98, "acc_scc": 0.98, "grad_norm": 0.05}


class Study:
    """Writes JSON files of studies below a folder that is a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def results(self) -> Results:
        return Results(self.root)

    def write(self, name: str, values: dict[str, Any]) -> None:
        path = self.root / "docs" / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def linear(self, name: str, axis: str, *settings: tuple[int, str, float, list[dict[str, Any]]]) -> None:
        rows = [
            {"dim": dim, "warm_up": rule, axis: at, "runs": [{**GOOD, **run} for run in runs]}
            for dim, rule, at, runs in settings
        ]
        self.write(f"{name}/values.json", {"study": name, "command": name, "axis": axis, "settings": rows})

    def images(self, kind: str, *cells: tuple[str, str, float, str, list[dict[str, Any]]], data: str = "mnist") -> None:
        rows = [
            {"attack": attack, "rule": rule, "ratio": ratio, "column": column, "runs": [{**LEARNT, **run} for run in runs]}
            for attack, rule, ratio, column, runs in cells
        ]
        self.write(f"images/{kind}-{data}.json", {"study": kind, "command": kind, "cells": rows})


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def test_without_runs_nothing_is_measured(study: Study) -> None:
    for claim in CLAIMS:
        assert claim.find(study.results) == NOTHING, claim.says
    assert claims(study.results).startswith(f"{len(CLAIMS)} claims: {len(CLAIMS)} {NOT_MEASURED}.")


def test_there_are_enough_claims_and_each_has_a_verdict_of_its_own() -> None:
    assert 12 <= len(CLAIMS) <= 25
    assert len({(claim.where, claim.says) for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        ours, verdict = claim.find(Results(ROOT))
        assert verdict in (CONFIRMED, PARTLY, NOT_CONFIRMED, NOT_MEASURED)
        assert claim.criterion.endswith(".")
        assert (ours == NOT_MEASURED) == (verdict == NOT_MEASURED)


def test_every_label_is_one_of_the_paper() -> None:
    paper = ROOT.parent / "shared" / "paper" / "drsgd-bymi.tex"
    if not paper.exists():
        pytest.skip("needs the paper's source beside the checkout")
    text = paper.read_text()
    for claim in CLAIMS:
        for word in claim.where.replace(",", " ").split():
            assert ":" not in word or f"\\label{{{word}}}" in text, word


@pytest.mark.parametrize(
    ("fdps", "verdict"),
    [([0.1, 0.2, 0.39], CONFIRMED), ([0.1, 0.2, 0.4], PARTLY), ([0.1, 0.4, 0.5], NOT_CONFIRMED), ([0.1, 0.1, None], PARTLY)],
)
def test_fdp_in_scenario_a(fdps: list[float | None], verdict: str, study: Study) -> None:
    """Every run below 40 %, every median, or neither; a run without a value is no good run."""
    study.linear("scenario-a", "s_r", (30, "IOS", 0.4, [{"fdp": fdp} for fdp in fdps]))
    text, found = findings.fdp_in_a(study.results)
    assert found == verdict
    assert text.startswith(f"{sum(fdp is not None and fdp < 0.4 for fdp in fdps)} of 3 runs")


def test_the_gap_is_judged_by_medians_far_from_the_true_parameter(study: Study) -> None:
    near = (30, "IOS", 0.1, [{"gap": 1.0}])
    good, bad = (30, "IOS", 0.4, [{"gap": 9e-5}, {"gap": 9e-5}, {"gap": None}]), (80, "IOS", 0.4, [{"gap": 1.1e-4}])
    study.linear("scenario-a", "s_r", near, good)
    assert findings.gap_in_a(study.results) == ("1 of 1 settings; medians 9.0e-05", CONFIRMED)
    study.linear("scenario-a", "s_r", near, good, bad)
    assert findings.gap_in_a(study.results) == ("1 of 2 settings; medians 9.0e-05 to 1.1e-04", PARTLY)
    study.linear("scenario-a", "s_r", near, bad)
    assert findings.gap_in_a(study.results)[1] == NOT_CONFIRMED


def test_a_dip_in_one_of_two_studies_is_confirmed_in_part(study: Study) -> None:
    study.linear("scenario-a", "s_r", (30, "IOS", 0.1, [{}]), (30, "IOS", 0.4, [{}]))
    assert findings.dip_in_a(study.results)[1] == NOT_CONFIRMED
    study.linear("scenario-a-mu1", "s_r", (30, "IOS", 0.1, [{"pa": 0.2}]), (30, "IOS", 0.4, [{}]))
    text, verdict = findings.dip_in_a(study.results)
    assert verdict == PARTLY
    assert "mu_c = 1: P_a 20.0 % and 100.0 %" in text


def test_scenario_b_names_where_it_begins_to_fail(study: Study) -> None:
    settings = [
        (dim, "IOS", ratio, [{"fdp": 0.2 + dim / 1000, "pa": 1.0 if ratio < 0.2 or dim == 30 else 0.9}])
        for dim in (30, 80)
        for ratio in (0.1, 0.2)
    ]
    study.linear("scenario-b", "Byzantine ratio", *settings)
    text, verdict = findings.b_dimension(study.results)
    assert verdict == CONFIRMED
    assert "d = 30: 23.0 %, first ratio at which UBAR or IOS misses somebody none" in text
    assert "d = 80: 28.0 %, first ratio at which UBAR or IOS misses somebody 0.2" in text


def test_the_core_must_be_the_honest_nodes(study: Study) -> None:
    runs = [{}, {"core_size": 110}, {"core_size": 150, "core_byzantine": 30}, {"core_closed": False}]
    study.linear("scenario-a", "s_r", (30, "IOS", 0.4, runs))
    text, verdict = findings.component(study.results)
    assert verdict == NOT_CONFIRMED, "one of four is less than half"
    assert text.startswith("exactly the 120 honest nodes in 1 of 4 runs; closed and without Byzantine nodes in 2, with 91.7 %")


def test_cells_of_the_published_method(study: Study) -> None:
    """OOD nodes that average are taken under UBAR and IOS; a run that was lost counts as bad as can be."""
    cells = [("ood", rule, 0.2, "published", [{"pa": 0.5}]) for rule in ("ubar", "ios", "balance")]
    cells += [("ood", rule, 0.2, "published-averaging", [{}]) for rule in ("ubar", "ios", "balance")]
    study.images("table", *cells)
    assert findings.means(findings.cells(study.results), "pa") == [1.0, 1.0, 0.5]
    assert findings.tables(study.results)[1] == PARTLY
    study.images("table", ("ipm", "ios", 0.2, "published", [{}, {"fdp": None, "pa": None, "acc_scc": None, "grad_norm": None}]))
    some = findings.cells(study.results)
    assert [findings.means(some, key) for key in ("fdp", "pa", "acc_scc")] == [[0.55], [0.5], [0.49]]
    assert findings.tables(study.results)[1] == NOT_CONFIRMED
    assert findings.norm_after(study.results) == ("diverged", NOT_CONFIRMED)


def test_rules_alone_that_end_at_small_gradients_do_not_confirm_the_paper(study: Study) -> None:
    study.images(
        "table", ("ipm", "ios", 0.2, "alone", [{"grad_norm": 0.04}]), ("ipm", "ubar", 0.2, "alone", [{"grad_norm": 0.09}])
    )
    text, verdict = findings.norm_alone(study.results)
    assert verdict == NOT_CONFIRMED
    assert text == "told a bound of 0.35: 0 of 2 cells at 1 or more, or diverged; the others 0.04 to 0.09"
    study.images("table", ("ipm", "ios", 0.2, "alone", [{"grad_norm": None}]))
    assert findings.norm_alone(study.results)[1] == CONFIRMED


def test_accuracy_against_the_rule_alone(study: Study) -> None:
    study.images(
        "table", ("ipm", "ios", 0.2, "published", [{"acc_scc": 0.97}]), ("ipm", "ios", 0.2, "alone", [{"acc_normal": 0.975}])
    )
    assert findings.against_alone("alone")(study.results) == ("higher in 0 of 1 cells, -0.5 points", NOT_CONFIRMED)


def test_exact_convergence_needs_ten_times_the_gap_without_detection(study: Study) -> None:
    """Under the paper's attacks, on common seeds; other attacks and rules are counted beside them."""

    def cells(row: str, alone: float | None, ours: float) -> list[dict[str, Any]]:
        runs = {"BALANCE": [{"seed": 0, "gap": alone}, {"seed": 1, "gap": 1e9}], "published": [{"seed": 0, "gap": ours}]}
        return [{"row": row, "column": column, "runs": found} for column, found in runs.items()]

    rows = [*cells("gradient attack", None, 1e-4), *cells("IPM, a = 1", 9e-4, 1e-4), *cells("zero", 1e-5, 1e-4)]
    study.write("red-team/red-team.json", {"cells": rows})
    text, verdict = findings.exact(study.results)
    assert verdict == PARTLY
    assert (
        "gradient attack: diverged and 1.0e-04; IPM, a = 1: 9.0e-04 and 1.0e-04; ten times as large in 1 of 3 attacks" in text
    )
    pair = [
        {"rule": "krum", "attack": "ipm", "role": role, "runs": [{"gap": gap}]} for role, gap in (("alone", 1), ("warm-up", 1))
    ]
    study.write("rules-linear/rules-linear.json", {"cells": pair})
    assert findings.exact(study.results)[0].endswith("in 0 of 1 pairs of rule and attack")


def test_cells_that_hold_by_their_means_with_a_bad_ending_are_counted_apart(study: Study) -> None:
    ends = [{}, {"outcome": "diverged"}]
    study.images("table", ("ipm", "ios", 0.2, "published", ends), ("ipm", "ubar", 0.2, "published", [{}]))
    text, verdict = findings.tables(study.results)
    assert verdict == CONFIRMED
    assert text.startswith("mnist 2 of 2 cells by their means, 1 of 2 without a run that ended badly")
    assert text.endswith("hold by their means with bad endings: mnist, ipm, IOS: 1 diverged")


def test_an_attack_that_is_too_weak_to_count_is_not_confirmed(study: Study) -> None:
    study.images("table", ("ood", "none", 0.2, "undefended", [{"acc_all": 0.579}]))
    assert findings.undefended(study.results) == ("mnist ood 57.9 %; as low as the paper's in 0 of 1 cells", NOT_CONFIRMED)
    study.images("table", ("ood", "none", 0.2, "undefended", [{"acc_all": 0.578}]))
    assert findings.undefended(study.results)[1] == CONFIRMED


def test_the_step_of_the_theorem_is_judged_without_a_cap(study: Study) -> None:
    def setting(name: str, outcome: str, **changes: object) -> dict[str, Any]:
        return {"setting": name, "changes": changes, "runs": [{"outcome": outcome, "gap": 2e-4, "round": 1}]}

    capped, bare = setting("capped", "finished", step_size="theorem"), {"step_size": "theorem", "max_local_step": 1e100}
    study.write("published-step/published-step.json", {"settings": [setting("profile", "finished"), capped]})
    assert findings.step(study.results) == NOTHING
    study.write("published-step/published-step.json", {"settings": [capped, setting("bare", "diverged", **bare)]})
    assert findings.step(study.results) == ("capped: 0 of 1 diverged; gap 2.0e-04; bare: 1 of 1 diverged", NOT_CONFIRMED)
    assert "| bare | 1 of 1 | 1 | - |" in published_step(study.results)


def test_words_for_numbers() -> None:
    assert span([0.301, 0.1, 0.2]) == "10.0 % to 30.1 %"
    assert span([0.1, 0.10001]) == "10.0 %"
    assert span([]) == NOT_MEASURED
    assert of([True, False, True]) == "2 of 3"
    assert middle([{"gap": None}, {"gap": 1.0}, {"gap": 2.0}], "gap") == 2.0
    assert count_runs({"cells": [{"runs": [1, 2]}, {"runs": [3]}], "runs": [4]}) == 4
