"""`bymi sweep`, `bymi results` and `bymi.results`: the product of lists, resuming, failed runs as rows, one table."""

from __future__ import annotations

import csv
import json
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import bymi as package
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.experiment.sweep import load_sweep, read_list
from bymi.report.sweep_data import means_text
from bymi.runs import run_folder as store
from bymi.runs.parallel_runs import dealt
from bymi.runs.results_table import SWEEP, ListedRun, find_runs, mean_and_deviation, table_of
from bymi.runs.time_estimate import estimate_seconds
from tests.browser import assert_fits, browser, needs_browser, requests_of
from tests.commands import FINISHES, bymi, dates_in, mistake

WORDS = (*FINISHES, "method=drsgd-bymi", "warm_up.rule=[balance,ios]", "attack=[ipm:a=2.0, gradient]", "seeds=2")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    assert bymi("sweep", *WORDS, "--jobs", 1, "--out", out).code == 0
    return out


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1, 2.5, true]", [1, 2.5, True]),
        ("[ipm, gradient]", ["ipm", "gradient"]),
        ("[ipm:a=2.0, gradient]", ["ipm:a=2.0", "gradient"]),
        ("[ios:share=0.3,k=2, balance]", ["ios:share=0.3,k=2", "balance"]),
        ("[{name = 'ipm', a = 2.0}, 'alie']", [{"name": "ipm", "a": 2.0}, "alie"]),
        ("[off, 300]", ["off", 300]),
        ("[mypkg.rules:Mine, balance]", ["mypkg.rules:Mine", "balance"]),
    ],
)
def test_lists_are_read(text: str, values: list[Any]) -> None:
    assert read_list(text) == values


def test_a_sweep_is_the_product_of_its_lists(tmp_path: Path) -> None:
    source = tmp_path / "grid.toml"
    source.write_text('nodes = [20, 30]\nmethod = ["dsgd", "rule"]\nseeds = 2\nattack = "silent"\n[data]\ndim = [4, 5]\n')
    plan = load_sweep(str(source), ["steps=20"])
    assert plan.axes == {"nodes": [20, 30], "data.dim": [4, 5]}
    found = {(spec.nodes, spec.data.model_dump()["dim"], spec.method, spec.seed) for spec in plan.specs}
    assert found == {(n, d, m, s) for n in (20, 30) for d in (4, 5) for m in ("dsgd", "rule") for s in (0, 1)}
    assert {spec.steps for spec in plan.specs} == {20}
    assert len(load_sweep(str(source), ["nodes=40", "seeds=[7]", "method=dsgd"]).specs) == 2, "words replace lists"
    assert "for several values of a key: bymi sweep" in mistake("run", source)
    assert "for several values of a key: bymi sweep" in mistake("run", "attack=[ipm, alie]")


def test_a_table_has_a_row_per_run_and_means_over_seeds(swept: Path) -> None:
    table = package.results(swept)
    assert len(table) == 8
    assert set(table.settings) == {"method", "attack", "warm_up.rule", "seed"}
    for row in table:
        summary = store.read_json(swept / row["run"] / store.SUMMARY)
        spec = store.read_json(swept / row["run"] / store.SPEC)
        assert (row["gap"], row["fdp"], row["outcome"]) == (summary["gap"], summary["fdp"], summary["outcome"])
        assert (row["warm_up.rule"], row["seed"]) == (spec["warm_up"]["rule"]["name"], spec["seed"])
    means = table.over_seeds()
    assert len(means) == 4
    for line in means:
        gaps = [row["gap"] for row in table if all(row[key] == line[key] for key in ("attack", "warm_up.rule"))]
        assert (line["runs"], line["gap"]) == (2, pytest.approx(statistics.fmean(gaps)))
        assert line["gap_sd"] == pytest.approx(statistics.stdev(gaps))
    assert mean_and_deviation([None, 3.0]) == (3.0, None)


