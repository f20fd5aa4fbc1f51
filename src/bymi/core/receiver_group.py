"""Those who take part in a round elsewhere."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ReceiverGroup(Protocol):
    """All receivers of a round, where only some of them are held here. Every process of the network calls it alike."""

    @property
    def columns(self) -> Tensor:
        """Which of the round's `total` messages each one heard here is [J]."""
        ...

    @property
    def total(self) -> int: ...

    @property
    def kept(self) -> Tensor:
        """Of which of them it is kept here what became of them [K]: of those heard here, or of those sent from here."""
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag holds for all receivers."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all receivers [M, ...], from those held here [B, ...]."""
        ...
