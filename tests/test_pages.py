"""Pages that carry numbers are what the committed JSON says, and a number that changes is noticed, by the name of its page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bymi.core.errors import InputError
from bymi.paper import all_pages as pages
from bymi.paper import evidence
from bymi.paper.committed_results import Results
from bymi.paper.page_red_team import on_common_seeds
from bymi.paper.provenance import versions
from bymi.paper.study_red_team import COLUMNS
from tests.commands import bymi

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FILES = sorted(
    path.relative_to(RESULTS) for path in RESULTS.rglob("*.json") if path.parent.name != "evidence"
)  # no numbers there
MEASURED = ("error", "fdp", "pa", "gap", "acc_normal", "acc_all", "all tests")


def test_the_committed_pages_are_what_their_json_says() -> None:
    lines = pages.check(ROOT)
    assert not lines, "\n".join(["", *lines])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of README and docs."""
    shutil.copy(ROOT / "README.md", tmp_path)
    for folder in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def spoil(values: Any) -> bool:
    """Change the last digits of one measured number, the first that is found."""
    if isinstance(values, list):
        return any(spoil(value) for value in values)
    if not isinstance(values, dict):
        return False
    for key in MEASURED:
        if isinstance(values.get(key), float):
            values[key] += 1e-9
            return True
        if isinstance(values.get(key), list) and spoil_entry(values[key]):
            return True
    return any(spoil(value) for value in values.values())


def spoil_entry(values: list[Any]) -> bool:
    """The same for the first number with decimals in lists of lists."""
    for place, value in enumerate(values):
        if isinstance(value, float):
            values[place] += 1e-9
            return True
        if isinstance(value, list) and spoil_entry(value):
            return True
    return False


def page_of(name: Path) -> Path:
    """Where the page stands that is written whole from a file, if there is one."""
    return Path("docs/results") / (name.with_name("medians.md") if name.name == "values.json" else name.with_suffix(".md"))


WITH_PAGE = [name for name in FILES if (ROOT / page_of(name)).exists()]


def pages_named(checkout: Path, names: Sequence[Path]) -> set[str]:
    """The pages that a check names when one number of each of these files has changed."""
    for name in names:
        path = checkout / "docs" / "results" / name
        values = json.loads(path.read_text())
        assert spoil(values), name
        path.write_text(json.dumps(values))
    lines = pages.check(checkout)
    known = r"\S+\.md differs from its JSON: bymi reproduce pages|\S+ was not drawn from red-team.json: bymi reproduce pages"
    assert all(re.fullmatch(known, line) for line in lines)
    return {line.split()[0] for line in lines}


def test_a_changed_number_names_the_page_of_its_file(checkout: Path) -> None:
    """One check for all files: each page is written from its own file alone."""
    named = pages_named(checkout, WITH_PAGE)
    assert {str(page_of(name)) for name in WITH_PAGE} <= named


@pytest.mark.parametrize("name", [name for name in FILES if name not in WITH_PAGE], ids=str)
def test_a_changed_number_of_a_file_without_a_page_names_one(name: Path, checkout: Path) -> None:
    named = pages_named(checkout, [name])
    assert named
    assert name.name != "default.json" or "README.md" in named


