"""Data that differ from node to node: the linear model's own optima and covariances, shifted images, unequal shards."""

from __future__ import annotations

import pytest
import torch

from bymi import InputError
from bymi.attacks import ATTACKS
from bymi.datasets import shift_features
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment.spec import read_spec
from bymi.problems import linear_problem, linear_shard
from bymi.runs.evaluators import LinearEvaluator
from bymi.runs.tasks import Digits, Linear
from bymi.training.samples import all_samples

NODES = torch.arange(6)


def test_alike_nodes_keep_their_samples() -> None:
    """Zero spreads draw nothing more: the samples of earlier versions."""
    plain, zero = (linear_shard(NODES, dim=4, samples=8, seed=3, **spreads) for spreads in ({}, {"optimum_spread": 0.0}))
    assert torch.equal(plain.features, zero.features)
    assert torch.equal(plain.targets, zero.targets)


def test_the_optimum_of_each_node_is_theta_star_plus_tau_z() -> None:
    """Targets minus those of alike nodes are exactly x'(tau z_i), so that z_i is found by least squares, linear in tau."""
    dim, samples = 5, 40
    alike = linear_shard(NODES, dim=dim, samples=samples, seed=7)
    shifts = []
    for tau in (0.5, 2.0):
        shard = linear_shard(NODES, dim=dim, samples=samples, seed=7, optimum_spread=tau)
        assert torch.equal(shard.features, alike.features)
        shift = torch.linalg.lstsq(shard.features, (shard.targets - alike.targets)[:, :, None]).solution.squeeze(2)
        torch.testing.assert_close((shard.features @ shift[:, :, None]).squeeze(2), shard.targets - alike.targets)
        shifts.append(shift / tau)
    torch.testing.assert_close(shifts[0], shifts[1])
    assert float((shifts[0][0] - shifts[0][1]).norm()) > 0.1  # nodes differ


def test_spreads_have_their_size() -> None:
    """z_i is standard normal and widths are exp(s w - s^2), over 4,000 draws.

    Means of 4,000 standard normal numbers miss 0 by 0.1 with probability 2.5e-10; means of their squares (standard deviation
    sqrt 2) miss 1 by 0.15 with probability below 1e-9. Widths are measured on 4,000 samples: standard deviations off by 8 % in
    one of 40 have probability below 1e-10.
    """
    nodes = torch.arange(400)
    alike = linear_shard(nodes, dim=10, samples=12, seed=1)
    moved = linear_shard(nodes, dim=10, samples=12, seed=1, optimum_spread=1.0)
    z = torch.linalg.lstsq(alike.features, (moved.targets - alike.targets)[:, :, None]).solution.flatten()
    assert abs(float(z.mean())) < 0.1
    assert abs(float(z.square().mean()) - 1) < 0.15
    spread = 0.4
    plain, wide = (linear_shard(torch.arange(4), dim=10, samples=4000, seed=2, covariance_spread=s) for s in (0.0, spread))
    ratio = wide.features / plain.features
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))  # one factor per node and coordinate
    w = (ratio[:, 0].log() + spread**2) / spread
    assert 0.3 < float(w.std()) < 2.0  # 40 normal numbers; outside with probability below 1e-8 (chi square, 39 degrees)
    deviation = wide.features.std(1)
    assert float((deviation / ratio[:, 0] - 1).abs().max()) < 0.08


