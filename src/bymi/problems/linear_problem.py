"""The linear model of the paper's section 5.1, with its exact minimiser in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import is_integer, is_number, require
from bymi.core.linalg import check_tensor
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.problems.problem import check_numbers, places_of

_SMALL = 400  # numbers in a node's mini-batch below which numpy is faster
LARGEST_SPREAD = 10.0
"""Upper bound of `optimum_spread` and `covariance_spread`: beyond it squares of features overflow."""
_OFTEN = 4  # points per node from which on its samples are reduced to moments first


class LinearShard(NamedTuple):
    """The samples of some nodes: features [b, N, d], targets [b, N], and the parameter [d] that made the targets."""

    features: Tensor
    targets: Tensor
    parameter: Tensor


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Least squares: loss (y - x'theta)^2 / 2, y = x'theta* + N(0, 1), x ~ N(0, I), theta* = (1, ..., 1, 0, ..., 0).

    `risk`, `minimiser` and `excess` are exact, over the pooled samples of any set of nodes, also where the data of nodes
    differ (`draw_samples`). With `numbers` the problem has the data of these nodes only, in this order.
    """

    rows: Tensor  # [M, N, d + 1] float64: per sample its features, then its target
    parameter: Tensor  # [d], the true parameter
    start: Tensor  # [d]
    numbers: Tensor | None = None  # [M]; None: 0, 1, 2, ...

    def __post_init__(self) -> None:
        check_tensor("rows", self.rows, (None, None, None), finite=False)  # a Byzantine node may have any data
        require(self.dim >= 1, "rows", self.rows, "[nodes, samples, d + 1] with d of 1 or more")
        check_tensor("parameter", self.parameter, (self.dim,))
        check_tensor("start", self.start, (self.dim,))
        if self.numbers is not None:
            check_numbers("numbers", self.numbers, len(self.rows))

    @property
    def node_numbers(self) -> Tensor:
        """[M] numbers of the nodes whose samples it has."""
        return torch.arange(len(self.rows), device=self.rows.device) if self.numbers is None else self.numbers

    @property
    def features(self) -> Tensor:
        """[M, N, d]"""
        return self.rows[:, :, :-1]

    @property
    def targets(self) -> Tensor:
        """[M, N]"""
        return self.rows[:, :, -1]

    @property
    def dim(self) -> int:
        return self.rows.shape[2] - 1

    @property
    def samples(self) -> int:
        return self.rows.shape[1]

    def initial(self, nodes: Tensor) -> Tensor:
        return self.start.expand(len(nodes), -1).clone()

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        return (self._gradient_of_few if self._often(nodes) else self._gradient_one_by_one)(theta, nodes, chosen)

    def _often(self, nodes: Tensor) -> bool:
        """Whether there are many points per node. Cached: successive rounds ask for the same nodes."""
        if not self._asked or self._asked[0][0] is not nodes:
            self._asked[:] = [(nodes, len(nodes) > _OFTEN * len(nodes.unique()))]
        return self._asked[0][1]

    @cached_property
    def _asked(self) -> list[tuple[Tensor, bool]]:
        return []

    def _gradient_one_by_one(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        if len(nodes) >= LIMITS.many_nodes:
            parts = zip(*(part.split(LIMITS.block_of_nodes) for part in (theta, nodes, chosen)), strict=True)
            return torch.cat([self._gradient_of_some(*part) for part in parts])
        return self._gradient_of_some(theta, nodes, chosen)

    def _gradient_of_some(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        samples = self._pick(nodes, chosen)
        residual = torch.bmm(_extend(theta)[:, None, :], samples.mT)
        return _combine(residual, samples)[:, :-1] / chosen.shape[1]

    def _gradient_of_few(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        """The same for many points per node: samples are reduced to moments once per node, not once per point."""
        output = torch.empty_like(theta)
        order = torch.argsort(nodes, stable=True)
        numbers, counts = torch.unique_consecutive(nodes[order], return_counts=True)
        starts = torch.cumsum(counts, 0) - counts
        for node, count, start in zip(*(part.split(LIMITS.block_of_nodes) for part in (numbers, counts, starts)), strict=True):
            place = torch.arange(int(count.max()), device=nodes.device)
            valid = place < count[:, None]
            # [k, n], padded with the node's first point.
            index = order[torch.where(valid, start[:, None] + place, start[:, None])]
            picked = chosen[index]
            if bool((picked != picked[:, :1]).any()):  # other samples for other points
                places = index[valid]
                output[places] = self._gradient_one_by_one(theta[places], nodes[places], chosen[places])
                continue
            samples = self._pick(node, picked[:, 0])
            moments = torch.bmm(samples.mT, samples[:, :, :-1]) / picked.shape[2]
            gradients = torch.bmm(_extend(theta[index.flatten()]).view(*index.shape, -1), moments)
            output[index[valid]] = gradients[valid]
        return output

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        residual = self._pick(nodes, chosen) @ _extend(vectors).T
        return torch.where(wanted, residual.square().mean(1) / 2, torch.inf)

    def risk(self, theta: Tensor, nodes: Tensor) -> Tensor:
        """Mean loss of one parameter [d] over all samples of the nodes."""
        places = self._places_of(nodes)
        residual = self.features[places] @ theta - self.targets[places]
        return residual.square().mean() / 2

    def minimiser(self, nodes: Tensor) -> Tensor:
        """The parameter [d] of least risk over all samples of the nodes."""
        # Normal equations: accurate enough for this well-conditioned problem, and the same bits in every call, unlike the
        # default least-squares driver.
        if len(nodes) >= LIMITS.many_nodes:
            sums = self.moments(nodes)
            return solve(sums[:, :-1], sums[:, -1])
        places = self._places_of(nodes)
        features = self.features[places].flatten(0, 1)
        return solve(features.T @ features, features.T @ self.targets[places].flatten())

    def curvature(self, nodes: Tensor) -> Tensor:
        """Hessian [d, d] of the risk over all samples of the nodes, which is constant."""
        if len(nodes) >= LIMITS.many_nodes:
            return self.moments(nodes)[:, :-1] / (len(nodes) * self.samples)
        features = self.features[self._places_of(nodes)].flatten(0, 1)
        return features.T @ features / len(features)

    def moments(self, nodes: Tensor) -> Tensor:
        """Sums of products of features with features and, in the last column, targets [d, d + 1], over the nodes' samples."""
        sums = self.rows.new_zeros(self.dim, self.dim + 1)
        # In blocks where there are many nodes, to avoid a second copy of all samples.
        for block in self._places_of(nodes).split(
            LIMITS.block_of_nodes if len(nodes) >= LIMITS.many_nodes else max(1, len(nodes))
        ):
            samples = self.rows[block].flatten(0, 1)
            sums += samples[:, :-1].T @ samples
        return sums

    def bounds(self, nodes: Tensor, point: Tensor) -> Tensor:
        """Constants [3] of the nodes' losses, the last two at a point [d].

        The largest curvature of a node's risk; the largest variance of one sample's gradient about its node's mean; the sum of
        squared norms of the gradients of all samples.
        """
        curvature, variance, total = self.rows.new_zeros(3).unbind()
        for block in self._places_of(nodes).split(LIMITS.block_of_nodes) if len(nodes) else ():
            features = self.features[block]
            short = features if features.shape[1] < features.shape[2] else features.mT
            products = torch.bmm(short, short.mT) / self.samples
            gradients = features * (features @ point - self.targets[block])[:, :, None]
            squares = gradients.square().sum(2)
            noise = squares.mean(1) - gradients.mean(1).square().sum(1)
            curvature = torch.maximum(curvature, torch.linalg.eigvalsh(products)[:, -1].max())
            variance, total = torch.maximum(variance, noise.max()), total + squares.sum()
        return torch.stack([curvature, variance, total])

    def excess(self, theta: Tensor, best: Tensor, nodes: Tensor) -> Tensor:
        """risk(theta) - risk(best) for the minimiser `best`, without the cancellation of subtracting two risks."""
        return (self.features[self._places_of(nodes)] @ (theta - best)).square().mean() / 2

    def _places_of(self, nodes: Tensor) -> Tensor:
        """Indices of the nodes' data."""
        return nodes if self.numbers is None else self._places[nodes]

    @cached_property
    def _places(self) -> Tensor:
        assert self.numbers is not None
        return places_of(self.numbers)

    def _pick(self, nodes: Tensor, chosen: Tensor) -> Tensor:
        """The chosen samples of each node [B, s, d + 1]."""
        places = (self._places_of(nodes)[:, None] * self.samples + chosen).flatten()
        return self.rows.flatten(0, 1).index_select(0, places).view(*chosen.shape, self.dim + 1)


def solve(products: Tensor, with_targets: Tensor) -> Tensor:
    """The parameter of least risk, from sums of products of features [d, d] and of features with targets [d]."""
    inverse: Tensor = torch.linalg.pinv(products, hermitian=True)
    return inverse @ with_targets


def _combine(weights: Tensor, rows: Tensor) -> Tensor:
    """Weighted sums [B, d] of rows [B, s, d] with weights [B, 1, s]."""
    if rows.device.type == "cpu" and rows[0].numel() < _SMALL:  # torch's kernel takes four times as long for these
        return torch.from_numpy(np.einsum("bs,bsd->bd", weights.squeeze(1).numpy(), rows.numpy()))
    return torch.bmm(weights, rows).squeeze(1)


def _extend(theta: Tensor) -> Tensor:
    """(theta, -1), so that its product with (x, y) is the residual x'theta - y."""
    return torch.cat([theta, -torch.ones_like(theta[:, :1])], dim=1)


def draw_samples(
    rows: Tensor, nodes: Tensor, *, seed: int, optimum_spread: float = 0.0, covariance_spread: float = 0.0
) -> LinearShard:
    """Clean samples of the given nodes, written into rows [b, N, d + 1]: each node's depend on the seed and its number alone.

    Heterogeneous nodes: with `optimum_spread` tau, node i draws its responses from theta* + tau z_i, z_i ~ N(0, I); with
    `covariance_spread` s, its k-th feature has standard deviation exp(s w_ik - s^2), w_ik ~ N(0, 1), so that covariances are I
    on average. Over all nodes, theta* is the optimum of the expected risk for any tau and s.

    The result consists of views into `rows`.
    """
    samples, dim = rows.shape[1], rows.shape[2] - 1
    shard = LinearShard(rows[:, :, :-1], rows[:, :, -1], rows.new_zeros(dim))
    shard.parameter[: int(0.1 * dim)] = 1.0
    # Random draws take memory: in blocks where there are many nodes.
    for block in torch.arange(len(nodes)).split(
        LIMITS.block_of_nodes if len(nodes) >= LIMITS.many_nodes else max(1, len(nodes))
    ):
        features = stream(seed, "features", node=nodes[block]).normal(samples, dim)
        if covariance_spread:
            width = stream(seed, "feature widths", node=nodes[block]).normal(dim)
            features *= (covariance_spread * width - covariance_spread**2).exp()[:, None, :]
        shard.features[block] = features
        targets = features @ shard.parameter + stream(seed, "noise", node=nodes[block]).normal(samples)
        if optimum_spread:
            shift = optimum_spread * stream(seed, "node optimum", node=nodes[block]).normal(dim)
            targets += (features @ shift[:, :, None]).squeeze(2)
        shard.targets[block] = targets
    return shard


def linear_shard(
    nodes: Tensor, *, dim: int, samples: int, seed: int, optimum_spread: float = 0.0, covariance_spread: float = 0.0
) -> LinearShard:
    """Clean samples of the given nodes (`draw_samples`): each node's depend on the seed and its number alone."""
    check_numbers("nodes", nodes)
    require(is_integer(dim) and dim >= 1, "dim", dim, "an integer, 1 or more")
    require(is_integer(samples) and samples >= 1, "samples", samples, "an integer, 1 or more")
    for name, value in (("optimum_spread", optimum_spread), ("covariance_spread", covariance_spread)):
        require(is_number(value) and 0 <= value <= LARGEST_SPREAD, name, value, f"0 to {LARGEST_SPREAD}")
    rows = torch.empty(len(nodes), samples, dim + 1, dtype=torch.float64)
    return draw_samples(rows, nodes, seed=seed, optimum_spread=optimum_spread, covariance_spread=covariance_spread)


def linear_problem(shard: LinearShard, *, seed: int) -> LinearProblem:
    """The problem on given shards of nodes 0..M-1, all starting from one common random point N(0, I)."""
    require(isinstance(shard, LinearShard), "shard", shard, "a LinearShard")
    check_tensor("features", shard.features, (None, None, None))
    check_tensor("targets", shard.targets, tuple(shard.features.shape[:2]))
    check_tensor("parameter", shard.parameter, (shard.features.shape[2],))
    rows = torch.cat([shard.features, shard.targets[:, :, None]], dim=2)
    return LinearProblem(rows, shard.parameter, linear_start(len(shard.parameter), seed=seed))


def linear_start(dim: int, *, seed: int) -> Tensor:
    """The common starting point [d] of all nodes, N(0, I)."""
    return stream(seed, "start").normal(dim)
