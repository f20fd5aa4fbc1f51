"""UBAR (Guo et al. 2021, also known as MOZI): the nearest neighbours, then those that do well on own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import Order, WeightedRule, whole
from bymi.core.errors import InputError, require
from bymi.core.inbox import Inbox, Losses, Mixture, Round
from bymi.core.neighbourhoods import Trial

_WORST = torch.finfo(torch.float64).max


@dataclass(frozen=True)
class UBAR(WeightedRule):
    """Keep the floor((1 - share) |N_i|) nearest, of these average the ones whose loss is not above the own loss.

    If no one passes, take the one of least loss. theta_i <- a theta_i + (1 - a) mean, a = `self_weight`. Needs a loss
    and one forward pass a neighbour and round, so it is dear for large models. `share` is what the user assumes to be
    bad of a neighbourhood, at most.
    """

    order: ClassVar[Order] = "combine-then-adapt"
    share: float = 0.35
    self_weight: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.share < 1, "share", self.share, "0 <= share < 1")
        require(0 <= self.self_weight <= 1, "self_weight", self.self_weight, "0 to 1")

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        if round.losses is None:
            raise InputError("UBAR compares losses on own samples: give Round(losses=...)")
        inbox.fetch()  # tried below, so distances can be taken from them as well
        heard = inbox.heard
        count = heard.sum(1)
        keep = torch.floor(count - whole(self.share, count)).clamp_min(1).minimum(count)
        near = heard & (_rank(torch.where(heard, inbox.dist2_to_own(), torch.inf)) < keep[:, None])

        losses, own_loss = torch.full_like(inbox.weight, torch.inf), torch.zeros_like(inbox.self_weight)
        for trial in inbox.iter_receivers(near):
            found = _evaluate(trial, round.losses)
            losses[trial.receivers] = found.gather(1, trial.places)
            own_loss[trial.receivers] = found.gather(1, trial.own).squeeze(1)
        loss = torch.where(near, losses, torch.inf)
        good = near & (loss <= own_loss[:, None])
        best = near & (_rank(loss) == 0)
        chosen = torch.where(good.any(1, keepdim=True), good, best).to(torch.float64)

        number = chosen.sum(1)
        own = torch.where(number > 0, torch.full_like(number, self.self_weight), 1.0)
        return Mixture(own, (1 - own)[:, None] * chosen / number.clamp_min(1)[:, None])


def _evaluate(trial: Trial, losses: Losses) -> Tensor:
    """Losses [b, r] of the vectors of a trial.

    One that is no number, or infinite, is the worst of those near, and still better than not being near.
    """
    vectors, wanted, receivers = trial.vectors, trial.wanted, trial.receivers
    found = losses(vectors, wanted, receivers) if isinstance(receivers, Tensor) else losses(vectors, wanted)
    found = found.to(torch.float64)
    return torch.where(found < _WORST, found, _WORST)


def _rank(values: Tensor) -> Tensor:
    """Place of each entry in its row when sorted upwards, ties in column order."""
    return values.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
