"""What each neighbour did since the last detection: the mean of its parameters, as they were used, over the mean step size."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi.core.inbox import Inbox


@dataclass(eq=False)
class UpdateHistory:
    """Sums over the rounds seen so far. Columns are those of the inboxes, which stay the same over a run."""

    rounds: int = 0
    steps: float = 0.0  # sum of the step sizes
    messages: Tensor | None = None  # [J, D] sums of theta over the rounds in which they were usable
    own: Tensor | None = None  # [B, D]
    times: Tensor | None = None  # [J] rounds in which a message was usable
    refused: Tensor | None = None  # [B, J] rounds in which it was not heard or blew the fuse; for a Table also all columns
    inbox: Inbox | None = field(default=None, repr=False)  # the last one: who sits where

    def copy(self) -> UpdateHistory:
        """One that does not grow with this one."""
        messages, own, times, refused = (
            None if sums is None else sums.clone() for sums in (self.messages, self.own, self.times, self.refused)
        )
        return UpdateHistory(self.rounds, self.steps, messages, own, times, refused, self.inbox)

    def see(self, inbox: Inbox, rate: float, share: Tensor, far_out: Tensor) -> None:
        """Take in one round of parameters with its step size, how far messages were shortened and which were blown [B, J]."""
        if rate <= 0:  # nobody moved by itself
            return
        used, heard = inbox.usage(share)
        if self.messages is None or self.own is None or self.times is None:
            # In float64: late in a run theta is far longer than what nodes differ by.
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
        """q of every column and of every receiver itself [J + B, D]."""
        return torch.cat(self.sides())

    def sides(self) -> tuple[Tensor, Tensor]:
        """q of every column [J, D], and of every receiver itself [B, D].

        Sums over sums, not a mean of quotients: where steps fall to nothing, the last rounds would drown all others.
        """
        assert self.messages is not None
        assert self.own is not None
        assert self.times is not None
        mean = self.messages / self.times.clamp_min(1)[:, None].to(self.messages)
        rounds = max(1, self.rounds)
        return mean * (rounds / self.steps), self.own / rounds * (rounds / self.steps)
