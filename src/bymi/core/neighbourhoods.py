"""Neighbourhoods of receivers as padded batches, which rules and detection work on in any representation.

A neighbourhood is the messages that a receiver heard plus its own vector. An `Inbox` yields batches of them; a rule chooses
weights for each batch, and the inbox turns these into a Mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.core.linalg import VectorStack, gather_members
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.performance_thresholds import LIMITS
from bymi.core.recall import Recall

_TOGETHER = 512  # receivers per batch: their products stay in a CPU's cache
_ENTRIES = 1 << 23  # entries of the largest temporary of a batch: 64 MB in float64
_COORDINATES = 4096  # coordinates gathered at a time

Need = Literal["nothing", "products", "cloud"]
"""What a rule needs: membership only, inner products, or points where these are the smaller problem and products elsewhere."""

Work = Callable[[VectorStack, Tensor, Tensor], Tensor]
"""A function from rows [R, c], index [b, n] and valid [b, n] to one vector per receiver [b, c], coordinate by coordinate.

In a neighbourhood the last place is the receiver's own vector.
"""


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Neighbourhoods of b receivers, padded to n places each: the messages heard, and the own vector once.

    In a common frame (`index` is None) place r is row r for all receivers, and products are [n, n].
    """

    receivers: Tensor | slice  # [b] positions among the receivers of the inbox
    valid: Tensor  # [b, n] bool: a message heard, or the own vector
    index: Tensor | None = None  # [b, n] row at each place
    gram: Tensor | None = None  # [b, n, n] float64 inner products about one origin, or [n, n] in a common frame
    points: Tensor | None = None  # [b, n, D] float64 vectors minus that origin
    own: Tensor | None = None  # [b, 1] place of the receiver's own vector, if sets belong to receivers
    summed_over: int | None = None  # number of rows over which `normalise` sums; None: over places

    @property
    def neighbours(self) -> Tensor:
        """Mask [b, n]: valid, without the own vector."""
        assert self.own is not None
        return self.valid.scatter(1, self.own, False)

    def normalise(self, weight: Tensor) -> Tensor:
        """Weights [b, n] divided by their sum, so that rows sum to one."""
        terms = weight
        if self.summed_over is not None and self.index is not None:  # the order of the terms decides the last bit
            terms = weight.new_zeros(len(weight), self.summed_over).scatter_add(1, self.index, weight * self.valid)
        return weight / terms.sum(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Trial:
    """Vectors whose loss b receivers evaluate on their own samples."""

    receivers: Tensor | slice  # [b] positions among the receivers of the inbox; a slice for all
    vectors: Tensor  # [r, D]
    wanted: Tensor  # [b, r] bool: which receiver evaluates which vector
    places: Tensor  # [b, P] vector at each place of the inbox; arbitrary where not wanted
    own: Tensor  # [b, 1] index of the receiver's own vector


def padded(member: Tensor, *, width: int, largest: int | None = None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Batches of receivers with bounded [b, n, width] temporaries: (slice, padded indices [b, n], valid [b, n]).

    `largest`: the size of the largest set, if it is known.
    """
    largest = int(member.sum(1).max()) if largest is None else largest
    size = max(1, _ENTRIES // (max(1, largest) * max(1, width)))
    for start in range(0, len(member), size):
        receivers = slice(start, start + size)
        index, valid = gather_members(member[receivers], largest if size >= len(member) else None)
        yield receivers, index, valid


def by_degree(lists: NeighbourLists) -> Iterator[tuple[Tensor, int]]:
    """Batches of receivers [b] of similar degree, with the longest list of each.

    Little is padded, and [b, n, n] temporaries stay bounded.
    """
    filled = lists.mask
    # Up to the last non-empty place: a list may have gaps.
    lengths = (filled * torch.arange(1, filled.shape[1] + 1, device=filled.device)).amax(1) if filled.numel() else filled.sum(1)
    order = torch.argsort(lengths, stable=True)
    start = 0
    while start < len(order):
        # Lengths ascend: a batch sized by its first list is cut to the size for its last.
        batch = order[start : start + _batch_size(int(lengths[order[start]]))]
        batch = batch[: max(1, _batch_size(int(lengths[batch[-1]])))]
        yield batch, int(lengths[batch[-1]])
        start += len(batch)


def of_members(
    rows: VectorStack,
    member: Tensor,
    need: Need,
    products: Callable[[], Tensor] | None = None,
    recall: Recall | None = None,
) -> Iterator[Neighbourhoods]:
    """Neighbourhoods from a mask `member` [B, R], where sets share most rows, by the products of all rows.

    In a common frame for "nothing". `products`: makes those of all rows in another way than `rows` does. With `recall` the
    places in sets, which nobody may change, are found once for the same `member`.
    """
    if need == "nothing":
        return iter([Neighbourhoods(slice(None), member)])

    def size() -> int:
        return int(member.sum(1).max())

    largest = size() if recall is None else recall("largest set", (member,), size)

    def batches(width: int) -> Iterable[tuple[slice, Tensor, Tensor]]:
        found = padded(member, width=width, largest=largest)
        return found if recall is None else recall(f"sets, {width}", (member,), lambda: list(found))

    if need == "cloud" and rows.dim <= LIMITS.rule_points_dim:
        points = rows.vectors.to(torch.float64) - rows.origin.to(torch.float64)
        return (
            Neighbourhoods(receivers, valid, index, points=points[index], summed_over=member.shape[1])
            for receivers, index, valid in batches(min(rows.dim, largest))
        )
    gram = rows.gram if products is None else products()
    return (
        Neighbourhoods(receivers, valid, index, gram[index[:, :, None], index[:, None, :]])
        for receivers, index, valid in batches(max(1, largest))
    )


def of_sets(rows: VectorStack, index: Tensor, valid: Tensor, need: Need) -> Neighbourhoods:
    """Neighbourhoods from `index` [b, n], sets of few rows out of many, by the products within each set."""
    all_receivers = slice(None)
    if need == "nothing":
        return Neighbourhoods(all_receivers, valid, index)
    if need == "cloud" and rows.dim <= index.shape[1]:  # the smaller eigenproblem
        return Neighbourhoods(all_receivers, valid, index, points=rows.points(index))
    return Neighbourhoods(all_receivers, valid, index, rows.among(index))


def over_rows(found: Iterable[tuple[Neighbourhoods, Tensor]], shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Weights per row [B, R] from weights of neighbourhoods [b, n] that together cover all receivers."""
    output: Tensor | None = None
    for hood, weights in found:
        if hood.index is None:
            return weights
        output = torch.zeros(shape, dtype=torch.float64, device=device) if output is None else output
        output[hood.receivers] = output[hood.receivers].scatter_add(1, hood.index, weights)
    assert output is not None  # there is always a receiver
    return output


def _batch_size(length: int) -> int:
    return max(1, min(_TOGETHER, _ENTRIES // (length + 1) ** 2))


def reduce_members(rows: VectorStack, member: Tensor, work: Work, own: Tensor | None = None) -> Tensor:
    """Vectors [B, D] that `work` computes from the rows in each set of `member` [B, R]; row `own` [B] of a set comes last."""
    vectors = rows.vectors
    output = torch.empty(len(member), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    if own is not None:
        member = member.scatter(1, own[:, None], False)
    for receivers, index, valid in padded(member, width=min(vectors.shape[1], _COORDINATES)):
        if own is not None:
            index = torch.cat([index, own[receivers, None]], 1)
            valid = torch.nn.functional.pad(valid, (0, 1), value=True)
        output[receivers] = work(rows, index, valid)
    return output
