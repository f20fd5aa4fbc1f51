"""What each neighbour did over a window of rounds: the mean of the parameters it sent, each over the step size of its round."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi.inbox import Inbox


@dataclass(eq=False)
class Trail:
    """Sums over the rounds seen so far. Columns are those of the inboxes, which stay the same over a run."""

    rounds: int = 0
    messages: Tensor | None = None  # [J, D] sums of theta / eta over the rounds in which they were usable
    own: Tensor | None = None  # [B, D]
    times: Tensor | None = None  # [J] rounds in which a message was usable
    refused: Tensor | None = None  # [B, J] rounds in which it was not heard or the fuse left it out
    inbox: Inbox | None = field(default=None, repr=False)  # the last one: who sits where

    def see(self, inbox: Inbox, rate: float, blown: Tensor | None) -> None:
        """Take in one round of parameters with its step size; `blown` [B, J]: left out by the fuse."""
        scale = 1 / max(rate, 1e-300)
        heard = inbox.expected.any(0) if inbox.complete else inbox.heard.any(0)
        if self.messages is None or self.own is None or self.times is None or self.refused is None:
            # In float64: late in a run theta / eta is far longer than what nodes differ by.
            self.messages, self.own = (torch.zeros_like(rows, dtype=torch.float64) for rows in (inbox.messages, inbox.own))
            self.times = torch.zeros(len(heard), dtype=torch.int64, device=heard.device)
            self.refused = torch.zeros(inbox.heard.shape, dtype=torch.int32, device=heard.device)
        self.messages.add_(inbox.messages, alpha=scale)
        self.own.add_(inbox.own, alpha=scale)
        self.times += heard
        if not inbox.complete:
            self.refused += inbox.unheard
        if blown is not None:
            self.refused += blown
        self.rounds += 1
        self.inbox = inbox

    def vectors(self) -> Tensor:
        """q of every column and of every receiver itself [J + B, D]."""
        assert self.messages is not None
        assert self.own is not None
        assert self.times is not None
        mean = self.messages / self.times.clamp_min(1)[:, None].to(self.messages)
        return torch.cat([mean, self.own / max(1, self.rounds)])
