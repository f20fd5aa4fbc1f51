"""Names of random streams. A draw depends on the name of its stream, so a name must not change."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bymi.core import random_streams as streams
from bymi.datasets.partition import PARTITIONS
from bymi.power_analysis import Setting
from bymi.power_analysis import ideal_neighbourhoods as ideal
from bymi.problems import linear_shard
from bymi.problems.lenet import lenet, start_of
from bymi.runs.tasks import Images


@contextmanager
def listening(names: set[str]) -> Iterator[None]:
    """Inside the block, every stream that is opened puts its name into `names`; a node's number in it is left out."""
    opened = streams.stream

    def stream(seed: int, purpose: str, **where: Any) -> streams.Stream:
        names.add(re.sub(r" for \d+$", " for {node}", purpose))
        return opened(seed, purpose, **where)

    users = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "bymi"]
    users = [module for module in users if getattr(module, "stream", None) is opened]
    for module in users:
        module.stream = stream  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in users:
            module.stream = opened  # type: ignore[attr-defined]


def first_draws(names: Iterable[str]) -> dict[str, str]:
    """The first number of each stream with seed 0, by name."""
    return {name: str(int(streams.stream(0, name).bits(1))) for name in sorted(names)}


def draw_others() -> None:
    """Open the streams that no golden run needs: different data, partitions of labels, starts of models, power analysis,
    noise on the gradients of a real node, buckets, graphs that take turns."""
    linear_shard(torch.arange(2), dim=2, samples=4, seed=0, optimum_spread=1.0, covariance_spread=1.0)
    Images(smallest=0.5).sizes(5, 40, seed=0)
    labels = torch.arange(40) % 4
    for partition in PARTITIONS.values():
        partition().split(labels, 5, seed=0)
    start_of(lenet(), seed=0)
    for ways in ("apart", "together"):
        ideal.draw(Setting(20, 8), 3, 1.0, ways=ways)
    for name in ("gradient noise", "bucketing", "redraw"):
        streams.stream(0, name)
