"""The interface to receivers of a round that other processes hold."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ReceiverGroup(Protocol):
    """All receivers of a round, of which this process holds some. Collective: all processes must make the same calls."""

    @property
    def columns(self) -> Tensor:
        """Index [J] into the round's `total` messages of each message received here."""
        ...

    @property
    def total(self) -> int:
        """Number of messages of the round, over all processes."""
        ...

    @property
    def kept(self) -> Tensor:
        """Indices [K] of the messages whose usage history this process stores: those received here, or those sent from here."""
        ...

    def all_agree(self, flag: bool) -> bool:
        """Whether the flag holds in all processes. Collective."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all receivers [M, ...] from those held here [B, ...]. Collective."""
        ...
