"""Parts of one's own in a spec: their source is a part of the run's name, so that a changed rule is another run."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bymi import ATTACKS, RULES, TOPOLOGIES
from bymi.datasets import PARTITIONS
from bymi.detection import CENTRES, SCALES
from bymi.experiment import RECIPES, load
from bymi.runs import foreign_source_digests as foreign
from bymi.runs import run
from bymi.runs.foreign_source_digests import foreign_source
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.tasks import TASKS

SMALL = ("profile=paper", "method=rule", "nodes=12", "steps=12", "data.dim=3", "data.samples=20")

RULE = """
from dataclasses import dataclass
import torch
from bymi import Inbox, Mixture, Round, WeightedRule

FACTOR = 1.0

def share_of(near):
    return FACTOR / (FACTOR + near.sum(1, dtype=torch.float64))

class Base(WeightedRule):
    def reach(self):
        return 1

@dataclass(frozen=True)
class Nearest(Base):
    '''Averages the own model with the nearest ones.'''

    k: int = 4

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        near = inbox.heard & (inbox.dist2_to_own().argsort(1).argsort(1) < self.k * self.reach())
        share = share_of(near)
        return Mixture(share, near * ((1 - share) / near.sum(1).clamp_min(1))[:, None])

def elsewhere():
    return 1
"""

Define = Callable[[str], type]


@pytest.fixture
def define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Define:
    """Makes the class that a source defines last, in a module of its own with a file."""
    numbers = count()

    def make(source: str, name: str = "Nearest") -> type:
        module_name = f"own_part_{next(numbers)}"
        path = tmp_path / f"{module_name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module_name, module)
        spec.loader.exec_module(module)
        found: type = getattr(module, name)
        return found

    return make


def resolved(**parts: Any) -> ResolvedSpec:
    values = json.loads(json.dumps(load(None, list(SMALL)).resolved.values))
    for key, value in parts.items():
        section, _, name = key.partition("__")
        if name:
            values[section][name] = value
        else:
            values[section] = value
    return ResolvedSpec(values)


def with_rule(entry: type, monkeypatch: pytest.MonkeyPatch) -> ResolvedSpec:
    monkeypatch.setitem(RULES, "nearest", entry)
    return resolved(warm_up__rule={"name": "nearest", "k": 4})


def test_the_name_of_a_run_of_our_own_parts_is_that_of_its_spec_alone() -> None:
    for spec in (recipe() for recipe in RECIPES.values()):
        assert foreign_source(spec.resolved.values) == b""
        text = json.dumps(spec.resolved.values, sort_keys=True)
        assert spec.digest == hashlib.sha256(text.encode()).hexdigest()[:10]


CHANGES = {
    "the method": ("< self.k * self.reach()", "<= self.k * self.reach()"),
    "a comment in the class": ("near = inbox", "# nearest first\n        near = inbox"),
    "a default": ("k: int = 4", "k: int = 5"),
    "a function that it calls": ("def share_of(near):\n    return FACTOR /", "def share_of(near):\n    return 2 * FACTOR /"),
    "a constant that this function uses": ("FACTOR = 1.0", "FACTOR = 2.0"),
    "the class that it derives from": ("return 1\n\n@", "return 2\n\n@"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_rule_is_another_run(change: str, define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHANGES[change][0] in RULE
    before = with_rule(define(RULE), monkeypatch).digest
    assert with_rule(define(RULE.replace(*CHANGES[change])), monkeypatch).digest != before
    assert with_rule(define(RULE), monkeypatch).digest == before, "in another module, from another file"
    assert resolved().digest != before


def test_what_the_rule_does_not_use_is_no_part_of_it(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_rule(define(RULE), monkeypatch).digest
    other = RULE.replace("def elsewhere():\n    return 1", "def elsewhere():\n    return 2") + "\nprint\n"
    assert with_rule(define(other), monkeypatch).digest == before


def test_a_changed_rule_does_not_return_the_old_result(define: Define, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gap = run(with_rule(define(RULE), monkeypatch), tmp_path)["gap"]
    changed = define(RULE.replace("FACTOR = 1.0", "FACTOR = 9.0"))
    assert run(with_rule(changed, monkeypatch), tmp_path)["gap"] != gap
    assert run(with_rule(define(RULE), monkeypatch), tmp_path)["gap"] == gap
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("nearest-seed0-")]) == 2


OTHERS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "attack": (ATTACKS, "from bymi.attacks import SignFlip\nclass Own(SignFlip):\n    x = 1\n", {"attack": {"name": "own"}}),
    "graph": (TOPOLOGIES, "from bymi import Ring\nclass Own(Ring):\n    x = 1\n", {"graph": {"name": "own"}}),
    "task": (TASKS, "from bymi.runs.tasks import Linear\nclass Own(Linear):\n    x = 1\n", {"data": {"name": "own", "dim": 3}}),
    "centre": (CENTRES, "from bymi import Mean\nclass Own(Mean):\n    x = 1\n", {"detection__centre": {"name": "own"}}),
    "scale": (SCALES, "from bymi import Identity\nclass Own(Identity):\n    x = 1\n", {"detection__scale": {"name": "own"}}),
    "partition": (
        PARTITIONS,
        "from bymi.datasets import Stratified\nclass Own(Stratified):\n    x = 1\n",
        {"data": {"name": "mnist", "partition": "own"}},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_a_run_with_any_other_part_of_ones_own(name: str, define: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, source, parts = OTHERS[name]
    digests = []
    for text in (source, source.replace("x = 1", "x = 2"), source):
        monkeypatch.setitem(table, "own", define(text, "Own"))
        digests.append(resolved(**parts).digest)
    assert digests[0] == digests[2] != digests[1]


def test_one_of_ours_that_was_replaced_is_foreign(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolved(warm_up__rule={"name": "mean"}).digest
    monkeypatch.setitem(RULES, "mean", define(RULE))
    assert resolved(warm_up__rule={"name": "mean"}).digest != before


def test_without_its_source_a_part_is_new_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("from bymi import Mean\nclass Own(Mean):\n    pass", space)
    monkeypatch.setitem(RULES, "own", space["Own"])
    here = resolved(warm_up__rule={"name": "own"}).digest
    assert resolved(warm_up__rule={"name": "own"}).digest == here
    monkeypatch.setattr(foreign, "_WITHOUT_SOURCE", "another process")
    foreign.sources_of.cache_clear()
    foreign._text.cache_clear()
    assert resolved(warm_up__rule={"name": "own"}).digest != here


def test_a_file_that_changes_while_its_code_runs_changes_nothing(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = define(RULE)
    one = with_rule(entry, monkeypatch)
    before = one.digest
    path = Path(sys.modules[entry.__module__].__file__ or "")
    path.write_text(path.read_text().replace("FACTOR = 1.0", "FACTOR = 3.0"))
    assert one.digest == before


SCRIPT = """
import json, sys
import bymi
RULES_SOURCE
bymi.RULES["nearest"] = Nearest
from bymi.experiment import load, run_all

