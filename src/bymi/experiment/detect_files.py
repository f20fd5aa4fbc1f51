"""Identification on files: matrices of half gradients in, a verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bymi.core.errors import InputError, did_you_mean
from bymi.detection import CENTRES, SCALES, ArrayVerdict, identify
from bymi.experiment.read_matrices import Contents, read_matrices, read_names


@dataclass(frozen=True, eq=False)
class Machines:
    """Half gradients [n, d] of named machines, as read from files."""

    first: Tensor
    second: Tensor
    names: list[str] | None = None
    notes: tuple[str, ...] = ()  # to be reported with the verdict


def judge_files(
    first: Path,
    second: Path | None,
    *,
    names: Path | None = None,
    centre: str | None = None,
    scale: str | None = None,
    **how: Any,
) -> ArrayVerdict:
    """The verdict on the rows of two matrices, or of one file with both; errors are InputErrors of one line.

    `how` goes to `identify`, with `centre` and `scale` by name.
    """
    parts: dict[str, Any] = {
        "centre": None if centre is None else _choose(CENTRES, centre, "--centre")(),
        "scale": None if scale is None else _choose(SCALES, scale, "--scale")(),
    }
    machines = read_machines(first, second, names)
    verdict = identify(machines.first, machines.second, names=machines.names, **parts, **how)
    return replace(verdict, notes=machines.notes)


def read_machines(first: Path, second: Path | None, names: Path | None = None) -> Machines:
    """Both halves, from two files with one matrix each or from one file with two; `names` is a file with a name per line.

    If two files have the same names in another order, rows are matched by name.
    """
    if second is None:
        contents = read_matrices(first)
        one, two = _both(first, contents)
        machines = Machines(one, two, contents.names)
    else:
        machines = _match(_only(first), _only(second), (first, second))
    if names is not None:
        machines = replace(machines, names=read_names(names), notes=())
    return machines


def _both(path: Path, contents: Contents) -> tuple[Tensor, Tensor]:
    """The two matrices of one file: `first` and `second` by name, or the only two there are."""
    matrices = contents.matrices
    if {"first", "second"} <= set(matrices):
        return matrices["first"], matrices["second"]
    if len(matrices) != 2:
        holds = f"{len(matrices)} arrays ({', '.join([*matrices][:5])})" if len(matrices) > 1 else "one matrix"
        raise InputError(f"{path}: it holds {holds}, need two: give a second file, or arrays named first and second")
    one, two = matrices.values()
    return one, two


def _only(path: Path) -> Contents:
    contents = read_matrices(path)
    if len(contents.matrices) != 1:
        names = ", ".join([*contents.matrices][:5])
        raise InputError(f"{path}: it holds {len(contents.matrices)} arrays ({names}), need exactly one beside another file")
    return contents


def _match(one: Contents, two: Contents, paths: tuple[Path, Path]) -> Machines:
    """Two files as one set of machines: by row or, where both have names, by name."""
    (first,), (second,) = one.matrices.values(), two.matrices.values()
    if one.names is None or two.names is None or one.names == two.names:
        return Machines(first, second, one.names or two.names)
    place = {name: row for row, name in enumerate(two.names)}
    missing = sorted({*one.names} ^ {*two.names})
    if missing or len(place) != len(two.names) or len(one.names) != len(two.names):
        what = f"{missing[0]!r} is in one of them only" if missing else "a name stands for more than one machine"
        raise InputError(f"{paths[0]} and {paths[1]} must name the same machines: {what}")
    order = torch.tensor([place[name] for name in one.names])
    return Machines(first, second[order], one.names, (f"rows of {paths[1]} were brought into the order of {paths[0]} by name",))


def _choose(table: Mapping[str, Any], name: str, option: str) -> Any:
    if name not in table:
        raise InputError(f"{option}: got {name!r}{did_you_mean(name, table)}; allowed: {', '.join(table)}")
    return table[name]