def test_the_gap_is_to_the_exact_optimum_of_the_honest() -> None:
    """At the pooled normal equations of honest nodes, solved here by hand, the gap is zero; elsewhere it is the risk above."""
    task = Linear(dim=4, samples=20, optimum_spread=0.8, covariance_spread=0.5)
    byzantine = torch.tensor([False, True, False, False, True])
    problem, evaluator = task.build(byzantine, ATTACKS["sign-flip"](), Host(), 5)
    assert isinstance(evaluator, LinearEvaluator)
    honest = [0, 2, 3]
    features = torch.cat([problem.features[node] for node in honest])
    targets = torch.cat([problem.targets[node] for node in honest])
    best = torch.linalg.lstsq(features, targets[:, None]).solution.squeeze(1)
    assert abs(evaluator.measure([best])["gap"]) < 1e-12
    other = best + torch.tensor([0.3, 0.0, -0.1, 0.2], dtype=torch.float64)
    risk = [float((features @ theta - targets).square().mean() / 2) for theta in (other, best)]
    assert evaluator.measure([other])["gap"] == pytest.approx(risk[0] - risk[1], rel=1e-9)
    own = linear_problem(
        linear_shard(torch.arange(5), dim=4, samples=20, seed=5, optimum_spread=0.8, covariance_spread=0.5), seed=5
    )
    assert torch.equal(own.rows, problem.rows)  # the front door draws the same


def test_rotated_and_inverted_images() -> None:
    images = torch.arange(6 * 2 * 9, dtype=torch.uint8).reshape(6, 2, 1, 3, 3)
    before = images.clone()
    turned = shift_features(images, NODES, "rotated")
    for node in range(6):
        for sample in range(2):
            picture = images[node, sample, 0]
            for _ in range(node % 4):  # a quarter turn to the left: the last column becomes the first row
                picture = picture.T.flip(0)
            assert torch.equal(turned[node, sample, 0], picture)
    inverted = shift_features(images, NODES, "inverted")
    assert torch.equal(inverted[1::2], 255 - images[1::2])
    assert torch.equal(inverted[::2], images[::2])
    assert shift_features(images, NODES, "none") is images
    assert torch.equal(images, before)
    with pytest.raises(InputError, match="square images, got 3 x 2 pixels"):
        shift_features(images[..., :2], NODES, "rotated")


def test_unequal_shards_are_beginnings_of_equal_ones() -> None:
    pytest.importorskip("sklearn")
    byzantine = torch.zeros(12, dtype=torch.bool)
    equal, _ = Digits(identification=4).build(byzantine, ATTACKS["ipm"](), Host(), 0)
    problem, _ = Digits(identification=4, smallest=0.1).build(byzantine, ATTACKS["ipm"](), Host(), 0)
    nodes = torch.arange(12)
    sizes = all_samples(problem, nodes).sizes
    assert sizes is not None
    most = equal.samples
    assert int(sizes.min()) >= round(0.1 * most)
    assert int(sizes.max()) <= most
    assert int(sizes.max()) > 2 * int(sizes.min())
    assert problem.samples == int(sizes.min())
    theta = equal.initial(nodes)
    last = (sizes - 1)[:, None]
    assert torch.equal(problem.gradient(theta, nodes, last), equal.gradient(theta, nodes, last))
    held, _ = Digits(identification=4, smallest=0.1).build(byzantine, ATTACKS["ipm"](), Host(), 0, [torch.tensor([3, 4])])
    assert held.samples == problem.samples  # a rank with some nodes knows the smallest of all
    assert torch.equal(all_samples(held, torch.tensor([4])).sizes, sizes[4:5])


def test_keys_of_the_spec() -> None:
    """New keys at their defaults leave digests as they were; wrong ones are one line."""
    plain = read_spec({"data": "linear"})
    assert "optimum_spread" not in plain.resolved["data"]
    assert read_spec({"data": "linear:optimum_spread=0.0"}).digest == plain.digest
    assert read_spec({"data": "linear:optimum_spread=0.5"}).digest != plain.digest
    images = {"attack": "ipm"}
    assert (
        read_spec({"data": {"name": "mnist", "smallest": 1.0}, **images}).digest
        == read_spec({"data": "mnist", **images}).digest
    )
    for data, line in (
        ("linear:optimum_spread=-1", "data.optimum_spread"),
        ("mnist:feature_shift=mirrored", "data.feature_shift"),
        ("mnist:smallest=0", "data.smallest"),
    ):
        with pytest.raises(InputError, match=line):
            read_spec({"data": data, **images})
