"""Evaluators: the quality of a run's models, measured with the ground truth. One class per kind of problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bymi.core.graph import Core
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.collectives import Group
from bymi.distributed.gathered_snapshots import Models
from bymi.distributed.shard_layout import ShardLayout
from bymi.problems import LinearProblem, ModuleProblem
from bymi.problems.linear_problem import solve
from bymi.runs.convergence_theory import Loss


class Average(NamedTuple):
    """Average over the nodes in `members`, with equal or given weights."""

    members: Tensor  # [M] bool
    weights: Tensor | None = None  # [M]

    def of(self, theta: Tensor) -> Tensor:
        rows = theta[self.members]
        return rows.mean(0) if self.weights is None else self.weights[self.members].to(rows.dtype) @ rows


def look(
    models: Models, averages: Sequence[Average], among: Tensor, about: Average | None = None
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Averages of models [D] each, distances of the nodes in `among` [M] to their mean, and a mean squared distance.

    The last is that of the members of `about` to their average. One pass over all blocks of coordinates. Collective.
    """
    by_average: list[list[Tensor]] = [[] for _ in averages]
    distances: Tensor | None = None
    squares: Tensor | None = None
    for block in models.blocks():
        for parts, average in zip(by_average, averages, strict=True):
            parts.append(average.of(block))
        rows = block[among]
        partial = torch.linalg.vector_norm(rows - rows.mean(0), dim=1)
        distances = partial if distances is None else torch.hypot(distances, partial)
        if about is not None:
            square = (block[about.members] - about.of(block)).square().sum(1, dtype=torch.float64).mean()
            squares = square if squares is None else squares + square
    assert distances is not None
    return [torch.cat(parts) for parts in by_average], distances, squares


Measures = dict[str, float | None]
_EVEN = 1e-9  # relative difference of weights that counts as equal


class Evaluator(ABC):
    """Measures for a row of metrics.jsonl, over the nodes that are not in `byzantine` [M].

    `quick`: measuring takes no longer than a round. `extra`: keys beyond SUMMARY_KEYS whose last values go into the summary.
    """

    quick: ClassVar[bool] = False

    def __init__(self, byzantine: Tensor) -> None:
        self._byzantine = byzantine
        self.extra: tuple[str, ...] = ()

    def look(self, models: Models, core: Core | None, *, last: bool = False) -> Measures:
        """All measures of the models of a round, and how far apart these are; `core` is given after a detection. Collective."""
        about = None if core is None else Average(core.members, core.perron)
        averages, distances, distance = look(models, self.averages(core), ~self._byzantine, about)
        measures = self.measure(averages, core) | (self.measure_farthest(models, distances) if last else {})
        apart = {"consensus": number(distances.max()), "distance_weighted": None if distance is None else number(distance)}
        return {**measures, **apart}

    def averages(self, core: Core | None) -> list[Average]:
        """The averages of all models that are measured: over the core after a detection, over the honest nodes without one."""
        if core is None:
            return [Average(~self._byzantine)]
        return [Average(core.members), Average(core.members, core.perron)]

    @abstractmethod
    def measure(self, averages: Sequence[Tensor], core: Core | None = None) -> Measures:
        """Measures of these averages [D] each; `core` is given after a detection."""

    def measure_farthest(self, models: Models, distances: Tensor) -> Measures:
        """Measures of the model farthest from the honest mean, by the distances of the honest nodes. Collective."""
        return {}

    @abstractmethod
    def shared(self, group: Group, layout: ShardLayout) -> Evaluator:
        """An evaluator for all processes of a group, each doing a part of the work. Collective: all ranks must call it."""

    @property
    def start_gap(self) -> float | None:
        """Optimality gap of the initial model, None where the optimum is unknown."""
        return None

    @property
    def loss(self) -> Loss | None:
        """Constants of the loss for the convergence theorem, None where unknown."""
        return None


