"""Lengths and distances in blocks against one row at a time, and sets that do not feel who else is in their batch."""

from __future__ import annotations

import math

import pytest
import torch

from bymi import GeometricMedian
from bymi.core.linalg import dist2, norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 30, 4096, 9001])
def test_lengths_and_distances_against_sums_by_hand(dtype: torch.dtype, dim: int) -> None:
    random = torch.Generator().manual_seed(dim)
    left, right = (torch.randn(rows, dim, generator=random, dtype=torch.float64).to(dtype) + 3 for rows in (2, 3))
    for row, length in zip(left, norms(left).tolist(), strict=True):
        assert length == pytest.approx(math.sqrt(math.fsum(x * x for x in row.tolist())), rel=1e-12)
    found = dist2(left, right, right[1])
    for i, one in enumerate(left.tolist()):
        for j, other in enumerate(right.tolist()):
            slow = math.fsum((x - y) ** 2 for x, y in zip(one, other, strict=True))
            assert float(found[i, j]) == pytest.approx(slow, rel=1e-11, abs=1e-20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_has_no_finite_length(dtype: torch.dtype) -> None:
    rows = torch.ones(3, 5000, dtype=dtype)
    rows[0, 4999], rows[1, 3] = torch.nan, -torch.inf
    found = norms(rows)
    assert math.isnan(found[0])
    assert math.isinf(found[1])
    assert float(found[2]) == pytest.approx(math.sqrt(5000))


def test_a_set_has_the_same_geometric_median_alone_and_beside_a_slow_one() -> None:
    """With a loose tolerance a set that settles at once would be moved on by one that takes long."""
    random = torch.Generator().manual_seed(0)
    quick = torch.randn(7, 3, generator=random, dtype=torch.float64)
    slow = torch.randn(7, 3, generator=random, dtype=torch.float64) ** 5
    grams = torch.stack([quick @ quick.T, slow @ slow.T])
    valid = torch.ones(2, 7, dtype=torch.bool)
    rule = GeometricMedian(tolerance=1e-4)
    together = rule.weights(grams, valid)
    for place in range(2):
        alone = rule.weights(grams[place : place + 1], valid[:1])[0]
        torch.testing.assert_close(together[place], alone, rtol=1e-12, atol=1e-15)
