"""Ideal neighbourhoods: normal noise, and Byzantine nodes that differ by a shift; and what each rule makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation import Filtering
from bymi.core.random_streams import stream
from bymi.detection import Panel
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.half_gradient_tests import hear, outstanding
from bymi.detection.published_score import threshold
from bymi.power_analysis.network_setting import Setting

DIMENSIONS = 30
LARGEST = 120  # neighbours simulated; with more, the shares hardly change
Ways = Literal["apart", "together"]


@dataclass(frozen=True, eq=False)
class IdealNeighbourhoods:
    """Neighbourhoods of b honest nodes: half gradients of n neighbours and, last, its own, in units of sigma / sqrt(N)."""

    first: Tensor  # [b, n + 1, d]
    second: Tensor
    lies: Tensor  # [b, n + 1] bool

    @property
    def judged(self) -> Tensor:
        """Mask [n + 1] of all members but the receiver itself."""
        return torch.arange(self.lies.shape[1]) < self.lies.shape[1] - 1

    def scores(self) -> Tensor:
        """Ideal scores [b, n + 1]: about the true mean, which is 0."""
        return (self.first * self.second).sum(2)

    def evidence(self) -> Evidence:
        first, second = self.first, self.second
        members = torch.ones_like(self.lies)
        judged = self.judged.expand_as(self.lies)
        points = (first, second) if first.shape[1] > DIMENSIONS else None  # the smaller problem for the spectra
        return Evidence(first @ first.mT, second @ second.mT, first @ second.mT, members, judged, points)


def draw(
    question: Setting, receivers: int, shift: Tensor | float, *, ways: Ways = "together", seed: int = 0
) -> IdealNeighbourhoods:
    """Neighbourhoods whose Byzantine nodes are off by `shift` [b] or a number, each in its own direction or all in the same.

    A half of N samples has noise of variance 2 sigma^2 / N per coordinate. The same seed gives the same noise and the same
    Byzantine nodes for every shift.
    """
    size = min(question.degree, LARGEST)
    noise = 2**0.5 * stream(seed, "outlook noise").normal(2, receivers, size + 1, DIMENSIONS)
    chance = stream(seed, "outlook liars").uniform(receivers)
    count = torch.searchsorted(question.odds().cumsum(0), chance).clamp_max(question.degree)
    lies = torch.arange(size + 1) < (count * (size / question.degree)).round()[:, None]
    # The noise is isotropic, so any direction will do.
    direction = torch.zeros(receivers, size + 1, DIMENSIONS, dtype=torch.float64)
    direction[:, :, 0] = 1.0
    if ways == "apart":
        direction = torch.nn.functional.normalize(stream(seed, "outlook ways").normal(receivers, size + 1, DIMENSIONS), dim=2)
    off = lies[:, :, None] * direction * torch.as_tensor(shift, dtype=torch.float64).reshape(-1, 1, 1)
    return IdealNeighbourhoods(noise[0] + off, noise[1] + off, lies)


def _published(offset: int) -> Callable[[IdealNeighbourhoods, float], Tensor]:
    def judge(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
        scores, judged = scene.scores(), scene.judged.expand_as(scene.lies)
        limit = threshold(torch.where(judged, scores, 0.0), judged, fdr_level=fdr_level, offset=offset)
        return judged & (scores >= limit[:, None])

    return judge


def _score_test(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
    panel, judged = Panel(), scene.judged.expand_as(scene.lies)
    assert panel.strong is not None
    wider = panel.wider(judged.sum(1, keepdim=True).to(torch.float64))
    bounds = {"strong": panel.strong * wider, "weak": panel.weak * wider}
    lengths = scene.first.norm(dim=2) * scene.second.norm(dim=2)
    return outstanding(scene.scores(), lengths, judged, fdr_level=fdr_level, **bounds)[0]


def _panel(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
    # The centre is used only by panels without a noise edge.
    return hear(scene.evidence(), Panel(), fdr_level=fdr_level, offset=1, centre=Filtering(), cross_fit=True).flagged


@dataclass(frozen=True)
class Judge:
    """A rule, and how often it tests an edge: from one end or both, at one point or two."""

    name: str
    looks: int
    flag: Callable[[IdealNeighbourhoods, float], Tensor]  # -> [b, n + 1] bool


JUDGES = (
    Judge("paper, offset 0", 1, _published(0)),
    Judge("paper, offset 1", 1, _published(1)),
    Judge("hardened, scores alone", 4, _score_test),
    Judge("hardened", 4, _panel),
)
"""Scores alone know the true mean. The last is the whole panel, which has to estimate everything."""


@dataclass(frozen=True)
class Row:
    """What a rule reaches, as shares. Edges lost are an upper bound: errors of several tests of an edge are added."""

    rule: str
    lost_without: float  # honest edges lost without Byzantine nodes
    fdp_without: float  # then the share of nodes that flag any neighbour
    lost: float  # the same with Byzantine nodes far off
    fdp: float
    sure: float  # P_a: nodes that found all their Byzantine neighbours, at the first test
    alone: float | None  # the smallest shift found in 95 % of cases, in sigma / sqrt(N), each node in its own direction
    together: float | None  # and all in the same direction


def rates(scene: IdealNeighbourhoods, flagged: Tensor) -> tuple[float, float, float]:
    """Share of honest neighbours flagged, FDP and P_a over all receivers. Paper: eq:fdptpr."""
    honest = scene.judged & ~scene.lies
    wrong = (flagged & honest).sum(1, dtype=torch.float64)
    fdp = (wrong / flagged.sum(1).clamp_min(1)).mean()
    sure = (~(scene.lies & ~flagged).any(1)).to(torch.float64).mean()
    return float(wrong.sum() / honest.sum().clamp_min(1)), float(fdp), float(sure)


def found(scene: IdealNeighbourhoods, flagged: Tensor, steps: int) -> Tensor:
    """Share of Byzantine nodes found [steps] in each of `steps` consecutive equal groups of receivers; 0 if there are none."""
    hits, lies = ((part.sum(1).reshape(steps, -1).sum(1)) for part in (flagged & scene.lies, scene.lies))
    return hits / lies.clamp_min(1)
