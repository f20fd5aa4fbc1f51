"""Message attacks: a node holds one vector and sends another, or nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.core.named_parts import Checked

Sent = Mapping[int, Tensor | None] | Tensor
"""Messages that differ from what their sender holds, by row, None if nothing is sent; or all messages as one tensor."""


class MessageAttack(Checked, ABC):
    """Maps the `vector` [D] that an attacker holds to what it sends, under every topic; None: nothing is sent.

    `stacks`: accepts the vectors of several attackers as one tensor [b, D].
    """

    stacks: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, vector: Tensor) -> Tensor | None: ...

    def put_on(self, vectors: Tensor, rows: Tensor) -> Sent:
        """What nodes that hold vectors [J, D] send, of which the rows [b] are attackers."""
        stacked = self(vectors.index_select(0, rows)) if self.stacks else None
        return {row: self(vectors[row]) for row in rows.tolist()} if stacked is None else vectors.index_copy(0, rows, stacked)


@dataclass(frozen=True)
class NaN(MessageAttack):
    """All entries NaN."""

    stacks: ClassVar[bool] = True

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, torch.nan)


@dataclass(frozen=True)
class Inf(MessageAttack):
    """All entries plus infinity."""

    stacks: ClassVar[bool] = True

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, torch.inf)


@dataclass(frozen=True)
class Huge(MessageAttack):
    """All entries `value`, finite and far out of range."""

    stacks: ClassVar[bool] = True
    value: float = 1e30

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.full_like(vector, self.value)


@dataclass(frozen=True)
class Misshapen(MessageAttack):
    """One coordinate too many."""

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.cat([vector, vector[:1]])


@dataclass(frozen=True)
class Silent(MessageAttack):
    """Nothing is sent: a crashed node."""

    def __call__(self, vector: Tensor) -> None:
        return None


def put_on_wire(own: Tensor, sent: Sent) -> tuple[Tensor, Tensor | None]:
    """Messages [J, D] of senders that hold `own` [J, D], and a mask [J] of those that send what they hold; None for all.

    Missing messages and messages of the wrong shape are rows of NaN: a receiver cannot use them either.
    """
    if isinstance(sent, Tensor):
        return sent, (sent == own).all(1) if sent is not own else None
    if not sent:
        return own, None
    rows, same = own.clone(), torch.ones(len(own), dtype=torch.bool, device=own.device)
    for row, message in sent.items():
        rows[row] = torch.nan if message is None or message.shape != own[row].shape else message
        same[row] = False
    return rows, same
