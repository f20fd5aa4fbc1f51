"""The snippets of README and docs run, and commands, files and names on their pages exist.

Some are run in small: make as a dry run, since it runs this suite; `bymi reproduce` and runs on images with small networks, the
latter on small images.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from bymi.cli import app
from bymi.experiment import Spec, load, read_spec
from bymi.experiment.sweep import load_sweep
from bymi.paper import study_images as images
from bymi.paper import study_scenarios_a_b as studies
from bymi.report import figures
from tests.commands import TINY, bymi
from tests.idx_files import write_image_set
from tests.test_architecture import ROWS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]

BY_HAND = [page for page in PAGES if page.name != "CHANGELOG.md" and "results" not in page.relative_to(ROOT).parts]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in blocks(page.read_text(), "python"):
        exec(compile(code, str(page), "exec", dont_inherit=True), {"__name__": "snippet"})
    if page == ROOT / "README.md":
        flagged = re.search(r"flagged: \[(.*?)\]", capsys.readouterr().out)
        assert flagged is not None
        assert {str(row) for row in range(8)} <= set(flagged.group(1).split(", "))
    if page.name == "own-parts.md":
        outcome, flagged_by, *_ = capsys.readouterr().out.splitlines()
        assert outcome.startswith("finished ")
        assert f"each node: {flagged_by}\n" in page.read_text()


PAGES_WITH_COMMANDS = ("tutorial.md", "real-data.md", "detect.md", "level.md", "from-byzfl.md", "report.md", "sweep.md")
SHELL = {  # by their words, since pages share some
    tuple(shlex.split(line, comments=True)): None
    for page in (ROOT / "README.md", *(ROOT / "docs" / name for name in PAGES_WITH_COMMANDS))
    for block in blocks(page.read_text(), "sh")
    for line in block.splitlines()
    if line.strip()
}
SMALL_IMAGES = (
    *("nodes=8", "graph.p=0.9", "steps=6", "data.samples=24", "data.identification=8"),
    *("warm_up.steps=3", "warm_up.batch=4", "optimisation.batch=4"),
)


def small_images(given: dict[str, Any]) -> Spec:
    """A spec of an image study, made small."""
    changes = {"nodes": 8, "steps": 6, "data": {"name": given["data"], "samples": 24, "identification": 8}}
    sample = {"detection": {**given["detection"], "sample": 8}} if "sample" in given["detection"] else {}
    return read_spec({**given, **changes, **sample, "warm_up": {**given["warm_up"], "steps": 3, "batch": 4}})


@pytest.mark.parametrize("line", SHELL, ids=" ".join)
def test_shell_lines_run(line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = list(line)
    if words[0] == "make":  # the suite itself runs under make: see what make would do
        told = subprocess.run([*words[:1], "--dry-run", "--always-make", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert {"run": "bin/bymi run", "test": "python -m pytest"}[words[1]] in told.stdout
        return
    monkeypatch.chdir(tmp_path)
    for name in ("first.npy", "second.npy"):
        np.save(tmp_path / name, np.random.default_rng(len(name)).normal(size=(30, 4)))
    monkeypatch.setenv("BYMI_DATA", str(tmp_path / "data"))
    for name in ("mnist", "fashion-mnist"):
        if any("mnist" in word for word in words[2:]):
            write_image_set(tmp_path / "data" / name, train=240, test=40)
    endings = {0}
    if words[1] == "run" and len(words) > 2 and words[2] in ("mnist", "fashion-mnist", "digits"):
        endings = {0, 4, 5, 8}  # eight nodes with a few samples may end in pieces, or not find the attacker
        if words[2] == "digits":
            pytest.importorskip("sklearn", reason="digits need scikit-learn")
        words += SMALL_IMAGES
    elif words[1] == "run" and "steps=300" not in words:
        words += ["nodes=24", "steps=60"]
    if words[1:] != ["run", "nodes=24", "steps=60", "nodes=24", "steps=60"]:  # one run draws its figures; the others do without
        monkeypatch.setattr(figures, "save", lambda *_: [])
    monkeypatch.setattr(images, "read_spec", small_images)
    if words[1] == "reproduce":  # the same grid of runs, each of them small
        monkeypatch.setattr(studies, "read_spec", lambda given: read_spec({**given, "nodes": 24, "steps": 40}))
    if words[1] in ("report", "results"):  # of runs that are there
        bymi(
            "run",
            *TINY,
            "method=dsgd",
            "--jobs",
            "1",
            "--out",
            next(word for word in words[2:] if word in ("runs", "sweep", "own")),
        )
        monkeypatch.setattr(webbrowser, "open_new_tab", lambda _: True)
    if words[1] == "sweep":
        (tmp_path / "grid.toml").write_text(blocks((ROOT / "docs" / "sweep.md").read_text(), "toml")[0])
        words += [*TINY, "seeds=1"]
    if words[1] in ("run", "reproduce", "sweep"):
        words += ["--jobs", "1"]
    answer = bymi(*words[1:])
    assert answer.code in endings, answer
    assert answer.out


def test_detection_pays_off_in_the_tutorial(tmp_path: Path) -> None:
    """What section 4 says about its run, and that a shorter one shows nothing of it."""
    (line,) = [line for line in SHELL if "steps=300" in line and "ipm" in line]
    words = [word for word in line[2:] if word not in ("--out", "ipm")]
    assert load(None, words).nodes == 40

    def summaries(*more: str) -> dict[str, dict[str, Any]]:
        answer = bymi("run", *words, *more, "--jobs", 1, "--json", "--quiet", "--out", tmp_path)
        return {one["method"]: one for one in map(json.loads, answer.out.splitlines())}

    found = summaries()
    alone, published, hardened = (found[f"IOS{more}"] for more in ("", "-DRSGD-ByMI", "-hardened-ByMI"))
    assert 0.01 < alone["gap"] < 0.03
    assert 50 * hardened["gap"] < alone["gap"]
    assert hardened["pa"] == published["pa"] == 1.0
    assert hardened["honest_edge_loss"] < 0.01
    assert 0.2 < published["honest_edge_loss"] < 0.3
    assert summaries("byzantine_ratio=0", "method=rule")["IOS"]["gap"] < 0.0015
    short = summaries("steps=60", 'method=["rule","drsgd-bymi"]')
    assert 2 * short["IOS-hardened-ByMI"]["gap"] > short["IOS"]["gap"]


def commands_in(page: Path) -> list[list[str]]:
    """Words after `bymi` of all commands on a page: in code spans, in blocks and in indented lines."""
    text = page.read_text()
    spans = re.findall(r"`([^`\n]+)`", text)
    lines = [line for block in re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    lines += re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    found = [
        re.match(r"(?:torchrun .*-m |cd \S+ && |\.venv/bin/)?bymi ([a-z]+(?:[ -].*)?)$", one.strip())
        for one in [*spans, *lines]
    ]
    return [shlex.split(one[1].split("   ")[0], comments=True) for one in found if one is not None]


def test_commands_that_pages_name_exist_with_their_options_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")  # whose own_parts.toml a page names
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    tree: Any = typer.main.get_command(app)
    count = 0
    for page in BY_HAND:
        for words in commands_in(page):
            count += 1
            command, given = tree, list(words)
            while given and hasattr(command, "commands"):
                assert given[0] in command.commands, f"{page.name}: bymi {' '.join(words)}"
                command = command.commands[given.pop(0)]
            options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            assert {word for word in given if word.startswith("-")} <= options, f"{page.name}: bymi {' '.join(words)}"
            if words[0] == "run" and not {"my.toml", "spec.toml", "my-set"} & set(words):
                source = [word for word in given[:1] if "=" not in word and not word.startswith("-")]
                load(
                    source[0] if source else None, [word for word in given if "=" in word and not word.startswith("-")]
                ).expand()
    assert count > 80


def test_toml_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in blocks(README, "toml"):
        Path("my.toml").write_text(text)
        answer = bymi("run", "my.toml", "steps=100", "--jobs", 1)
        assert answer.code == 0, answer
    for page in BY_HAND:
        for text in blocks(page.read_text(), "toml"):
            Path("my.toml").write_text(text)
            assert load_sweep("my.toml", []).specs, page


def test_the_verdict_on_the_page_of_detect_is_what_its_snippet_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "detect.md").read_text()
    (code,), (shown,) = blocks(page, "python"), blocks(page, "text")
    exec(compile(code, "detect.md", "exec"), {"__name__": "snippet"})
    assert capsys.readouterr().out == shown


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page may end with, as GitHub makes it of the heading."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}"
            if anchor and page.name != "CHANGELOG.md":  # which tells of headings of its time
                assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_readme_says_what_its_table_shows() -> None:
    (table,) = [block for block in blocks(README, "text") if "FDP" in block]
    after = README.partition(table)[2]
    for name in ("FDP", "P_a", "gap", "honest edges lost", "core", "Byz. in core", "cap", "floor"):
        assert set(name.split()) <= set(table.split()), name
        assert f"**{name}**" in after, name


def test_the_example_with_a_model_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / "own_model.py"
    assert len(path.read_text().splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    found = re.search(r"found 100% of the attackers, accuracy (.*), see (.*)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0.9
    assert (tmp_path / found[2] / "summary.json").exists()


def measured(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return values


def time_lines(name: str) -> list[list[str]]:
    """Beginnings of table rows with times in milliseconds."""
    rows = [row for row in measured(name)["rows"] if row["seconds"] is not None]
    return [[row["what"], f"{1000 * row['seconds']:,.{1 if row['seconds'] < 0.1 else 0}f}"] for row in rows]


def rank_lines() -> list[list[str]]:
    found = measured("ranks")
    keys = ("compute_seconds", "exchange_seconds", *(f"{kind}_gigabytes" for kind in ("lists", "data", "rows", "history")))
    lines = [
        [
            *(row["what"], str(row["ranks"]), f"{1000 * row['seconds']:.0f}", f"{100 * row['exchange_share']:.0f} %"),
            *(f"{1000 * row['model_seconds']:.0f}", f"{100 * row['error']:+.0f} %"),
        ]
        for row in found["iterations"]
    ]
    lines += [
        [f"{row['seconds']:.0f}", f"{row['detection_seconds']:.0f}", f"{row['times_faster']:.2f}"] for row in found["whole"]
    ]
    return lines + [[row["what"], f"{row['nodes']:,}", *(f"{row[key]:.2g}" for key in keys)] for row in found["projected"]]


def memory_lines() -> list[list[str]]:
    return [
        [
            *(row["what"], *(f"{max(peaks):,.0f}" for peaks in row["ranks"].values())),
            *("" if share is None else f"{share:.2f}" for share in row["shares"].values()),
        ]
        for row in measured("memory")["rows"]
    ]


def test_the_page_of_benchmarks_shows_the_figures_measured() -> None:
    """Those of large graphs: tests/test_runs_on_lists.py."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    times = [line for name in ("core", "images-cuda", "images-cpu") for line in time_lines(name)]
    rules = runpy.run_path(str(ROOT / "benchmarks" / "rules.py"))["page_rows"]()
    for line in (*times, *rank_lines(), *memory_lines(), *rules):
        assert f"| {' | '.join(line)} |" in page
    for name in ("core", "images-cuda", "images-cpu", "ranks", "memory", "large", "rules-cpu", "rules-cuda"):
        assert f"results/{name}.json" in page
        assert f"bymi {measured(name)['environment']['bymi']}, torch" in page.split(f"results/{name}.json")[1][:60]


