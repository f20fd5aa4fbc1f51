"""Two matrices of half gradients, validated: rows that can be compared, and rows that cannot."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bymi.core.errors import InputError, is_integer
from bymi.core.linalg import norms
from bymi.core.message_validity import OVERFLOW
from bymi.detection.array_verdict import NOT_FINITE, TOO_LARGE

_FEWEST = 3  # machines needed for a comparison
_COLUMNS = 1 << 12  # coordinates per block


@dataclass(frozen=True, eq=False)
class ArrayHalves:
    """The k comparable rows of n, in their input precision, and their positions."""

    first: Tensor  # [k, d]
    second: Tensor  # [k, d]
    at: Tensor  # [k] positions among all rows
    judged: Tensor  # [k] bool
    outcasts: dict[int, str]  # position and reason of each other row
    size: int  # n

    @staticmethod
    def read(first: Any, second: Any, own: int | None) -> ArrayHalves:
        """From any two matrices [n, d]; `own` is a row that is not judged. Copies only if needed."""
        one, two = _matrix(first, "first"), _matrix(second, "second")
        if one.shape != two.shape:
            raise InputError(f"first and second must have one shape, got {list(one.shape)} and {list(two.shape)}")
        size = len(one)
        if own is not None and not (is_integer(own) and 0 <= own < size):
            raise InputError(f"own: got {own}, must be a row number from 0 to {size - 1}")
        longest = torch.maximum(norms(one), norms(two))  # NaN and Inf propagate
        outcasts = {row: _reason(one[row], two[row]) for row in (~(longest <= OVERFLOW)).nonzero().flatten().tolist()}
        rows = [row for row in range(size) if row not in outcasts]
        if len(rows) < _FEWEST:
            allowed = f"finite values and a norm up to {OVERFLOW:g}"
            raise InputError(f"got {len(rows)} of {size} machines with {allowed}, need {_FEWEST} or more to compare")
        if own is not None and own in outcasts:
            raise InputError(f"own: row {own} is {outcasts[own]}, and nothing can be compared with it")
        at = torch.tensor(rows, dtype=torch.int64, device=one.device)
        if outcasts:
            one, two = one[at], two[at]
        return ArrayHalves(one, two, at, at != (-1 if own is None else own), outcasts, size)

    @property
    def dim(self) -> int:
        return self.first.shape[1]

    @cached_property
    def difference2(self) -> Tensor:
        """|x1 - x2|^2 per row in float64 [k], in blocks of coordinates."""
        total = torch.zeros(len(self.at), dtype=torch.float64, device=self.first.device)
        for one, two in zip(self.first.split(_COLUMNS, 1), self.second.split(_COLUMNS, 1), strict=True):
            total += (one.to(torch.float64) - two.to(torch.float64)).square_().sum(1)
        return total

    def spread(self, values: Tensor, fill: float | bool) -> Tensor:
        """Values of the comparable rows [k] as values of all rows [n], `fill` elsewhere."""
        output = torch.full((self.size,), fill, dtype=values.dtype, device=values.device)
        output[self.at] = values
        return output

    def reasons(self, compared: Sequence[str]) -> tuple[str, ...]:
        """Reasons of all rows, from those of the comparable rows."""
        reasons = dict(zip(self.at.tolist(), compared, strict=True)) | self.outcasts
        return tuple(reasons[row] for row in range(self.size))


def _matrix(values: Any, name: str) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about read-only arrays, which are not written to here
            matrix = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"{name}: cannot be read as a matrix of numbers ({problem})") from None
    if matrix.ndim != 2 or matrix.shape[0] < _FEWEST or matrix.shape[1] < 1:
        raise InputError(f"{name}: got shape {list(matrix.shape)}, need a matrix [n, d] with n >= {_FEWEST} and d >= 1")
    if matrix.is_complex():
        raise InputError(f"{name}: got numbers of type {matrix.dtype}, allowed: real numbers")
    return matrix.detach() if matrix.is_floating_point() else matrix.to(torch.float64)


def _reason(one: Tensor, two: Tensor) -> str:
    return TOO_LARGE if bool(torch.isfinite(one).all() & torch.isfinite(two).all()) else NOT_FINITE
