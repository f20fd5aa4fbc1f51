"""The studies on images: their cells, the paper's numbers, and a tiny one from the command line to its page."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bymi import InputError
from bymi.experiment.spec import Spec, read_spec
from bymi.paper import page_image_curves as image_curves
from bymi.paper import page_images as pages
from bymi.paper import study_images as images
from bymi.paper.published_tables import RULES_ALONE, WITH_DETECTION
from bymi.paper.study_images import IMAGE_STUDIES, ImageStudy, build_image_study
from bymi.runs import run_folder as store
from tests.commands import bymi, dates_in, mistake
from tests.idx_files import write_image_set
from tests.pages import are_pictures, headings_of, rows_of

ATTACKS, RULES = ("ood", "gradient", "ipm"), ("ubar", "ios", "balance")


# Which runs


def test_the_table_has_every_attack_rule_and_column() -> None:
    """Five seeds of: no rule; three rules with three kinds of detection and alone; two of them told the global share.

    Under OOD the published method runs twice: Byzantine nodes do not average, or they do.
    """
    study = build_image_study("table-mnist")
    assert len(study.cells) == 5 * (3 * (1 + 3 * 4 + 2) + 3) == len(set(digests(study)))
    counts = Counter((cell.attack, cell.rule, cell.column) for cell in study.cells)
    expected = [(attack, "none", "undefended") for attack in ATTACKS]
    kinds = ("published", "receiver", "hardened", "alone")
    expected += [(attack, rule, column) for attack in ATTACKS for rule in RULES for column in kinds]
    expected += [("ood", rule, "published-averaging") for rule in RULES]
    expected += [(attack, rule, "alone-global") for attack in ATTACKS for rule in ("ubar", "ios")]
    assert counts == dict.fromkeys(expected, 5)
    assert {cell.ratio for cell in study.cells} == {0.2}


def test_the_ratios_have_five_seeds_of_the_published_method_and_in_the_middle() -> None:
    study = build_image_study("ratios-mnist")
    assert len(study.cells) == (3 + 5 + 3) * 3 * 3 * 3 + (5 + 5 + 5) * 3 * 4 == len(set(digests(study)))
    counts = Counter((cell.attack, cell.rule, cell.ratio, cell.column) for cell in study.cells)
    for attack in ATTACKS:
        for rule in RULES:
            for column in ("hardened", "receiver", "alone"):
                assert [counts[attack, rule, ratio, column] for ratio in (0.1, 0.2, 0.3)] == [3, 5, 3]
            assert [counts[attack, rule, ratio, "published"] for ratio in (0.1, 0.2, 0.3)] == [5, 5, 5]
            averaging = 5 if attack == "ood" else 0
            assert [counts[attack, rule, ratio, "published-averaging"] for ratio in (0.1, 0.2, 0.3)] == [averaging] * 3


def digests(study: ImageStudy) -> list[str]:
    return [spec.digest for spec in study.specs]


@pytest.mark.parametrize("data", ["mnist", "fashion"])
def test_table_and_ratios_share_their_runs(data: str) -> None:
    table, ratios = build_image_study(f"table-{data}"), build_image_study(f"ratios-{data}")
    assert table.folder == ratios.folder
    shared = set(digests(table)) & set(digests(ratios))
    assert shared == {cell.spec.digest for cell in ratios.cells if cell.ratio == 0.2}
    assert len(shared) == 5 * (3 * 3 * 4 + 3)


def test_curves_are_drawn_from_runs_of_the_table() -> None:
    table, curves = build_image_study("table-mnist"), build_image_study("curves-mnist")
    assert len(curves.cells) == 5 * (3 * 3 * 4 + 3)
    assert set(digests(curves)) < set(digests(table))
    assert {cell.column for cell in curves.cells} == {"published", "published-averaging", "receiver", "hardened", "alone"}
    assert all(spec.record_every == 20 for spec in curves.specs)
    assert {spec.record_every for spec in build_image_study("table-fashion").specs} == {500}


def test_the_steps_of_a_column_are_those_of_its_specs() -> None:
    assert images.steps_of("alone") == "0.1 in all rounds (trapezoid)"
    assert images.steps_of("published").endswith("then 0.12 (trapezoid, local steps capped at 0.08)")
    assert "; under IPM 0.02 in the warm-up" in images.steps_of("hardened")


def test_data_sets_share_nothing() -> None:
    table, other = build_image_study("table-mnist"), build_image_study("table-fashion")
    assert len(other.cells) == len(table.cells)
    assert table.folder != other.folder
    assert not set(digests(table)) & set(digests(other))


@pytest.mark.parametrize("name", ["table-mnist", "ratios-fashion"])
def test_a_spec_is_what_its_cell_says(name: str) -> None:
    for cell in build_image_study(name).cells:
        spec = cell.spec
        assert read_spec(spec.model_dump(mode="json")) == spec
        assert (spec.data.name, spec.attack.name, spec.byzantine_ratio) == (cell.data, cell.attack, cell.ratio)
        assert (spec.nodes, spec.steps) == (150, 500)
        whole = dict.fromkeys(images.DETECTING, "drsgd-bymi")
        method = {**whole, "undefended": "dsgd"}.get(cell.column, "rule")
        assert spec.method == method
        if cell.rule != "none":
            assert spec.warm_up.rule.name == cell.rule
        if cell.rule in ("ubar", "ios"):
            told = cell.ratio if cell.column == "alone-global" else 0.35
            assert spec.warm_up.rule.model_dump()["share"] == told
        if method == "drsgd-bymi":
            published = cell.column in images.PUBLISHED
            assert spec.detection.point == ("sender" if published else "receiver")
            assert spec.detection.scale.name == "identity"
            assert spec.detection.cross_fit is not published
            assert spec.warm_up.cool_down == (0.4 if published else 0.0)
            assert spec.optimisation.order == ("combine-then-adapt" if published else "adapt-then-combine")
            assert spec.byzantine_mixing == ("plain" if cell.column == "published-averaging" else "none")
            assert (spec.panel is not None) is (spec.profile == "hardened") is (cell.column == "hardened")


def test_options_of_a_study() -> None:
    assert {cell.spec.seed for cell in build_image_study("table-mnist", seeds=2).cells} == {0, 1}
    only = build_image_study("table-mnist", only=("receiver", "undefended"))
    assert {cell.column for cell in only.cells} == {"receiver", "undefended"}
    assert len(only.cells) == 5 * 3 * (1 + 3)
    with pytest.raises(InputError, match=r"^'table-cifar': unknown study, allowed: .*table-mnist"):
        build_image_study("table-cifar")
    with pytest.raises(InputError, match=r"^--only: got 'recever', allowed: undefended, alone, .*receiver, hardened$"):
        build_image_study("table-mnist", only=("recever",))


@pytest.mark.parametrize("name", [name for name in IMAGE_STUDIES if name != "ood-scale"])
def test_fast_keeps_one_seed_of_one_cell(name: str) -> None:
    whole, fast = build_image_study(name), build_image_study(name, fast=True)
    assert {(cell.attack, cell.ratio, cell.spec.seed) for cell in fast.cells} == {("ipm", 0.2, 0)}
    assert [(cell.rule, cell.column) for cell in fast.cells] == (
        [("none", "undefended")] * name.startswith("table")
        + [("balance", column) for column in ("published", "receiver", "hardened", "alone")]
    )
    assert set(digests(fast)) < set(digests(whole)), "a look is a part of the result"
    assert fast.folder == whole.folder
    assert fast.name != whole.name, "and does not overwrite its page"


def test_scales_of_the_noise_on_both_data_sets() -> None:
    study = build_image_study("ood-scale")
    counts = Counter((cell.data, cell.scale) for cell in study.cells)
    assert counts == {(data, scale): 5 for data in ("mnist", "fashion-mnist") for scale in images.SCALES}
    assert {spec.method for spec in study.specs} == {"dsgd"}
    assert len(set(digests(study))) == 60


# The paper's numbers, copied by hand from its tables


def test_published_numbers_of_the_rules_alone() -> None:
    """tab:attack-results1 and tab:attack-results-fmnist: Acc (all), Acc (normal)."""
    assert len(RULES_ALONE) == 2 * 3 * 4
    assert RULES_ALONE["mnist", "ood", "none"] == (57.8, 65.0)
    assert RULES_ALONE["mnist", "ood", "balance"] == (86.0, 86.5)
    assert RULES_ALONE["mnist", "gradient", "ios"] == (34.2, 76.3)
    assert RULES_ALONE["mnist", "ipm", "ubar"] == (25.1, 93.0)
    assert RULES_ALONE["mnist", "ipm", "balance"] == (8.5, 97.2)
    assert RULES_ALONE["fashion-mnist", "ood", "ubar"] == (78.0, 80.2)
    assert RULES_ALONE["fashion-mnist", "gradient", "none"] == (37.8, 38.2)
    assert RULES_ALONE["fashion-mnist", "gradient", "balance"] == (30.8, 83.8)


def test_published_numbers_with_detection() -> None:
    """tab:attack-results2 and tab:attack-results3: FDP, P_a, Acc (scc)."""
    assert len(WITH_DETECTION) == 2 * 3 * 3
    assert all(set(row) == {0.1, 0.2, 0.3} for row in WITH_DETECTION.values())
    assert WITH_DETECTION["mnist", "ood", "ios"][0.3] == (42.8, 100.0, 97.0)
    assert WITH_DETECTION["mnist", "gradient", "ubar"][0.1] == (23.6, 100.0, 97.4)
    assert WITH_DETECTION["mnist", "ipm", "ubar"][0.1] == (24.0, 99.7, 78.9)
    assert WITH_DETECTION["mnist", "ipm", "ios"][0.2] == (11.3, 100.0, 97.4)
    assert WITH_DETECTION["mnist", "ipm", "balance"][0.3] == (11.4, 100.0, 97.3)
    assert WITH_DETECTION["fashion-mnist", "ood", "ubar"][0.3] == (17.4, 94.3, 69.0)
    assert WITH_DETECTION["fashion-mnist", "ood", "balance"][0.3] == (17.8, 89.6, 73.6)
    assert WITH_DETECTION["fashion-mnist", "gradient", "ios"][0.2] == (14.0, 100.0, 83.3)
    assert WITH_DETECTION["fashion-mnist", "ipm", "ubar"][0.1] == (15.9, 100.0, 85.5)
    assert WITH_DETECTION["fashion-mnist", "ipm", "balance"][0.2] == (15.8, 100.0, 85.5)


def test_the_second_tables_repeat_the_first_at_ratio_two_tenths() -> None:
    """The columns FDP, P_a and Acc (scc) of tab:attack-results1 and tab:attack-results-fmnist, some rows of them."""
    rows = {
        ("mnist", "ood", "ubar"): (3.6, 100.0, 97.2),
        ("mnist", "ood", "ios"): (39.9, 100.0, 97.4),
        ("mnist", "gradient", "balance"): (16.6, 100.0, 97.3),
        ("mnist", "ipm", "ubar"): (21.7, 100.0, 97.6),
        ("fashion-mnist", "ood", "ubar"): (27.0, 99.3, 82.1),
        ("fashion-mnist", "gradient", "ubar"): (23.7, 100.0, 85.1),
    }
    assert {key: tuple(WITH_DETECTION[key][0.2]) for key in rows} == rows


# A tiny study from the command line to its page


def tiny(data: str, attack: str, rule: str, ratio: float, column: str, seed: int) -> Spec:
    """The spec of a cell, on 6 nodes for 4 rounds."""
    values = real_spec(data, attack, rule, ratio, column, seed).model_dump(mode="json")
    small = {"nodes": 6, "steps": 4, "record_every": 2, "graph": "complete"}
    small["data"] = {"name": data, "samples": 20, "identification": 8}
    small["warm_up"] = {**values["warm_up"], "steps": 2, "batch": 4}
    small["optimisation"] = {**values["optimisation"], "batch": 4}
    if column == "hardened":
        small["detection"] = {**values["detection"], "sample": 8}
    return read_spec({**values, **small})


real_spec = images.image_spec


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Two rules and one attack on tiny networks; the words that say where data and runs are."""
    monkeypatch.setattr(images, "image_spec", tiny)
    # By hand: what monkeypatch takes out of a dict it puts back at its end, and the order of attacks matters elsewhere.
    kept = {name: words for name, words in images.ATTACKS.items() if name not in ("ood", "gradient")}
    monkeypatch.setattr(images, "ATTACKS", kept)
    monkeypatch.setattr(pages, "ATTACKS", kept)
    monkeypatch.setattr(images, "RULES", ("ubar", "balance"))
    monkeypatch.setattr(image_curves, "RULES", ("ubar", "balance"))
    write_image_set(tmp_path / "data" / "mnist", train=120, test=50)
    return ("--data", tmp_path / "data", "--device", "cpu", "--jobs", 1, "--out", tmp_path / "runs")