SOURCE = ROOT / "src" / "bymi"
ENTRY_POINTS = {
    *("bymi.rules", "bymi.attacks", "bymi.tasks", "bymi.topologies", "bymi.partitions", "bymi.thresholds", "bymi.optimisers"),
}


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return exists(owner) and hasattr(resolve(owner), last)
    return True


def resolve(name: str) -> Any:
    """The module, class or function of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return getattr(resolve(owner), last)


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*.py"))
    files = {
        path.name
        for folder in (SOURCE, ROOT / "tests", ROOT / "examples", ROOT / "benchmarks")
        for path in folder.rglob("*.py")
    }
    for name in set(re.findall(r"\bbymi(?:\.[A-Za-z_]\w*)+", text)) - ENTRY_POINTS:
        if not name.startswith("bymi.flower") or importlib.util.find_spec("flwr") is not None:
            assert exists(name), name
    for path in set(re.findall(r"[\w/-]+\.py\b", text)):
        places = (ROOT, SOURCE, ROOT / "src", SOURCE / "detection")
        assert any((place / path.lstrip("/")).exists() for place in places) or ("/" not in path and path in files), path
    for path, name in re.findall(r"`([\w/]+)\.py: ([\w.]+)`", text):
        assert exists(f"bymi.{path.replace('/', '.')}.{name}"), f"{path}.py: {name}"
    for name in re.findall(r"\b(test_\w+)\b(?!\.py)", text):
        assert f"def {name}(" in tests or f"{name}.py" in files, name


def test_the_table_of_packages_is_the_one_that_is_enforced() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\w+) \|", text, re.MULTILINE)
    assert [{name for row, name in rows if int(row) == number} for number in range(len(ROWS))] == ROWS
    hops = re.findall(r"^\d+\. `\S+\.py: ", text, re.MULTILINE)
    assert 15 <= len(hops) <= 25
