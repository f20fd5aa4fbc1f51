"""What a node knows about one neighbour: whether it is waited for, its last valid messages, and counts for reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from bymi.node.roster import Member
from bymi.node.wire import Tag

_FORGIVEN = 0.25  # strikes taken off by a message in time
_LONGEST_PAUSE = 64  # rounds without a probe, at most


@dataclass(eq=False)
class Peer:
    """One neighbour. A deadline missed is a strike; with `limit` strikes it is suspected, so not waited for.

    A suspect is probed in the background, each time after twice as many rounds as before: a node that stalls and answers in
    turn costs ever less.
    """

    number: int
    member: Member
    limit: int
    strikes: float = 0.0
    suspected: bool = False
    suspicions: int = 0
    banned: bool = False
    pause: int = 0  # rounds until the next probe
    heard_at: int = -1  # round of its last valid message
    last: dict[str, tuple[int, dict[str, Tensor]]] = field(default_factory=dict)  # by kind: exchange number, vectors
    pulled: Tag | None = None  # the message that it has pulled last
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def state(self) -> str:
        """A word for reports."""
        if self.banned or self.suspected:
            return "banned" if self.banned else "suspected"
        return "heard" if self.heard_at >= 0 else "not yet"

    def strike(self) -> bool:
        """Count a missed deadline; returns whether the neighbour has become suspected by it."""
        self.strikes += 1
        self.counts["deadlines missed"] += 1
        if self.suspected or self.strikes < self.limit:
            return False
        self.suspected = True
        self.suspicions += 1
        self.pause = min(2 ** (self.suspicions - 1) - 1, _LONGEST_PAUSE)
        self.counts["suspicions"] += 1
        return True

    def in_time(self) -> None:
        """Count a message in time."""
        self.strikes = max(0.0, self.strikes - _FORGIVEN)
        if not self.strikes and self.suspicions and self.counts["heard"] % 100 == 0:
            self.suspicions -= 1

    def readmit(self) -> None:
        """Wait for it again, after a probe or by hand; one strike short of the next suspicion."""
        self.suspected, self.strikes, self.pause = False, max(0.0, self.limit - 1.0), 0

    def probe_due(self) -> bool:
        """Whether a suspect is to be probed in this round."""
        self.pause = max(0, self.pause - 1)
        return self.suspected and not self.banned and self.pause == 0

    def keep(self, kind: str, exchange: int, vectors: dict[str, Tensor]) -> None:
        """Store a valid message, for reuse."""
        self.last[kind] = exchange, vectors

    def reusable(self, kind: str, exchange: int, rounds: int) -> dict[str, Tensor] | None:
        """Its last valid message of a kind, if it is at most `rounds` exchanges of this kind old."""
        found = self.last.get(kind)
        return found[1] if found is not None and exchange - found[0] <= rounds else None
