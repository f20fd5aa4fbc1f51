"""`bymi run`, `list` and `reproduce`: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import get_args
from unittest import mock

import pytest
import torch

import bymi as package
from bymi.aggregation import RULES
from bymi.attacks import ATTACKS
from bymi.core.errors import EXIT_CODES
from bymi.core.mixing_weights import Weights
from bymi.core.topology import TOPOLOGIES
from bymi.detection import CENTRES, SCALES
from bymi.experiment import RECIPES, load
from bymi.experiment.spec import Spec
from bymi.paper import study_scenarios_a_b as studies
from bymi.report.tables import cells, columns
from bymi.runs import run_folder as store
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.runs.tasks import TASKS
from tests.commands import (
    GAP_FILES,
    METHODS,
    TINY,
    VERDICT_FILES,
    Answer,
    Experiment,
    bymi,
    dates_in,
    files_in,
    mistake,
    only_folder,
    only_line,
    sentence_of,
    start,
    summary_in,
)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return Experiment(tmp_path_factory.mktemp("runs"))


def test_the_table_shows_what_the_summaries_say(experiment: Experiment) -> None:
    assert experiment.answer.code == 0
    headings = {word for heading, _ in columns([summary_in(experiment.folder("dsgd"))]) for word in heading.split()}
    assert headings <= set(experiment.answer.words.split())
    for method, label in zip(METHODS, ("DSGD", "BALANCE", "BALANCE-DRSGD-ByMI"), strict=True):
        (row,) = [words for words in experiment.answer.rows if words[0] == label]
        summary = summary_in(experiment.folder(method))
        assert row == " ".join(cells(summary)).split()
        assert {f"{summary['gap']:.1e}", "finished"} < set(row)
        if method == "drsgd-bymi":
            assert {f"{100 * summary['fdp']:.1f}", f"{100 * summary['pa']:.1f}"} < set(row)
        else:
            assert row.count("-") == 5, "what has no detection has five dashes"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_folder_holds_everything(experiment: Experiment, method: str) -> None:
    folder = experiment.folder(method)
    assert files_in(folder) == GAP_FILES | (VERDICT_FILES if method == "drsgd-bymi" else set())
    assert Spec.model_validate_json((folder / "spec.json").read_text()) == experiment.specs[method]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["bymi"] == package.__version__
    assert environment["torch"] == torch.__version__
    summary = summary_in(folder)
    assert set(SUMMARY_KEYS) < set(summary)
    assert summary["digest"] == experiment.specs[method].digest
    assert folder.name.endswith(f"-seed0-{summary['digest']}")


@pytest.mark.parametrize("method", METHODS)
def test_metrics_are_rows_of_growing_steps(experiment: Experiment, method: str) -> None:
    rows = store.read_rows(experiment.folder(method) / "metrics.jsonl")
    phases = [(row["step"], row["phase"]) for row in rows]
    recorded = range(5, 61, 5)
    if method == "drsgd-bymi":
        # The warm-up is a tenth of all rounds; the detection has a row of its own.
        expected = [(5, "warm-up"), (6, "detection")] + [(step, "optimisation") for step in recorded[1:]]
    else:
        expected = [(step, "warm-up") for step in recorded]
    assert phases == expected
    assert rows[-1]["gap"] == summary_in(experiment.folder(method))["gap"]


def test_the_verdict_file_gives_the_error_rates_of_the_summary(experiment: Experiment) -> None:
    folder = experiment.folder("drsgd-bymi")
    verdict, summary = json.loads((folder / "verdict.json").read_text()), summary_in(folder)
    bad = set(verdict["byzantine"])
    assert len(bad) == 8, "20 % of 40"
    honest = [receiver for receiver in verdict["receivers"] if receiver["node"] not in bad]
    false = [len(set(judge["flagged"]) - bad) / max(1, len(judge["flagged"])) for judge in honest]
    sure = [bad & set(judge["neighbours"]) <= set(judge["flagged"]) for judge in honest]
    assert summary["fdp"] == pytest.approx(sum(false) / len(honest), abs=1e-6)
    assert summary["pa"] == pytest.approx(sum(sure) / len(honest))
    for judge in honest:
        limit = float("inf") if judge["threshold"] is None else judge["threshold"]
        above = [node for node, score in zip(judge["neighbours"], judge["scores"], strict=True) if score >= limit]
        assert judge["flagged"] == above
        assert [reason == "score" for reason in judge["reasons"]] == [node in above for node in judge["neighbours"]]


def test_figures_are_pictures(experiment: Experiment) -> None:
    pictures = [*experiment.folder("drsgd-bymi").glob("figures/*"), *experiment.out.glob("comparison-*")]
    assert len(pictures) == 6
    for path in pictures:
        if path.suffix == ".png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_second_call_runs_nothing_again(experiment: Experiment) -> None:
    before = {method: dates_in(experiment.folder(method)) for method in METHODS}
    again = bymi(*experiment.words)
    assert {method: dates_in(experiment.folder(method)) for method in METHODS} == before
    # The seconds in the table are those of the run, so that the two answers are the same to the letter.
    assert again == experiment.answer


def test_a_run_folders_own_spec_finds_the_folder_again(experiment: Experiment) -> None:
    folder = experiment.folder("dsgd")
    before = dates_in(folder)
    answer = bymi("run", folder / "spec.json", "--out", experiment.out)
    assert answer.code == 0
    assert folder.name in "".join(answer.out.split()), "long lines are folded, so blanks are left out"
    assert dates_in(folder) == before


def test_recipe_words_and_seed_reach_the_run(tmp_path: Path) -> None:
    assert bymi("run", "ipm", *TINY, "method=dsgd", "attack.a=2", "--seed", 7, "--out", tmp_path).code == 0
    folder = only_folder(tmp_path)
    assert folder.name.startswith("dsgd-seed7-")
    spec = Spec.model_validate_json((folder / "spec.json").read_text())
    assert spec == load("ipm", [*TINY, "method=dsgd", "attack={name='ipm', a=2.0}", "seed=7"])
    assert (spec.seed, spec.attack.name, spec.warm_up.steps) == (7, "ipm", 30)


def test_toml_file_with_words_on_top(tmp_path: Path) -> None:
    source = tmp_path / "small.toml"
    source.write_text('method = "dsgd"\nnodes = 20\nsteps = 30\nattack = "silent"\n[data]\ndim = 5\nsamples = 40\n')
    assert bymi("run", source, "steps=20", "--out", tmp_path / "runs").code == 0
    summary = summary_in(only_folder(tmp_path / "runs"))
    assert summary["steps_done"] == 20
    assert len(summary["unheard"]["senders"]) == 4, "a fifth of 20 nodes is silent"


def test_the_installed_command_runs(tmp_path: Path) -> None:
    process = start("run", *TINY, "method=dsgd", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert ["DSGD"] in [words[:1] for words in Answer(0, out, err).rows]
    assert "Traceback" not in err
    assert files_in(only_folder(tmp_path / "runs")) == GAP_FILES, "the folder for runs is called runs"


def test_the_installed_command_names_a_mistake(tmp_path: Path) -> None:
    process = start("run", "nods=20", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "did you mean 'nodes'?" in only_line(err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("graph", ["directed", "exponential:directed=true"])
def test_a_directed_graph_says_which_pruning_it_needs_before_anything_runs(graph: str, tmp_path: Path) -> None:
    words = ("run", "nodes=40", "steps=60", "data.dim=5", f"graph={graph}", "--jobs", 1, "--out", tmp_path)
    line = mistake(*words)
    assert line.startswith("detection.pruning: got 'mutual', allowed: directed")
    assert "set detection.pruning=directed" in line
    assert not [*tmp_path.iterdir()]
    assert bymi(*words, "method=drsgd-bymi", "detection.pruning=directed").code == 0


def test_list_names_every_part() -> None:
    answer = bymi("list")
    assert (answer.code, answer.err) == (0, "")
    first_words = {words[0] for words in answer.rows}
    for table in (RECIPES, TOPOLOGIES, RULES, ATTACKS, TASKS, CENTRES, SCALES, get_args(Weights)):
        assert set(table) <= first_words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "missing.toml"], "cannot read missing.toml: No such file or directory"),
        (["run", "bad.toml"], "bad.toml is not valid TOML: "),
        (["run", "bad.json"], "bad.json is not valid JSON: "),
        (["run", "list.json"], "list.json: expected a table of keys, got list"),
        (["run", "binary.toml"], "binary.toml is not valid TOML: "),
        (["run", "folder.toml"], "cannot read folder.toml: Is a directory"),
        (["run", "scenario-c"], "'scenario-c': neither a recipe (scenario-a, "),
        (["run", "ipm", "nodes"], "'nodes': expected key=value"),
        (["run", "=3"], "'=3': expected key=value"),
        (["run", "--seed", "-1"], "seed: got -1, allowed: "),
        (["run", "--seed", "one"], "Invalid value for '--seed'"),
        (["run", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["run", "--nodes", "20"], "No such option: --nodes"),
        (["ran"], "No such command 'ran'"),
        (
            ["reproduce", "scenario-c"],
            "'scenario-c': unknown study; did you mean 'scenario-b'?; allowed: scenario-a, scenario-b",
        ),
        (["reproduce", "scenario-a", "--dim", "31"], "--dim: got 31, allowed: 30 or 80"),
        (["reproduce"], "Missing argument"),
        (["reproduce", "scenario-a", "--seeds", "1000000000"], "Invalid value for '--seeds'"),
        (["reproduce", "scenario-a", "--mu", "1e308"], "attack.mu: got 1e+308, allowed: less than or equal to 1e100"),
        (["reproduce", "scenario-a", "--fast", "--export", "nowhere/x.json"], "cannot write nowhere/x.json: No such file"),
        (["run", "--timeout", "1e300"], "Invalid value for '--timeout'"),
        (["run", "attack=ipm:a=1e308"], "attack.a: got 1e+308, allowed: less than or equal to 1e100"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str) -> None:
    for name, text in (("bad.toml", "nodes = = 3"), ("bad.json", "{nodes"), ("list.json", "[1, 2]")):
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    monkeypatch.chdir(tmp_path)
    before = files_in(tmp_path)
    assert mistake(*words).startswith(expected)
    assert files_in(tmp_path) == before, "a mistake leaves no files behind"


# Rich ends its progress bar with a line break even where there is no terminal to draw on.
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--out", "file/runs"], "cannot write to the folder file/runs: Not a directory"),
        (["graph=file:path=missing.txt"], "cannot read the edge file missing.txt: "),
        (["graph=file:path=file"], "file, line 1: expected two node numbers"),
        (["graph=ring", "nodes=2"], "nodes: got 2, allowed: 3 or more on a ring"),
    ],
)
def test_a_run_that_cannot_begin_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    (tmp_path / "file").write_text("neither a folder nor edges\n")
    monkeypatch.chdir(tmp_path)
    assert mistake("run", *TINY, "method=dsgd", *words).startswith(expected)


@pytest.mark.parametrize(
    ("words", "code", "ending"),
    [
        (["method=rule", "warm_up.step_size=1e6"], 3, "diverged"),
        (["method=drsgd-bymi", "optimisation.step_size=1e6", "optimisation.max_local_step=1e6"], 3, "diverged"),
        (["method=drsgd-bymi", "graph=ring"], 4, "fragmented"),
        (["method=drsgd-bymi"], 5, "isolated"),
        (["method=drsgd-bymi", "detection.offset=1", "detection.fdr_level=0.01"], 8, "infiltrated"),
    ],
)
def test_bad_endings_have_a_sentence_a_code_and_all_files(tmp_path: Path, words: list[str], code: int, ending: str) -> None:
    answer = bymi("run", *TINY, *words, "--out", tmp_path)
    folder = only_folder(tmp_path)
    summary = summary_in(folder)
    assert (answer.code, summary["outcome"]) == (code, ending)
    assert ending in EXIT_CODES[code]
    assert f"{ending}, {summary['sentence']}" in answer.words
    assert files_in(folder) == GAP_FILES | (VERDICT_FILES if "method=drsgd-bymi" in words else set())
    if ending == "diverged":
        assert summary["sentence"].startswith("16 of 16 honest nodes left all bounds by step ")
    elif ending == "infiltrated":
        assert summary["sentence"].startswith(f"{summary['core_byzantine']} of the {summary['core_size']} nodes in the core")
        assert summary["core_byzantine"] == 4
    else:
        verdict = json.loads((folder / "verdict.json").read_text())
        assert sentence_of(verdict) in summary["sentence"]
        assert summary["steps_done"] == 40, "the run went on to its end"
    before = dates_in(folder)
    assert bymi("run", *TINY, *words, "--out", tmp_path) == answer
    assert dates_in(folder) == before, "a bad ending is complete, too"


def test_the_worst_ending_of_several_runs_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bymi.report.figures.save", lambda make, target, name: [target])  # drawn elsewhere
    answer = bymi("run", *TINY, 'method=["dsgd", "drsgd-bymi"]', "--jobs", 1, "--out", tmp_path)
    assert answer.code == 5
    assert sorted(summary_in(path)["outcome"] for path in tmp_path.iterdir() if path.is_dir()) == ["finished", "isolated"]


@pytest.mark.parametrize("said", ["", "interrupted"])
def test_interrupting_is_exit_code_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("bymi.runs.run_all", mock.Mock(side_effect=KeyboardInterrupt))
    answer = bymi("run", *TINY, "--out", tmp_path)
    assert (answer.code, answer.out) == (130, "")
    assert said in answer.err


def test_reproduce_draws_boxes_and_medians_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(seeds: range, dims: tuple[int, ...], mu: float, fast: bool) -> studies.Study:
        words = [*TINY, "method=drsgd-bymi", f"attack.mu={mu}"]
        specs = [load(None, [*words, f"attack.share={share}"], seed) for seed in seeds for share in (0.4, 0.8)]
        cells = [studies.Cell(30, "BALANCE", spec.attack.share, spec) for spec in specs]
        return studies.Study("small", "A small study", "s_r", (0.4, 0.8), cells)

    monkeypatch.setitem(studies.STUDIES, "scenario-a", small)
    words = ("reproduce", "scenario-a", "--seeds", 3, "--mu", 2, "--jobs", 1, "--out", tmp_path)
    answer = bymi(*words)
    assert answer.code == 0
    place = tmp_path / "reproduce-small"
    assert {path.name for path in place.iterdir() if path.is_file()} == {"small.png", "small.svg", "medians.md", "values.json"}
    settings = json.loads((place / "values.json").read_text())["settings"]
    assert {setting["s_r"]: [run["seed"] for run in setting["runs"]] for setting in settings} == {
        0.4: [0, 1, 2],
        0.8: [0, 1, 2],
    }
    middle = sorted(run["gap"] for run in settings[0]["runs"])[1]
    assert f"| {middle:.1e} |" in (place / "medians.md").read_text().splitlines()[7]
    before = {path: dates_in(path) for path in place.iterdir() if path.is_dir()}
    assert (len(before), bymi(*words)) == (6, answer)
    assert before == {path: dates_in(path) for path in before}
    (place / "medians.md").unlink()
    quiet = bymi(*words, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (place / "medians.md").exists()
