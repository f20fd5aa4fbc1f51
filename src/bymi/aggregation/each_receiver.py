"""Neighbourhoods one receiver at a time, in every form of an inbox: for rules that need whole vectors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bymi.core.inbox import Inbox


def each_receiver(inbox: Inbox) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each receiver that hears a message: its position, the places of its messages [n] and their vectors [n, D].

    Collective, as `Inbox.iter_receivers` is.
    """
    inbox.fetch()
    for trial in inbox.iter_receivers(inbox.heard):
        number = torch.arange(len(inbox.heard), device=inbox.heard.device)[trial.receivers]
        for row, receiver in enumerate(number.tolist()):
            places = inbox.heard[receiver].nonzero().flatten()
            if len(places):
                yield receiver, places, trial.vectors[trial.places[row, places]]
