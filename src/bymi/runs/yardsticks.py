"""What the models of a run are worth, measured with the truth at hand. One yardstick a kind of problem."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bymi.graph import Core
from bymi.problems import LinearProblem, ModuleProblem

Measures = dict[str, float | None]


class Yardstick(Protocol):
    """Keys and values for a row of metrics.jsonl."""

    def measure(self, theta: Tensor, core: Core | None) -> Measures:
        """Worth of all nodes' models [M, D]; `core` is there after a detection."""
        ...


class LinearYardstick:
    """Gaps of the averaged model: over the core after a detection, over honest nodes without one."""

    def __init__(self, problem: LinearProblem, byzantine: Tensor) -> None:
        self._honest = ~byzantine
        honest = self._honest.nonzero().flatten()
        self._truth = problem.parameter
        self._best, self._curvature = problem.minimiser(honest), problem.curvature(honest)

    def measure(self, theta: Tensor, core: Core | None) -> Measures:
        members = self._honest if core is None else core.members
        mean = theta[members].mean(0)
        weighted = None if core is None else number(self._excess(core.perron[members] @ theta[members]))
        gap = self._excess(mean)
        return {
            "gap": number(gap),
            "gap_weighted": weighted,
            "gap_true": number(gap - self._excess(self._truth)),
            "gap_population": number((mean - self._truth).square().sum() / 2),
        }

    def _excess(self, theta: Tensor) -> Tensor:
        """Risk above the honest minimum, from the curvature: the samples are not touched again."""
        away = theta - self._best
        return away @ self._curvature @ away / 2


class ImageYardstick:
    """Test accuracy of averaged models, and the norm of the global gradient: that of the honest nodes' pooled loss.

    Averages over all nodes, over the honest ones, and over the core. The gradient is taken at the average of the core after
    a detection, of the honest nodes without one. An average that is not finite has no gradient and guesses one class.
    """

    def __init__(self, problem: ModuleProblem, inputs: Tensor, labels: Tensor, byzantine: Tensor) -> None:
        self._problem, self._inputs, self._labels = problem, inputs, labels
        self._honest = ~byzantine

    def measure(self, theta: Tensor, core: Core | None) -> Measures:
        normal = theta[self._honest].mean(0)
        judged = normal if core is None else theta[core.members].mean(0)
        gradient = self._problem.pooled_gradient(judged, self._honest.nonzero().flatten())
        return {
            "acc_all": self._accuracy(theta.mean(0)),
            "acc_normal": self._accuracy(normal),
            "acc_scc": None if core is None else self._accuracy(judged),
            "grad_norm": number(torch.linalg.vector_norm(gradient)),
        }

    def _accuracy(self, theta: Tensor) -> float:
        said = self._problem.outputs(theta, self._inputs).argmax(1)
        return float((said == self._labels).to(torch.float64).mean())


def number(value: Tensor) -> float | None:
    """A JSON number, or null for what JSON cannot say."""
    found = float(value)
    return found if abs(found) < float("inf") else None
