"""Pages, curves and missed targets of the image studies, from run folders with known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bymi as package
from bymi.experiment.spec import Spec
from bymi.paper import page_image_curves as image_curves
from bymi.paper import page_images as report
from bymi.paper import study_images as images
from bymi.paper.committed_results import Results
from bymi.paper.study_images import IMAGE_STUDIES, build_image_study
from bymi.paper.summary_blocks import BLOCKS
from bymi.runs import run_folder as store
from bymi.runs.run_folder import SUMMARY_KEYS
from tests.pages import are_pictures, headings_of, rows_of

ATTACKS = ("ood", "gradient", "ipm")
CELL = ("ipm", "ios", "receiver", 0.2)


# What is missed


GOOD = {"outcome": "finished", "pa": 1.0, "fdp": 0.05, "acc_scc": 0.975, "acc_normal": 0.97, "grad_norm": 0.05}


def missed(*changes: dict[str, Any], data: str = "mnist", alone: float | None = 0.97, published: float = 97.3) -> list[str]:
    found = [{**GOOD, **change} for change in changes or ({},)]
    return report.misses(data, "receiver", published, found, [] if alone is None else [{**GOOD, "acc_normal": alone}])


def test_every_target_that_is_missed_is_named() -> None:
    assert missed() == []
    assert missed({"pa": 0.99}) == ["P_a below 100"]
    assert missed({"fdp": 0.11}) == ["FDP above 10"]
    assert missed({"acc_scc": 0.968}) == ["0.5 points below the paper"]
    assert missed({"acc_scc": 0.975}, alone=0.981) == ["0.6 points below the rule alone"]
    assert missed({"grad_norm": 0.11}) == ["gradient norm above 0.1"]
    assert missed({"grad_norm": None}) == ["gradient norm above 0.1"]
    assert missed({"grad_norm": 0.11}, data="fashion-mnist") == [], "a target of MNIST only"
    everything = missed({"pa": 0.5, "fdp": 0.3, "acc_scc": 0.5, "grad_norm": 3.0})
    assert [entry.split()[-1] for entry in everything] == ["100", "10", "paper", "alone", "0.1"]


def test_targets_are_held_by_the_mean_over_seeds() -> None:
    assert missed({"fdp": 0.02}, {"fdp": 0.16}) == []
    assert missed({"fdp": 0.05}, {"fdp": 0.17}) == ["FDP above 10"]
    assert missed({"pa": 1.0}, {"pa": 0.999}) == ["P_a below 100"], "everybody, in every run"
    assert missed({"acc_scc": 0.971}, {"acc_scc": 0.973}) == [], "0.1 below is within the slack of 0.3"
    assert missed({"grad_norm": 0.01}, {"grad_norm": 0.11}) == []
    assert missed({"grad_norm": 0.06}, {"grad_norm": 0.15}) == ["gradient norm above 0.1"]
    assert missed({"grad_norm": 0.01}, {"grad_norm": None}) == ["gradient norm above 0.1"], (
        "a run that was lost is not averaged away"
    )
    assert missed(alone=None) == [], "nothing to compare with"


def test_a_run_that_never_came_to_its_detection_misses_everything() -> None:
    """Diverged while warming up: there is no verdict to measure."""
    lost = {"pa": None, "fdp": None, "acc_scc": None, "grad_norm": None}
    found = missed(lost)
    assert "P_a below 100" in found
    assert "FDP above 10" in found
    assert "97.3 points below the paper" in found
    assert "gradient norm above 0.1" in found


def test_bad_endings_are_a_miss() -> None:
    assert missed({"outcome": "diverged"}, {}, {"outcome": "isolated"}) == ["1 diverged, 1 isolated of 3"]
    assert missed({"outcome": "finished", "core_byzantine": 3}) == ["1 infiltrated of 1"]


def test_the_summary_says_what_was_not_run_and_which_version_made_the_rest(tmp_path: Path) -> None:
    run = {**GOOD, "acc_all": 0.9, "core_byzantine": 0, "seed": 0, "bymi": "0.8.0"}
    cell = {"attack": "ipm", "rule": "ios", "ratio": 0.1, "column": "hardened", "runs": [run]}
    place = tmp_path / "docs" / "results" / "images" / "ratios-mnist.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"command": "", "cells": [cell]}))
    text = BLOCKS["images"](Results(tmp_path))
    assert "| mnist | hardened | 0.1 | 1 of 9 | gradient (3), ipm (2), ood (3) | 1 |" in text
    assert "| 0.8.0 |" in text


def paper_missed(*changes: dict[str, Any]) -> list[str]:
    found = {("ipm", "ios", 0.2, "published"): [{**GOOD, **change} for change in changes]}
    return report._table_misses("mnist", "ipm", "ios", "published", found)  # the paper has 97.4 %


def test_the_published_method_is_held_to_what_the_paper_says() -> None:
    assert paper_missed({}) == []
    assert paper_missed({"fdp": 0.4, "pa": 0.99, "acc_scc": 0.9691}) == []
    assert paper_missed({"acc_scc": 0.095}) == ["87.9 points below the paper"], "P_a alone would not show it"
    assert paper_missed({"fdp": 0.41}) == ["FDP above 40"]
    assert paper_missed({"pa": 0.98}) == ["P_a below 99"]
    assert paper_missed({"outcome": "fragmented"}, {}) == ["1 fragmented of 2"]
    lost = {"outcome": "diverged", "pa": None, "fdp": None, "acc_scc": None}
    assert paper_missed(lost) == ["1 diverged of 1", "P_a below 99", "FDP above 40", "97.4 points below the paper"]


def test_cells_say_how_many_runs_they_are_of() -> None:
    runs = [{"pa": value} for value in (0.97, 0.98, None, float("nan"))]
    assert report._cell(runs, "pa", 99.0) == "97.5 ± 0.7 (2 of 4) [99.0]"
    assert report._cell(runs[:1], "pa", None) == "97.0"
    assert report._cell(runs[2:], "pa", 99.0) == "none of 2 [99.0]"
    assert report._cell(runs[2:], "pa", None) == "-", "a rule alone detects nobody"
    assert report._cell([{"grad_norm": None}], "grad_norm", None) == "none of 1", "a gradient that is not finite"
    assert report._cell([], "acc_normal", None) == "-"


def test_every_bad_ending_is_named() -> None:
    runs = [{"outcome": outcome} for outcome in ("diverged", "fragmented", "finished", "diverged")]
    assert report._ended(runs) == "4: 2 diverged, 1 fragmented"
    assert report._ended([{"outcome": "finished"}] * 5) == "5"


# Pages and curves of run folders made by hand


def pretend(folder: Path, spec: Spec, **values: Any) -> None:
    """A complete run folder with these numbers."""
    place = store.folder_of(folder, spec)
    place.mkdir(parents=True)
    detected = spec.method == "drsgd-bymi"
    summary: dict[str, Any] = {**dict.fromkeys(SUMMARY_KEYS), "outcome": "finished", "sentence": "all rounds done"}
    summary.update(seed=spec.seed, digest=spec.digest, method=spec.label, steps_done=500, seconds=2.0)
    summary.update(acc_all=0.5, acc_normal=0.9, grad_norm=0.0625, acc_scc=0.975 if detected else None)
    summary.update(fdp=0.04 if detected else None, pa=1.0 if detected else None)
    summary.update(values)
    store.write_json(place / store.SPEC, spec.resolved.values)
    store.write_json(place / store.SUMMARY, summary)
    made = {"bymi": package.__version__, "torch": "2.9", "cores": 2, "gpu": "a GPU" if spec.seed else None}
    store.write_json(place / store.ENVIRONMENT, made)
    row = {"phase": "warm-up", "grad_norm": 1.0, "acc_normal": 0.3, "acc_scc": None}
    rows = [{**row, "step": 10}, {**row, "step": 500, "acc_scc": summary["acc_scc"], "grad_norm": summary["grad_norm"]}]
    (place / store.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    store.seal(place)


def test_a_page_shows_mean_and_deviation_and_the_paper(tmp_path: Path) -> None:
    study = build_image_study("table-mnist", seeds=2)
    for cell in study.cells:
        # 97 % and 98 %: mean 97.5, standard deviation (of a sample) 0.7.
        accuracy = {"acc_scc": 0.97 + 0.01 * cell.spec.seed} if cell.spec.method == "drsgd-bymi" else {}
        pretend(tmp_path, cell.spec, **accuracy)
    page, data = report.draw(study, tmp_path, "bymi reproduce table-mnist")
    assert (page.name, data.name) == ("table-mnist.md", "table-mnist.json")
    rows = {tuple(row[:3]): dict(zip(headings_of(page), row, strict=True)) for row in rows_of(page)}
    assert len(rows) == len(rows_of(page)) == 3 * 15 + 3
    row = rows["IPM", "UBAR", "receiver"]
    assert (row["Acc (scc)"], row["FDP"], row["P_a"]) == ("97.5 ± 0.7 [97.6]", "4.0 ± 0.0 [21.7]", "100.0 ± 0.0 [100.0]")
    assert (row["Acc (all)"], row["Acc (normal)"]) == ("50.0 ± 0.0", "90.0 ± 0.0"), "the paper has these of rules alone"
    assert (row["gradient norm"], row["runs"]) == ("0.062 ± 0.000", "2")
    row = rows["Gradient", "IOS", "alone"]
    assert (row["Acc (all)"], row["Acc (normal)"]) == ("50.0 ± 0.0 [34.2]", "90.0 ± 0.0 [76.3]")
    assert (row["Acc (scc)"], row["FDP"], row["P_a"]) == ("-", "-", "-")
    assert rows["OOD", "no robust rule", "undefended"]["Acc (normal)"] == "90.0 ± 0.0 [65.0]"
    text = page.read_text()
    assert "`bymi reproduce table-mnist`; 96 runs, 2 seeds a cell," in text
    assert (
        "made on: 2 CPU cores, a GPU. Versions by column and ratio: [summary](README.md); every value: [table-mnist.json]("
        in text
    )
    assert text.count("\n* **") == 7, "what each column means"


@pytest.mark.parametrize("name", ["table-mnist", "ratios-fashion"])
def test_a_page_is_written_from_its_json_alone(name: str, tmp_path: Path) -> None:
    study = build_image_study(name, seeds=2)
    for cell in study.cells:
        pretend(tmp_path, cell.spec)
    page, data = report.draw(study, tmp_path, f"bymi reproduce {name}")
    values = json.loads(data.read_text())
    assert report.page(name, values) == page.read_text()
    (changed,) = [cell for cell in values["cells"] if (cell["attack"], cell["rule"], cell["column"], cell["ratio"]) == CELL]
    changed["runs"][0]["fdp"] = 0.5
    assert report.page(name, values) != page.read_text()


def test_every_run_is_in_the_data(tmp_path: Path) -> None:
    study = build_image_study("ratios-fashion", seeds=2)
    for cell in study.cells:
        pretend(tmp_path, cell.spec)
    _, data = report.draw(study, tmp_path, "a command")
    written = json.loads(data.read_text())
    assert written["command"] == "a command"
    runs = [run for cell in written["cells"] for run in cell["runs"]]
    assert len(written["cells"]) == 3 * (3 * 3 * 4 + 3)
    assert {run["digest"] for run in runs} == {spec.digest for spec in study.specs}
    assert len(runs) == len(study.cells)
    assert all({"seed", "outcome", "acc_scc", "fdp", "pa", "grad_norm", "seconds", "made_on"} <= set(run) for run in runs)


def test_ratios_in_the_order_of_the_paper_with_what_is_missed(tmp_path: Path) -> None:
    study = build_image_study("ratios-mnist", seeds=1)
    for cell in study.cells:
        bad = (cell.attack, cell.rule, cell.ratio) == ("ipm", "ubar", 0.1) and cell.column == "receiver"
        pretend(tmp_path, cell.spec, **({"fdp": 0.25, "outcome": "isolated"} if bad else {}))
    page, _ = report.draw(study, tmp_path, "bymi reproduce ratios-mnist")
    rows = [dict(zip(headings_of(page), row, strict=True)) for row in rows_of(page)]
    assert len(rows) == 3 * 27 + 9
    assert {row["column"] for row in rows} == {"published", "published-averaging", "receiver", "hardened"}
    rows = [row for row in rows if row["column"] == "receiver"]
    assert [row["attack"] for row in rows[::9]] == ["OOD", "Gradient", "IPM"]
    assert [row["ratio"] for row in rows[:3]] == ["0.1", "0.2", "0.3"]
    (row,) = [row for row in rows if (row["attack"], row["rule"], row["ratio"]) == ("IPM", "UBAR", "0.1")]
    assert (row["FDP"], row["P_a"], row["Acc (scc)"]) == ("25.0 [24.0]", "100.0 [99.7]", "97.5 [78.9]")
    assert (row["runs"], row["misses"]) == ("1: 1 isolated", "1 isolated of 1; FDP above 10")
    assert row["rule alone: Acc (normal)"] == "90.0"
    assert {row["misses"] for row in rows} == {"-", "1 isolated of 1; FDP above 10"}


@pytest.mark.parametrize("name", ["table-mnist", "ratios-mnist"])
def test_a_missing_cell_is_missing(name: str, tmp_path: Path) -> None:
    """One cell without any run, another with one of two."""
    study = build_image_study(name, seeds=2)
    for cell in study.cells:
        where = (cell.attack, cell.rule, cell.ratio, cell.column)
        if where == ("ood", "ios", 0.2, "receiver") or (where == ("ipm", "ios", 0.2, "receiver") and cell.spec.seed):
            continue
        pretend(tmp_path, cell.spec)
    runs = report.collect(study, tmp_path)
    assert ("ood", "ios", 0.2, "receiver") not in runs
    assert [run["seed"] for run in runs["ipm", "ios", 0.2, "receiver"]] == [0]
    page, data = report.draw(study, tmp_path, "bymi reproduce")
    place = ("receiver",) if name == "table-mnist" else ("0.2", "receiver")
    rows = {tuple(row[: 2 + len(place)]): row for row in rows_of(page)}
    assert ("OOD", "IOS", *place) not in rows
    assert rows["IPM", "IOS", *place][headings_of(page).index("Acc (scc)")] == "97.5 [97.4]"
    written = [(cell["attack"], cell["rule"], cell["ratio"], cell["column"]) for cell in json.loads(data.read_text())["cells"]]
    assert ("ood", "ios", 0.2, "receiver") not in written


@pytest.mark.parametrize("name", IMAGE_STUDIES)
def test_a_study_without_any_run_is_empty_and_no_trace(name: str, tmp_path: Path) -> None:
    study = build_image_study(name, seeds=1)
    paths = report.draw(study, tmp_path, "bymi reproduce")
    assert all(path.exists() for path in paths)
    (data,) = [path for path in paths if path.suffix == ".json"]
    written = json.loads(data.read_text())
    assert written[{"ood-scale": "settings", "curves-mnist": "curves"}.get(name, "cells")] == []


def test_curves_are_pictures_one_pair_an_attack(tmp_path: Path) -> None:
    study = build_image_study("curves-mnist")
    for cell in study.cells:
        pretend(tmp_path, cell.spec)
    *pictures, page, data = report.draw(study, tmp_path, "bymi reproduce curves-mnist")
    assert page.name == "curves-mnist.md"
    assert len(rows_of(page)) == 3 * 3 * 4 + 3, "OOD nodes that average have curves of their own"
    assert "No curves, for want of runs: none." in page.read_text()
    assert {path.name for path in pictures} == {
        f"curves-mnist-{attack}.{kind}" for attack in ATTACKS for kind in ("png", "svg")
    }
    for path in pictures:
        are_pictures(path)
    assert len(json.loads(data.read_text())["curves"]) == 3 * 3 * 4 + 3


def test_curves_follow_the_rows_of_the_runs(tmp_path: Path) -> None:
    study = build_image_study("curves-mnist", seeds=2)
    for cell in study.cells:
        if (cell.attack, cell.rule) == ("ood", "ubar") and cell.column in ("published", "published-averaging", "alone"):
            pretend(tmp_path, cell.spec, grad_norm=0.25 + 0.5 * cell.spec.seed)
    values = image_curves.document(study, tmp_path, "bymi reproduce curves-mnist")
    figure = image_curves.figure(values, "mnist", "ood", "OOD")
    norms, accuracies = figure.axes[0], figure.axes[3]
    labels = ["DRSGD-ByMI, published", "the same, OOD nodes average", "the rule alone"]
    assert [line.get_label() for line in norms.lines] == labels
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
    assert "over 2 seeds" in figure.get_suptitle()
    assert [list(line.get_xdata()) for line in norms.lines] == [[10, 500]] * 3
    assert [list(line.get_ydata()) for line in norms.lines] == [[1.0, 0.5]] * 3, "the median of 0.25 and 0.75"
    assert [list(line.get_ydata()) for line in accuracies.lines] == [[0.3, 0.3]] * 3, "of honest nodes"
    assert not figure.axes[1].lines, "IOS has not been run"
    text = image_curves.page("curves-mnist", values)
    assert "No curves, for want of runs: ood, UBAR, receiver; ood, UBAR, hardened; ood, IOS, published;" in text
    assert len(values["curves"][0]["made"]) == 2


def test_scales_are_drawn_with_all_values(tmp_path: Path) -> None:
    study = build_image_study("ood-scale", seeds=2)
    for cell in study.cells:
        pretend(tmp_path, cell.spec, acc_all=0.5 + cell.spec.seed / 10)
    *pictures, data = report.draw(study, tmp_path, "bymi reproduce ood-scale")
    are_pictures(*pictures)
    settings = json.loads(data.read_text())["settings"]
    assert len(settings) == 2 * len(images.SCALES)
    assert all(setting["acc_all"] == [50.0, 60.0] for setting in settings)
