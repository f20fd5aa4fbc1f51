"""Stacked vectors [R, D] and their inner products, safe against cancellation and against memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_COLUMNS = 8192  # coordinates converted to float64 at a time: bounds the copies that `inner` makes


def norms(vectors: Tensor) -> Tensor:
    """Euclidean norm of each row in float64 [R]; NaN or inf where a row is not finite."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return lengths


def inner(left: Tensor, right: Tensor, origin: Tensor) -> Tensor:
    """Float64 inner products <left_r - origin, right_s - origin> [R, S], a block of coordinates at a time."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        centre = origin[part].to(torch.float64)
        first = left[:, part].to(torch.float64) - centre
        second = first if right is left else right[:, part].to(torch.float64) - centre
        total.addmm_(first, second.T)
    return total


def pairwise_dot(left: Tensor, right: Tensor, origin: Tensor) -> Tensor:
    """Float64 <left_r - origin, right_r - origin> row by row [R]."""
    total = torch.zeros(len(left), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        centre = origin[part].to(torch.float64)
        total += ((left[:, part].to(torch.float64) - centre) * (right[:, part].to(torch.float64) - centre)).sum(1)
    return total


@dataclass(frozen=True, eq=False)
class Rows:
    """A stack of finite vectors with what every rotation-equivariant rule needs of them, computed once.

    All products are taken about `origin`, the row of median norm. While fewer than half of the rows are wild, its norm lies
    among the norms of the others, so distances between ordinary rows keep about 1e-15 of their squared norms, however
    large the wild rows are. About zero or about the mean they would cancel to nothing.
    """

    vectors: Tensor  # [R, D]

    @cached_property
    def origin(self) -> Tensor:
        return self.vectors[torch.argsort(norms(self.vectors), stable=True)[(len(self.vectors) - 1) // 2]]

    @cached_property
    def gram(self) -> Tensor:
        """G[r, s] = <x_r - origin, x_s - origin> in float64 [R, R]."""
        return inner(self.vectors, self.vectors, self.origin)

    @cached_property
    def coordinates(self) -> Tensor:
        """The rows in at most R coordinates, with the same inner products (an isometry of their span) [R, min(R, D)]."""
        if self.vectors.shape[1] <= len(self.vectors):
            return self.vectors.to(torch.float64) - self.origin.to(torch.float64)
        values, basis = torch.linalg.eigh(self.gram)
        scaled: Tensor = basis * values.clamp_min(0.0).sqrt()
        return scaled


def gather_members(member: Tensor) -> tuple[Tensor, Tensor]:
    """From a mask [B, R] to padded indices [B, n] with a mask of the valid ones; order within a row is kept."""
    size = int(member.sum(1).max()) if member.numel() else 0
    index = torch.argsort(~member, dim=1, stable=True)[:, :size]
    return index, torch.gather(member, 1, index)