def test_a_study_runs_resumes_and_draws(small_world: tuple[object, ...], tmp_path: Path) -> None:
    place = tmp_path / "runs" / "reproduce-mnist"
    answer = bymi("reproduce", "table-mnist", "--seeds", 2, *small_world)
    assert answer.code == 0
    assert all(" rounds/s, " in line for line in answer.err.splitlines())  # progress, where it takes long
    assert str(place / "table-mnist.md") in answer.out
    made = {path.name: dates_in(path) for path in place.iterdir() if path.is_dir()}
    assert len(made) == 2 * (1 + 2 * 4 + 1)
    rows = {tuple(row[1:3]): dict(zip(headings_of(place / "table-mnist.md"), row, strict=True)) for row in page_rows(place)}
    assert len(rows) == 1 + 2 * 4 + 1
    runs = [store.read_json(path / store.SUMMARY) for path in place.iterdir() if path.name.startswith("dsgd-")]
    accuracy = sum(100 * run["acc_all"] for run in runs) / 2
    assert rows["no robust rule", "undefended"]["Acc (all)"].startswith(f"{accuracy:.1f} ± ")
    assert rows["no robust rule", "undefended"]["Acc (all)"].endswith(" [10.4]")
    assert rows["BALANCE", "receiver"]["P_a"].endswith(" [100.0]")

    # One run is lost: it is made again, and only that one.
    lost = place / sorted(made)[0]
    (lost / store.SUMMARY).unlink()
    assert bymi("reproduce", "table-mnist", "--seeds", 2, *small_world) == answer
    after = {path.name: dates_in(path) for path in place.iterdir() if path.is_dir()}
    assert {name for name in made if after[name] != made[name]} == {lost.name}

    # The curves need no run that is not there, the ratios only those beside 0.2.
    assert bymi("reproduce", "curves-mnist", "--seeds", 2, *small_world).code == 0
    assert {path.name: dates_in(path) for path in place.iterdir() if path.is_dir()} == after
    are_pictures(place / "curves-mnist-ipm.png", place / "curves-mnist-ipm.svg")
    check_curves(place)
    assert bymi("reproduce", "ratios-mnist", "--seeds", 1, *small_world).code == 0
    assert len([path for path in place.iterdir() if path.is_dir()]) == len(made) + 2 * 2 * 4


