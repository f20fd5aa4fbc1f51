"""Studies without run folders, and tables over rules: what is measured is kept, and pages say what their values say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi import RULES, InputError
from bymi.paper import study_centres, study_optimisers, study_pieces_on_arrays
from bymi.paper.computed_studies import COMPUTED
from bymi.paper.computed_study import ComputedStudy
from bymi.paper.page_rule_tables import endings, figure, page, worth
from bymi.paper.study_optimisers import METHODS, cut_graph
from bymi.paper.study_rule_tables import GRID_STUDIES, TOLD, build_grid
from bymi.training.decentralised_optimisers import OPTIMISERS

ROOT = Path(__file__).parents[1]


def test_points_are_measured_once_and_kept(tmp_path: Path) -> None:
    measured: list[int] = []

    def measure(point: dict[str, Any], data: Path | None) -> dict[str, Any]:
        measured.append(point["n"])
        return {"square": point["n"] ** 2}

    def points(fast: bool) -> list[dict[str, Any]]:
        return [{"n": n} for n in range(2 if fast else 4)]

    study = ComputedStudy("squares", "Squares.", points, measure, lambda values: f"{len(values['points'])} points\n")
    told: list[int] = []
    study.run(tmp_path, fast=True, data=None, jobs=1, tell=told.append)
    paths = study.run(tmp_path, fast=False, data=None, jobs=1, tell=told.append)
    assert measured == [0, 1, 2, 3]
    assert sum(told) == 6
    values = json.loads((tmp_path / "squares.json").read_text(encoding="utf-8"))
    assert [point["square"] for point in values["points"]] == [0, 1, 4, 9]
    assert values["command"] == "bymi reproduce squares"
    assert paths[-1].read_text(encoding="utf-8") == "4 points\n"


def test_computed_studies_cover_their_tables() -> None:
    assert set(COMPUTED) == {"optimisers", "centres", "centralised", "pieces-arrays"}
    assert {how["method"].split(":")[0] for how in METHODS.values()} == set(OPTIMISERS)
    point = {"centre": "mean", "kind": "far", "share": 0.2, "dim": 10}
    assert study_centres.measure(point)["error"] > 10 > 3 > study_centres.measure({**point, "centre": "filtering"})["error"]
    graph = cut_graph(0)
    assert not graph.symmetric
    assert bool(graph.core().members.all())


def test_optimisers_over_mutual_arcs_average_as_their_rows_say() -> None:
    """Nodes with few neighbours would keep the warm-up rule as their mixing: then the row would be of that rule."""
    stored = json.loads((ROOT / "docs/results/optimisers/optimisers.json").read_text(encoding="utf-8"))["points"]
    for row in ("DSGD, mutual", "AB"):
        (point,) = (one for one in stored if (one["column"], one["row"], one["seed"]) == ("stochastic, equal", row, 0))
        curve, _ = study_optimisers._curve(row, "stochastic, equal", 0, point["step"])
        assert curve[-1] == pytest.approx(point["gap"], rel=1e-4)


def test_a_test_left_out_on_arrays_is_missed_where_it_is_needed() -> None:
    point = {"attack": "opposite halves", "share": 0.2, "dim": 30, "draws": 1}
    values = {**point, **study_pieces_on_arrays.measure(point)}
    assert values["found"][study_pieces_on_arrays.WHOLE] == 1
    assert values["found"]["screen, upper side"] == 0
    page = study_pieces_on_arrays.page({"command": "bymi reproduce pieces-arrays", "points": [values]})
    assert "| consistency (upper side) | 1 | opposite halves, d = 30, 20% bad (100 / 0.0 -> 0 / 0.0) | none |" in page
    assert "1, with 12 bad machines" in page
    clean = dict.fromkeys(values["lost"], 0.0)
    calm = {**point, "attack": "none", "found": dict.fromkeys(clean, 1.0), "lost": {**clean, "guard": 0.03}}
    assert "| guard | 1 | none, d = 30 (100 / 0.0 -> 100 / 3.0) | none |" in study_pieces_on_arrays.page(
        {"command": "", "points": [calm]}
    )


def test_every_attack_on_arrays_changes_the_bad_rows_alone() -> None:
    for attack, change in study_pieces_on_arrays.ATTACKS.items():
        first, second, bad = study_pieces_on_arrays.halves_of(attack, 0.2, 30, 3)
        plain = "none, heavy tails" if attack.endswith("heavy tails") else "none"
        before = study_pieces_on_arrays.halves_of(plain, 0.2, 30, 3)
        assert bad == (12 if change else 0)
        for now, then in ((first, before[0]), (second, before[1])):
            assert torch.equal(now[bad:], then[bad:])
            assert not bad or bool((now[:bad] != then[:bad]).any(1).all()), attack


def test_tables_over_rules_name_runs_by_row_and_column() -> None:
    study = build_grid("misspecified", seeds=1)
    rows = {row for row, _, _ in study.trials}
    assert {f"ios {word}" for word in TOLD} <= rows
    shares = {row: spec.warm_up.rule.share for row, _, spec in study.trials if row.startswith("ios")}
    assert shares == {"ios 0": 0.0, "ios half": 0.1, "ios exact": 0.2, "ios double": 0.4}
    assert len({spec.digest for spec in study.specs}) == len(study.trials)
    with pytest.raises(InputError, match="--only"):
        build_grid("rules", only=["nobody"])
    chosen = build_grid("rules", seeds=1, only=["balance"])
    assert {column.rpartition(", ")[2] for _, column, _ in chosen.trials} == {"alone", "published", "hardened"}
    assert {row for row, _, _ in build_grid("rules", seeds=1).trials} == set(RULES)
    assert set(GRID_STUDIES) == {"misspecified", "rules", "rules-mnist", "few-neighbours"}


@pytest.mark.parametrize("name", ["rules", "rules-mnist", "few-neighbours"])
def test_a_study_over_rules_is_one_heat_map_and_one_table(name: str) -> None:
    trials = build_grid(name, seeds=1).trials
    images = name != "rules"
    run = {"seed": 0, "outcome": "finished", "gap": None if images else 1e-3, "acc_scc": 0.9 if images else None}
    run |= {"acc_normal": None, "core_byzantine": 0, "pa": 1.0}
    rows, columns = (list(dict.fromkeys(trial[at] for trial in trials)) for at in (0, 1))
    cells: list[dict[str, Any]] = [{"row": row, "column": column, "runs": [run]} for row, column, _ in trials]
    cells[0]["runs"] = [{**run, "core_byzantine": 1}]
    data = {"study": name, "command": f"bymi reproduce {name}", "cells": cells}
    panel, _bar = figure(data).axes
    (grid,) = panel.images
    assert grid.get_array().shape == (len(rows), len(columns))  # type: ignore[union-attr]
    assert [text.get_text() for text in panel.texts] == ["x"], "the one cell with a Byzantine node in a core"
    text = page(data)
    assert text.count("![") == 1
    assert len([line for line in text.splitlines() if line.startswith("| ---")]) == 1
    assert [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")][2:] == rows
    assert "Not among these runs" not in text
    fewer = page({**data, "cells": [cell for cell in cells if cell["row"] != rows[-1]]})
    assert (f"Not among these runs: {rows[-1]}." in " ".join(fewer.split())) == (name != "few-neighbours")
    part = page({**data, "cells": cells[:-1]})
    words = f"Not among these runs: {rows[-1]} but for {len(columns) - 1} of {len(columns)} cells."
    assert (words in " ".join(part.split())) == (name != "few-neighbours")
    assert "hardened, infiltrated" not in text


def test_bad_endings_of_the_hardened_method_are_named_by_attack_and_rule() -> None:
    run = {"outcome": "finished", "core_byzantine": 0}
    cells = [
        {"row": rule, "column": f"{attack}, equal, {method}", "runs": [run]}
        for rule in ("average", "krum")
        for attack in ("IPM", "ALIE")
        for method in ("alone", "hardened")
    ]
    cells[1]["runs"] = [{**run, "outcome": "diverged"}]
    cells[-1]["runs"] = [{**run, "core_byzantine": 2}]
    lines = ["hardened, infiltrated: ALIE, equal (1 of 2 runs).", "hardened, diverged: average (1 of 2 runs)."]
    assert endings({"cells": cells})[2:] == lines


def test_a_diverged_run_is_no_small_gap() -> None:
    empty = {"acc_scc": None, "acc_normal": None, "core_byzantine": 0, "seed": 0}
    good, lost = {**empty, "gap": 1e-4, "outcome": "finished"}, {**empty, "gap": None, "outcome": "diverged"}
    assert worth([good]) == 1e-4
    assert worth([lost, lost, good]) == float("inf")
    infiltrated = {**good, "core_byzantine": 2}
    cells = [{"row": "ios 0", "column": "IPM", "runs": [lost]}, {"row": "hardened", "column": "IPM", "runs": [infiltrated]}]
    text = page({"study": "misspecified", "command": "bymi reproduce misspecified", "cells": cells})
    assert "| ios 0 | diverged (1 diverged of 1) |" in text
    assert "| hardened | 1.0e-04 (1 infiltrated of 1) |" in text
