"""The documentation site lists every page, the glossary every key of summary.json, and the notebook runs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest

from bymi import ATTACKS, RULES, TOPOLOGIES
from bymi.runs.run_folder import SUMMARY_KEYS

ROOT = Path(__file__).parents[1]
ADDED = {"index.md", "changelog.md", "contributing.md"}  # made from files of the root by docs/site_hooks.py


def test_the_navigation_lists_every_page_and_no_other() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text().split("nav:")[-1], re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= listed, sorted(pages - listed)
    assert all((ROOT / "docs" / page).exists() for page in listed - ADDED)


def test_files_beside_docs_that_pages_link_to_are_on_the_site() -> None:
    """`make docs` is strict about links, but its packages are an extra."""
    hooks = (ROOT / "docs" / "site_hooks.py").read_text()
    added = {"examples"}  # a link to the folder goes to the page that lists its files
    for name in ("PAGES", "DATA"):
        (line,) = re.findall(rf"^{name} = (.*)$", hooks, re.MULTILINE)
        added |= {path.relative_to(ROOT).as_posix() for pattern in ast.literal_eval(line) for path in ROOT.glob(pattern)}
    links = [link for page in (ROOT / "docs").glob("*.md") for link in re.findall(r"\]\(\.\./([^)#]*)", page.read_text())]
    links += [
        link for link in re.findall(r"\]\(([^)#:]*)[)#]", (ROOT / "README.md").read_text()) if not link.startswith("docs/")
    ]
    assert set(filter(None, links)) <= added, set(links) - added


def test_the_glossary_has_every_key_of_summary_json() -> None:
    text = (ROOT / "docs" / "summary.md").read_text()
    explained = {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert {"method", "seed", "digest", *SUMMARY_KEYS} == explained


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells in order, in one namespace; the three attackers are flagged and the detecting run ends well."""
    cells = json.loads((ROOT / "examples" / "tutorial.ipynb").read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tutorial.ipynb", "exec", dont_inherit=True), names)
            assert not cell["outputs"], "clear the outputs before committing"
    flagged, runs = names["flagged"], names["runs"]
    assert isinstance(flagged, dict)
    assert {0, 1, 2} <= set(flagged)
    assert isinstance(runs, dict)
    assert runs["with detection"].summary["outcome"] == "finished"


def test_the_readme_and_so_the_first_page_of_the_site_cite_the_paper() -> None:
    paper = (ROOT / "CITATION.cff").read_text().split("preferred-citation:")[1]
    (title,) = re.findall(r'title: "(.*)"', paper)
    authors = re.findall(r"family-names: (\w+), given-names: (\w+)", paper)
    text = (ROOT / "README.md").read_text()
    assert len(authors) == 4
    assert ", ".join(f"{given} {family}" for family, given in authors) in text
    assert title in text
    assert "examples/tutorial.ipynb" in text


def test_the_readme_counts_what_is_in_the_box() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"{len(RULES)} rules" in text
    assert f"{len(ATTACKS)} attacks" in text
    assert "file" in TOPOLOGIES  # reads own graphs
    assert f"{len(TOPOLOGIES) - 1} topologies and own graphs" in text
