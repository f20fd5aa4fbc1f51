"""Bucketing (Karimireddy, He, Jaggi 2022): random groups of vectors are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bymi.aggregation.wrapper import Points, Wrapper
from bymi.core.cuda_graphs import captured
from bymi.core.inbox import Round
from bymi.core.named_parts import bounded
from bymi.core.random_streams import stream


@dataclass(frozen=True)
class Bucketing(Wrapper):
    """Means of random groups of `s` of the vectors of N_i and i; the last group may be smaller.

    Groups are drawn by each receiver in each round. The own vector is in one of them: its mean is the own point of rules that
    have one, and the mixing weight of a group is the sum of its members'.
    """

    s: int = bounded(2, ge=1)

    def apply(self, points: Points, round: Round) -> Points:
        valid = points.valid
        pairs = (points.receivers[:, None] << 31) + points.numbers
        words = stream(round.seed, "bucketing", node=pairs, step=round.step, device=valid.device).keys
        matrix, group, first, mixing = captured(self._groups, words, valid, points.mixing)
        return replace(
            points.map(matrix),
            valid=matrix.any(2),
            own=group.gather(1, points.own),
            mixing=mixing,
            numbers=points.numbers.gather(1, first),
        )

    def _groups(self, words: Tensor, valid: Tensor, mixing: Tensor) -> tuple[Tensor, ...]:
        """Means [b, g, n] as sums of points, the group of each point [b, n], first point and weight of each group [b, g]."""
        count = valid.shape[1]
        order = torch.where(valid, words, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        group = torch.empty_like(order).scatter(1, order, torch.arange(count, device=valid.device).expand_as(order)) // self.s
        groups = torch.arange(-(-count // self.s), device=valid.device)
        member = (group[:, None, :] == groups[:, None]) & valid[:, None, :]
        size = member.sum(2, keepdim=True)
        first = torch.where(member, torch.arange(count, device=valid.device), count - 1).amin(2)
        return member.to(torch.float64) / size.clamp_min(1), group, first, (member * mixing[:, None, :]).sum(2)
