"""One tidy table of many runs: a row per run, with what was set, how it ended and what was measured."""

from __future__ import annotations

import csv
import importlib
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bymi.core import files
from bymi.core.errors import BymiError, InputError, require
from bymi.runs import run_folder as store
from bymi.runs.run_folder import SUMMARY_KEYS

SWEEP = "sweep.json"
"""File in a folder of runs that lists the runs of a sweep, also those that have failed or are still to do."""

FAILED, PENDING = "failed", "not run"
"""Outcomes of runs without a folder."""

_WORDS = {"method", "seed", "digest", "outcome", "sentence", "theory"}


class RowTable(list[dict[str, Any]]):
    """A table: a list of rows, each a dict from column to value."""

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame; needs the extra `pandas`."""
        return _pandas("to_pandas").DataFrame(list(self))

    @property
    def columns(self) -> list[str]:
        """All columns, in the order in which rows name them."""
        return list(dict.fromkeys(key for row in self for key in row))

    def to_csv(self, path: str | Path) -> None:
        """Write a .csv file; missing values are empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in self)
        files.write_bytes(Path(path), text.getvalue().encode())

    def to_parquet(self, path: str | Path) -> None:
        """Write a .parquet file; needs the extra `pandas`, which includes pyarrow."""
        content = io.BytesIO()
        try:
            _pandas("to_parquet").DataFrame(list(self)).to_parquet(content)
        except ImportError:
            raise InputError("to_parquet: needs pyarrow, which is not installed: pip install 'bymi[pandas]'") from None
        files.write_bytes(Path(path), content.getvalue())


def _pandas(what: str) -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise InputError(f"{what}: needs pandas, which is not installed: pip install 'bymi[pandas]'") from None


@dataclass(frozen=True)
class ListedRun:
    """A run folder, or the entry of a sweep whose run has none."""

    folder: Path
    label: str
    seed: int
    spec: dict[str, Any] | None
    summary: dict[str, Any] | None
    settings: dict[str, Any] | None = None
    error: str | None = None


class ResultsTable(RowTable):
    """Rows of runs. `settings`: the columns that say what was run, seed included; `measures`: those that were measured."""

    def __init__(self, rows: Iterable[dict[str, Any]], settings: Sequence[str], measures: Sequence[str]) -> None:
        super().__init__(rows)
        self.settings, self.measures = tuple(settings), tuple(measures)

    def over_seeds(self) -> RowTable:
        """A row per setting: number of runs, of failed ones, then mean and standard deviation (`_sd`) of every measure.

        A mean is over the runs that have the measure; the deviation is that of a sample (n - 1), None for a single run.
        """
        keys = [key for key in self.settings if key != "seed"]
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
        table = RowTable()
        for values, rows in groups.items():
            failed = sum(row["outcome"] != "finished" for row in rows)
            line: dict[str, Any] = {**dict(zip(keys, values, strict=True)), "runs": len(rows), "not_finished": failed}
            for measure in self.measures:
                line[measure], line[f"{measure}_sd"] = mean_and_deviation(row[measure] for row in rows)
            table.append(line)
        return table


