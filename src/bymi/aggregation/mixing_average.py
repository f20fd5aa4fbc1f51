"""Plain averaging with the mixing weights: decentralised SGD without a defence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bymi.aggregation.base import Order, WeightedRule
from bymi.core.inbox import Inbox, Mixture, Round


@dataclass(frozen=True)
class Average(WeightedRule):
    """theta_i <- sum_j W_ij theta_j. The undefended baseline: a single Byzantine node can move all others.

    Weights of messages not heard are redistributed over the rest. Paper: Eq_intro_DSGD0.
    """

    order: ClassVar[Order] = "combine-then-adapt"
    plain: ClassVar[bool] = True

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        return inbox.average()