def test_the_command_names_pages_and_writes_them(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    assert bymi("reproduce", "pages", "--check").code == 0
    readme = (checkout / "README.md").read_text()
    (checkout / "README.md").write_text(readme.replace("BALANCE ", "BALANSE ", 1))
    answer = bymi("reproduce", "pages", "--check")
    assert (answer.code, answer.out.strip()) == (2, "README.md differs from its JSON: bymi reproduce pages")
    answer = bymi("reproduce", "pages")
    assert (answer.code, answer.out.strip()) == (0, "Wrote README.md")
    assert (checkout / "README.md").read_text() == readme
    assert pages.check(checkout) == []


def test_a_new_page_and_its_line_in_the_index_are_written_by_one_call(checkout: Path) -> None:
    page, index = (checkout / "docs" / "results" / name for name in ("rules/few-neighbours.md", "README.md"))
    before = index.read_text()
    page.unlink()
    pages.write(checkout)  # the index differs from before if it was written while the page was not there
    assert page.exists()
    assert index.read_text() == before
    assert "few-neighbours.md" in before


def test_pages_are_written_in_a_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = bymi("reproduce", "pages")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "docs/results" in answer.err
    assert bymi("reproduce", "scenario-a", "--check").code == 2


def test_a_figure_that_was_not_drawn_with_its_json_is_named(checkout: Path) -> None:
    figure = checkout / "docs" / "results" / "default" / "default.png"
    figure.write_bytes(figure.read_bytes() + b"\0")
    assert pages.check(checkout) == ["docs/results/default/default.png was not drawn with default.json: bymi run"]
    figure.unlink()
    assert "docs/results/default/default.png was not drawn with default.json: bymi run" in pages.check(checkout)


def test_the_heat_map_tells_runs_that_diverged_from_those_that_were_not_made() -> None:
    runs = on_common_seeds(Results(ROOT).red_team())
    attacks = list(dict.fromkeys(row for row, _ in runs))
    texts = [text.get_text() for text in evidence.heat_map(Results(ROOT)).axes[0].texts]
    cells = [runs.get((row, column)) for row in attacks for column in COLUMNS]
    for text, cell in zip(texts, cells, strict=True):
        if not cell:
            assert text == "not run"
        else:
            assert (text == "diverged") == any(run["gap"] is None or run["outcome"] == "diverged" for run in cell)


def test_the_figure_of_the_readme_is_that_of_its_table() -> None:
    drawn = json.loads((RESULTS / "default" / "default.json").read_text())["figures"]
    shown = re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text())
    assert shown == ["docs/results/default/default.png"]
    assert Path(shown[0]).name in drawn


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<!-- pages: defualt -->\n<!-- /pages -->", "got a block 'defualt', allowed: default, index"),
        ("<!-- pages: default -->\n", "no beginning or no end"),
        ("<!-- /pages -->\n", "no beginning or no end"),
        ("<!-- pages: default -->\n<!-- pages: index -->\n<!-- /pages -->", "no beginning or no end"),
    ],
)
def test_a_wrong_mark_is_one_line_with_its_page(text: str, word: str, checkout: Path) -> None:
    (checkout / "docs" / "new.md").write_text(text)
    with pytest.raises(InputError, match=word) as problem:
        pages.check(checkout)
    assert "new.md" in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("text", ["{", "[]", "\0"])
def test_a_damaged_json_is_one_line_with_its_name(text: str, checkout: Path) -> None:
    (checkout / "docs" / "results" / "default" / "default.json").write_text(text)
    with pytest.raises(InputError, match=r"default\.json") as problem:
        pages.check(checkout)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("name", pages.BLOCKS)
def test_a_block_without_its_study_says_so(name: str, tmp_path: Path) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    text = pages.BLOCKS[name](Results(tmp_path))
    if name not in ("index", "image-misses"):
        assert "not measured" in text
    assert not re.search(r"\d %|\de-\d", text.split("A claim about several")[0]) or name == "claims"


