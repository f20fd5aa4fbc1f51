"""Update history per neighbour since the last detection: mean parameters, as they were used, over the mean step size."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi.core.inbox import Inbox


@dataclass(eq=False)
class UpdateHistory:
    """Sums over the rounds seen. Columns are those of the inboxes, which stay the same over a run."""

    rounds: int = 0
    steps: float = 0.0  # sum of the step sizes
    messages: Tensor | None = None  # [J, D] sums of theta over the rounds in which the message was valid
    own: Tensor | None = None  # [B, D]
    times: Tensor | None = None  # [J] rounds in which the message was valid
    refused: Tensor | None = None  # [B, P] rounds in which it was not heard or far out; [B, J] with PerArcLists
    inbox: Inbox | None = field(default=None, repr=False)  # the last one, without vectors: which column is at which place

    def copy(self) -> UpdateHistory:
        """An independent copy."""
        messages, own, times, refused = (
            None if sums is None else sums.clone() for sums in (self.messages, self.own, self.times, self.refused)
        )
        return UpdateHistory(self.rounds, self.steps, messages, own, times, refused, self.inbox)

    def see(self, inbox: Inbox, rate: float, share: Tensor, far_out: Tensor) -> None:
        """Add one round of parameters: step size, shares kept by clipping and mask of messages far out [B, P]. Collective."""
        if rate <= 0:  # no node made a step
            return
        used, heard = inbox.usage(share)
        if self.messages is None or self.own is None or self.times is None:
            # In float64: late in a run theta is far longer than the differences between nodes.
            self.messages, self.own = (torch.zeros_like(rows, dtype=torch.float64) for rows in (used, inbox.own))
            self.times = torch.zeros(len(heard), dtype=torch.int64, device=heard.device)
        self.messages.add_(used if bool(heard.all()) else used * heard[:, None])
        self.own.add_(inbox.own)
        self.steps += rate
        self.times += heard
        for mask in (far_out,) if inbox.complete else (inbox.unheard, far_out):
            self.refused = inbox.tally(self.refused, mask)
        self.rounds += 1
        self.inbox = inbox.metadata_only()

    def vectors(self) -> Tensor:
        """q of every column, then of every receiver [J + B, D]."""
        return torch.cat(self.sides())

    def sides(self) -> tuple[Tensor, Tensor]:
        """q of every column [J, D], and of every receiver [B, D].

        A quotient of sums, not a mean of quotients: with step sizes that fall to zero, the last rounds would dominate.
        """
        assert self.messages is not None
        assert self.own is not None
        assert self.times is not None
        mean = self.messages / self.times.clamp_min(1)[:, None].to(self.messages)
        rounds = max(1, self.rounds)
        return mean * (rounds / self.steps), self.own / rounds * (rounds / self.steps)
