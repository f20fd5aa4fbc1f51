"""Data attacks: a node follows the protocol on wrong samples. They map a shard to a shard."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from bymi.core.errors import InputError, require
from bymi.core.named_parts import Checked
from bymi.core.random_streams import Stream
from bymi.problems import LinearShard, Shards


class DataAttack(Checked, ABC):
    """Rewrites the samples of the nodes under attack: data of one `kind` in, data of that kind out.

    `shared` is one stream per run, common to all of these nodes; `fresh` has one key per node.
    """

    kind: ClassVar[type]

    @abstractmethod
    def __call__(self, shard: Any, shared: Stream, fresh: Stream) -> Any: ...

    def require_kind(self, kind: type) -> None:
        if self.kind is not kind:
            raise InputError(f"attack: {type(self).__name__} rewrites {self.kind.__name__} data, got {kind.__name__} data")


@dataclass(frozen=True)
class ParameterAttack(DataAttack):
    """Scenario A: responses come from theta_c = (mu, ..., mu, 0, ..., 0) with floor(share d) entries, not from theta*.

    Features and noise stay. `share` = 0.1 with `mu` = 1 is no attack: theta_c is theta*.
    """

    kind: ClassVar[type] = LinearShard
    share: float = 0.5
    mu: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.share <= 1, "share", self.share, "0 to 1")

    def __call__(self, shard: LinearShard, shared: Stream, fresh: Stream) -> LinearShard:
        corrupted = torch.zeros_like(shard.parameter)
        corrupted[: math.floor(self.share * len(corrupted) + 1e-9)] = self.mu
        return shard._replace(targets=shard.targets + shard.features @ (corrupted - shard.parameter))


@dataclass(frozen=True)
class CovariateAttack(DataAttack):
    """Scenario B: features 0.8 x + 3 v, responses shifted by +1; v is one random unit vector with positive entries.

    `response`: "replaced" computes responses from the new features, so that only the shift is wrong; "original" from the old
    features, so that the two no longer fit.
    """

    kind: ClassVar[type] = LinearShard
    # Paper gap: it does not say which features make the responses, docs/adr/0005-scenarios.md.
    response: Literal["replaced", "original"] = "replaced"
    shrink: float = 0.8
    push: float = 3.0
    shift: float = 1.0

    def __call__(self, shard: LinearShard, shared: Stream, fresh: Stream) -> LinearShard:
        direction = torch.nn.functional.normalize(shared.uniform(len(shard.parameter)), dim=0)
        features = self.shrink * shard.features + self.push * direction
        targets = shard.targets + self.shift
        if self.response == "replaced":
            targets = targets + (features - shard.features) @ shard.parameter
        return shard._replace(features=features, targets=targets)


@dataclass(frozen=True)
class OutOfDistribution(DataAttack):
    """Images become 0.3 s + 0.7 scale e with e ~ N(nu, I), nu ~ N(0, push^2 I) drawn once per run and shared; labels stay.

    `scale` is the unit of the noise in standard deviations of the pixels: at 1 every model overflows.
    """

    # Paper gap: the pixel scale is not stated, docs/adr/0007-images.md.
    kind: ClassVar[type] = Shards
    scale: float = 0.07
    keep: float = 0.3
    push: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.scale >= 0, "scale", self.scale, "0 or above")

    def __call__(self, shard: Shards, shared: Stream, fresh: Stream) -> Shards:
        shape = shard.inputs.shape
        centre = self.push * shared.normal(*shape[2:])
        # One node at a time: the float64 draws are eight times the size of a node's float32 images.
        noise = [Stream(key).normal(*shape[1:]).add_(centre).to(shard.inputs.dtype) for key in fresh.keys]
        return shard._replace(inputs=self.keep * shard.inputs + (1 - self.keep) * self.scale * torch.stack(noise))


@dataclass(frozen=True)
class LabelFlip(DataAttack):
    """Label y becomes classes - 1 - y; images stay."""

    kind: ClassVar[type] = Shards
    classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.classes >= 2, "classes", self.classes, "2 or more")

    def __call__(self, shard: Shards, shared: Stream, fresh: Stream) -> Shards:
        largest = int(shard.targets.max())
        require(largest < self.classes, "attack.classes", self.classes, f"more than the largest label, {largest}")
        return shard._replace(targets=self.classes - 1 - shard.targets)


@dataclass(frozen=True)
class ResponseFlip(DataAttack):
    """Responses of the linear model change sign: label flipping where labels are numbers."""

    kind: ClassVar[type] = LinearShard

    def __call__(self, shard: LinearShard, shared: Stream, fresh: Stream) -> LinearShard:
        return shard._replace(targets=-shard.targets)