class LinearEvaluator(Evaluator):
    """Optimality gaps of the averaged model: over the core after a detection, over the honest nodes without one."""

    quick = True

    def __init__(self, problem: LinearProblem, byzantine: Tensor, sums: Tensor | None = None) -> None:
        """`sums` [d, d + 1]: moments of all honest nodes, for a problem that holds the data of some only."""
        super().__init__(byzantine)
        self._problem, self._truth, self._sums = problem, problem.parameter, sums
        self._nodes = (~byzantine).nonzero().flatten()
        self._bounds: Tensor | None = None  # [3] over all honest nodes

    @cached_property
    def _best(self) -> Tensor:
        return self._problem.minimiser(self._nodes) if self._sums is None else solve(self._sums[:, :-1], self._sums[:, -1])

    @cached_property
    def _curvature(self) -> Tensor:
        if self._sums is None:
            return self._problem.curvature(self._nodes)
        return self._sums[:, :-1] / (len(self._nodes) * self._problem.samples)

    def measure(self, averages: Sequence[Tensor], core: Core | None = None) -> Measures:
        mean, *weighted = averages
        gap = self._excess(mean)
        return {
            "gap": number(gap),
            "gap_weighted": number(self._excess(weighted[0])) if weighted else None,
            "gap_true": number(gap - self._excess(self._truth)),
            "gap_population": number((mean - self._truth).square().sum() / 2),
            "grad_norm_weighted": number((self._curvature @ (weighted[0] - self._best)).norm()) if weighted else None,
        }

    @property
    def start_gap(self) -> float | None:
        return number(self._excess(self._problem.start))

    @cached_property
    def loss(self) -> Loss | None:
        if self._bounds is None and self._sums is None and self._has_bounds:
            self._bounds = self._problem.bounds(self._nodes, self._best)
        if self._bounds is None:
            return None
        smoothness, largest, total = self._bounds.tolist()
        return Loss(smoothness, largest, total / (len(self._nodes) * self._problem.samples), self._problem.samples)

    @property
    def _has_bounds(self) -> bool:
        """Whether bounds are worth computing: the theorem's other numbers exist for few nodes only."""
        return len(self._nodes) <= LIMITS.theory_size and min(self._problem.dim, self._problem.samples) <= LIMITS.theory_size

    def shared(self, group: Group, layout: ShardLayout) -> LinearEvaluator:
        # Sums over shards, always in the same order: the bits do not depend on the number of ranks.
        parts = [self._problem.moments(nodes[~self._byzantine[nodes]]) for nodes in layout.blocks(group.rank)]
        counts, sums = [len(held) for held in layout.held], torch.empty_like(parts[0])
        rows = max(1, LIMITS.moments // (len(layout.shards) * sums.shape[1]))
        for into, *pieces in zip(sums.split(rows), *(part.split(rows) for part in parts), strict=True):
            into.copy_(group.collect(torch.stack(pieces), counts, "moments").sum(0))
        combined = LinearEvaluator(self._problem, self._byzantine, sums)
        if self._has_bounds:
            blocks = [nodes[~self._byzantine[nodes]] for nodes in layout.blocks(group.rank)]
            bounds = group.collect(
                torch.stack([self._problem.bounds(nodes, combined._best) for nodes in blocks]), counts, "moments"
            )
            combined._bounds = torch.cat([bounds[:, :2].amax(0), bounds[:, 2:].sum(0)])
        return combined

    def _excess(self, theta: Tensor) -> Tensor:
        """Risk above the honest minimum, from the curvature, without the samples."""
        away = theta - self._best
        return away @ self._curvature @ away / 2


class ImageEvaluator(Evaluator):
    """Test accuracy of averaged models, and the norm of the gradient of the honest nodes' pooled loss.

    Averages are over all nodes, over the honest nodes, and over the core. The gradient is taken at the average of the core
    after a detection, of the honest nodes without one; after a detection also at the average weighted by the left Perron
    vector, unless its weights are all equal. An average that is not finite has no gradient and predicts a single class.
    """

    def __init__(
        self,
        problem: ModuleProblem,
        inputs: Tensor,
        labels: Tensor,
        byzantine: Tensor,
        *,
        group: Group | None = None,
        held: Tensor | None = None,
    ) -> None:
        """`inputs` and `labels` for testing: in a `group` this process's part of them; `held` [B]: its nodes."""
        super().__init__(byzantine)
        self._problem, self._inputs, self._labels, self._group = problem, inputs, labels, group or Group()
        nodes = torch.arange(len(byzantine), device=byzantine.device) if held is None else held
        self._honest = nodes[~byzantine[nodes]]

    def shared(self, group: Group, layout: ShardLayout) -> ImageEvaluator:
        # Clones: a view would keep all images in memory.
        inputs, labels = (rows.tensor_split(group.size)[group.rank].clone() for rows in (self._inputs, self._labels))
        return ImageEvaluator(self._problem, inputs, labels, self._byzantine, group=group, held=layout.nodes(group.rank))

    def averages(self, core: Core | None) -> list[Average]:
        among = [torch.ones_like(self._byzantine), ~self._byzantine] + ([] if core is None else [core.members])
        averages = [Average(members) for members in among]
        if core is not None and not _is_even(core):
            averages.append(Average(core.members, core.perron))
        return averages

    def measure(self, averages: Sequence[Tensor], core: Core | None = None) -> Measures:
        models, points = averages[:3], averages[min(2, len(averages) - 1) :]
        right = torch.stack([self._right(model) for model in models])
        tested = right.new_tensor([len(self._labels)])
        totals = self._group.total(torch.cat([*map(self._gradient, points), right, tested]), "measures")
        slopes, right = totals[: -len(models) - 1].view(len(points), -1), totals[-len(models) - 1 : -1] / totals[-1]
        lengths = torch.linalg.vector_norm(slopes, dim=1)
        return {
            "acc_all": float(right[0]),
            "acc_normal": float(right[1]),
            "acc_scc": float(right[2]) if len(right) > 2 else None,
            "grad_norm": number(lengths[0]),
            "grad_norm_weighted": number(lengths[-1]) if len(models) > 2 else None,
        }

    def measure_farthest(self, models: Models, distances: Tensor) -> Measures:
        honest = (~self._byzantine).nonzero().flatten()
        farthest = torch.zeros_like(self._byzantine).index_fill(0, honest[distances.argmax()], True)
        (model,), _, _ = look(models, [Average(farthest)], farthest)
        right = self._right(model)
        counts = torch.stack([right, right.new_tensor(len(self._labels))])
        total, tested = self._group.total(counts, "accuracy").tolist()
        return {"acc_farthest": float(total / tested)}

    def _gradient(self, theta: Tensor) -> Tensor:
        """This process's part of the gradient over all samples of the honest nodes, float64 [D]."""
        if not len(self._honest):
            return theta.new_zeros(len(theta), dtype=torch.float64)
        return self._problem.pooled_gradient(theta, self._honest) * (len(self._honest) / int((~self._byzantine).sum()))

    def _right(self, theta: Tensor) -> Tensor:
        """Number of this process's test images that are classified correctly."""
        return (self._problem.outputs(theta, self._inputs).argmax(1) == self._labels).sum(dtype=torch.float64)


def _is_even(core: Core) -> bool:
    """Whether all nodes of the core have the same weight."""
    weights = core.perron[core.members] * core.members.sum()
    return bool(((weights - 1).abs() < _EVEN).all())


def number(value: Tensor | float) -> float | None:
    """A JSON number, or None (null) for NaN and infinity."""
    plain = float(value)
    return plain if abs(plain) < float("inf") else None
