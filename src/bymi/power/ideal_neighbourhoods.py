"""Ideal neighbourhoods: normal noise, nothing else, and liars that differ by a shift; and what each rule makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bymi.aggregation import Filtering
from bymi.core.streams import stream
from bymi.detection import Panel
from bymi.detection.evidence import Evidence
from bymi.detection.panel import hear
from bymi.detection.score_test import outstanding
from bymi.detection.threshold import threshold
from bymi.power.setting import Setting

DIMENSIONS = 30
LARGEST = 120  # neighbours simulated; with more the shares stay as they are
Ways = Literal["apart", "together"]


@dataclass(frozen=True, eq=False)
class IdealNeighbourhoods:
    """Neighbourhoods of b honest nodes: half gradients of n neighbours and, last, its own, in units of sigma / sqrt(N)."""

    first: Tensor  # [b, n + 1, d]
    second: Tensor
    lies: Tensor  # [b, n + 1] bool

    @property
    def judged(self) -> Tensor:
        """All but the receiver itself [b, n + 1]."""
        return torch.arange(self.lies.shape[1]) < self.lies.shape[1] - 1

    def scores(self) -> Tensor:
        """Ideal scores [b, n + 1]: about the true mean, which is 0."""
        return (self.first * self.second).sum(2)

    def evidence(self) -> Evidence:
        first, second = self.first, self.second
        everybody = torch.ones_like(self.lies)
        judged = self.judged.expand_as(self.lies)
        points = (first, second) if first.shape[1] > DIMENSIONS else None  # the smaller problem for the spectra
        return Evidence(first @ first.mT, second @ second.mT, first @ second.mT, everybody, judged, points)


def draw(
    question: Setting, receivers: int, shift: Tensor | float, *, ways: Ways = "together", seed: int = 0
) -> IdealNeighbourhoods:
    """Neighbourhoods in which liars, if any, are off by `shift` [b] or a number, each its own way or all the same way.

    A half of N samples has noise of variance 2 sigma^2 / N a coordinate. The same seed has the same noise and the same liars
    for every shift.
    """
    size = min(question.degree, LARGEST)
    noise = 2**0.5 * stream(seed, "outlook noise").normal(2, receivers, size + 1, DIMENSIONS)
    chance = stream(seed, "outlook liars").uniform(receivers)
    count = torch.searchsorted(question.odds().cumsum(0), chance).clamp_max(question.degree)
    lies = torch.arange(size + 1) < (count * (size / question.degree)).round()[:, None]
    # Noise looks the same from all sides, so that one way is as good as another.
    way = torch.zeros(receivers, size + 1, DIMENSIONS, dtype=torch.float64)
    way[:, :, 0] = 1.0
    if ways == "apart":
        way = torch.nn.functional.normalize(stream(seed, "outlook ways").normal(receivers, size + 1, DIMENSIONS), dim=2)
    off = lies[:, :, None] * way * torch.as_tensor(shift, dtype=torch.float64).reshape(-1, 1, 1)
    return IdealNeighbourhoods(noise[0] + off, noise[1] + off, lies)


def _published(offset: int) -> Callable[[IdealNeighbourhoods, float], Tensor]:
    def judge(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
        scores, judged = scene.scores(), scene.judged.expand_as(scene.lies)
        limit = threshold(torch.where(judged, scores, 0.0), judged, fdr_level=fdr_level, offset=offset)
        return judged & (scores >= limit[:, None])

    return judge


def _hybrid(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
    panel, judged = Panel(), scene.judged.expand_as(scene.lies)
    assert panel.strong is not None
    wider = panel.wider(judged.sum(1, keepdim=True).to(torch.float64))
    bounds = {"strong": panel.strong * wider, "weak": panel.weak * wider}
    lengths = scene.first.norm(dim=2) * scene.second.norm(dim=2)
    return outstanding(scene.scores(), lengths, judged, fdr_level=fdr_level, **bounds)[0]


def _panel(scene: IdealNeighbourhoods, fdr_level: float) -> Tensor:
    # The centre given is one for panels without a noise edge.
    return hear(scene.evidence(), Panel(), fdr_level=fdr_level, offset=1, centre=Filtering(), cross_fit=True).flagged


@dataclass(frozen=True)
class Judge:
    """A rule, and how often it looks at an edge: from one end or both, at one point or two."""

    name: str
    looks: int
    flag: Callable[[IdealNeighbourhoods, float], Tensor]  # -> [b, n + 1] bool


JUDGES = (
    Judge("paper, offset 0", 1, _published(0)),
    Judge("paper, offset 1", 1, _published(1)),
    Judge("hardened, scores alone", 4, _hybrid),
    Judge("hardened", 4, _panel),
)
"""Scores alone know the true mean. The last is the whole panel, which has to estimate everything."""


@dataclass(frozen=True)
class Row:
    """What a rule reaches, as shares. Edges lost: at most, as if no two looks at an edge ever erred together."""

    rule: str
    lost_without: float  # honest edges lost where nobody lies
    fdp_without: float  # which is the share of nodes that flag anybody
    lost: float  # the same with liars far off
    fdp: float
    sure: float  # P_a: nodes that found all of their liars, at the first look
    alone: float | None  # the smallest shift found in 95 % of cases, in sigma / sqrt(N), by liars each its own way
    together: float | None  # and all the same way


def rates(scene: IdealNeighbourhoods, flagged: Tensor) -> tuple[float, float, float]:
    """Share of honest neighbours flagged, FDP and P_a over all receivers. Paper: eq:fdptpr."""
    honest = scene.judged & ~scene.lies
    wrong = (flagged & honest).sum(1, dtype=torch.float64)
    fdp = (wrong / flagged.sum(1).clamp_min(1)).mean()
    sure = (~(scene.lies & ~flagged).any(1)).to(torch.float64).mean()
    return float(wrong.sum() / honest.sum().clamp_min(1)), float(fdp), float(sure)


def found(scene: IdealNeighbourhoods, flagged: Tensor, steps: int) -> Tensor:
    """Share of liars found in each of `steps` equal groups of receivers, one after another [steps]; 0 without any."""
    hits, lies = ((part.sum(1).reshape(steps, -1).sum(1)) for part in (flagged & scene.lies, scene.lies))
    return hits / lies.clamp_min(1)
