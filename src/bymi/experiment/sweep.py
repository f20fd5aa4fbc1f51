"""Sweeps: the product of all values that keys are given as lists, times seeds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bymi.core.errors import InputError, is_integer, require
from bymi.core.named_parts import read_shorthand, read_value
from bymi.experiment.loading import base_values, with_settings
from bymi.experiment.spec import Spec, read_spec
from bymi.runs import run_folder as store
from bymi.runs.results_table import write_sweep

LARGEST = 100_000
"""Runs of the largest sweep."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its spec, what the sweep set, or why there is no such run."""

    settings: dict[str, Any]
    spec: Spec | None = None
    error: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, in the order of the product, and the values per key."""

    axes: dict[str, list[Any]]
    runs: list[SweepRun] = field(default_factory=list)

    @property
    def specs(self) -> list[Spec]:
        """The specs that can be run."""
        return [run.spec for run in self.runs if run.spec is not None]

    @property
    def size(self) -> str:
        """The number of runs with its factors: "attack (2) x method (4) x seed (3) = 24 runs"."""
        methods = max(Counter((str(run.settings), run.seed) for run in self.runs).values())
        factors = {key: len(values) for key, values in self.axes.items()}
        factors |= {"method": methods, "seed": len({run.seed for run in self.runs})}
        product, count = math.prod(factors.values()), len(self.runs)
        runs = "1 run" if count == 1 else f"{count} runs"
        text = " x ".join(f"{key} ({number})" for key, number in factors.items())
        return f"{text} = {runs}" if product == count else f"{text} = {product}: {runs}, others are equal or no valid spec"

    def list_in(self, out: Path, errors: Mapping[str, str] | None = None) -> list[str]:
        """Write the list of all runs to `out`, and return their names there; `errors`: messages of failed runs by digest."""
        entries = {}
        for index, run in enumerate(self.runs):
            if run.spec is None:
                name, label, error = f"invalid-{index}", "-", run.error
            else:
                name, label = store.folder_of(out, run.spec).name, run.spec.label
                error = (errors or {}).get(run.spec.digest)
            entries[name] = {"method": label, "seed": run.seed, "settings": run.settings, "error": error}
        write_sweep(out, entries)
        return list(entries)


def load_sweep(source: str | None, words: Sequence[str] = (), *, imports: bool = False) -> Sweep:
    """The sweep of a recipe or file and `key=value` words, in which lists mean each of their values in turn.

    `key=[a, b]` on the command line and lists in a .toml or .json file are axes; `seeds=5` means seeds 0 to 4, `seeds=[3, 7]`
    those two. `method` may be a list as in any spec. Combinations that are no valid spec stay in the sweep as failed runs,
    unless none is valid.
    """
    values = base_values(source, imports)
    seeds = _seeds(values.pop("seeds", None))
    given: list[tuple[str, Any]] = []
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise InputError(f"{word!r}: expected key=value or key=[value, value], such as attack=[ipm, gradient]")
        value = read_list(text) if text.startswith("[") and text.endswith("]") else read_value(text)
        if key == "seeds":
            seeds = _seeds(value)
        elif key == "seed":
            seeds = _seeds(value if isinstance(value, list) else [value])
        else:
            given.append((key, value))
    axes: dict[str, list[Any]] = dict(_lists_in(values))
    for key, value in given:
        path = key.removesuffix(".name")
        axes.pop(path, None)
        if isinstance(value, list) and path != "method":
            require(len(value) > 0, key, value, "one value or more")
            axes[path] = value
    count = len(seeds)
    for options in axes.values():
        count *= len(options)
    require(count <= LARGEST, "sweep", f"{count} runs", f"up to {LARGEST}")
    runs = [run for chosen in itertools.product(*axes.values()) for run in _runs(values, given, axes, chosen, seeds)]
    errors = [run.error for run in runs if run.error is not None]
    if len(errors) == len(runs):
        raise InputError(errors[0] or "no run")
    unique = {run.spec.digest if run.spec else f"-{index}": run for index, run in enumerate(runs)}
    return Sweep(axes, list(unique.values()))


def _runs(
    values: Mapping[str, Any],
    given: Sequence[tuple[str, Any]],
    axes: Mapping[str, list[Any]],
    chosen: Sequence[Any],
    seeds: Sequence[int],
) -> Iterator[SweepRun]:
    """The runs of one combination of values."""
    setting = dict(zip(axes, chosen, strict=True))
    fixed = [(key, value) for key, value in given if key.removesuffix(".name") not in setting]
    plain = with_settings(values, [*fixed, *setting.items()])
    settings = {key: _text(value) for key, value in setting.items()}
    for seed in seeds:
        try:
            for spec in read_spec({**plain, "seed": seed}).expand():
                yield SweepRun(settings, spec, seed=seed)
        except InputError as problem:
            yield SweepRun(settings, error=str(problem), seed=seed)


def read_list(text: str) -> list[Any]:
    """The values of "[a, b]": TOML where it is, else words split at commas; "[ipm:a=2, b=3, alie]" has two parts."""
    value = read_value(text)
    if isinstance(value, list):
        return value
    pieces: list[str] = []
    depth, quote, start = 0, "", 1
    for index, character in enumerate(text[:-1]):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif index and character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and not depth:
            pieces.append(text[start:index])
            start = index + 1
    pieces.append(text[start:-1])
    joined: list[str] = []
    for piece in (piece.strip() for piece in pieces):
        if joined and "=" in piece.partition(":")[0] and ":" in joined[-1]:
            joined[-1] += f",{piece}"  # another parameter of the part before
        elif piece:
            joined.append(piece)
    return [read_value(piece) for piece in joined]


def _lists_in(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Dotted keys of all lists in nested values, but for the method."""
    for key, value in values.items():
        path = f"{before}{key}"
        if isinstance(value, list) and path != "method":
            require(len(value) > 0, path, value, "one value or more")
            yield (path if key != "name" else before[:-1]), value
        elif isinstance(value, dict):
            yield from _lists_in(value, f"{path}.")


def _seeds(value: Any) -> list[int]:
    if value is None:
        return [0]
    seeds = list(range(value)) if is_integer(value) and 1 <= value <= LARGEST else value
    fits = isinstance(seeds, list) and len(seeds) > 0 and all(is_integer(seed) and seed >= 0 for seed in seeds)
    require(fits, "seeds", value, "how many, such as 5, or a list of them, such as [0, 3]")
    return list(dict.fromkeys(seeds))


def _text(value: Any) -> Any:
    """A value as a table shows it: parts in one word."""
    if isinstance(value, str):
        part = read_shorthand(value)
        return value if len(part) > 1 else part["name"]
    if isinstance(value, dict):
        rest = ",".join(f"{key}={one}" for key, one in value.items() if key != "name")
        return f"{value.get('name', '')}:{rest}" if rest else value.get("name", "")
    return value
