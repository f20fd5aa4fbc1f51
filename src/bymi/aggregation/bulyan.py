"""Bulyan (El Mhamdi et al. 2018): select by Krum, one vector at a time, then average each coordinate around its median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import TIE, Rule, Tolerant, first_least, others, smallest, squared_distances
from bymi.aggregation.each_receiver import each_receiver
from bymi.aggregation.meamed import mean_about
from bymi.aggregation.median import middle
from bymi.core.inbox import Inbox, Round
from bymi.core.linalg import ascending
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class Bulyan(Tolerant, Rule):
    """Mean of each coordinate over the n - 4 f values nearest to their median, of n - 2 f vectors that Krum selects.

    Krum selects one vector at a time, from those of N_i and i that are left. Where it would sum fewer than one distance, it
    takes the nearest; of equal scores the vector nearest to all others. f = ceil(`share` |N_i|), or `f`, cut to (n - 3) / 4:
    the original asks for n >= 4 f + 3.
    """

    share: float = bounded(0.24, ge=0, lt=0.5)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        hoods = inbox.neighbourhoods("products")
        selected = inbox.mixture((hood, self._select(hood.gram, hood.valid)) for hood in hoods if hood.gram is not None)
        output = inbox.own.clone()
        for receiver, places, messages in each_receiver(inbox):
            kept = messages[selected.weight[receiver, places] > 0]
            rows = torch.cat([kept, inbox.own[receiver, None]]) if bool(selected.own[receiver] > 0) else kept
            count = torch.tensor([[len(rows)]], device=rows.device)
            heard = torch.tensor([[len(messages)]], device=rows.device)
            ordered = ascending(rows, 0)[None]
            output[receiver] = self.second_stage(ordered, count, self.assumed(heard, (heard - 2) // 4))[0]
        return output

    def second_stage(self, ordered: Tensor, count: Tensor, assumed: Tensor) -> Tensor:
        """Values [1, c] from the selected ones, sorted [1, n, c]; `count` [1, 1] of them, `assumed` [1, 1] Byzantine ones."""
        return mean_about(ordered, middle(ordered, count), count, (count - 2 * assumed).clamp_min(1))

    def _select(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Mask [b, n] of the vectors that Krum selects one by one, as float64."""
        count = valid.sum(1, keepdim=True)
        assumed = self.assumed(count - 1, (count - 3) // 4)
        wanted, left = count - 2 * assumed, valid.clone()
        nearest, order = squared_distances(gram).masked_fill(~others(valid), torch.inf).sort(2)
        nearest, squares = nearest.masked_fill(nearest.isinf(), 0.0), gram.diagonal(dim1=1, dim2=2)
        for turn in range(int(wanted.max()) if len(wanted) else 0):
            remaining = left.sum(1, keepdim=True)
            # Krum's scores among those left: the first ones of each order of all.
            there = left[:, None, :].expand_as(order).gather(2, order)
            within = there & (there.cumsum(2, dtype=torch.int32) <= (remaining - assumed - 2).clamp_min(1)[:, :, None])
            score = (nearest * within).sum(2).masked_fill(~left, torch.inf)
            # Two vectors that are nearest to each other have equal scores of one distance: then all distances decide,
            # sum_j |x_i - x_j|^2 without sum_j |x_j|^2: a message that is far off would hide how the others differ.
            equal = smallest(score, left, torch.ones_like(count)) > 0
            square, product = remaining * squares, 2 * gram * left[:, None, :]
            apart = (square - product.sum(2)).masked_fill(~equal, torch.inf)
            rounding = (square + product.abs().sum(2)).masked_fill(~equal, torch.inf).amin(1, keepdim=True)
            best = first_least(apart, TIE * rounding)
            left = left & ~(torch.zeros_like(left).scatter(1, best, True) & (turn < wanted))
        return (valid & ~left).to(torch.float64)
