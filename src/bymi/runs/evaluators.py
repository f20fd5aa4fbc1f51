"""What the models of a run are worth, measured with the truth at hand. One yardstick a kind of problem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bymi.core.graph import Core
from bymi.distributed.group import Group
from bymi.distributed.shard_layout import ShardLayout
from bymi.problems import LinearProblem, ModuleProblem
from bymi.problems.linear_problem import solve
from bymi.runs.convergence_theory import LARGEST, Loss
from bymi.runs.model_averages import Average

Measures = dict[str, float | None]
_EVEN = 1e-9  # relative difference of weights that counts as none
_NUMBERS = 1 << 23  # in the moments of all shards that a process has at a time


class Evaluator(Protocol):
    """Keys and values for a row of metrics.jsonl. `quick`: to measure takes no longer than a round.

    `extra`: keys, beyond those that every summary has, whose last values belong into the summary.
    """

    extra: tuple[str, ...]

    @property
    def quick(self) -> bool: ...

    def averages(self, core: Core | None) -> list[Average]:
        """Which averages of all models it looks at; `core` is there after a detection."""
        ...

    def measure(self, averages: Sequence[Tensor]) -> Measures:
        """What these are worth [D]."""
        ...

    def shared(self, group: Group, layout: ShardLayout) -> Evaluator:
        """One for all processes of a group, which measure together and do a part of the work each. All of them call it."""
        ...

    @property
    def loss(self) -> Loss | None:
        """What the convergence theorem has to know of the loss, where that is known."""
        ...


class LinearEvaluator:
    """Gaps of the averaged model: over the core after a detection, over honest nodes without one."""

    quick = True
    extra: tuple[str, ...] = ()

    def __init__(self, problem: LinearProblem, byzantine: Tensor, sums: Tensor | None = None) -> None:
        """`sums` [d, d + 1]: the moments of all honest nodes, where the problem does not have the data of all."""
        self._problem, self._honest, self._truth = problem, ~byzantine, problem.parameter
        self._sums = sums
        self._bounds: Tensor | None = None  # [3] of all honest nodes

    @cached_property
    def _best(self) -> Tensor:
        return self._problem.minimiser(self._nodes) if self._sums is None else solve(self._sums[:, :-1], self._sums[:, -1])

    @cached_property
    def _curvature(self) -> Tensor:
        if self._sums is None:
            return self._problem.curvature(self._nodes)
        return self._sums[:, :-1] / (len(self._nodes) * self._problem.samples)

    @property
    def _nodes(self) -> Tensor:
        return self._honest.nonzero().flatten()

    def averages(self, core: Core | None) -> list[Average]:
        if core is None:
            return [Average(self._honest)]
        return [Average(core.members), Average(core.members, core.perron)]

    def measure(self, averages: Sequence[Tensor]) -> Measures:
        mean, *weighted = averages
        gap = self._excess(mean)
        return {
            "gap": number(gap),
            "gap_weighted": number(self._excess(weighted[0])) if weighted else None,
            "gap_true": number(gap - self._excess(self._truth)),
            "gap_population": number((mean - self._truth).square().sum() / 2),
            "grad_norm_weighted": number((self._curvature @ (weighted[0] - self._best)).norm()) if weighted else None,
        }

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
        """Whether they are worth their time: only for so many nodes the theorem's other numbers are there."""
        return len(self._nodes) <= LARGEST and min(self._problem.dim, self._problem.samples) <= LARGEST

    def shared(self, group: Group, layout: ShardLayout) -> LinearEvaluator:
        # Sums of shards, always in the same order: the bits do not depend on who holds which.
        parts = [self._problem.moments(nodes[self._honest[nodes]]) for nodes in layout.blocks(group.rank)]
        counts, sums = [len(held) for held in layout.held], torch.empty_like(parts[0])
        rows = max(1, _NUMBERS // (len(layout.shards) * sums.shape[1]))
        for into, *some in zip(sums.split(rows), *(part.split(rows) for part in parts), strict=True):
            into.copy_(group.collect(torch.stack(some), counts, "moments").sum(0))
        together = LinearEvaluator(self._problem, ~self._honest, sums)
        if self._has_bounds:
            blocks = [nodes[self._honest[nodes]] for nodes in layout.blocks(group.rank)]
            found = group.collect(
                torch.stack([self._problem.bounds(nodes, together._best) for nodes in blocks]), counts, "moments"
            )
            together._bounds = torch.cat([found[:, :2].amax(0), found[:, 2:].sum(0)])
        return together

    def _excess(self, theta: Tensor) -> Tensor:
        """Risk above the honest minimum, from the curvature: the samples are not touched again."""
        away = theta - self._best
        return away @ self._curvature @ away / 2


class ImageEvaluator:
    """Test accuracy of averaged models, and the norm of the global gradient: that of the honest nodes' pooled loss.

    Averages over all nodes, over the honest ones, and over the core. The gradient is taken at the average of the core after
    a detection, of the honest nodes without one; after a detection also at the average weighted by the left Perron vector,
    which is the same one where all weights are. An average that is not finite has no gradient and guesses one class.
    """

    quick = False
    extra: tuple[str, ...] = ()
    loss: Loss | None = None  # how smooth a network's loss is nobody knows

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
        """`inputs` and `labels` for testing. In a `group` they are this process's part of them, as `held` [B] are its nodes."""
        self._problem, self._inputs, self._labels, self._byzantine = problem, inputs, labels, byzantine
        self._group = group or Group()
        nodes = torch.arange(len(byzantine), device=byzantine.device) if held is None else held
        self._honest = nodes[~byzantine[nodes]]

    def shared(self, group: Group, layout: ShardLayout) -> ImageEvaluator:
        # Copies: a view would keep all images.
        inputs, labels = (rows.tensor_split(group.size)[group.rank].clone() for rows in (self._inputs, self._labels))
        return ImageEvaluator(self._problem, inputs, labels, self._byzantine, group=group, held=layout.nodes(group.rank))

    def averages(self, core: Core | None) -> list[Average]:
        among = [torch.ones_like(self._byzantine), ~self._byzantine] + ([] if core is None else [core.members])
        averages = [Average(members) for members in among]
        if core is not None and not _is_even(core):
            averages.append(Average(core.members, core.perron))
        return averages

    def measure(self, averages: Sequence[Tensor]) -> Measures:
        models, points = averages[:3], averages[min(2, len(averages) - 1) :]
        right = torch.stack([self._right(model) for model in models])
        tested = right.new_tensor([len(self._labels)])
        found = self._group.total(torch.cat([*map(self._gradient, points), right, tested]), "measures")
        slopes, right = found[: -len(models) - 1].view(len(points), -1), found[-len(models) - 1 : -1] / found[-1]
        lengths = torch.linalg.vector_norm(slopes, dim=1)
        return {
            "acc_all": float(right[0]),
            "acc_normal": float(right[1]),
            "acc_scc": float(right[2]) if len(right) > 2 else None,
            "grad_norm": number(lengths[0]),
            "grad_norm_weighted": number(lengths[-1]) if len(models) > 2 else None,
        }

    def _gradient(self, theta: Tensor) -> Tensor:
        """What this process adds to the gradient over all samples of the honest nodes, float64 [D]."""
        if not len(self._honest):
            return theta.new_zeros(len(theta), dtype=torch.float64)
        return self._problem.pooled_gradient(theta, self._honest) * (len(self._honest) / int((~self._byzantine).sum()))

    def _right(self, theta: Tensor) -> Tensor:
        """How many of its test images this process sees named rightly."""
        return (self._problem.outputs(theta, self._inputs).argmax(1) == self._labels).sum(dtype=torch.float64)


def _is_even(core: Core) -> bool:
    """Whether all nodes of the core weigh the same."""
    weights = core.perron[core.members] * core.members.sum()
    return bool(((weights - 1).abs() < _EVEN).all())


def number(value: Tensor) -> float | None:
    """A JSON number, or null for what JSON cannot say."""
    found = float(value)
    return found if abs(found) < float("inf") else None
