"""Stacked vectors [R, D] and their inner products, without cancellation and with bounded temporaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.performance_thresholds import LIMITS

_COLUMNS = 1024  # coordinates converted to float64 at a time on a CPU: bounds temporaries and fits its cache
_AT_ONCE = 1 << 27  # numbers converted at a time on a GPU: few large kernels
_SAMPLED = 512  # coordinates sampled to find a central row


def on_host(values: Tensor) -> bool:
    """Whether a loop may look at values in every turn. For those on an accelerator the host would have to wait."""
    return values.device.type in LIMITS.looked_at


def norms(vectors: Tensor) -> Tensor:
    """Euclidean norm per row in float64 [R]; NaN or inf where a row is not finite."""
    if vectors.ndim == 2 and vectors.dtype != torch.float64 and vectors.device.type == "cpu":
        # 2.5 times as fast as vector_norm, whose conversion is not vectorised.
        total = torch.zeros(len(vectors), dtype=torch.float64)
        for part in vectors.split(_COLUMNS, dim=1):
            total.add_(part.to(torch.float64).square_().sum(1))
        return total.sqrt_()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return lengths


def norms_surely_below(vectors: Tensor, bound: float) -> bool:
    """Whether all norms are far below `bound`, by a check in the vectors' own precision, several times as fast as `norms`.

    True is certain, false is not: rows near the bound, or with squares that overflow, need exact norms.
    """
    return not len(vectors) or bool(torch.linalg.vector_norm(vectors, dim=-1).max() <= bound / 1000)


def join(above: Tensor, below: Tensor) -> Tensor:
    """Rows `above` and `below` in one tensor [R, D], without a copy if they are adjacent in memory."""
    size, end = above.shape[1], above.data_ptr() + above.numel() * above.element_size()
    separate = below.data_ptr() != end or not above.is_contiguous() or not below.is_contiguous()
    if separate or above.untyped_storage().data_ptr() != below.untyped_storage().data_ptr():
        return torch.cat([above, below])
    return above.as_strided((len(above) + len(below), size), (size, 1))


def ascending(values: Tensor, dim: int = -1) -> Tensor:
    """Values sorted along one dimension, NaN last; a contiguous copy."""
    if values.device.type != "cpu":
        return values.sort(dim).values
    return sort_rows_(values.movedim(dim, -1).clone(memory_format=torch.contiguous_format)).movedim(-1, dim).contiguous()


def sort_rows_(values: Tensor) -> Tensor:
    """Values sorted along the last dimension in place, NaN last."""
    if values.device.type != "cpu":
        return values.copy_(values.sort().values)
    values.numpy().sort(axis=-1)  # a tenth of the time of torch, which also sorts indices and uses no vector instructions
    return values


def any_true(mask: Tensor) -> bool:
    """Whether any entry holds; on a CPU by numpy, in a tenth of torch's time."""
    return bool(mask.numpy().any() if mask.device.type == "cpu" else mask.any())


