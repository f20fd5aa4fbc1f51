"""BALANCE (Fang et al. 2024): accept only models close to the own one, closer as training proceeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bymi.aggregation.base import WeightedRule, with_own
from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.linalg import norms
from bymi.core.named_parts import bounded


@dataclass(frozen=True)
class BALANCE(WeightedRule):
    """Accept j iff |x_i - x_j| <= gamma exp(-kappa t / T) |x_i| + absolute, then average the accepted with the own vector.

    x_i <- a x_i + (1 - a) mean of the accepted, a = `self_weight`; if none is accepted, x_i stays. All nodes must start from
    one common model: independent starts are farther apart than gamma |x_i| and never mix. `absolute` helps models that start at
    zero, where the relative bound is zero.
    """

    gamma: float = bounded(0.3, gt=0)
    kappa: float = bounded(1.0, ge=0)
    self_weight: float = bounded(0.5, ge=0, le=1)
    absolute: float = bounded(0.0, ge=0)

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        bound = self.gamma * math.exp(-self.kappa * round.step / round.steps) * norms(inbox.own) + self.absolute
        accepted = inbox.heard & (inbox.dist2_to_own() <= (bound**2)[:, None])
        return with_own(accepted, self.self_weight)
