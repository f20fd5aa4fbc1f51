"""Stacked vectors [R, D] and their inner products, safe against cancellation and against memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_COLUMNS = 4096  # coordinates converted to float64 at a time: bounds the copies that `inner` makes, and fits a CPU's cache
_COLUMNS_AT_ONCE = 1 << 16  # the same elsewhere: few large kernels
_SAMPLED = 512  # coordinates looked at to find a central row


def norms(vectors: Tensor) -> Tensor:
    """Euclidean norm of each row in float64 [R]; NaN or inf where a row is not finite."""
    if vectors.ndim == 2 and vectors.dtype != torch.float64 and vectors.device.type == "cpu":
        # 2.5 times as fast as the line below, whose conversion runs number by number.
        total = torch.zeros(len(vectors), dtype=torch.float64)
        for part in vectors.split(_COLUMNS, dim=1):
            total.add_(part.to(torch.float64).square_().sum(1))
        return total.sqrt_()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return lengths


def inner(left: Tensor, right: Tensor, origin: Tensor) -> Tensor:
    """Float64 inner products <left_r - origin, right_s - origin> [R, S], a block of coordinates at a time."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    columns = _COLUMNS if left.device.type == "cpu" else _COLUMNS_AT_ONCE
    for start in range(0, left.shape[1], columns):
        part = slice(start, start + columns)
        centre = origin[part].to(torch.float64)
        first = left[:, part].to(torch.float64) - centre
        second = first if right is left else right[:, part].to(torch.float64) - centre
        total.addmm_(first, second.T)
    return total


def dist2(left: Tensor, right: Tensor, origin: Tensor) -> Tensor:
    """Float64 squared distances |left_r - right_s|^2 [R, S], by products about `origin`, a block of coordinates at a time."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    lengths = [torch.zeros(len(rows), dtype=torch.float64, device=left.device) for rows in (left, right)]
    columns = _COLUMNS if left.device.type == "cpu" else _COLUMNS_AT_ONCE
    for start in range(0, left.shape[1], columns):
        part = slice(start, start + columns)
        centre = origin[part].to(torch.float64)
        first, second = (rows[:, part].to(torch.float64) - centre for rows in (left, right))
        total.addmm_(first, second.T)
        for length, rows in zip(lengths, (first, second), strict=True):
            length.add_(torch.linalg.vecdot(rows, rows))
    return (lengths[0][:, None] + lengths[1] - 2 * total).clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Rows:
    """A stack of finite vectors with what every rotation-equivariant rule needs of them, computed once.

    All products are taken about `origin`, the row nearest to the coordinate-wise median. While fewer than half of the rows
    are wild it stands among the others, so that distances between ordinary rows keep about 1e-15 of their own size,
    wherever the wild rows are. About zero or about the mean they would cancel to nothing near consensus.
    """

    vectors: Tensor  # [R, D]
    usable: Tensor | None = None  # [R] bool: rows that stand for a vector; None for all

    @cached_property
    def origin(self) -> Tensor:
        rows = self.vectors if self.usable is None or not bool(self.usable.any()) else self.vectors[self.usable]
        stride = max(1, rows.shape[1] // _SAMPLED)
        sample = rows[:, ::stride].to(torch.float64)
        return rows[(sample - sample.median(dim=0).values).square().sum(1).argmin()]

    @cached_property
    def gram(self) -> Tensor:
        """G[r, s] = <x_r - origin, x_s - origin> in float64 [R, R]."""
        return inner(self.vectors, self.vectors, self.origin)


def gather_members(member: Tensor) -> tuple[Tensor, Tensor]:
    """From a mask [B, R] to padded indices [B, n] with a mask of the valid ones; order within a row is kept."""
    size = int(member.sum(1).max()) if member.numel() else 0
    index = torch.argsort(~member, dim=1, stable=True)[:, :size]
    return index, torch.gather(member, 1, index)
