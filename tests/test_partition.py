"""Sharing samples among nodes: what every partition promises, and what each one is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bymi import InputError
from bymi.datasets import PARTITIONS, Dirichlet, LabelShards, Partition, Stratified
from bymi.datasets.partition import apportion, deal

EVERY = pytest.mark.parametrize("partition", [PARTITIONS[name]() for name in sorted(PARTITIONS)], ids=sorted(PARTITIONS))


def counts_of(labels: Tensor, rows: Tensor) -> Tensor:
    """[M, C]: how many samples of each label a node has."""
    return torch.stack([torch.bincount(labels[row], minlength=int(labels.max()) + 1) for row in rows])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, int, int]:
    """Labels with gaps and unequal counts, nodes, an even number of samples each, a seed."""
    nodes = draw(st.integers(1, 12))
    samples = 2 * draw(st.integers(1, 8))
    rest = draw(st.integers(0, 30))
    labels = draw(st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=nodes * samples + rest, max_size=nodes * samples + rest))
    return torch.tensor(labels), nodes, samples, draw(st.integers(0, 2**40))


@EVERY
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_every_partition_gives_equal_sizes_and_no_sample_twice(
    partition: Partition, problem: tuple[Tensor, int, int, int]
) -> None:
    labels, nodes, samples, seed = problem
    before = labels.clone()
    rows = partition.split(labels, nodes, samples=samples, seed=seed)
    assert rows.shape == (nodes, samples)
    assert rows.dtype == torch.int64
    assert len(rows.unique()) == nodes * samples
    assert int(rows.min()) >= 0
    assert int(rows.max()) < len(labels)
    assert torch.equal(labels, before)
    assert torch.equal(rows, partition.split(labels, nodes, samples=samples, seed=seed))


@EVERY
def test_a_partition_depends_on_its_seed_and_on_no_global_state(partition: Partition) -> None:
    labels = torch.arange(600) % 10
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    rows = partition.split(labels, 6, seed=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert not torch.equal(rows, partition.split(labels, 6, seed=2))


@EVERY
def test_without_samples_all_are_used_that_equal_sizes_allow(partition: Partition) -> None:
    assert partition.split(torch.arange(100) % 3, 8, seed=0).shape == (8, 12)
    assert partition.split(torch.zeros(7, dtype=torch.uint8), 1, seed=0).shape[1] in (6, 7)


@EVERY
def test_rows_are_in_random_order(partition: Partition) -> None:
    """Who takes a node's first samples gets no label more often than among all of them.

    A row of 2,000 with two labels: were it sorted, its first half had one label. The share of a label in the first half is
    hypergeometric; it misses the row's share by 0.1 with probability at most 2 exp(-2 * 1000 * 0.01) < 5e-9 (Hoeffding).
    """
    labels = torch.arange(4000) % 2
    row = labels[partition.split(labels, 2, seed=3)[0]].double()
    assert abs(row[:1000].mean() - row.mean()) < 0.1


@EVERY
@pytest.mark.parametrize(
    ("labels", "nodes", "samples", "line"),
    [
        (torch.zeros(10, dtype=torch.int64), 3, 4, "samples: got 4, allowed: 1 to 3 for 3 nodes"),
        (torch.zeros(10, dtype=torch.int64), 3, 0, "samples: got 0, allowed: 1 to 3 for 3 nodes"),
        (torch.zeros(10, dtype=torch.int64), 11, None, "nodes: got 11, allowed: 1 to 10, the number of samples"),
        (torch.zeros(10, dtype=torch.int64), 0, None, "nodes: got 0, allowed: 1 to 10, the number of samples"),
        (torch.zeros(0, dtype=torch.int64), 1, None, "labels: got (0,), allowed: the shape (N,) with N of 1 or more"),
        (torch.zeros(2, 5, dtype=torch.int64), 1, None, "labels: got (2, 5), allowed: the shape (N,) with N of 1 or more"),
        (
            *(torch.zeros(10), 1, None),
            "labels: got torch.float32, allowed: integers, since partitions go by class; "
            "targets of other kinds: a pair of tensors per node instead of a Dataset",
        ),
    ],
)
def test_impossible_splits_are_one_line(
    partition: Partition, labels: Tensor, nodes: int, samples: int | None, line: str
) -> None:
    with pytest.raises(InputError) as caught:
        partition.split(labels, nodes, samples=samples, seed=0)
    assert str(caught.value) == line


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_stratified_counts_differ_by_at_most_one(problem: tuple[Tensor, int, int, int]) -> None:
    labels, nodes, samples, seed = problem
    counts = counts_of(labels, Stratified().split(labels, nodes, samples=samples, seed=seed))
    assert int((counts.max(0).values - counts.min(0).values).max()) <= 1
    share = torch.bincount(labels, minlength=counts.shape[1]).double() / len(labels)
    assert float((counts.sum(0) - nodes * samples * share).abs().max()) < 1


def test_stratified_is_random_otherwise() -> None:
    """A sample's node is uniform: over 2,000 seeds, its share at some node misses 1/4 by 0.07 with probability below 1e-7.

    Hoeffding: 2 exp(-2 * 2000 * 0.07^2) < 7e-9 for each of 4 nodes.
    """
    labels = torch.arange(12) % 3
    owner = torch.tensor([int((Stratified().split(labels, 4, seed=seed) == 5).any(1).nonzero()) for seed in range(2000)])
    assert float((torch.bincount(owner, minlength=4) / 2000 - 0.25).abs().max()) < 0.07


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_dirichlet_proportions_have_the_moments_of_their_distribution(alpha: float) -> None:
    """With plenty of each label: E p = 1/C, and E sum p^2 = (1 + alpha) / (1 + C alpha); for the alphas here 0.7, 0.25, 0.118.

    A mean over 2,000 independent nodes of numbers in [0, 1] misses by 0.07 with probability 2 exp(-2 * 2000 * 0.07^2) < 7e-9
    (Hoeffding); 11 of them in three cases: below 3e-7. Rounding to 200 samples adds at most 0.011. No label runs out: there
    is twice its expected share, which is the same event.
    """
    labels = torch.arange(800_000) % 10
    rows = Dirichlet(alpha).split(labels, 2000, samples=200, seed=11)
    share = counts_of(labels, rows).double() / 200
    assert float((share.mean(0) - 0.1).abs().max()) < 0.081
    assert abs(float((share**2).sum(1).mean()) - (1 + alpha) / (1 + 10 * alpha)) < 0.081


def test_a_dirichlet_draw_of_a_node_does_not_depend_on_how_many_nodes_there_are() -> None:
    labels = torch.arange(10_000) % 10
    few, many = (Dirichlet(1.0).split(labels, nodes, samples=50, seed=4) for nodes in (3, 20))
    assert torch.equal(counts_of(labels, few), counts_of(labels, many)[:3])


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 0.01, 1.0, 1e6, 1e300])
def test_dirichlet_when_labels_run_out(alpha: float) -> None:
    """All samples are given out, so most draws cannot be met; sizes and totals still come out even."""
    labels = torch.cat([torch.zeros(1000), torch.ones(20), torch.full((180,), 2)]).long()
    rows = Dirichlet(alpha).split(labels, 12, seed=5)
    assert rows.shape == (12, 100)
    assert counts_of(labels, rows).sum(0).tolist() == [1000, 20, 180]


def test_a_scarce_label_is_shared_in_proportion_to_what_was_asked() -> None:
    """Two labels of 100, and ten nodes that take all 200: of the label that runs out, each gets its part of what it asked."""
    labels = torch.arange(200) % 2
    plenty = counts_of(labels.repeat(50), Dirichlet(1.0).split(labels.repeat(50), 10, samples=20, seed=8))
    assert int(plenty.sum(0).max()) > 100  # so that one label does run out
    counts = counts_of(labels, Dirichlet(1.0).split(labels, 10, seed=8))
    scarce = int(plenty.sum(0).argmax())
    given = plenty[:, scarce].double() * 100 / int(plenty[:, scarce].sum())
    assert float((counts[:, scarce] - given).abs().max()) < 1


def test_label_shards_give_a_node_few_labels() -> None:
    """100 nodes, 10 labels of 100: a piece of 5 lies within one label."""
    labels = torch.arange(1000) % 10
    seen = (counts_of(labels, LabelShards(2).split(labels, 100, seed=0)) > 0).sum(1)
    assert set(seen.tolist()) <= {1, 2}
    assert 2 in seen.tolist()  # else all nodes were dealt two pieces of one label: probability below 1e-20
    one = (counts_of(labels, LabelShards(1).split(labels, 10, seed=0)) > 0).sum(1)
    assert one.tolist() == [1] * 10


def test_label_shards_use_the_whole_range_of_labels_when_few_samples_are_asked_for() -> None:
    labels = torch.arange(1000) % 10
    counts = counts_of(labels, LabelShards(2).split(labels, 10, samples=4, seed=0))
    assert counts.sum(0).tolist() == [4] * 10


def test_label_shards_round_down_and_say_what_fits() -> None:
    labels = torch.arange(100) % 10
    assert LabelShards(3).split(labels, 8, seed=0).shape == (8, 12)
    with pytest.raises(InputError, match="samples: got 10, allowed: a multiple of shards, 3"):
        LabelShards(3).split(labels, 8, samples=10, seed=0)
    with pytest.raises(InputError, match="shards: got 30, allowed: 1 to 12 for 8 nodes"):
        LabelShards(30).split(labels, 8, seed=0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
def test_a_dirichlet_alpha_that_cannot_be_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="dirichlet_alpha: got"):
        Dirichlet(alpha)


def test_no_shards_are_refused() -> None:
    with pytest.raises(InputError, match="shards: got 0, allowed: 1 or more"):
        LabelShards(0)


@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.integers(0, 2**31), min_size=1, max_size=12).filter(any), total=st.integers(0, 10**6))
def test_apportion_adds_up_and_is_off_by_less_than_one(weights: list[int], total: int) -> None:
    shares = apportion(torch.tensor([weights]), torch.tensor([total]))[0].tolist()
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - weight * total) < sum(weights)
        assert total > sum(weights) or share <= weight


def test_deal_by_hand() -> None:
    labels = torch.tensor([1, 0, 1, 0, 1])
    rows = deal(labels, torch.tensor([[1, 1], [0, 2]]), seed=0)
    assert labels[rows].tolist() == [[0, 1], [1, 1]]
    assert len(rows.unique()) == 4
