"""What a round leaves behind: for whoever looks on, and for the rounds that come after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from bymi.core.errors import is_integer, require
from bymi.core.inbox import Inbox
from bymi.core.network import Network
from bymi.detection import Suspensions, UpdateHistory, Verdict


@dataclass(frozen=True, eq=False)
class State:
    """All that later rounds depend on, beside problem, network, plan and forge; random draws need no state of their own.

    One is given out after every round and costs nothing: it points to what the run holds. It is good until the next
    round is asked for, because a trail grows in place; whoever wants to keep it takes a copy.
    """

    step: int
    phase: str
    theta: Tensor  # [B, D]
    judged: int | None = None  # the step of the last detection
    flagged: Tensor | None = None  # [B, M] bool: what it decided
    tracker: Tensor | None = None  # [B, M] float64
    settled: bool = False  # the tracker does not move any more
    record: Suspensions | None = None  # of the hardened profile, as all below
    trail: UpdateHistory | None = None
    before: Tensor | None = None  # [B, D] theta after the last detection
    anchor: Tensor | None = None  # [B, D] theta when the criterion of `Plan.stop` was looked at last, or could first be
    stopped: bool = False  # it holds: there are no more rounds

    def __post_init__(self) -> None:
        require(is_integer(self.step) and self.step >= 0, "step", self.step, "an integer, 0 or more")
        require(isinstance(self.phase, str), "phase", self.phase, "a string")
        require(isinstance(self.theta, Tensor) and self.theta.ndim == 2, "theta", self.theta, "a tensor [nodes, coordinates]")

    def after(self, snapshot: Snapshot) -> State:
        """With one more round."""
        return replace(
            self,
            step=snapshot.step,
            phase=snapshot.phase,
            theta=snapshot.theta,
            tracker=snapshot.tracker,
            settled=snapshot.settled,
        )

    def copy(self) -> State:
        """One that stays as it is while the run goes on: only the trail is changed in place."""
        return self if self.trail is None else replace(self, trail=self.trail.copy())


@dataclass(frozen=True, eq=False)
class RoundCounts:
    """What became of the messages of a round, on the arcs of a graph [M, P]."""

    unheard: Tensor | None  # bool: not usable; None: all were
    far_out: Tensor | None  # bool: far beyond all others; None where nobody looked

    @staticmethod
    def of(inbox: Inbox, far_out: Tensor | None, size: int) -> RoundCounts:
        """From an inbox of nodes of a graph of so many, and messages far beyond all others at its places [B, P]."""
        unheard = None if inbox.complete else inbox.by_sender(inbox.unheard, size)
        return RoundCounts(unheard, None if far_out is None else inbox.by_sender(far_out, size))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One round: where it ended, with what was heard in it. `verdict` and `network` come with a detection.

    A round that was put together from ranks has `counts` in place of an inbox.
    """

    step: int
    phase: str
    theta: Tensor  # [B, D]
    inbox: Inbox | None
    capped: Tensor | None = None  # [B] bool: local steps cut to the cap
    floored: Tensor | None = None  # [B] bool: tracker entries raised to the floor
    share: Tensor | None = None  # [B, J] what the fuse left of each message
    far_out: Tensor | None = None  # [B, J] bool: messages far beyond all others
    verdict: Verdict | None = None
    network: Network | None = None
    tracker: Tensor | None = None  # [B, M] after the round
    settled: bool = False
    stopped: bool = False  # the run ends here, before its last round
    state: State | None = None  # to go on from here
    counts: RoundCounts | None = None


__all__ = ["RoundCounts", "Snapshot", "State"]
