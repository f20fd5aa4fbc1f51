"""`bymi doctor`, `init`, `list KIND`, progress, `--json`, `--quiet`, and mistakes in specs by the hundred."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from rich.console import Console

from bymi.cli import main
from bymi.commands import doctor, progress_display
from bymi.commands.listing import KINDS
from bymi.commands.options import complete_words
from bymi.commands.progress_display import Display, clock
from bymi.core.errors import EXIT_CODES, UNHEALTHY, InputError
from bymi.experiment import RECIPES, load
from bymi.experiment.list_named_parts import catalogue, topology_rows
from bymi.experiment.spec import read_spec
from bymi.paper.find_study import study_rows
from bymi.power_analysis import Setting, forecast
from bymi.report.power_analysis import outlook_cells
from bymi.report.tables import print_runs
from bymi.runs import run
from bymi.runs.observers import Observer, RunStatus
from bymi.runs.resolved_spec import ResolvedSpec
from tests.commands import FINISHES, TINY, bymi, mistake, only_folder, summary_in


def test_doctor_passes_here_and_says_what_to_do() -> None:
    answer = bymi("doctor", "--json")
    findings = json.loads(answer.out)
    assert answer.code == 0, [finding for finding in findings if finding["state"] == "FAILED"]
    assert all(finding["todo"] for finding in findings if finding["state"] != "ok")
    assert "self-test" in findings[-1]["what"]


def test_doctor_fails_where_numbers_differ() -> None:
    wrong = {**doctor.EXPECTED, "BALANCE": {"outcome": "finished", "gap": 0.7}}
    with mock.patch.object(doctor, "EXPECTED", wrong):
        answer = bymi("doctor")
    assert answer.code == UNHEALTHY in EXIT_CODES
    assert "BALANCE gap is 0.68607" in answer.out
    assert "1 of" in answer.out.splitlines()[-1]


def test_init_writes_a_spec_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert bymi("init", path).code == 0
    assert load(str(path)).nodes == 60
    assert bymi("run", path, *TINY[1:], "method=dsgd", "--out", tmp_path / "runs").code == 0
    assert "not there yet" in mistake("init", path)
    assert "ends in .toml" in mistake("init", tmp_path / "mine.yaml")


@pytest.mark.parametrize("kind", ["rules", "rule", "exit-codes", "key", "data.partition", "studies"])
def test_list_of_one_kind(kind: str) -> None:
    answer = bymi("list", kind)
    assert answer.code == 0
    assert answer.out.count("what it is") == 1


def test_rules_and_recipes_say_which_gamma_balance_has() -> None:
    assert (
        "it is balance:gamma=1.0; a name alone means the parameters above, so balance is gamma=0.3"
        in bymi("list", "rules").words
    )
    rules = {row[0]: row[1] for row in bymi("list", "recipes").rows if row[1:] and row[1].startswith("warm_up.rule=")}
    assert set(rules) == set(RECIPES)
    for name, make in RECIPES.items():
        rule = rules[name].removeprefix("warm_up.rule=")
        assert load(None, [f"warm_up.rule={rule}"]).warm_up.rule == make().warm_up.rule
    assert (rules["scenario-a"], rules["mnist"]) == ("warm_up.rule=balance:gamma=1.0", "warm_up.rule=balance")


def test_every_study_is_listed() -> None:
    allowed = mistake("reproduce", "nothing").partition("allowed: ")[2].split(", ")
    assert {name for name, _, _ in study_rows()} == set(allowed) - {"pages"}
    assert "bymi list studies" in bymi("reproduce", "--help").words


def test_every_kind_has_a_table() -> None:
    assert {bymi("list", kind).code for kind in KINDS} == {0}
    assert "did you mean 'attacks'?" in mistake("list", "atacks")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["detection.alpha=0.1"], "did you mean 'fdr_level'?"),
        (["fdr_level=0.1"], "did you mean 'detection.fdr_level'?"),
        (["warm_up.lr=0.1"], "did you mean 'step_size'?"),
        (["rounds=10"], "did you mean 'steps'?"),
        (["scenario_a"], "did you mean 'scenario-a'?"),
        (["nods=10"], "did you mean 'nodes'?"),
        (["--device", "cuda:x"], "allowed: auto, cpu, cuda, cuda:NUMBER"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(words: list[str], hint: str) -> None:
    assert hint in mistake("run", *words)


def test_words_are_completed() -> None:
    assert complete_words("mn") == ["mnist"]
    assert complete_words("attack=ip") == ["attack=ipm"]
    assert {"warm_up.rule=", "warm_up.batch="} <= set(complete_words("warm_up."))
    assert "did you mean 'scenario-a'?" in mistake("reproduce", "scenaro-a")


def test_one_name_for_the_level(tmp_path: Path) -> None:
    assert bymi("run", *TINY, "method=drsgd-bymi", "--fdr-level", 0.1, "--out", tmp_path, "--quiet").code in EXIT_CODES
    spec = json.loads((only_folder(tmp_path) / "spec.json").read_text())
    assert spec["detection"]["fdr_level"] == 0.1
    assert "--fdr-level" in bymi("plan", "--help").out


def test_json_has_one_object_per_run_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    words = ("run", *FINISHES, "method=['dsgd', 'rule']", "--jobs", 1, "--out", tmp_path)
    answer = bymi(*words, "--json")
    objects = [json.loads(line) for line in answer.out.splitlines()]
    assert [one["method"] for one in objects] == ["DSGD", "BALANCE"]
    for one in objects:
        assert {**summary_in(Path(one["folder"])), "folder": one["folder"]} == one
    assert "DSGD" in answer.err
    quiet = bymi(*words, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_image_recipes_have_baselines() -> None:
    for name in ("mnist", "fashion-mnist", "digits"):
        assert [spec.label for spec in RECIPES[name]().expand()] == ["DSGD", "BALANCE", "BALANCE-hardened-ByMI"]


def test_narrow_terminals_get_blocks_with_whole_numbers(tmp_path: Path) -> None:
    summary = {"method": "BALANCE-hardened-ByMI", "fdp": 0.0399, "pa": 1.0, "gap": 1.015e-5, "core_size": 119, "seconds": 36.64}
    empty = dict.fromkeys(("honest_edge_loss", "acc_scc", "capped", "floored"))
    said: dict[str, Any] = {**summary, **empty, "outcome": "finished", "sentence": "", "unheard": {"messages": 0}}
    out = io.StringIO()
    print_runs(Console(width=60, file=out), [said], "a title of many words that is longer than one line of sixty")
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 60
    assert {"4.0", "100.0", "1.0e-05", "119", "36.6", "finished"} <= set(text.split())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 100])
def test_what_commands_print_fits_narrow_terminals_and_cuts_nothing(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COLUMNS", str(width)), ("LINES", "40"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    halves = np.random.default_rng(0).standard_normal((2, 30, 40))
    halves[:, :3] += 9
    np.savez(tmp_path / "halves.npz", *halves)
    sweep = "sweep nodes=[20,30] attack=[ipm:a=2.0,silent] warm_up.rule=[balance,ios] data.dim=[5,6] method=dsgd steps=20"
    wanted: dict[str, list[str]] = {
        "plan --nodes 30 --degree 8": [cell for row in outlook_cells(forecast(Setting(30, 8))) for cell in row[1:]],
        "list topologies": [cell for row in topology_rows(16)[1] for cell in [row[0], *row[2:4]]],
        "list rules": [name for name, _, _ in catalogue()["warm_up.rule"]],
        f"detect {tmp_path / 'halves.npz'}": [f"{row}" for row in range(30)],
        f"{sweep} --dry-run": ["ipm:a=2.0"] * 8,
    }
    for words, cells in wanted.items():
        out = _Terminal()
        with redirect_stdout(out), mock.patch.object(sys, "argv", ["bymi", *words.split()]), pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        lines = out.getvalue().splitlines()
        prose = ("*", "30 nodes", "redraw_every", "Without", "Estimated")  # folded by the terminal
        assert max(len(line) for line in lines if not line.startswith(prose)) <= width, words
        assert "…" not in out.getvalue()
        found = Counter(word.rstrip(",") for line in lines for word in line.split())
        assert not Counter(cell for text in cells for cell in text.split() if cell != "-") - found, words


def test_keys_of_the_panel_and_of_monitoring_are_described() -> None:
    said = {name: text for name, _, text in catalogue()["key"]}
    assert said["panel.weak"] == "scores in units of noise"
    assert said["byzantine_period"].startswith("they attack in the first half")
    assert [name for name, text in said.items() if name.startswith(("panel.", "watch.", "redraw_")) and not text] == []


def test_plain_progress_is_a_line_every_ten_seconds() -> None:
    err = io.StringIO()
    with mock.patch.object(progress_display.time, "monotonic", return_value=0.0) as now, redirect_stderr(err):
        display = Display(2, 1000)
        status = RunStatus("DSGD", 3, 40, 500, "warm-up", "gap", 0.0123, 7, 2, rounds=10)
        for second in range(25):
            now.return_value = float(second)
            display.watch(0, status)
    lines = err.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "bymi: 110 of 1000 rounds, 10 rounds/s, 1 min 29 s left; "
        "DSGD seed 3: warm-up, round 40 of 500, gap 1.2e-02, 7 flagged, 2 not heard"
    )
    assert (clock(7500), clock(59.2)) == ("2 h 5 min", "59 s")


def test_observers_are_told_what_a_run_does(tmp_path: Path) -> None:
    told: list[Any] = []

    class Mine(Observer):
        def started(self, spec: ResolvedSpec, folder: Path) -> None:
            told.append(folder)

        def measured(self, row: dict[str, Any]) -> None:
            told.append(row)

        def ended(self, summary: dict[str, Any]) -> None:
            told.append(summary)

    class Broken(Observer):
        def measured(self, row: dict[str, Any]) -> None:
            raise RuntimeError("no connection")

    spec = load(None, [*FINISHES, "method=dsgd", "record_every=20"]).resolved
    summary = run(spec, tmp_path, observers=[Broken(), Mine()])
    folder = only_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert told == [folder, *rows, summary]


def test_trackers_cost_nothing_unless_used(tmp_path: Path) -> None:
    assert "pip install 'bymi[" in mistake("run", *TINY, "method=dsgd", "--track", "mlflow", "--out", tmp_path) or (
        "mlflow" in sys.modules
    )
    assert "module:Name" in mistake("run", *TINY, "method=dsgd", "--track", "nothing", "--out", tmp_path)


VALUES = (
    None,
    True,
    -1,
    0,
    2,
    1e9,
    -1e-9,
    1e400,
    float("nan"),
    "",
    "off",
    "ipm",
    "a:b=c",
    "balance:gamma=x",
    [],
    [1],
    {},
    {"name": 3},
)


def mutated(values: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The values with one to three keys changed, removed, renamed or added at a random depth."""
    values = copy.deepcopy(values)
    for _ in range(draw.randint(1, 3)):
        inner = values
        while True:
            deeper = [key for key, value in inner.items() if isinstance(value, dict)]
            if not deeper or draw.random() < 0.4:
                break
            inner = inner[draw.choice(deeper)]
        key = draw.choice(sorted(inner)) if inner else "new"
        change = draw.choice(("value", "value", "value", "remove", "rename", "add"))
        if change == "remove":
            inner.pop(key, None)
        elif change == "rename" and key in inner:
            inner[key[:-1] + draw.choice("xyz_")] = inner.pop(key)
        else:
            inner[key if change == "value" else f"{key}_{draw.randint(0, 9)}"] = draw.choice(VALUES)
    return values


