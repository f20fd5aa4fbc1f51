"""What is stored: read, written and compared. Where the machine is another one, values are compared instead of digests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.golden.record import Record, relative_difference

HERE = Path(__file__).parent
RUNS, NAMES, CHECKPOINTS = HERE / "runs.json", HERE / "names.json", HERE / "checkpoints"
TOLERANCE = 1e-12


def environment() -> dict[str, str]:
    """What last bits depend on: kernels of torch and of its BLAS are chosen by the CPU."""
    try:
        said = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        said = {}
    return {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": " ".join(said.get(key, "?") for key in ("vendor_id", "cpu family", "model")),
    }


def read_runs(path: Path = RUNS) -> tuple[dict[str, str], dict[str, Record]]:
    """The environment that they were stored in, and the records by name."""
    found = json.loads(path.read_text())
    return found["environment"], {name: Record(**record) for name, record in found["runs"].items()}


def read_names(path: Path = NAMES) -> dict[str, dict[str, str]]:
    """Recipes, studies and random streams by name, each with what it stands for."""
    found: dict[str, dict[str, str]] = json.loads(path.read_text())
    return found


def write_runs(records: Mapping[str, Record], path: Path = RUNS) -> None:
    write(path, {"environment": environment(), "runs": {name: asdict(record) for name, record in records.items()}})


def write(path: Path, value: Mapping[str, Mapping[str, Any]]) -> None:
    """JSON with one line for each entry of a section, so that a change is read in a diff."""
    sections = []
    for name, section in value.items():
        entries = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in section.items())
        sections.append(f"{json.dumps(name)}: {{\n{entries}\n}}")
    path.write_text("{\n" + ",\n".join(sections) + "\n}\n")


def difference(stored: Record, found: Record) -> str | None:
    """How two records of a run differ, in words; None where they are equal."""
    if found == stored:
        return None
    pairs = enumerate(zip(stored.rounds, found.rounds, strict=False), 1)
    first = next(
        (f"first in round {number} of {len(stored.rounds)}" for number, (one, two) in pairs if one != two), "at the end"
    )
    words = [f"{len(found.rounds)} rounds instead of {len(stored.rounds)}"] if len(found.rounds) != len(stored.rounds) else []
    words += [first, f"values by {relative_difference(stored.values, found.values):.1e}"]
    words += [f"flags {found.flags} instead of {stored.flags}"] if found.flags != stored.flags else []
    return ", ".join(words)


def alike(stored: Record, found: Record) -> bool:
    """Equal but for rounding: the same flags, and values within the tolerance."""
    near = relative_difference(stored.values, found.values) <= TOLERANCE
    return near and stored.flags == found.flags and len(stored.rounds) == len(found.rounds)


def elsewhere(before: Mapping[str, str]) -> str | None:
    """What is different about this machine, in words; None where digests have to be equal."""
    here = environment()
    words = [f"{key} {before.get(key)}, here {value}" for key, value in here.items() if before.get(key) != value]
    return "; ".join(words) or None
