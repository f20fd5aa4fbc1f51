"""Where the numbers of a study come from: machine and versions of each run or study, and fingerprints of its figures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bymi.runs import run_folder as store


def origin(folder: Path) -> dict[str, str]:
    """Machine, torch and bymi of the run in `folder`, to stand beside its values in the JSON of a study."""
    made = store.read_json(folder / store.ENVIRONMENT)
    return {"made_on": made.get("gpu") or f"{made['cores']} CPU cores", "torch": made["torch"], "bymi": made["bymi"]}


def fingerprints(figures: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each figure by file name, so that the JSON of a study says which figures were drawn with it."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in figures}


def versions(values: dict[str, Any]) -> str:
    """The versions of bymi that made a study, from its JSON: those of its runs where they carry them, else of its environment.

    "0.11.0 (12 of 40) and 0.12.0 (28 of 40)", or one version alone; empty where the JSON names none.
    """
    runs = [version for key, part in values.items() if key != "environment" for version in _versions(part)]
    found = runs or list(_versions(values.get("environment", {})))
    counts = {version: found.count(version) for version in sorted(set(found), key=_order)}
    if len(counts) == 1:
        return found[0]
    return " and ".join(f"{version} ({count} of {len(found)})" for version, count in counts.items())


def _versions(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        for key, value in values.items():
            if key == "bymi" and isinstance(value, str):
                yield value
            else:
                yield from _versions(value)
    elif isinstance(values, list):
        for value in values:
            yield from re.findall(r"\bbymi (\S+)$", value) if isinstance(value, str) else _versions(value)


def _order(version: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]], version
