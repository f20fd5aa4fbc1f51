"""Hooks of the documentation site: files beside docs/ become pages, and links to them follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
DATA = ("examples/*.*", "benchmarks/results/*.json", "benchmarks/README.md", "LICENSE", "CITATION.cff")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and data files of the repository that lie outside docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=_relative_to_docs((ROOT / source).read_text(encoding="utf-8"))))
    for pattern in DATA:
        for path in ROOT.glob(pattern):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ (`../examples/x.py` on a page of the first level) go to the added files."""
    if page.file.src_uri == "benchmarks/README.md":
        return markdown.replace("](../docs/", "](../")
    if page.file.src_uri.count("/"):
        return markdown
    for source, target in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    markdown = markdown.replace("](../examples)", "](own-parts.md#parts-by-name)")
    return re.sub(r"\]\(\.\./(examples|benchmarks|LICENSE)", r"](\1", markdown)


def _relative_to_docs(markdown: str) -> str:
    """The text of a page of the root, with its links as seen from docs/."""
    for source, target in PAGES.items():
        markdown = markdown.replace(f"]({source}", f"]({target}")
    return markdown.replace("](docs/", "](")
