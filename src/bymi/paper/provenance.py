"""Where the numbers of a study come from: machine and versions of each run, and fingerprints of its figures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bymi.runs import run_folder as store


def origin(folder: Path) -> dict[str, str]:
    """Machine, torch and bymi of the run in `folder`, to stand beside its values in the JSON of a study."""
    made = store.read_json(folder / store.ENVIRONMENT)
    return {"made_on": made.get("gpu") or f"{made['cores']} CPU cores", "torch": made["torch"], "bymi": made["bymi"]}


def fingerprints(figures: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each figure by file name, so that the JSON of a study says which figures were drawn with it."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in figures}