def check_curves(place: Path) -> None:
    """Of two seeds the median is the mean of both; the band is from one to the other."""
    curves = json.loads((place / "curves-mnist.json").read_text())["curves"]
    (curve,) = [curve for curve in curves if (curve["rule"], curve["column"]) == ("balance", "published")]
    assert (curve["attack"], curve["seeds"], curve["detections"]) == ("ipm", [0, 1], [2])
    cells = build_image_study("curves-mnist", seeds=2).cells
    folders = [store.folder_of(place, c.spec) for c in cells if (c.rule, c.column) == ("balance", "published")]
    for key in ("grad_norm", "acc_normal"):
        ends = sorted(store.read_rows(folder / store.METRICS)[-1][key] for folder in folders)
        assert curve[key][-1] == [4, ends[0], pytest.approx(sum(ends) / 2), ends[1]]


def page_rows(place: Path) -> list[list[str]]:
    return rows_of(place / "table-mnist.md")


def test_some_columns_now_and_the_rest_later(small_world: tuple[object, ...], tmp_path: Path) -> None:
    """The page shows all that is there, whichever call has made it."""
    place = tmp_path / "runs" / "reproduce-mnist"
    words = ("reproduce", "table-mnist", "--seeds", 1, *small_world)
    assert bymi(*words, "--only", "undefended").code == 0
    assert [row[2] for row in page_rows(place)] == ["undefended"]
    assert bymi(*words, "--only", "alone").code == 0
    assert [row[2] for row in page_rows(place)] == ["undefended", "alone", "alone"]