def test_the_evidence_states_the_largest_gap_by_the_share_that_rules_are_told(tmp_path: Path) -> None:
    def cell(row: str, attack: str, gap: float | None) -> dict[str, object]:
        run = {"acc_scc": None, "acc_normal": None, "gap": gap, "outcome": "finished" if gap else "diverged"}
        return {"row": row, "column": attack, "runs": [run]}

    gaps = {"0": None, "half": 0.5, "exact": 0.02, "double": 3.0}
    cells = [
        cell(f"ios {word}", attack, gap and gap / (1 + at)) for word, gap in gaps.items() for at, attack in enumerate("ab")
    ]
    cells += [cell(f"krum {word}", "a", 0.1) for word in gaps]
    cells += [cell("hardened", "a", 1e-5), cell("hardened", "b", 2e-5), cell("published", "a", 7.0)]
    place = tmp_path / "docs" / "results" / "rules" / "misspecified.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"command": "bymi reproduce misspecified", "cells": cells}))
    text = pages.BLOCKS["evidence-comparisons"](Results(tmp_path))
    ios = "(ios; the others at most 1.0e-01)"
    told = f"0 diverged {ios}, half 5.0e-01 {ios}, exact 1.0e-01 (krum; the others at most 2.0e-02), double 3.0e+00 {ios}"
    assert f"{told}; of the hardened method" in text
    assert "told none: 2.0e-05." in text


# Prose by hand

SETTINGS = {
    *("0.02", "0.1", "0.2", "0.3", "0.35"),  # ratios and shares
    *("3.11", "5.1", "5.2", "1e-4", "20 %"),  # Python, sections of the paper, its gap, the level
}
"""Numbers that are settings, which prose may state; a measured one belongs into a block."""

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)? ?%|\d(?:\.\d+)?e[-+]?\d+|\d+\.\d+")
WHOLE = {path for path, text in pages.expected(ROOT).items() if "<!-- written from" in text}
HAND = [path for path in (ROOT / "README.md", *sorted(RESULTS.rglob("*.md"))) if path not in WHOLE]


def prose(path: Path) -> str:
    """What was written by hand: without blocks, snippets and targets of links."""
    text = re.sub(r"<!-- pages: .*?<!-- /pages.*? -->", "", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"```(python|sh|toml)\n.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"\]\(.*?\)", "]", text)


@pytest.mark.parametrize("path", HAND, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_states_no_measured_number(path: Path) -> None:
    found = [number for number in NUMBER.findall(prose(path)) if number not in SETTINGS]
    assert not found, f"{path.relative_to(ROOT)}: {found}: measured numbers belong into a block, settings into SETTINGS"


def test_the_search_for_measured_numbers_finds_them() -> None:
    text = "FDP 30 to 80 %, P_a 96.7 %, gap 1.2e-04 or 2e-14, norm 0.046, in 5 runs of 150 nodes"
    assert NUMBER.findall(text) == ["80 %", "96.7 %", "1.2e-04", "2e-14", "0.046"]


def test_versions_stand_in_one_written_line_of_a_page() -> None:
    """No row, column or sentence by hand says which version made it."""
    for path in (*HAND, *WHOLE):
        lines = (path.read_text() if path in WHOLE else prose(path)).splitlines()
        made = [line for line in lines if line.startswith("Made with bymi")]
        assert len(made) == (1 if path in WHOLE else 0), path
        assert [line for line in lines if re.search(r"\b0\.\d+\.\d+\b", line) and line not in made] == [], path
    for name in ("security.md", "hardened.md", "detect.md", "theory.md", "level.md", "method.md"):
        assert not re.search(r"\b0\.\d+\.\d+\b", (ROOT / "docs" / name).read_text()), name


def test_the_versions_of_a_study_are_those_of_its_runs_else_of_its_environment() -> None:
    environment = {"environment": {"bymi": "0.3.0", "torch": "2"}}
    runs = [{"bymi": "0.10.0"}, {"bymi": "0.9.0"}, {"bymi": "0.10.0"}]
    assert versions({**environment, "cells": [{"runs": runs}]}) == "0.9.0 (1 of 3) and 0.10.0 (2 of 3)"
    assert versions({**environment, "cells": [{"runs": runs[:1]}]}) == "0.10.0"
    assert versions({**environment, "cells": [{"runs": [{"gap": 1.0}]}]}) == "0.3.0"
    assert versions({"made_on": ["CPU, torch 2, bymi 0.11.0"]}) == "0.11.0"
    assert versions({"cells": []}) == ""
