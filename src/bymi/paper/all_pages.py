"""All pages that carry measured numbers, written from the committed JSON: `bymi reproduce pages`.

A page is written whole (tables of a study), or has blocks between `<!-- pages: NAME -->` and `<!-- /pages -->` whose content
is written, with prose by hand around them. Both end with a digest of the JSON they were written from, so that `check` names the
page if any number in that JSON has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bymi.core.errors import InputError
from bymi.core.files import MEBIBYTE, read_bytes, write_bytes
from bymi.paper import evidence
from bymi.paper import page_array_detection as detect_level
from bymi.paper import page_attack_search as frontier
from bymi.paper import page_image_curves as image_curves
from bymi.paper import page_images as images
from bymi.paper import page_non_iid as non_iid
from bymi.paper import page_red_team as red_team
from bymi.paper import page_rule_tables as grid
from bymi.paper import page_rules_linear as rules_linear
from bymi.paper import page_scenarios_a_b as studies
from bymi.paper import page_step_cap_and_floor as published_step
from bymi.paper import page_theory as theory
from bymi.paper import summary_blocks as overview
from bymi.paper.claims import claims
from bymi.paper.committed_results import Results
from bymi.paper.computed_studies import COMPUTED
from bymi.paper.computed_study import ComputedStudy
from bymi.paper.provenance import fingerprints, versions

BLOCKS: dict[str, Callable[[Results], str]] = {
    **overview.BLOCKS,
    "claims": claims,
    "evidence-images": evidence.images,
    "evidence-non-iid": evidence.non_iid,
    "evidence-comparisons": evidence.comparisons,
    "evidence-speed": evidence.speed,
    "evidence-faults": evidence.faults,
}
"""What stands between the marks of each name."""


def _page_of(study: ComputedStudy) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, values: study.page(values)


WHOLE: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "scenario-*/values.json": lambda name, values: studies.page(values),
    "images/table-*.json": images.page,
    "images/ratios-*.json": images.page,
    "images/curves-*.json": image_curves.page,
    "red-team/*.json": red_team.page,
    "frontier/*.json": frontier.page,
    "non-iid/*.json": lambda name, values: non_iid.page(values),
    "rules-linear/*.json": lambda name, values: rules_linear.page(values),
    "published-step/*.json": lambda name, values: published_step.page(values),
    "theory/*.json": lambda name, values: theory.write_page(values, name),
    "detection/*.json": lambda name, values: detect_level.page(values),
    "rules/*.json": lambda name, values: grid.page(values),
    **{f"{name}/{name}.json": _page_of(study) for name, study in COMPUTED.items()},
}
"""JSON files below docs/results that have a page beside them, and how it is written from the file's stem and values."""

_NAMES = {"values": "medians", "detect-level": "README"}  # pages that are not called as their JSON is
_BLOCK = re.compile(r"<!-- pages: (\S+) -->\n.*?<!-- /pages(?: \w+)? -->", re.DOTALL)
_MARK = re.compile(r"<!-- /?pages\b")
_LIMIT = 8 * MEBIBYTE


def expected(root: Path) -> dict[Path, str]:
    """The text that each generated page of the checkout at `root` should have, from its JSON."""
    results = Results(root)
    if not results.folder.is_dir():
        raise InputError(f"cannot read {results.folder}: no such folder; pages are written in a checkout of bymi")
    pages = {}
    for pattern, write in WHOLE.items():
        for path in sorted(results.folder.glob(pattern)):
            results.used.clear()
            values = results.json(str(path.relative_to(results.folder)))
            assert values is not None
            made = versions(values)
            line = f"Made with bymi {made}." if made else "Made with bymi, of a version that the JSON does not name."
            text = f"{write(path.stem, values)}\n{line}\n\n<!-- written from {path.name} {results.stamp()} -->\n"
            pages[path.with_name(_NAMES.get(path.stem, path.stem) + ".md")] = text
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if path not in pages and path.exists():
            text = read_bytes(path, limit=_LIMIT).decode()
            if _MARK.search(text):
                pages[path] = _fill(path, text, results)
    return pages


def _fill(path: Path, text: str, results: Results) -> str:
    """The text of a page with the content of all of its blocks written again."""

    def content(found: re.Match[str]) -> str:
        name = found[1]
        if name not in BLOCKS:
            raise InputError(f"{path}: got a block {name!r}, allowed: {', '.join(BLOCKS)}")
        results.used.clear()
        text = BLOCKS[name](results).strip()
        return f"<!-- pages: {name} -->\n\n{text}\n\n<!-- /pages {results.stamp()} -->"

    if len(_MARK.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise InputError(f"{path}: a block has no beginning or no end; allowed: <!-- pages: NAME --> ... <!-- /pages -->")
    return _BLOCK.sub(content, text)


def check(root: Path) -> list[str]:
    """A line for each page that differs from what its JSON says, and for each figure not drawn with the JSON beside it."""
    results, lines = Results(root), []
    for path, text in expected(root).items():
        if _differs(path, text):
            lines.append(f"{path.relative_to(root)} differs from its JSON: bymi reproduce pages")
    for path in sorted(results.folder.rglob("*.json")):
        values = results.json(str(path.relative_to(results.folder))) or {}
        for name, digest in values.get("figures", {}).items():
            figure = path.with_name(name)
            if not figure.exists() or fingerprints([figure]) != {name: digest}:
                lines.append(f"{figure.relative_to(root)} was not drawn with {path.name}: {values.get('command')}")
    if evidence.differs(results):
        lines.append("docs/results/evidence/red-team.png was not drawn from red-team.json: bymi reproduce pages")
    return lines


def write(root: Path) -> list[Path]:
    """Write all pages that differ from what their JSON says; the pages written."""
    results = Results(root)
    written = evidence.draw(results) if evidence.differs(results) else []  # first: the index has a stamp of its JSON
    # Again while pages are new: the index lists the files that are there.
    while differing := {path: text for path, text in expected(root).items() if _differs(path, text)}:
        is_new = any(not path.exists() for path in differing)
        for path, text in differing.items():
            write_bytes(path, text.encode())
        written += [path for path in differing if path not in written]
        if not is_new:
            break
    return written


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_bytes() != text.encode()