def ascending_among(values: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Values in `among` sorted along the last dimension, then infinities, and the number of them that are not NaN [..., 1].

    Adds infinities instead of `torch.where`, which is several times slower for an irregular mask.
    """
    beyond = among.to(torch.float64).reciprocal_().sub_(1)  # 0 where among, else infinity
    valid = among & ~values.isnan()
    return ascending(values + beyond), valid.sum(-1, keepdim=True)


def lower_median(values: Tensor, among: Tensor) -> Tensor:
    """Lower median along the last dimension of the values in `among`, NaN if there are none."""
    ordered, count = ascending_among(values, among)
    median = ordered.gather(-1, (count - 1).clamp_min(0) // 2)
    return torch.where(count > 0, median, torch.nan).squeeze(-1).to(values.dtype)


def _blocks(origin: Tensor | None, *stacks: Tensor) -> Iterator[list[Tensor]]:
    """Blocks of coordinates of each stack of rows, in float64 and minus `origin`, if any: few are converted at a time."""
    columns = _COLUMNS
    if stacks[0].device.type != "cpu":
        columns = max(_COLUMNS, _AT_ONCE // max(1, sum(rows.shape[:-1].numel() for rows in stacks)))
    for start in range(0, stacks[0].shape[-1], columns):
        part = slice(start, start + columns)
        yield [_about(rows[..., part], None if origin is None else origin[..., part]) for rows in stacks]


def _about(rows: Tensor, origin: Tensor | None) -> Tensor:
    """Rows in float64, minus the origin of their set, if any."""
    return rows.to(torch.float64) if origin is None else rows.to(torch.float64) - origin.to(torch.float64)[..., None, :]


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros [..., *shape] for products of rows [..., n, D]."""
    return torch.zeros(*like.shape[:-2], *shape, dtype=torch.float64, device=like.device)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right^T to a matrix [n, k], or to those of a batch [b, n, k]."""
    (total.addmm_ if total.ndim == 2 else total.baddbmm_)(left, right.mT)


def inner(left: Tensor, right: Tensor, origin: Tensor | None = None) -> Tensor:
    """Float64 inner products <left_r - origin, right_s - origin> [R, S], in blocks of coordinates; by default about zero.

    Also for b sets of vectors [b, R, D] and [b, S, D] at once, each with its own origin [b, D].
    """
    if left.shape[-1] <= _COLUMNS:  # short vectors: one block
        first = _about(left, origin)
        second = first if right is left else _about(right, origin)
        # One set as a matrix: torch has another kernel for batches of small ones, with other last bits.
        return (first[0] @ second[0].T)[None] if first.ndim == 3 and len(first) == 1 else first @ second.mT
    total = _zeros(left, left.shape[-2], right.shape[-2])
    for block in _blocks(origin, *((left,) if right is left else (left, right))):
        _add_product(total, block[0], block[-1])
    return total


def inner_of_both(left: Tensor, right: Tensor, origin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`inner` of (left, left), (right, right) and (left, right), converting each row once instead of twice."""
    count, others = left.shape[-2], right.shape[-2]
    wide, rest = _zeros(left, count, count + others), _zeros(left, others, others)
    for block in _blocks(origin, left, right):
        rows = torch.cat(block, -2)
        _add_product(wide, rows[..., :count, :], rows)
        _add_product(rest, rows[..., count:, :], rows[..., count:, :])
    return wide[..., :count], rest, wide[..., count:]


def inner_of_sets(left: Tensor, left_at: Tensor, right: Tensor, right_at: Tensor, origin: Tensor) -> Tensor:
    """Float64 products <left_r - origin, right_s - origin> [b, n, k] of sets of rows, left_at [b, n] and right_at [b, k].

    Where every receiver has few of many rows, this is far less than the products of all rows.
    """
    same = left is right and left_at is right_at
    total = torch.zeros(*left_at.shape, right_at.shape[1], dtype=torch.float64, device=left.device)
    columns = max(1, LIMITS.set_products // max(1, left_at.numel(), right_at.numel()))
    for start in range(0, left.shape[1], columns):
        part = slice(start, start + columns)
        centre = origin[part].to(torch.float64)
        first = _gather(left[:, part], left_at) - centre
        second = first if same else _gather(right[:, part], right_at) - centre
        total.baddbmm_(first, second.mT)
    return total


def _gather(vectors: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [b, n] in float64 [b, n, D]."""
    return vectors.index_select(0, index.flatten()).view(*index.shape, -1).to(torch.float64)


def dist2(left: Tensor, right: Tensor, origin: Tensor) -> Tensor:
    """Float64 squared distances |left_r - right_s|^2 [R, S], from products about `origin`, in blocks of coordinates."""
    total, lengths = _zeros(left, len(left), len(right)), [_zeros(left, len(left)), _zeros(left, len(right))]
    for block in _blocks(origin, left, right):
        total.addmm_(block[0], block[1].T)
        for length, rows in zip(lengths, block, strict=True):
            length.add_(torch.linalg.vecdot(rows, rows))
    return (lengths[0][:, None] + lengths[1] - 2 * total).clamp_min(0.0)


def sampled_dist2_to_median(vectors: Tensor, dim: int, first: int = 0) -> Tensor:
    """Squared distance of each row to the coordinate-wise median [R], over a sample of coordinates.

    The rows may be a block of vectors of `dim` coordinates, starting at `first`: results of all blocks sum to the total.
    """
    stride = sample_stride(dim)
    return dist2_to_median(vectors if stride == 1 else vectors[:, -first % stride :: stride])


def sample_stride(dim: int) -> int:
    """Stride of the sample of coordinates that is used to find a central row."""
    return max(1, dim // _SAMPLED)


def dist2_to_median(sample: Tensor) -> Tensor:
    """Squared distance [R] of each row of a sample to the coordinate-wise median."""
    sample = sample.to(torch.float64)
    middle = sort_rows_(sample.T.clone(memory_format=torch.contiguous_format))[:, (len(sample) - 1) // 2]
    return (sample - middle).square_().sum(1)


def _central(rows: Tensor) -> Tensor:
    """The row [D] nearest to the coordinate-wise median."""
    nearest = sampled_dist2_to_median(rows, rows.shape[1]).argmin(0, keepdim=True)
    return rows.index_select(0, nearest)[0]  # rows[...] would wait


def inner_about_central(vectors: Tensor) -> Tensor:
    """`inner` of all pairs of rows about the one nearest to the coordinate-wise median."""
    return inner(vectors, vectors, _central(vectors))


@dataclass(frozen=True, eq=False)
class VectorStack:
    """A stack of finite vectors with cached inner products, as rotation-equivariant rules need them.

    All products are taken about `origin`, the row nearest to the coordinate-wise median. While fewer than half of the rows are
    outliers it lies among the others, so that distances between ordinary rows keep a relative error of about 1e-15, wherever
    the outliers are. About zero or the mean they would cancel near consensus.
    """

    vectors: Tensor  # [R, D]
    acceptable: Tensor | None = None  # [R] bool: valid rows; None for all

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    @cached_property
    def origin(self) -> Tensor:
        return _central(
            self.vectors if self.acceptable is None or not bool(self.acceptable.any()) else self.vectors[self.acceptable]
        )

    @cached_property
    def gram(self) -> Tensor:
        """G[r, s] = <x_r - origin, x_s - origin> in float64 [R, R]."""
        return inner(self.vectors, self.vectors, self.origin)

    def among(self, at: Tensor) -> Tensor:
        """Float64 products [b, n, n] about the origin within sets of rows [b, n] only."""
        return inner_of_sets(self.vectors, at, self.vectors, at, self.origin)

    def points(self, at: Tensor) -> Tensor:
        """Rows of sets [b, n] minus the origin, in float64 [b, n, D]."""
        return _gather(self.vectors, at) - self.origin.to(torch.float64)


def medoid(points: Tensor, valid: Tensor) -> Tensor:
    """For each set of points [b, n, D], the valid one nearest to their coordinate-wise median [b, D].

    The analogue of `VectorStack.origin` for each set, over a sample of coordinates.
    """
    sample = points[:, :, :: sample_stride(points.shape[2])].to(torch.float64)
    middle = lower_median(sample.mT, valid[:, None, :]).nan_to_num(0.0)
    away = (sample - middle[:, None, :]).square().sum(2).masked_fill(~valid, torch.inf)
    return points.gather(1, away.argmin(1)[:, None, None].expand(-1, 1, points.shape[2])).squeeze(1)


def pad_rows(matrices: Sequence[Tensor], size: int) -> Tensor:
    """Matrices [n, D] with different numbers of rows as one stack [b, size, D], padded with zeros; a view of a single one."""
    if len(matrices) == 1 and len(matrices[0]) == size:
        return matrices[0][None]
    output = matrices[0].new_zeros(len(matrices), size, matrices[0].shape[1])
    for place, rows in zip(output, matrices, strict=True):
        place[: len(rows)] = rows
    return output


def gather_members(member: Tensor, size: int | None = None) -> tuple[Tensor, Tensor]:
    """Padded indices [B, n] and their validity [B, n] from a mask [B, R]; order within a row is kept.

    `size`: n, if it is known; else the size of the largest set.
    """
    if size is None:
        size = int(member.sum(1).max()) if member.numel() else 0
    index = torch.argsort(~member, dim=1, stable=True)[:, :size]
    return index, torch.gather(member, 1, index)


def check_tensor(name: str, value: Any, shape: tuple[int | None, ...], *, finite: bool = True) -> None:
    """Raise an InputError unless `value` is a floating-point tensor of `shape` (None: any size above 0), `finite` if asked."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    fits = isinstance(value, Tensor) and value.is_floating_point() and value.ndim == len(shape)
    fits = fits and all(size > 0 if wanted is None else size == wanted for size, wanted in zip(value.shape, shape, strict=True))
    require(fits, name, value, f"a floating-point tensor [{sizes}]")
    require(not finite or all_finite(value), name, "NaN or infinite numbers", "finite numbers")


def all_finite(values: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum has finite terms and is much faster to compute."""
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())
