"""Bucketing (Karimireddy, He, Jaggi 2022): random groups of vectors are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bymi.aggregation.wrapper import Points, Wrapper
from bymi.core.errors import require
from bymi.core.inbox import Round
from bymi.core.random_streams import stream


@dataclass(frozen=True)
class Bucketing(Wrapper):
    """Means of random groups of `s` of the vectors of N_i and i; the last group may be smaller.

    Groups are drawn by each receiver in each round. The own vector is in one of them: its mean is the own point of rules that
    have one, and the mixing weight of a group is the sum of its members'.
    """

    s: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.s >= 1, "s", self.s, "1 or more")

    def apply(self, points: Points, round: Round) -> Points:
        valid, count = points.valid, points.valid.shape[1]
        pairs = (points.receivers[:, None] << 31) + points.numbers
        words = stream(round.seed, "bucketing", node=pairs, step=round.step, device=valid.device).keys
        order = torch.where(valid, words, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        group = torch.empty_like(order).scatter(1, order, torch.arange(count, device=valid.device).expand_as(order)) // self.s
        groups = torch.arange(-(-count // self.s), device=valid.device)
        member = (group[:, None, :] == groups[:, None]) & valid[:, None, :]
        size = member.sum(2, keepdim=True)
        means = points.map(member.to(torch.float64) / size.clamp_min(1))
        first = torch.where(member, torch.arange(count, device=valid.device), count - 1).amin(2)
        return replace(
            means,
            valid=size.squeeze(2) > 0,
            own=group.gather(1, points.own),
            mixing=(member * points.mixing[:, None, :]).sum(2),
            numbers=points.numbers.gather(1, first),
        )
