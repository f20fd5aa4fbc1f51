"""The committed JSON of all studies (docs/results), read once, and the words in which pages state numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from bymi.core.errors import InputError
from bymi.core.files import MEBIBYTE, read_bytes
from bymi.paper import page_images as images
from bymi.paper import page_red_team as red_team
from bymi.paper import page_scenarios_a_b as studies

Run = dict[str, Any]

NOT_MEASURED = "not measured"
_LIMIT = 64 * MEBIBYTE


class Results:
    """The JSON files below `root`/docs/results. A study that has no file has no runs.

    `used` are the names of the files asked for so far; the writer of a page empties it first and stamps the page with them.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "docs" / "results"
        self.used: set[str] = set()
        self._read = cache(self._json)

    def json(self, name: str) -> dict[str, Any] | None:
        """The values of a file such as "images/table-mnist.json", or None if there is no such file."""
        self.used.add(name)
        return self._read(name)

    def stamp(self) -> str:
        """A digest of all values in the files used: it changes with any number in them, also one that no table shows."""
        everything = [(name, self._read(name)) for name in sorted(self.used)]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        if not path.exists():
            return None
        try:
            values = json.loads(read_bytes(path, limit=_LIMIT))
        except ValueError as problem:
            raise InputError(f"{path} is not valid JSON: {problem}") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected an object, got {type(values).__name__}")
        return values

    def linear(self, name: str) -> dict[studies.Group, list[Run]]:
        """The runs of scenario-a, scenario-a-mu1 or scenario-b by dimension, warm-up and value on the axis."""
        values = self.json(f"{name}/values.json")
        return {} if values is None else studies.read_settings(values)

    def images(self, kind: str, data: str) -> images.Runs:
        """The runs of a table or ratios study by attack, rule, ratio and column; `data` is mnist or fashion."""
        values = self.json(f"images/{kind}-{data}.json")
        return {} if values is None else images.read_cells(values)

    def red_team(self, name: str = "red-team") -> red_team.Runs:
        """The runs of a red-team study by row and column."""
        values = self.json(f"red-team/{name}.json")
        return {} if values is None else red_team.read_cells(values)

    def default(self) -> dict[str, Run]:
        """The summaries of the default experiment by method."""
        values = self.json("default/default.json")
        return {} if values is None else {run["method"]: run for run in values["runs"]}


def count_runs(values: Any) -> int:
    """How many runs the JSON of a study holds, whatever they are grouped by."""
    if isinstance(values, list):
        return sum(map(count_runs, values))
    if not isinstance(values, dict):
        return 0
    found = values.get("runs", [])
    inner = sum(count_runs(value) for key, value in values.items() if key != "runs")
    return inner + (len(found) if isinstance(found, list) else 0)


def numbers(runs: Iterable[Run], key: str) -> list[float]:
    """The values of a key, of runs that have one."""
    return [run[key] for run in runs if run.get(key) is not None]


def average(runs: Iterable[Run], key: str) -> float | None:
    """The mean of a key over the runs that have one."""
    values = numbers(runs, key)
    return mean(values) if values else None


def middle(runs: Iterable[Run], key: str) -> float:
    """The median of a key over all runs. A run without a value, such as the gap of a diverged one, counts as infinite."""
    return median(float("inf") if run.get(key) is None else run[key] for run in runs)


def mean_or_infinite(runs: Iterable[Run], key: str) -> float:
    """The mean of a key over all runs. A run without a value, such as the gap of a diverged one, makes it infinite."""
    return mean(float("inf") if run.get(key) is None else run[key] for run in runs)


def ended_badly(run: Run) -> bool:
    """Whether a run did not finish, or ended with Byzantine nodes in its core."""
    return run["outcome"] != "finished" or bool(run.get("core_byzantine"))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def small(value: float) -> str:
    """A gap or a gradient norm in scientific notation."""
    return "diverged" if value == float("inf") else f"{value:.1e}"


def span(values: Iterable[float], write: Any = percent) -> str:
    """The range of some values: "1.0 % to 3.0 %", or one value where both ends read the same."""
    known = sorted(values)
    if not known:
        return NOT_MEASURED
    ends = dict.fromkeys(write(value) for value in (known[0], known[-1]))
    return " to ".join(ends)


def of(part: Iterable[bool]) -> str:
    """How many of some hold: "12 of 48"."""
    flags = list(part)
    return f"{sum(flags)} of {len(flags)}"
