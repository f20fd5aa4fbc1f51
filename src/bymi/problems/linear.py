"""The linear model of the paper's section 5.1, with its exact minimiser in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bymi.problems.places import places_of
from bymi.streams import stream

_MANY, _AT_ONCE = 1000, 128  # nodes from which on samples are copied for so many of them at a time: they fit a CPU's cache
_SMALL = 400  # numbers in a node's mini-batch
_OFTEN = 4  # points a node from which on its samples are summed up first


class LinearShard(NamedTuple):
    """The samples of some nodes: features [b, N, d], targets [b, N], and the parameter [d] that made the targets."""

    features: Tensor
    targets: Tensor
    parameter: Tensor


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Least squares: loss (y - x'theta)^2 / 2, y = x'theta* + N(0, 1), x ~ N(0, I), theta* = (1, ..., 1, 0, ..., 0).

    `risk`, `minimiser` and `excess` answer for the pooled samples of any set of nodes, exactly. With `numbers` it has the data
    of these nodes alone, in this order, and answers for no others.
    """

    features: Tensor  # [M, N, d] float64
    targets: Tensor  # [M, N]
    parameter: Tensor  # [d], the truth
    start: Tensor  # [d]
    numbers: Tensor | None = None  # [M]; None: 0, 1, 2, ...

    @property
    def dim(self) -> int:
        return self.features.shape[2]

    @property
    def samples(self) -> int:
        return self.features.shape[1]

    def initial(self, nodes: Tensor) -> Tensor:
        return self.start.expand(len(nodes), -1).clone()

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        return (self._gradient_of_few if self._often(nodes) else self._gradient_one_by_one)(theta, nodes, chosen)

    def _often(self, nodes: Tensor) -> bool:
        """Whether each of the nodes has many points. Rounds ask for the same nodes again and again."""
        if not self._asked or self._asked[0][0] is not nodes:
            self._asked[:] = [(nodes, len(nodes) > _OFTEN * len(nodes.unique()))]
        return self._asked[0][1]

    @cached_property
    def _asked(self) -> list[tuple[Tensor, bool]]:
        return []

    def _gradient_one_by_one(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        if len(nodes) >= _MANY:
            parts = zip(theta.split(_AT_ONCE), nodes.split(_AT_ONCE), chosen.split(_AT_ONCE), strict=True)
            return torch.cat([self._gradient_of_some(*part) for part in parts])
        return self._gradient_of_some(theta, nodes, chosen)

    def _gradient_of_some(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        samples = self._pick(nodes, chosen)
        residual = torch.bmm(_extend(theta)[:, None, :], samples.mT)
        return _combine(residual, samples)[:, :-1] / chosen.shape[1]

    def _gradient_of_few(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        """The same where every node answers for many points: samples are summed up once a node, not once a point."""
        output = torch.empty_like(theta)
        order = torch.argsort(nodes, stable=True)
        numbers, counts = torch.unique_consecutive(nodes[order], return_counts=True)
        starts = torch.cumsum(counts, 0) - counts
        for node, count, start in zip(numbers.split(_AT_ONCE), counts.split(_AT_ONCE), starts.split(_AT_ONCE), strict=True):
            place = torch.arange(int(count.max()), device=nodes.device)
            there = place < count[:, None]
            at = order[torch.where(there, start[:, None] + place, start[:, None])]  # [k, n], padded with a node's first
            some = chosen[at]
            if bool((some != some[:, :1]).any()):  # other samples for other points
                places = at[there]
                output[places] = self._gradient_one_by_one(theta[places], nodes[places], chosen[places])
                continue
            samples = self._pick(node, some[:, 0])
            moments = torch.bmm(samples.mT, samples[:, :, :-1]) / some.shape[2]
            found = torch.bmm(_extend(theta[at.flatten()]).view(*at.shape, -1), moments)
            output[at[there]] = found[there]
        return output

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        residual = self._pick(nodes, chosen) @ _extend(vectors).T
        return torch.where(wanted, residual.square().mean(1) / 2, torch.inf)

    def risk(self, theta: Tensor, nodes: Tensor) -> Tensor:
        """Mean loss of one parameter [d] over all samples of the nodes."""
        rows = self._rows(nodes)
        residual = self.features[rows] @ theta - self.targets[rows]
        return residual.square().mean() / 2

    def minimiser(self, nodes: Tensor) -> Tensor:
        """The parameter [d] of least risk over all samples of the nodes."""
        # Normal equations: exact enough for this well-conditioned problem, and the same bits in every call, which the
        # default least-squares driver does not give.
        rows = self._rows(nodes)
        features = self.features[rows].flatten(0, 1)
        return solve(features.T @ features, features.T @ self.targets[rows].flatten())

    def curvature(self, nodes: Tensor) -> Tensor:
        """The second derivative [d, d] of the risk over all samples of the nodes, the same everywhere."""
        features = self.features[self._rows(nodes)].flatten(0, 1)
        return features.T @ features / len(features)

    def moments(self, nodes: Tensor) -> Tensor:
        """Sums of products of features, and with targets in the last column [d, d + 1], over all samples of the nodes."""
        samples = self._samples.view(len(self.features), self.samples, -1)[self._rows(nodes)].flatten(0, 1)
        return samples[:, :-1].T @ samples

    def excess(self, theta: Tensor, best: Tensor, nodes: Tensor) -> Tensor:
        """risk(theta) - risk(best) for the minimiser `best`, without the cancellation of subtracting two risks."""
        return (self.features[self._rows(nodes)] @ (theta - best)).square().mean() / 2

    @cached_property
    def _samples(self) -> Tensor:
        """Features and target of every sample side by side [M N, d + 1]: a mini-batch is one copy of whole rows."""
        return torch.cat([self.features, self.targets[:, :, None]], dim=2).flatten(0, 1)

    def _rows(self, nodes: Tensor) -> Tensor:
        """Where the data of nodes stand."""
        return nodes if self.numbers is None else self._places[nodes]

    @cached_property
    def _places(self) -> Tensor:
        assert self.numbers is not None
        return places_of(self.numbers)

    def _pick(self, nodes: Tensor, chosen: Tensor) -> Tensor:
        """The chosen samples of each node [B, s, d + 1]."""
        places = (self._rows(nodes)[:, None] * self.samples + chosen).flatten()
        return self._samples.index_select(0, places).view(*chosen.shape, self.dim + 1)


def solve(products: Tensor, with_targets: Tensor) -> Tensor:
    """The parameter of least risk, from sums of products of features [d, d] and of features and targets [d]."""
    inverse: Tensor = torch.linalg.pinv(products, hermitian=True)
    return inverse @ with_targets


def _combine(weights: Tensor, rows: Tensor) -> Tensor:
    """Weighted sums [B, d] of rows [B, s, d] by weights [B, 1, s]."""
    if rows.device.type == "cpu" and rows[0].numel() < _SMALL:  # torch takes these number by number, four times as long
        return torch.from_numpy(np.einsum("bs,bsd->bd", weights.squeeze(1).numpy(), rows.numpy()))
    return torch.bmm(weights, rows).squeeze(1)


def _extend(theta: Tensor) -> Tensor:
    """(theta, -1), so that its product with (x, y) is the residual x'theta - y."""
    return torch.cat([theta, -torch.ones_like(theta[:, :1])], dim=1)


def linear_shard(nodes: Tensor, *, dim: int, samples: int, seed: int) -> LinearShard:
    """Clean samples of the given nodes: each node's depend on the seed and its number alone."""
    parameter = torch.zeros(dim, dtype=torch.float64)
    parameter[: int(0.1 * dim)] = 1.0
    if len(nodes) >= _MANY:
        features = torch.empty(len(nodes), samples, dim, dtype=torch.float64)
        targets = torch.empty(len(nodes), samples, dtype=torch.float64)
        for some in torch.arange(len(nodes)).split(_AT_ONCE):  # random numbers are dear: not all of them at once
            features[some], targets[some], _ = linear_shard(nodes[some], dim=dim, samples=samples, seed=seed)
        return LinearShard(features, targets, parameter)
    features = stream(seed, "features", node=nodes).normal(samples, dim)
    noise = stream(seed, "noise", node=nodes).normal(samples)
    return LinearShard(features, features @ parameter + noise, parameter)


def linear_problem(shard: LinearShard, *, seed: int, numbers: Tensor | None = None) -> LinearProblem:
    """The problem on given shards of nodes 0..M-1, or of those `numbers`, all starting from one common random point N(0, I)."""
    start = stream(seed, "start").normal(len(shard.parameter))
    return LinearProblem(shard.features, shard.targets, shard.parameter, start, numbers)