if __name__ == "__main__":
    words = ["profile=paper", "nodes=12", "steps=12", "data.dim=3", "data.samples=20", "method=rule", "warm_up.rule=nearest"]
    specs = [load(None, words, seed) for seed in (0, 1)]
    ran = []
    results = run_all(specs, sys.argv[1], jobs=int(sys.argv[2]), watch=lambda index, status: ran.append(status.rounds))
    print(json.dumps({"gaps": [result["gap"] for result in results], "steps": sum(ran)}))
"""


def test_a_script_with_a_rule_of_its_own(tmp_path: Path) -> None:
    """Two runs at a time in spawned processes, in which the script has another name; then the rule is changed."""

    def call(source: str, jobs: int) -> dict[str, Any]:
        (tmp_path / "script.py").write_text(SCRIPT.replace("RULES_SOURCE", source))
        line = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs"), str(jobs)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = call(RULE, 2)
    assert first["steps"] == 24
    assert call(RULE, 1) == {"gaps": first["gaps"], "steps": 0}, "unchanged: read, not run"
    changed = call(RULE.replace("FACTOR = 1.0", "FACTOR = 9.0"), 1)
    assert changed["steps"] == 24
    assert set(changed["gaps"]).isdisjoint(first["gaps"])
    assert len([path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]) == 4
