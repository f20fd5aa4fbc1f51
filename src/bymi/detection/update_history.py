"""Update history per neighbour since the last detection: mean parameters, as they were used, over the mean step size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.linalg import on_host
from bymi.core.message_usage import Receivers


@dataclass(eq=False)
class UpdateHistory:
    """Sums over the rounds seen, with K kinds of weights. Columns are those of the inboxes, which stay the same over a run.

    Kind k weights a round by exp(rates[k] x progress through the window): what a model has unlearned since counts less. A rate
    of zero is the plain mean. Which rate is that of the model is unknown, so tests look at all kinds and take the worst.
    """

    rates: tuple[float, ...] = (0.0,)
    rounds: int = 0
    steps: tuple[float, ...] = ()  # [K] weighted sums of the step sizes
    weights: tuple[float, ...] = ()  # [K] sums of the weights
    messages: Tensor | None = None  # [J, K, D] weighted sums of theta over the rounds in which the message was valid
    own: Tensor | None = None  # [B, K, D]
    times: Tensor | None = None  # [J, K] sums of the weights of the rounds in which the message was valid
    refused: Tensor | None = None  # [B, P] rounds in which it was not heard or far out; [B, J] with PerArcLists
    inbox: Inbox | None = field(default=None, repr=False)  # the first one, without vectors: which column is at which place
    _receivers: Receivers | None = field(default=None, init=False, repr=False)  # of the last round's arcs

    def copy(self) -> UpdateHistory:
        """An independent copy."""
        messages, own, times, refused = (
            None if sums is None else sums.clone() for sums in (self.messages, self.own, self.times, self.refused)
        )
        return UpdateHistory(self.rates, self.rounds, self.steps, self.weights, messages, own, times, refused, self.inbox)

    def see(self, inbox: Inbox, rate: float, share: Tensor, far_out: Tensor, progress: float = 0.0) -> None:
        """Add one round of parameters: step size, shares kept by clipping and mask of messages far out [B, P]. Collective.

        `progress`: share of the window's step sizes, in sum, up to this round.
        """
        if rate <= 0:  # no node made a step
            return
        self._receivers = Receivers.of(inbox, self._receivers)
        used, heard = inbox.usage(share, self._receivers)
        kinds = len(self.rates)
        if self.messages is None or self.own is None or self.times is None:
            # In float64: late in a run theta is far longer than the differences between nodes.
            self.messages, self.own = (
                torch.zeros(len(rows), kinds, rows.shape[1], dtype=torch.float64, device=rows.device)
                for rows in (used, inbox.own)
            )
            self.times = torch.zeros(len(heard), kinds, dtype=torch.float64, device=heard.device)
            self.steps = self.weights = (0.0,) * kinds
        used = used if on_host(heard) and bool(heard.all()) else used * heard[:, None]
        weights = [math.exp(fade * progress) for fade in self.rates]
        for sums, values in ((self.messages, used), (self.own, inbox.own), (self.times, heard)):
            for total, weight in zip(sums.unbind(1), weights, strict=True):
                total.add_(values, alpha=weight)
        self.steps = tuple(total + weight * rate for total, weight in zip(self.steps, weights, strict=True))
        self.weights = tuple(total + weight for total, weight in zip(self.weights, weights, strict=True))
        for mask in (far_out,) if inbox.complete else (inbox.unheard, far_out):
            self.refused = inbox.tally(self.refused, mask)
        self.rounds += 1
        if self.inbox is None:
            self.inbox = inbox.metadata_only()

    def vectors(self) -> Tensor:
        """q of every column, then of every receiver [J + B, K D], kind after kind."""
        return torch.cat(self.sides())

    def sides(self) -> tuple[Tensor, Tensor]:
        """q of every column [J, K D], and of every receiver [B, K D], kind after kind.

        A quotient of sums, not a mean of quotients: with step sizes that fall to zero, the last rounds would dominate.
        """
        assert self.messages is not None
        assert self.own is not None
        assert self.times is not None
        weights, steps = (self.own.new_tensor(values)[:, None] for values in (self.weights, self.steps))
        # A column that was never heard has no mean; where it was, its weights are at least one.
        mean = self.messages / torch.where(self.times > 0, self.times, 1.0)[:, :, None]
        return (mean * (weights / steps)).flatten(1), (self.own / weights * (weights / steps)).flatten(1)


def by_kind(history: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Update history vectors [..., K D] as K tensors [..., D]."""
    return tuple(torch.split(history, dim, -1))