def test_five_hundred_mutations_of_a_spec_run_or_say_why_in_one_line(tmp_path: Path) -> None:
    draw = random.Random(7)
    plain = load(None, [*TINY, "method=drsgd-bymi"]).resolved.values
    valid = []
    for _ in range(500):
        values = mutated(plain, draw)
        try:
            valid.append(read_spec(values))
        except InputError as problem:
            text = str(problem)
            assert "\n" not in text
            words = set(re.findall(r"[a-z_]+", text.partition(":")[0]))
            assert words & {"spec", *_all_words(values)}, f"{text} names no key"
    assert 20 < len(valid) < 480, "both kinds were tried"
    for spec in valid[:6]:
        (tmp_path / "spec.json").write_text(json.dumps(spec.resolved.values))
        answer = bymi("run", tmp_path / "spec.json", "steps=20", "warm_up.steps=5", "--out", tmp_path / "runs", "--quiet")
        assert answer.code in EXIT_CODES
        assert answer.err.count("\n") <= 1


def _all_words(values: dict[str, Any]) -> set[str]:
    found = set()
    for key, value in values.items():
        found |= set(re.findall(r"[a-z_]+", key))
        if isinstance(value, dict):
            found |= _all_words(value)
    return found | {
        "watch",
        "panel",
        "stop",
        "alone",
        "detection",
        "warm_up",
        "optimisation",
        "attack",
        "graph",
        "data",
        "name",
    }
