"""Attacks on data: a node trains faithfully on samples that are wrong. They map a shard to a shard."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch

from bymi.errors import require
from bymi.problems.linear import LinearShard
from bymi.streams import Stream


class DataAttack(ABC):
    """Rewrites the samples of the nodes under attack. `shared` is one stream a run, common to all of them."""

    @abstractmethod
    def __call__(self, shard: LinearShard, shared: Stream) -> LinearShard: ...


@dataclass(frozen=True)
class ParameterAttack(DataAttack):
    """Scenario A: responses come from theta_c = (mu, ..., mu, 0, ..., 0) with floor(share d) entries, not from theta*.

    Features and noise stay. `share` = 0.1 with `mu` = 1 is no attack at all: theta_c is theta*.
    """

    share: float = 0.5
    mu: float = 5.0

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "share", self.share, "0 to 1")

    def __call__(self, shard: LinearShard, shared: Stream) -> LinearShard:
        corrupted = torch.zeros_like(shard.parameter)
        corrupted[: math.floor(self.share * len(corrupted) + 1e-9)] = self.mu
        return shard._replace(targets=shard.targets + shard.features @ (corrupted - shard.parameter))


@dataclass(frozen=True)
class CovariateAttack(DataAttack):
    """Scenario B: features 0.8 x + 3 v, responses shifted by +1; v is one random unit vector with positive entries.

    `response`: "replaced" computes them from the new features, so that only the shift is wrong; "original" from the features
    before they were replaced, so that the two no longer fit.
    """

    # Paper gap: which features make the responses is not said, docs/adr/0005-scenarios.md.
    response: Literal["replaced", "original"] = "replaced"
    shrink: float = 0.8
    push: float = 3.0
    shift: float = 1.0

    def __call__(self, shard: LinearShard, shared: Stream) -> LinearShard:
        direction = torch.nn.functional.normalize(shared.uniform(len(shard.parameter)), dim=0)
        features = self.shrink * shard.features + self.push * direction
        targets = shard.targets + self.shift
        if self.response == "replaced":
            targets = targets + (features - shard.features) @ shard.parameter
        return shard._replace(features=features, targets=targets)
