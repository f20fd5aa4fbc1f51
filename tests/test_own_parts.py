"""Parts of one's own by name: module:Name and entry points, in specs, resolved specs, commands, workers and on ranks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi import BALANCE, RULES, Detector, InputError, Plan, WarmUp, train
from bymi.core.named_parts import is_import, read_shorthand
from bymi.detection import THRESHOLDS, PublishedThreshold
from bymi.experiment import load, read_spec
from bymi.runs import read_resolved_specs, run, write_resolved_specs
from bymi.runs import run_folder as store
from bymi.runs.foreign_source_digests import foreign_source, refuse_imports
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import check_resolved_spec, set_up_run
from tests.commands import bymi, mistake
from tests.forked import call

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PARTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name not in ("own_model.py", "flower_app.py"))
SMALL = ("profile=paper", "method=rule", "nodes=12", "steps=12", "data.dim=3", "data.samples=20")

RULE = """
from dataclasses import dataclass
from pathlib import Path
from bymi import Average
Path("imported").write_text("x")

@dataclass(frozen=True)
class Mine(Average):
    '''Averages.'''
    k: int = 4

class NoRule:
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, which can be imported; to import it leaves a file there."""
    name = f"own_rule_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_shorthands() -> None:
    assert read_shorthand("a.b:Rule") == {"name": "a.b:Rule"}
    assert read_shorthand("a.b:Rule:k=3,s=x") == {"name": "a.b:Rule", "k": 3, "s": "x"}
    assert read_shorthand("ipm:a=2.0") == {"name": "ipm", "a": 2.0}
    assert read_shorthand("ipm:A=2.0") == {"name": "ipm", "A": 2.0}
    assert read_shorthand("balance:gamma") == {"name": "balance", "gamma": ""}
    assert [is_import(name) for name in ("a:B", "a.b:C", "a", "a-b:C", "a:b", "", 3)] == [True, True, *[False] * 5]


def test_every_way_to_write_one_means_the_same(module: str) -> None:
    ways = [
        load(None, [*SMALL, f"warm_up.rule={module}:Mine:k=3"]),
        load(None, [*SMALL, f"warm_up.rule={module}:Mine", "warm_up.rule.k=3"]),
        read_spec({**load(None, SMALL).model_dump(), "warm_up": {"rule": {"name": f"{module}:Mine", "k": 3}}}),
    ]
    assert len({spec.digest for spec in ways}) == 1
    plan = set_up_run(ways[0].resolved).plan
    assert plan.warm_up.rule == RULES[f"{module}:Mine"](k=3)  # type: ignore[call-arg]
    assert plan.warm_up.rule == WarmUp(f"{module}:Mine:k=3").rule  # type: ignore[arg-type]
    assert ways[0].label == "MINE"
    assert foreign_source(ways[0].resolved.values) != b""
    assert run(ways[0].resolved, "runs")["outcome"] == "finished"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("{}:Mine:j=3", "warm_up.rule.j: unknown key (got 3); allowed: k, name"),
        ("{}:Mine:k=a", "warm_up.rule.k: got 'a', allowed: a valid integer"),
        ("{}:Mine:k=1000000001", "warm_up.rule.k: got 1000000001, allowed: less than or equal to 1000000000"),
        ("{}:NoRule", "warm_up.rule: got '{}:NoRule', allowed: a dataclass derived from Rule"),
        ("{}:Other", "warm_up.rule: got '{}:Other', allowed: a class that can be imported (AttributeError: "),
        ("{}x:Mine", "warm_up.rule: got '{}x:Mine', allowed: a class that can be imported (ModuleNotFoundError: "),
        (
            "bymi.core.errors:InputError",
            "warm_up.rule: got 'bymi.core.errors:InputError', allowed: a dataclass derived from Rule",
        ),
        ("{}", "warm_up.rule: got '{}'; allowed: average, "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(word: str, line: str, module: str) -> None:
    with pytest.raises(InputError) as problem:
        load(None, [*SMALL, f"warm_up.rule={word.format(module)}"])
    assert str(problem.value).startswith(line.format(module))
    assert "\n" not in str(problem.value)


def test_a_changed_module_is_another_run(module: str, tmp_path: Path) -> None:
    words = ["-m", "bymi", "run", *SMALL, f"warm_up.rule={module}:Mine", "--out", "runs"]
    folders = []
    for text in (RULE, RULE.replace("int = 4", "int = 4 + 0"), RULE):
        (tmp_path / f"{module}.py").write_text(text)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        done = call(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        folders.append(re.findall(r"^Folder: (\S+)$", done.stdout, re.MULTILINE))
    assert all(folders)
    assert folders[0] == folders[2] != folders[1]


def test_a_sheet_or_a_run_folder_imports_nothing_unless_told_to(module: str, tmp_path: Path) -> None:
    """It may come from anybody. In a process that has not imported the module yet."""
    spec = load(None, [*SMALL, f"warm_up.rule={module}:Mine"])
    run(spec.resolved, "runs")
    write_resolved_specs(tmp_path / "specs.json", [spec.resolved])
    folder = store.folder_of(Path("runs"), spec)
    (tmp_path / "imported").unlink()

    for words in (("bymi.runs", "specs.json", "--out", "other"), ("bymi", "run", str(folder / "spec.json"), "--out", "other")):
        refused = call("-m", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert f"got '{module}:Mine', allowed: a name without an import, or --allow-imports" in refused.stderr
        assert not (tmp_path / "imported").exists()
        allowed = call("-m", *words, "--allow-imports", cwd=tmp_path)
        assert allowed.returncode == 0, allowed.stderr
        (tmp_path / "imported").unlink()


@pytest.mark.parametrize("words", [(), ("--allow-imports",)])
def test_the_spec_of_a_run_of_train_asks_for_the_call(words: tuple[str, ...], tmp_path: Path) -> None:
    shards, loss = [(torch.zeros(4, 2), torch.zeros(4, 1))] * 4, torch.nn.functional.mse_loss
    run = train(torch.nn.Linear(2, 1), loss, shards, graph="complete", steps=2, method="rule", out=tmp_path)
    path = run.folder / store.SPEC
    allowed = "allowed: the same call of bymi.train, with the same objects"
    assert mistake("run", str(path), *words) == f"{path}: got a run of bymi.train, {allowed}"


@pytest.mark.parametrize(
    "change",
    [
        {"graph": {"name": "os:Path"}},
        {"data": {"name": "digits", "partition": "os:Path:a=1"}},
        {"detection": {"centre": {"name": " os:Path "}}},
        {"warm_up": {"rule": "os:Path"}},
        {"new": [[{"deep": "os:Path"}]]},
    ],
)
def test_wherever_it_stands(change: dict[str, Any]) -> None:
    values = load(None, SMALL).resolved.values
    refuse_imports(values, "here")
    with pytest.raises(InputError, match="allow-imports"):
        refuse_imports({**values, **change}, "here")
    if "new" not in change:
        with pytest.raises(InputError, match="allow-imports"):
            check_resolved_spec(
                ResolvedSpec({**values, **{key: {**values[key], **part} for key, part in change.items()}}), "here"
            )


class Points:
    """What is installed, as importlib.metadata says."""

    def __init__(self, **names: str) -> None:
        self.points = [importlib.metadata.EntryPoint(name, value, "bymi.rules") for name, value in names.items()]

    def __call__(self, *, group: str, name: str | None = None) -> list[importlib.metadata.EntryPoint]:
        return [point for point in self.points if point.group == group and name in (None, point.name)]


def test_entry_points(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "entry_points", Points(mine=f"{module}:Mine", balance=f"{module}:Mine", bad="x.y:Z")
    )
    spec = load(None, [*SMALL, "warm_up.rule=mine:k=3"])
    assert set_up_run(spec.resolved).plan.warm_up.rule == RULES["mine"](k=3)  # type: ignore[call-arg]
    assert foreign_source(spec.resolved.values) != b""
    refuse_imports(spec.resolved.values, "here")
    assert RULES["balance"] is BALANCE, "what is listed counts first"
    assert "mine" in RULES
    assert "mine" not in list(RULES)
    assert RULES.installed() == ["bad", "balance", "mine"]
    assert ["mine", "installed", "package"] in [row[:1] + row[-2:] for row in bymi("list").rows]
    with pytest.raises(InputError, match=r"warm_up.rule: got 'bad', allowed: a class that can be imported \(Module"):
        load(None, [*SMALL, "warm_up.rule=bad"])


def test_the_published_threshold_is_the_default_and_no_part_of_a_digest() -> None:
    plain, named = load(None, ["profile=paper"]), load(None, ["profile=paper", "detection.threshold=published"])
    assert plain.digest == named.digest
    assert "threshold" not in plain.resolved["detection"]
    assert Detector().threshold == PublishedThreshold() == THRESHOLDS["published"]()
    assert mistake("run", "detection.threshold=pubished").startswith("detection.threshold: got 'pubished'; did you mean 'publi")


def test_a_threshold_with_a_panel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    line = "detection.threshold: got 'bh_threshold:Normal', allowed: published with a panel"
    assert mistake("run", "detection.threshold=bh_threshold:Normal").startswith(line)
    with pytest.raises(InputError, match="threshold: got 'Normal', allowed: published with a panel"):
        Plan.hardened(10, 2, detection={"threshold": "bh_threshold:Normal"})


def test_the_threshold_of_the_example_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    rule: Any = THRESHOLDS["bh_threshold:Normal"]()
    scores = torch.tensor([[-0.6745, 0.6745, 0.5, -0.6745, 10.0, 12.0], [0.1, -0.1, 0.1, -0.1, 0.1, 50.0]], dtype=torch.float64)
    scored = torch.ones_like(scores, dtype=torch.bool)
    scored[1, 5] = False
    assert rule(scores, scored, fdr_level=0.05, offset=0).tolist() == [10.0, torch.inf]


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_an_example_has_at_most_25_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 25


def test_the_examples_in_one_process_in_workers_and_on_ranks(tmp_path: Path) -> None:
    """All five by name from one TOML: the same numbers, on ranks to rounding; none of it installed."""
    for path in (*PARTS, EXAMPLES / "own_parts.toml"):
        shutil.copy(path, tmp_path)
    given = tomllib.loads((tmp_path / "own_parts.toml").read_text())
    assert {given["attack"].split(":")[0], given["graph"]["name"].split(":")[0]} == {"push_attack", "small_world_topology"}
    command = str(Path(sys.executable).with_name("bymi"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", command]
    more = {"alone": ["--jobs", "1"], "workers": ["--jobs", "2"], "ranks": []}
    found: dict[str, list[dict[str, Any]]] = {}
    for name in more:
        words = ["run", "own_parts.toml", "record_every=12", "--device", "cpu", "--out", name, *more[name]]
        if name == "ranks":
            done = subprocess.run([*torchrun, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        else:
            done = call("-m", "bymi", *words, cwd=tmp_path)
        assert done.returncode in (0, 5), done.stderr
        folders = sorted(path for path in (tmp_path / name).iterdir() if path.is_dir() and not path.name.startswith("."))
        found[name] = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    keys, numbers = ("method", "digest", "outcome"), ("found", "fdp", "acc_all", "consensus")
    alone, workers, ranks = (
        [[*(one[key] for key in keys), *(one[key] or 0.0 for key in numbers)] for one in found[name]] for name in more
    )
    assert [one[0] for one in alone] == ["MIDDLE-DRSGD-ByMI", "MIDDLE"]
    assert workers == alone
    for one, other in zip(ranks, alone, strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:], rel=1e-3, abs=0.02)


def test_resolved_specs_of_own_parts_can_be_read(module: str, tmp_path: Path) -> None:
    spec = load(None, [*SMALL, f"warm_up.rule={module}:Mine"])
    write_resolved_specs(tmp_path / "specs.json", [spec.resolved])
    (resolved,) = read_resolved_specs(tmp_path / "specs.json")
    check_resolved_spec(resolved, "here", imports=True)
    assert resolved.digest == spec.digest
