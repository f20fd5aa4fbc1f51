"""What is in the box: every named part with its parameters and its first line, and what the exit codes mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bymi import aggregation, attacks, detection, topology
from bymi.errors import EXIT_CODES
from bymi.experiment.recipes import RECIPES

Row = tuple[str, str, str]


def catalogue() -> dict[str, list[Row]]:
    """Heading -> rows of (name, parameters with defaults, what it is)."""
    return {
        "recipe": [(name, "", _first_line(recipe)) for name, recipe in RECIPES.items()],
        "graph": _rows(topology.TOPOLOGIES),
        "warm_up.rule": _rows(aggregation.RULES),
        "attack": _rows(attacks.ATTACKS),
        "detection.centre": _rows(detection.CENTRES),
        "detection.scale": _rows(detection.SCALES),
        "exit code": [(str(code), "", meaning) for code, meaning in EXIT_CODES.items()],
    }


def _rows(table: Mapping[str, type[Any]]) -> list[Row]:
    return [(name, _parameters(entry), _first_line(entry)) for name, entry in table.items()]


def _parameters(entry: type[Any]) -> str:
    fields = dataclasses.fields(entry)
    return ", ".join(f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default}" for f in fields)


def _first_line(entry: Any) -> str:
    return (entry.__doc__ or "").strip().splitlines()[0]