@pytest.mark.parametrize("word", ["weights=uniform", "redraw_every=5"])
def test_runs_that_differ_in_a_key_that_one_lacks_are_two_rows(word: str, tmp_path: Path) -> None:
    """Specs omit keys with their default: such a run and one that has the key are no two seeds of one setting."""
    words = (*FINISHES, "method=dsgd", "--out", tmp_path)
    assert bymi("run", *words, "seed=0").code == bymi("run", *words, "seed=1").code == bymi("run", *words, word).code == 0
    key, _, value = word.partition("=")
    means = package.results(tmp_path).over_seeds()
    assert {(str(line[key]), line["runs"]) for line in means} == {("None", 2), (value, 1)}
    not_run = ListedRun(tmp_path / "x", "DSGD", 2, None, None, {}, None)
    assert set(table_of([*find_runs([tmp_path]), not_run]).settings) == set(package.results(tmp_path).settings)


def test_the_level_has_one_name_in_run_and_sweep(tmp_path: Path) -> None:
    words = (*FINISHES, "method=drsgd-bymi", "--fdr-level", 0.1)
    assert bymi("sweep", *words, "seeds=1", "--jobs", 1, "--quiet", "--out", tmp_path / "swept").code == 0
    assert bymi("run", *words, "--jobs", 1, "--quiet", "--out", tmp_path / "run").code == 0
    swept, ran = (next((tmp_path / name).glob("*/spec.json")) for name in ("swept", "run"))
    assert store.read_json(swept)["detection"]["fdr_level"] == 0.1
    assert swept.parent.name == ran.parent.name


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (WORDS, "warm_up.rule (2) x attack (2) x method (1) x seed (2) = 8 runs"),
        (("attack=[ipm, gradient]", "seeds=3"), "attack (2) x method (4) x seed (3) = 24 runs"),
        (("method=dsgd",), "method (1) x seed (1) = 1 run"),
        (
            ("attack=[ipm, ipm]", "method=dsgd"),
            "attack (2) x method (1) x seed (1) = 2: 1 run, others are equal or no valid spec",
        ),
    ],
)
def test_the_size_of_a_sweep_is_told_with_its_factors(words: tuple[str, ...], size: str) -> None:
    assert load_sweep(None, words).size == size


def test_the_page_on_sweeps_says_how_many_runs_its_first_line_makes() -> None:
    page = (Path(__file__).parents[1] / "docs" / "sweep.md").read_text()
    line = page.partition("```sh\nbymi sweep ")[2].partition(" --out")[0]
    assert f"`{load_sweep(None, shlex.split(line)).size}`" in page


def test_another_sweep_in_the_folder_prints_its_own_runs_only(tmp_path: Path) -> None:
    words = ("sweep", *FINISHES, "method=dsgd", "--jobs", 1, "--out", tmp_path)
    first = bymi(*words, "seeds=2")
    assert first.out.startswith("method (1) x seed (2) = 2 runs\n")
    assert "more runs" not in first.out
    second = bymi(*words, "attack=[ipm:a=2.0, gradient]", "seeds=[1]")
    assert "2 runs, 1 per row" in second.words
    assert "has 2 more runs, of other sweeps or commands: they are in the files below only" in second.words
    assert len(package.results(tmp_path)) == 4
    again = bymi(*words, "attack=[ipm:a=2.0, gradient]", "seeds=[1]", "--json")
    assert [json.loads(line)["attack"] for line in again.out.splitlines()] == ["ipm:a=2.0", "gradient"]
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4


def test_files_of_results(swept: Path, tmp_path: Path) -> None:
    assert bymi("results", swept, "--csv", tmp_path / "all.csv").code == 0
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["gap"]) for row in rows] == [row["gap"] for row in package.results(swept)]
    lines = bymi("results", swept, "--json").out.splitlines()
    assert [json.loads(line)["run"] for line in lines] == [row["run"] for row in package.results(swept)]
    try:
        import pandas
    except ImportError:
        assert "pip install 'bymi[pandas]'" in mistake("results", swept, "--parquet", tmp_path / "all.parquet")
    else:
        assert bymi("results", swept, "--parquet", tmp_path / "all.parquet").code == 0
        assert len(pandas.read_parquet(tmp_path / "all.parquet")) == 8


def test_the_same_command_runs_nothing_again(swept: Path) -> None:
    folders = [path for path in swept.iterdir() if path.is_dir()]
    before = {path: dates_in(path) for path in folders}
    assert bymi("sweep", *WORDS, "--jobs", 1, "--out", swept).code == 0
    assert {path: dates_in(path) for path in folders} == before
    answer = bymi("sweep", *WORDS, "--out", swept, "--dry-run")
    assert "8 runs: 8 complete, 0 to do" in answer.words


