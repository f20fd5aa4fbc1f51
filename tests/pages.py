"""Reads what reports write: Markdown tables and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path


def rows_of(page: Path) -> list[list[str]]:
    """The cells of each line of the page's table, without its heading."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def headings_of(page: Path) -> list[str]:
    line = next(line for line in page.read_text().splitlines() if line.startswith("| "))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def are_pictures(*paths: Path) -> None:
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
