"""UBAR (Guo et al. 2021, also known as MOZI): the nearest neighbours, then those with a small loss on own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import TIE, Order, Tolerant, WeightedRule, ranks, with_own
from bymi.core.errors import InputError
from bymi.core.inbox import Inbox, Losses, Mixture, Round
from bymi.core.named_parts import bounded
from bymi.core.neighbourhoods import Trial

_WORST = torch.finfo(torch.float64).max


@dataclass(frozen=True)
class UBAR(Tolerant, WeightedRule):
    """Keep the floor((1 - share) |N_i|) nearest neighbours; of these, average those whose loss is not above the own loss.

    If none passes, take the one of least loss. theta_i <- a theta_i + (1 - a) mean, a = `self_weight`. It needs a loss and one
    forward pass per neighbour and round, so it is expensive for large models. `share`: upper bound on the Byzantine share of a
    neighbourhood, as assumed by the user, or `f`, their number. Published: rho = 1 - share = 0.4, a = 0.5.
    """

    order: ClassVar[Order] = "combine-then-adapt"
    self_weight: float = bounded(0.5, ge=0, le=1)

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        if round.losses is None:
            raise InputError("UBAR compares losses on own samples: give Round(losses=...)")
        inbox.fetch()  # vectors are evaluated below, so distances may use them as well
        heard = inbox.heard
        count = heard.sum(1)
        keep = count - self.assumed(count, count - 1)
        near = heard & (ranks(torch.where(heard, inbox.dist2_to_own(), torch.inf)) < keep[:, None])

        losses, own_loss = torch.full_like(inbox.weight, torch.inf), torch.zeros_like(inbox.self_weight)
        for trial in inbox.iter_receivers(near):
            trial_losses = _evaluate(trial, round.losses)
            losses[trial.receivers] = trial_losses.gather(1, trial.places)
            own_loss[trial.receivers] = trial_losses.gather(1, trial.own).squeeze(1)
        loss = torch.where(near, losses, torch.inf)
        good = near & (loss <= (own_loss + TIE * own_loss.abs())[:, None])
        best = near & (ranks(loss) == 0)
        return with_own(torch.where(good.any(1, keepdim=True), good, best), self.self_weight)


def _evaluate(trial: Trial, losses: Losses) -> Tensor:
    """Losses [b, r] of the vectors of a trial.

    NaN and infinite losses become the largest finite number: worst among the near, but still before those that are not near.
    """
    vectors, wanted, receivers = trial.vectors, trial.wanted, trial.receivers
    values = losses(vectors, wanted, receivers) if isinstance(receivers, Tensor) else losses(vectors, wanted)
    values = values.to(torch.float64)
    return torch.where(values < _WORST, values, _WORST)