def mean_and_deviation(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation of the values that are numbers."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return (statistics.fmean(known) if known else None), deviation


def results(folder: str | Path | Sequence[str | Path]) -> ResultsTable:
    """The table of all runs in one or more folders, or of the run folders themselves.

    Columns: `run` (the folder's name), the method, what differs between the runs, the seed, the outcome with its sentence, then
    every number of summary.json. Runs of a sweep that failed or are still to do have rows, too.
    """
    paths = [folder] if isinstance(folder, (str, Path)) else list(folder)
    require(all(isinstance(path, (str, Path)) for path in paths), "folder", folder, "the path of a folder, or a list of them")
    return table_of(find_runs([Path(path) for path in paths]))


def table_of(runs: Sequence[ListedRun]) -> ResultsTable:
    """The table of these runs."""
    settings = settings_of(runs)
    keys = list(dict.fromkeys(key for row in settings for key in row))
    numbers = [_numbers(run.summary) for run in runs]
    measured = {key for row in numbers for key, value in row.items() if value is not None}
    measures = sorted(measured, key=lambda key: (SUMMARY_KEYS.index(key) if key in SUMMARY_KEYS else len(SUMMARY_KEYS), key))
    rows = [
        {
            "run": run.folder.name,
            "method": run.label,
            **{key: chosen.get(key) for key in keys},
            "seed": run.seed,
            "outcome": run.summary["outcome"] if run.summary else PENDING if run.error is None else FAILED,
            "sentence": run.summary["sentence"] if run.summary else run.error,
            **{measure: values.get(measure) for measure in measures},
        }
        for run, chosen, values in zip(runs, settings, numbers, strict=True)
    ]
    return ResultsTable(rows, ["method", *keys, "seed"], measures)


def find_runs(folders: Sequence[Path]) -> list[ListedRun]:
    """All runs in these folders, those of a sweep in its order, others by method and seed.

    A folder without any is an InputError.
    """
    found: dict[Path, ListedRun] = {}
    for folder in folders:
        require(folder.is_dir(), "folder", str(folder), "a run folder, or a folder of them")
        listed = _read_sweep(folder)
        paths = [folder] if (folder / store.SUMMARY).exists() else _below(folder)
        runs = [_read_run(path, listed.get(path.name)) for path in paths]
        there = {run.folder.name for run in runs}
        runs += [entry for name, entry in listed.items() if name not in there]
        require(bool(runs) or len(folders) > 1, "folder", str(folder), "a run folder, or a folder with some inside")
        places = {name: place for place, name in enumerate(listed)}
        runs.sort(key=lambda run: (places.get(run.folder.name, len(places)), run.label, run.seed, run.folder.name))
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def _below(folder: Path) -> Iterable[Path]:
    """Run folders below a folder; hidden ones are checkpoints and scratch folders."""
    for path in folder.rglob(store.SUMMARY):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path.parent


def _read_run(folder: Path, listed: ListedRun | None) -> ListedRun:
    settings = None if listed is None else listed.settings
    try:
        summary, spec = store.read_json(folder / store.SUMMARY), store.read_json(folder / store.SPEC)
        if not isinstance(summary, dict) or not isinstance(spec, dict) or not {"method", "seed", "outcome"} <= set(summary):
            raise InputError(f"{folder / store.SUMMARY}: keys are missing")
        label, seed = str(summary["method"]), int(summary["seed"])
        return ListedRun(folder, label, seed, spec, {"sentence": "", **summary}, settings)
    except (BymiError, ValueError, TypeError) as problem:
        name, seed = (folder.name, 0) if listed is None else (listed.label, listed.seed)
        return ListedRun(folder, name, seed, None, None, settings, f"damaged folder: {problem}")


def _read_sweep(folder: Path) -> dict[str, ListedRun]:
    """The runs that a sweep in this folder lists, by the names of their folders."""
    if not (folder / SWEEP).exists():
        return {}
    listed = store.read_json(folder / SWEEP)
    try:
        return {
            name: ListedRun(
                folder / name, str(run["method"]), int(run["seed"]), None, None, dict(run["settings"]), run.get("error")
            )
            for name, run in listed["runs"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{folder / SWEEP}: not a list of runs as bymi sweep writes it") from None


def settings_of(runs: Sequence[ListedRun]) -> list[dict[str, Any]]:
    """What was set per run, for the keys of its sweep, or without one for those in which runs of one method differ."""
    if all(run.settings is not None for run in runs):
        return [run.settings or {} for run in runs]
    flat = [{} if run.spec is None else flatten(run.spec) for run in runs]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run, values in zip(runs, flat, strict=True):
        if run.spec is not None:
            groups.setdefault(run.label, []).append(values)
    keys = [key for key in dict.fromkeys(key for values in flat for key in values) if key not in ("method", "seed", "profile")]
    varied = [key for key in keys if any(_differs(key, group) for group in groups.values())]
    return [{key: values.get(key) for key in varied} | (run.settings or {}) for run, values in zip(runs, flat, strict=True)]


def _differs(key: str, group: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs differ in a key, where to lack it is a value. Parameters of a part count only among runs with that part."""
    part = key.rpartition(".")[0]
    by_part: dict[Any, set[str]] = {}
    for values in group:
        by_part.setdefault(values.get(part), set()).add(repr(values[key]) if key in values else "")
    return any(len(seen) > 1 for seen in by_part.values())


def flatten(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Dotted keys of nested values; the name of a part stands under the part's own key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{before}{key}."))
        elif key == "name" and before:
            flat[before[:-1]] = value
        else:
            flat[f"{before}{key}"] = value
    return flat


def _numbers(summary: Mapping[str, Any] | None) -> dict[str, float | None]:
    """The numbers of a summary; of messages not heard their count."""
    if summary is None:
        return {}
    values = {**summary, "unheard": (summary.get("unheard") or {}).get("messages")}
    return {
        key: value
        for key, value in values.items()
        if key not in _WORDS and (value is None or (isinstance(value, (int, float)) and math.isfinite(value)))
    }


def write_sweep(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write or extend the list of runs of a sweep: folder name -> method, seed, settings, error."""
    known: dict[str, Any] = {}
    if (folder / SWEEP).exists():
        _read_sweep(folder)
        known = store.read_json(folder / SWEEP)["runs"]
    store.write_json(folder / SWEEP, {"runs": {**known, **{name: dict(run) for name, run in runs.items()}}}, indent=1)
