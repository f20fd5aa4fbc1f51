"""docs/paper-map.md stays true: every function and every test that it names exists, and every label in the code is listed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (\S+).*? \| `(bymi\.[\w.]+)` \| `(tests/[\w./]+\.py)(?:::(\w+))?` \|$", (ROOT / "docs/paper-map.md").read_text(), re.M
)


def test_the_map_is_read() -> None:
    table_lines = [line for line in (ROOT / "docs/paper-map.md").read_text().splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(table_lines) - 1  # all but the heading


@pytest.mark.parametrize(("label", "name", "path", "test"), ROWS)
def test_code_and_test_exist(label: str, name: str, path: str, test: str) -> None:
    module, found = name, None
    rest: list[str] = []
    while found is None:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
    for part in rest:
        found = getattr(found, part)
    assert callable(found)
    text = (ROOT / path).read_text()
    assert not test or f"def {test}(" in text


def test_every_label_in_the_code_is_on_the_map() -> None:
    labels = {label for label, *_ in ROWS}
    mentioned = set()
    for path in (ROOT / "src").rglob("*.py"):
        for line in re.findall(r"Paper: (.*)", path.read_text()):
            mentioned |= set(re.findall(r"(?:eq|asp|thm|prop|alg|fig|tab):[\w-]*\w|Eq_\w+", line))
    assert mentioned
    assert mentioned <= labels
