"""Studies without run folders: points that are measured one by one, a figure, and a page written from their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from matplotlib.figure import Figure

import bymi
from bymi.core.files import MEBIBYTE, read_bytes, write_bytes
from bymi.paper.provenance import fingerprints
from bymi.report.figures import save
from bymi.runs import run_folder as store

Values = dict[str, Any]
"""JSON values: of a point, what it is and what was measured; of a study, its points below "points"."""

_LIMIT = 64 * MEBIBYTE


@dataclass(frozen=True)
class ComputedStudy:
    """A study by name. `points` lists what to measure (`fast`: a part), `measure` adds the values of one point to it."""

    name: str
    shows: str
    points: Callable[[bool], Sequence[Values]]
    measure: Callable[[Values, Path | None], Values]
    page: Callable[[Values], str]
    figure: Callable[[Values], Figure] | None = None
    data: str | None = None  # the data set that it needs

    def run(self, folder: Path, *, fast: bool, data: Path | None, jobs: int, tell: Callable[[int], None]) -> list[Path]:
        """Measure every point that the folder does not hold yet, writing after each one; then draw figure and page.

        `jobs`: processes that measure at the same time.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        known = _known(path)
        command = f"bymi reproduce {self.name}" + (" --fast" if fast else "")
        values: Values = {"study": self.name, "command": command, "environment": store.environment(), "points": []}
        points = list(self.points(fast))
        found = [next((each for each in known if {key: each.get(key) for key in point} == point), None) for point in points]
        missing = [point for point, values_of in zip(points, found, strict=True) if values_of is None]
        with _measuring(min(jobs, len(missing))) as measured:
            new = measured(partial(_measured, self.measure, data), missing)
            for values_of in found:
                values["points"].append(next(new) if values_of is None else values_of)
                _write(path, values)
                tell(1)
        paths = [path]
        if self.figure is not None:
            draw = self.figure
            paths += save(lambda: draw(values), folder, self.name)
            values["figures"] = fingerprints(paths[1:])
            _write(path, values)
        page = folder / f"{self.name}.md"
        write_bytes(page, self.page(values).encode())
        return [*paths, page]


def paragraph(text: str) -> str:
    """Text of a page in lines of up to 128 characters."""
    return fill(" ".join(text.split()), 128, break_long_words=False, break_on_hyphens=False)


def _measured(measure: Callable[[Values, Path | None], Values], data: Path | None, point: Values) -> Values:
    return {**point, **measure(point, data)}


@contextmanager
def _measuring(jobs: int) -> Iterator[Callable[[Callable[[Values], Values], list[Values]], Iterator[Values]]]:
    """A map over points, in this process or in several, in order; what is not started at the end is not done."""
    if jobs <= 1:
        yield map
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)


def _known(path: Path) -> list[Values]:
    """Points of an earlier call of this version; none if there are none that can be read."""
    try:
        found = json.loads(read_bytes(path, limit=_LIMIT))
        return list(found["points"]) if found["environment"]["bymi"] == bymi.__version__ else []
    except (bymi.InputError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _write(path: Path, values: Values) -> None:
    write_bytes(path, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
