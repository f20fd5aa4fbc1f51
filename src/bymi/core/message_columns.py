"""Columns of a round's inboxes: which messages some receivers get, and with what weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.neighbour_lists import NeighbourLists

Messages = Tensor | Sequence[Tensor | None]
"""Messages as a tensor [J, D], or one by one with None for a missing one."""


@dataclass(frozen=True, eq=False)
class MessageColumns:
    """The messages that B nodes may receive, and which of them each node does. With lists, [B, J] is [B, n]."""

    nodes: Tensor  # [B] receivers, ascending
    columns: Tensor  # [J] numbers of the messages among all of a round, ascending: one per node, then one per variant
    senders: Tensor | None  # [J]; None: message j comes from node j
    expected: Tensor  # [B, J] bool: arcs
    weight: Tensor  # [B, J] float64 mixing weights
    self_weight: Tensor  # [B] float64
    lists: NeighbourLists | None = None  # of columns

    @cached_property
    def own_column(self) -> Tensor:
        """[B] column of each node's own message."""
        return torch.searchsorted(self.columns, self.nodes)

    def receive(self, own: Tensor, messages: Messages, same: Tensor | None) -> Inbox:
        """The inbox of these nodes; `same` [B]: nodes that sent the vector they hold, None for all."""
        return Inbox.receive(
            own,
            messages,
            expected=self.expected,
            weight=self.weight,
            self_weight=self.self_weight,
            own_column=self.own_column if same is None else torch.where(same, self.own_column, -1),
            senders=self.senders,
            lists=self.lists,
        )


def followed_by(rows: Tensor, further: Messages) -> Messages:
    """Messages [J, D] followed by further ones."""
    return torch.cat([rows, further]) if isinstance(further, Tensor) else [*rows, *further]