def test_runs_that_cannot_be_are_counted_and_the_rest_is_drawn(small_world: tuple[object, ...], tmp_path: Path) -> None:
    words = ("reproduce", "table-mnist", "--seeds", 1, *small_world)
    assert bymi(*words, "--only", "undefended").code == 0
    shorter = [word if word != tmp_path / "data" else tmp_path / "less" for word in words]
    write_image_set(tmp_path / "less" / "mnist", train=60, test=20)  # too few for 6 nodes of 20
    answer = bymi(*shorter, "--only", "alone")
    assert answer.code == 2
    assert "2 runs could not be made, the first: " in answer.err
    assert [row[2] for row in page_rows(tmp_path / "runs" / "reproduce-mnist")] == ["undefended"]


def test_a_fast_study_is_exported_as_resolved_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = bymi("reproduce", "table-mnist", "--fast", "--export", "specs.json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.words == "Wrote 5 runs to specs.json: python -m bymi.runs specs.json --out runs/reproduce-mnist"
    specs = json.loads(Path("specs.json").read_text())
    assert specs == [spec.resolved.values for spec in build_image_study("table-mnist", fast=True).specs]
    assert [path.name for path in tmp_path.iterdir()] == ["specs.json"], "nothing is run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table-cifar",), "'table-cifar': unknown study; did you mean 'table-fashion'?; allowed: scenario-a, scenario-b, "),
        (("table-mnist", "--only", "recever"), "--only: got 'recever', allowed: "),
        (("scenario-a", "--only", "receiver"), "--only: got ['receiver'], allowed: "),
        (("table-mnist", "--mu", "1"), "--mu or --dim: got "),
        (("table-mnist", "--dim", "30"), "--mu or --dim: got "),
        (("table-mnist", "--fast", "--export", "no/such/folder.json"), "cannot write "),
    ],
)
def test_bad_words_are_one_line(words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = mistake("reproduce", *words)
    assert line.startswith(said)
    if "unknown" in line:
        assert all(name in line for name in IMAGE_STUDIES)
    assert list(tmp_path.iterdir()) == []