def test_json_has_a_run_per_line_in_the_order_of_the_lists(swept: Path) -> None:
    answer = bymi("sweep", *WORDS, "--jobs", 1, "--out", swept, "--json")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [(row["warm_up.rule"], row["attack"], row["seed"]) for row in rows] == [
        (rule, attack, seed) for rule in ("balance", "ios") for attack in ("ipm:a=2.0", "gradient") for seed in (0, 1)
    ]
    assert "8 runs, 2 per row" in answer.err


@pytest.mark.parametrize("width", [60, 140])
def test_means_fit_the_width_with_whole_numbers(swept: Path, width: int) -> None:
    table = package.results(swept)
    text = means_text(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"{row['gap']:.1e} +- {row['gap_sd']:.1e}" in text for row in table.over_seeds())


def test_a_failed_run_is_a_row(tmp_path: Path) -> None:
    words = (*FINISHES, "method=drsgd-bymi", "attack=[silent, out-of-distribution]", "seeds=1", "--out", tmp_path / "out")
    answer = bymi("sweep", *words, "--jobs", 1)
    assert answer.code == 2
    assert "1 of 2 runs could not be made" in answer.err
    rows = package.results(tmp_path / "out")
    assert sorted(row["outcome"] for row in rows)[0] == "failed"
    (failed,) = [row for row in rows if row["outcome"] == "failed"]
    assert failed["attack"] == "out-of-distribution"
    assert "attack" in failed["sentence"]
    assert "failed" in (tmp_path / "out" / "report.html").read_text()
    store.write_json(tmp_path / "out" / SWEEP, {"runs": [1]})
    assert "as bymi sweep writes it" in mistake("results", tmp_path / "out")


def test_runs_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    images, linear = load("mnist", ["method=dsgd"]).resolved, load(None, ["method=dsgd"]).resolved
    assert [dealt(Host(), images, index).device for index in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert dealt(Host(), linear, 1).device == "auto", "the linear model stays on the CPU"
    assert dealt(Host(device="cuda:1"), images, 2).device == "cuda:1"
    assert "cuda:0 to cuda:2" in mistake("run", "--device", "cuda:3")


def test_mistakes_in_sweeps_are_one_line(tmp_path: Path) -> None:
    assert "seeds: got 0" in mistake("sweep", "seeds=0")
    assert "nodez" in mistake("sweep", "nodez=[1,2]")
    assert "one value or more" in mistake("sweep", "nodes=[]")
    assert "expected key=value" in mistake("sweep", "scenario-a", "nodes")
    assert "up to" in mistake("sweep", "seeds=100000", "nodes=[20,30]")


def test_an_estimate_is_of_the_order_of_the_run() -> None:
    spec = load_sweep(None, [*FINISHES, "method=drsgd-bymi"]).specs[0].resolved
    seconds = estimate_seconds(spec)
    assert seconds is not None
    assert 0 < seconds < 60


@needs_browser
def test_the_page_of_a_sweep_works_in_a_browser(swept: Path, tmp_path: Path) -> None:
    page = swept / "report.html"
    with browser(tmp_path / "profile") as driver:
        driver.get("about:blank")
        requests_of(driver)
        driver.get(page.as_uri())
        assert requests_of(driver) == [page.as_uri()]
        assert driver.get_log("browser") == []
        cells = driver.find_elements("css selector", "#heat-table tbody td")
        assert len(cells) == 4
        means = {(row["attack"], row["warm_up.rule"]): row["gap"] for row in package.results(swept).over_seeds()}
        shown = [float(cell.text.split()[0]) for cell in cells]
        assert sorted(shown) == pytest.approx(sorted(means.values()), rel=0.06), "the median of two seeds is their mean"
        assert len(driver.find_elements("css selector", "#dots svg path[fill-opacity]")) == 8
        driver.find_element("css selector", "[data-filter=summary-table]").send_keys("ios")
        script = "return [...document.querySelectorAll('#summary-table tbody tr')].filter(row => !row.hidden).length"
        assert driver.execute_script(script) == 4
        assert_fits(driver)
