"""The studies of the theory: their grids, and from run folders to JSON, page and figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bymi import InputError
from bymi.experiment import run_all
from bymi.experiment.spec import read_spec
from bymi.paper import page_theory as report
from bymi.paper.find_study import find_study
from bymi.paper.show_study import show
from bymi.paper.study_theory import KINDS, LEVELS, THEORY_STUDIES, TheoryStudy, Trial, build_theory
from bymi.runs import run_folder as store
from tests.pages import are_pictures, rows_of

COMMITTED = Path(__file__).parents[1] / "docs" / "results" / "theory"


def test_the_grids() -> None:
    theory, speed, levels = (build_theory(name) for name in ("theory", "speed-up", "fdr-level"))
    assert [trial.cell["detection"] for trial in theory.trials[:3]] == list(KINDS)
    assert len(theory.trials) == 15
    assert [trial.spec.detection.every for trial in theory.trials[:3]] == [None, None, 300]
    assert {trial.spec.profile for trial in theory.trials[:2]} == {"paper", "hardened"}
    assert len(levels.trials) == 5 * 2 * 8
    assert {trial.spec.detection.fdr_level for trial in levels.trials} == set(LEVELS)
    assert (LEVELS[0], LEVELS[-1]) == (0.05, 0.4)
    for trial in levels.trials:  # the default run, ended one round after its detection
        assert (trial.spec.steps, trial.spec.nodes, trial.spec.warm_up_steps) == (3000, 150, 300)
        assert trial.spec.stop is not None
    for trial in speed.trials:
        spec, cell = trial.spec, trial.cell
        assert (spec.nodes, spec.steps - spec.warm_up_steps) == (cell["nodes"], cell["rounds"])
        assert (spec.optimisation.step_size == "theorem") == (cell["panel"] != "default")
    for study in (theory, speed, levels):
        assert len({trial.spec.digest for trial in study.trials}) == len(study.trials)


def test_options() -> None:
    assert find_study("fdr-level", seeds=2).folder == "reproduce-fdr-level"
    assert len(find_study("theory", seeds=3, only=["hardened"]).specs) == 3
    assert len(find_study("speed-up", fast=True).specs) == 2
    with pytest.raises(InputError, match="--only: got 'nobody', allowed: published, hardened"):
        find_study("theory", only=["nobody"])
    with pytest.raises(InputError, match="--mu or --dim"):
        find_study("theory", mu=1.0)
    with pytest.raises(InputError, match="unknown study"):
        build_theory("practice")
    assert set(report._PAGES) == set(THEORY_STUDIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("theory")


def small(name: str) -> TheoryStudy:
    """A study with few nodes and rounds, without the cells that are too large even so."""
    trials = []
    for trial in build_theory(name, seeds=2).trials:
        if trial.cell.get("nodes", 40) > 80 or trial.cell.get("level", 0.05) not in (0.05, 0.4):
            continue
        values = trial.spec.model_dump(mode="json")
        values.update(
            steps=40 + trial.cell.get("rounds", 1000) // 50,
            nodes=values["nodes"] // 4,
            warm_up={**values["warm_up"], "steps": 20},
            graph="complete",
        )
        values["data"] = {**values["data"], "dim": 6}
        if values["detection"]["every"]:
            values["detection"]["every"] = 15
        trials.append(Trial(trial.cell, read_spec(values)))
    return TheoryStudy(name, name, trials)


@pytest.mark.parametrize("name", ["theory", "speed-up", "fdr-level"])
def test_from_runs_to_pages_and_figures(name: str, folder: Path) -> None:
    study = small(name)
    place = folder / study.folder
    assert all(isinstance(result, dict) for result in run_all(study.specs, place, jobs=1))
    paths, table = show(study, place, f"bymi reproduce {name}")
    assert table is None
    pictures = [path for path in paths if path.suffix in (".png", ".svg")]
    are_pictures(*pictures)
    assert len(pictures) == (0 if name == "theory" else 2)
    data = json.loads((place / f"{name}.json").read_text())
    assert sum(len(cell["runs"]) for cell in data["cells"]) == len(study.trials)
    for cell in data["cells"]:
        for run in cell["runs"]:
            chosen = [trial for trial in study.trials if trial.spec.digest == run["digest"]]
            assert {key: value for key, value in cell.items() if key != "runs"} == chosen[0].cell
            summary = store.read_json(store.folder_of(place, chosen[0].spec) / store.SUMMARY)
            assert run["theory"] == summary["theory"]
            assert run["fdp"] == summary["fdp"]
    # The page is made of the JSON, and of nothing else.
    page = (place / f"{name}.md").read_text()
    assert page == report.write_page(data, name)
    assert report.redraw(place / f"{name}.json") == [path for path in paths if path.suffix != ".json"]
    changed = json.loads(json.dumps(data))
    for run in changed["cells"][0]["runs"]:
        run["fdp"], run["theory"]["nodes"] = 0.777, 777
    assert report.write_page(changed, name) != page
    if name == "fdr-level":
        assert all(run["steps_done"] == 21 for cell in data["cells"] for run in cell["runs"])
        assert [row[1] for row in rows_of(place / f"{name}.md")] == ["5", "40", "5", "40"]


def test_nothing_run_is_an_empty_page(tmp_path: Path) -> None:
    for name in THEORY_STUDIES:
        paths = report.draw(build_theory(name, seeds=1), tmp_path / name, "command")
        assert "none yet" in paths[1].read_text()


def test_slopes_are_those_of_the_dots() -> None:
    def cell(panel: str, nodes: int, rounds: int, gradient: float, gap: float, **more: Any) -> dict[str, Any]:
        facts = {"nodes": nodes, "rounds": rounds, "mean_gradient": gradient, "start_gap": 2.0}
        run = {"outcome": "finished", "core_byzantine": 0, "gap": gap, "theory": facts, **more}
        return {"panel": panel, "detection": "hardened", "nodes": nodes, "rounds": rounds, "runs": [run]}

    cells = [cell("theorem's step", m, k, 3 / math.sqrt(m * k), 1.0) for m in (10, 40) for k in (100, 1000)]
    cells += [cell("default", m, 100, 1.0, 5 / m**2) for m in (10, 20, 40)]
    cells.append(cell("default", 80, 100, 1.0, 1e9, core_byzantine=3))  # not counted
    cells.append(cell("default", 80, 100, 1.0, 1e9, outcome="diverged"))
    found = {label: slope for label, *_, slope in report._slopes({"cells": cells})}
    assert found == {"theorem's step": pytest.approx(-0.5), "default, hardened": pytest.approx(-2.0)}


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda path: path.stem)
def test_committed_pages_are_made_of_the_committed_json(path: Path) -> None:
    assert path.with_suffix(".md").read_text().startswith(report.write_page(store.read_json(path), path.stem))
