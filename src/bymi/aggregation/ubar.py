"""UBAR (Guo et al. 2021, also known as MOZI): the nearest neighbours, then those that do well on own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.aggregation.base import Order, WeightedRule, whole
from bymi.errors import InputError, require
from bymi.inbox import Inbox, Losses, Mixture, Round
from bymi.staying import StayingInbox

_RECEIVERS = 32  # that try the vectors of their neighbourhoods together
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
        if not isinstance(inbox, StayingInbox):
            _ = inbox.rows.vectors  # tried below, so distances can be taken from them as well: ask for them first
        heard = inbox.heard
        count = heard.sum(1)
        keep = torch.floor(count - whole(self.share, count)).clamp_min(1).minimum(count)
        near = heard & (_rank(torch.where(heard, inbox.dist2_to_own(), torch.inf)) < keep[:, None])

        if isinstance(inbox, StayingInbox):
            losses, own_loss = _losses_on_visits(inbox, near, round.losses)
        else:
            losses, own_loss = (_losses if inbox.lists is None else _losses_by_lists)(inbox, near, round.losses)
        loss = torch.where(near, losses, torch.inf)
        good = near & (loss <= own_loss)
        best = near & (_rank(loss) == 0)
        chosen = torch.where(good.any(1, keepdim=True), good, best).to(torch.float64)

        number = chosen.sum(1)
        own = torch.where(number > 0, torch.full_like(number, self.self_weight), 1.0)
        return Mixture(own, (1 - own)[:, None] * chosen / number.clamp_min(1)[:, None])


def _losses(inbox: Inbox, near: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
    """Losses of the messages that are near [B, J], and of the own vectors [B, 1]."""
    own_row = inbox.own_row
    wanted = inbox.member
    wanted[:, : near.shape[1]] &= near
    wanted.scatter_(1, own_row[:, None], True)
    found = _told(losses(inbox.rows.vectors, wanted))
    return found[:, : near.shape[1]], torch.gather(found, 1, own_row[:, None])


def _losses_by_lists(inbox: Inbox, near: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
    """The same a few receivers at a time, with the vectors that any of these has near."""
    assert inbox.lists is not None
    vectors = inbox.rows.vectors
    output, own = torch.full_like(inbox.weight, torch.inf), torch.zeros_like(inbox.self_weight)
    for some in torch.arange(len(near), device=near.device).split(_RECEIVERS):
        at = torch.cat([inbox.lists.at[some], inbox.own_row[some][:, None]], 1)
        valid = torch.nn.functional.pad(near[some], (0, 1), value=True)
        used, column = torch.where(valid, at, at[:, -1:]).unique(return_inverse=True)
        wanted = torch.zeros(len(some), len(used), dtype=torch.bool, device=near.device).scatter(1, column, True)
        found = _told(losses(vectors.index_select(0, used), wanted, some)).gather(1, column)
        output[some], own[some] = found[:, :-1], found[:, -1]
    return output, own[:, None]


def _losses_on_visits(inbox: StayingInbox, near: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
    """The same receiver by receiver, where rows are elsewhere."""
    output, own = torch.full_like(inbox.weight, torch.inf), torch.zeros_like(inbox.self_weight)
    for reply in inbox.visit():
        (before,) = reply.read()
        receiver, at = torch.tensor([reply.receiver], device=near.device), reply.senders
        wanted = torch.nn.functional.pad(near[receiver][:, at], (0, 1), value=True)
        found = _told(losses(before.rows.vectors, wanted, receiver))
        output[reply.receiver, at], own[reply.receiver] = found[0, :-1], found[0, -1]
    return output, own[:, None]


def _told(losses: Tensor) -> Tensor:
    """A loss that is no number, or infinite, is the worst of those near, and still better than not being near."""
    losses = losses.to(torch.float64)
    return torch.where(losses < _WORST, losses, _WORST)


def _rank(values: Tensor) -> Tensor:
    """Place of each entry in its row when sorted upwards, ties in column order."""
    return values.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
