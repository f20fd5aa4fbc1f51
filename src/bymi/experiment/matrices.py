"""Identification on files: two matrices in, a verdict out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bymi.detection import CENTRES, SCALES, Verdict, identify
from bymi.errors import InputError


def judge_files(first: Path, second: Path, *, fdr_level: float, offset: int, centre: str, scale: str) -> Verdict:
    """Read two matrices [n, d] and judge their rows; every mistake is an InputError of one line."""
    chosen_centre, chosen_scale = _choose(CENTRES, centre, "--centre"), _choose(SCALES, scale, "--scale")
    halves = [read_matrix(path) for path in (first, second)]
    return identify(*halves, fdr_level=fdr_level, offset=offset, centre=chosen_centre(), scale=chosen_scale())


def read_matrix(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A matrix from .npy, .npz (one array) or .csv (numbers only, comma between). Never unpickles."""
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers:
        raise InputError(f"{path}: got a {path.suffix or 'nameless'} file, allowed: {', '.join(readers)}")
    try:
        found = np.asarray(readers[path.suffix](path))
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    except Exception as problem:  # a damaged file breaks its reader in any way it likes
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(f"{path} is not a readable {path.suffix} matrix: {reason}") from None
    if found.dtype.kind not in "biuf":
        raise InputError(f"{path}: got numbers of type {found.dtype}, allowed: real numbers")
    matrix = found.astype(np.float64)
    if matrix.ndim != 2:
        raise InputError(f"{path}: got an array of shape {list(matrix.shape)}, need a matrix [n, d]")
    bad = np.flatnonzero(~np.isfinite(matrix).all(1)).tolist()
    if bad:
        raise InputError(f"{path}: rows {bad[:5]} hold NaN or Inf; take those machines out, they convict themselves")
    return matrix


def _read_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _read_npz(path: Path) -> Any:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if len(archive.files) != 1:
            raise ValueError(f"it holds {len(archive.files)} arrays ({', '.join(archive.files[:5])}), need exactly one")
        return archive[archive.files[0]]


def _read_csv(path: Path) -> Any:
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.split("#")[0].strip()]
    if not lines:
        raise ValueError("it is empty")
    return np.loadtxt(lines, delimiter=",", ndmin=2)


def _choose(table: Mapping[str, Any], name: str, option: str) -> Any:
    if name not in table:
        close = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{option}: got {name!r}{hint}; allowed: {', '.join(table)}")
    return table[name]
