"""The studies behind the paper's figures, small: grids, figures, medians, resuming."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bymi import InputError
from bymi.commands.run import steps_to_do
from bymi.experiment import load, run_all
from bymi.paper import page_default_experiment as default
from bymi.paper import page_scenarios_a_b as report
from bymi.paper.find_study import find_study
from bymi.paper.provenance import fingerprints
from bymi.paper.show_study import show
from bymi.paper.study_default_experiment import DefaultStudy
from bymi.paper.study_scenarios_a_b import Study, build_study
from bymi.report.tables import terminal_table
from bymi.runs import run_folder as store
from tests.commands import FINISHES


def test_the_scenes_are_those_of_the_paper_and_the_grids_ours() -> None:
    """The paper prints sizes, rounds, levels and seeds; which s_r and which ratios its figures have, it does not print."""
    a, b = build_study("scenario-a"), build_study("scenario-b")
    assert len(a.cells) == len(b.cells) == 8 * 2 * 3 * 5
    assert a.values == (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert (b.values[0], b.values[-1]) == (0.05, 0.4)
    for cell in a.cells:
        assert (cell.spec.data.dim, cell.spec.data.samples) in {(30, 100), (80, 200)}
        assert (cell.spec.nodes, cell.spec.steps, cell.spec.warm_up_steps) == (150, 3000, 300)
        assert cell.spec.attack.model_dump() == {"name": "parameter", "share": cell.value, "mu": 5.0}
        assert cell.spec.detection.fdr_level == 0.2
    assert {cell.spec.byzantine_ratio for cell in b.cells} == set(b.values)
    assert {cell.spec.warm_up.rule.name for cell in b.cells} == {"ubar", "ios", "balance"}
    assert {cell.spec.seed for cell in b.cells} == {0, 1, 2, 3, 4}
    assert len({cell.spec.digest for cell in [*a.cells, *b.cells]}) == 480


def test_options_of_a_study() -> None:
    assert {cell.spec.attack.model_dump()["mu"] for cell in build_study("scenario-a", mu=1.0).cells} == {1.0}
    assert build_study("scenario-a", mu=1.0).folder != build_study("scenario-a").folder
    assert len(build_study("scenario-b", fast=True).cells) == 9
    with pytest.raises(InputError, match="scenario-c"):
        build_study("scenario-c")
    with pytest.raises(InputError, match="--dim: got 31"):
        build_study("scenario-a", dims=(31,))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study with every cell shrunk to 24 nodes and 40 rounds."""
    full = build_study("scenario-b", fast=True)
    cells = [
        type(cell)(cell.dim, cell.warm_up, cell.value, cell.spec.model_copy(update={"nodes": 24, "steps": 40}))
        for cell in full.cells
    ]
    folder = tmp_path_factory.mktemp("study")
    study = Study(full.name, full.title, full.axis, full.values, cells)
    run_all(study.specs, folder, jobs=1)
    return study, folder


def test_figures_and_medians_are_written(small: tuple[Study, Path]) -> None:
    study, folder = small
    paths = report.draw(study, folder, "bymi reproduce scenario-b")
    assert {path.suffix for path in paths} == {".png", ".svg", ".md", ".json"}
    assert all(path.stat().st_size > 500 for path in paths)
    headings, rows = report.medians(study.axis, report.collect(study, folder))
    assert headings[:3] == ["d", "Byzantine ratio", "warm-up"]
    assert len(rows) == 9
    values = json.loads((folder / "values.json").read_text())
    assert sum(len(setting["runs"]) for setting in values["settings"]) == 9
    assert report.page(values) == (folder / "medians.md").read_text(), "the page is a function of the JSON"
    assert report.read_settings(values) == report.collect(study, folder)
    assert values["figures"] == fingerprints([path for path in paths if path.suffix in (".png", ".svg")])


def test_a_study_resumes_where_it_stopped(small: tuple[Study, Path]) -> None:
    study, folder = small
    kept, lost = (store.folder_of(folder, study.specs[index]) / store.SUMMARY for index in (0, 1))
    before = kept.stat().st_mtime_ns
    lost.unlink()
    assert len(report.collect(study, folder)) == 8  # one setting has no run: it is missing, not invented
    steps: list[int] = []
    assert steps_to_do([spec.resolved for spec in study.specs], folder) == 40
    run_all(study.specs, folder, jobs=1, watch=lambda index, status: steps.append(status.rounds))
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()
    assert sum(steps) == 40  # the bar counts what was left to do


def test_a_diverged_run_counts_as_an_infinite_gap() -> None:
    lost = {"gap": None, "pa": None, "outcome": "diverged"}
    fine = [{"gap": gap, "pa": 1.0, "outcome": "finished"} for gap in (1e-3, 3e-3)]
    assert report._middle("gap", [lost, *fine]) == "3.0e-03"
    assert report._middle("gap", [lost, lost, fine[1]]) == "diverged"
    assert report._middle("gap", [{**lost, "outcome": "infiltrated"}]) == "not finite"


def test_the_default_study_is_what_bymi_run_runs() -> None:
    study = find_study("default")
    assert [spec.digest for spec in study.specs] == [spec.digest for spec in load(None).expand()]
    assert {spec.seed for spec in study.specs} == {0}
    assert len(find_study("default", fast=True).specs) == len(study.specs)
    with pytest.raises(InputError, match="--only, --mu or --dim"):
        find_study("default", only=["hardened"])


def test_table_and_figure_of_the_default_study_are_of_the_same_runs(tmp_path: Path) -> None:
    study = DefaultStudy("default", load(None, FINISHES).expand())
    results = run_all(study.specs, tmp_path, jobs=1)
    paths, table = show(study, tmp_path, "bymi reproduce default")
    assert table is None
    assert [path.name for path in paths] == ["default.png", "default.svg", "default.json"]
    values = json.loads(paths[-1].read_text())
    assert values["figures"] == fingerprints(paths[:-1])
    assert values["study"].startswith("40 nodes, 20 % Byzantine")
    assert {"made_on", "torch", "bymi"} <= set(values["runs"][0])
    printed = Console(file=io.StringIO(), width=140)
    printed.print(terminal_table([summary for summary in results if isinstance(summary, dict)], title=values["study"]))
    shown = printed.file.getvalue()  # type: ignore[attr-defined]
    assert [line.split() for line in default.text(values).splitlines()[:8]] == [line.split() for line in shown.splitlines()[:8]]


def test_the_default_study_without_a_run_is_empty_and_no_trace(tmp_path: Path) -> None:
    (path,) = default.draw(DefaultStudy("default", load(None, FINISHES).expand()), tmp_path)
    assert json.loads(path.read_text())["runs"] == []


def test_a_run_without_a_verdict_counts_as_one_that_missed() -> None:
    runs = [{"pa": pa, "outcome": "finished"} for pa in (None, 0.9, 1.0)]
    assert report._middle("pa", runs) == "90.0"


def test_medians_name_every_bad_ending(small: tuple[Study, Path]) -> None:
    study, _ = small
    run = {"fdp": 0.2, "pa": 1.0, "gap": 1e-4, "core_byzantine": 0}
    outcomes = ("finished", "isolated", "diverged", "isolated")
    runs = [{**run, "outcome": outcome} for outcome in outcomes] + [{**run, "outcome": "finished", "core_byzantine": 2}]
    _, (row,) = report.medians(study.axis, {(30, "IOS", 0.1): runs})
    assert row[-2:] == ["5", "1 diverged, 2 isolated, 1 infiltrated"]
