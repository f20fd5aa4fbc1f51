"""CGE, comparative gradient elimination (Gupta, Liu, Vaidya 2021): the mean of the shortest vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import Tolerant, WeightedRule, smallest
from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.linalg import norms


@dataclass(frozen=True)
class CGE(Tolerant, WeightedRule):
    """Mean of the n - f vectors of N_i and i with the smallest norms.

    f = ceil(`share` |N_i|), or `f`. Made for gradients. On parameters it bounds the output's norm but not its distance from
    honest vectors: short Byzantine vectors are averaged like any other. A receiver that hears nobody keeps its vector.
    """

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        heard = inbox.heard
        length = torch.cat([inbox.message_norms().expand(heard.shape), norms(inbox.own)[:, None]], 1)
        among = torch.nn.functional.pad(heard, (0, 1), value=True)
        count = heard.sum(1, keepdim=True)
        number = 1 + count - self.assumed(count, count)
        weight: Tensor = smallest(length, among, number, tie=0.0) / number
        alone = count.squeeze(1) == 0
        return Mixture(torch.where(alone, 1.0, weight[:, -1]), weight[:, :-1])
