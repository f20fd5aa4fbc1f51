"""State between rounds, for resuming and for rolling back, and snapshots of rounds, for observers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bymi.core.errors import is_integer, require
from bymi.core.inbox import Inbox
from bymi.core.network import Network
from bymi.detection import Suspensions, UpdateHistory, Verdict

KEPT = 4
"""States that a node keeps for a rollback."""


@dataclass(frozen=True, eq=False)
class KeptStates:
    """Parameters after the last detections, oldest first, and the length of the mean gradient that was claimed there."""

    theta: Tensor  # [B, k, D]
    mean_claim: Tensor  # [B, k]

    @staticmethod
    def blank(theta: Tensor) -> KeptStates:
        """None, before the first detection of nodes at theta [B, D]."""
        return KeptStates(theta[:, None][:, :0], theta.new_zeros(len(theta), 0, dtype=torch.float64))

    def add(self, theta: Tensor, mean_claim: Tensor, most: int = KEPT) -> KeptStates:
        """With one more state, theta [B, D] and mean_claim [B], and the last `most` of all."""
        states = torch.cat([self.theta, theta[:, None]], 1), torch.cat([self.mean_claim, mean_claim[:, None]], 1)
        return KeptStates(*(part[:, -most:] for part in states))

    @property
    def best(self) -> Tensor:
        """The state of each node with the shortest mean claim [B, D].

        Not simply the last one: attackers found in one window may have poisoned the state after it.
        """
        length = torch.where(torch.isfinite(self.mean_claim), self.mean_claim, torch.inf)
        # Of equal ones the latest.
        index = self.theta.shape[1] - 1 - length.flip(1).argmin(1)
        return self.theta[torch.arange(len(index), device=index.device), index]


@dataclass(frozen=True, eq=False)
class State:
    """All that later rounds depend on, besides problem, network, plan and deviation; random streams are stateless.

    One is produced after every round without copying: it refers to the tensors of the run. It is valid until the next round is
    requested, because the update history grows in place; `copy()` keeps it for longer.
    """

    step: int
    phase: str
    theta: Tensor  # [B, D]
    judged: int | None = None  # step of the last detection
    flagged: Tensor | None = None  # [B, M] bool: in-arcs that it flagged
    tracker: Tensor | None = None  # [B, M] float64
    settled: bool = False  # the tracker has reached its limit
    record: Suspensions | None = None  # suspensions; this and the next two: hardened profile only
    history: UpdateHistory | None = None  # since the last detection
    kept: KeptStates | None = None  # after the last detections, to return to
    anchor: Tensor | None = None  # [B, D] theta when `Plan.stop` was last checked, or could first be
    stopped: bool = False  # `Plan.stop` holds: there are no more rounds
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # [B, ...] each: of gradient estimates, or of the optimiser

    def __post_init__(self) -> None:
        require(is_integer(self.step) and self.step >= 0, "step", self.step, "an integer, 0 or more")
        require(isinstance(self.phase, str), "phase", self.phase, "a string")
        require(isinstance(self.theta, Tensor) and self.theta.ndim == 2, "theta", self.theta, "a tensor [nodes, coordinates]")

    def after(self, snapshot: Snapshot) -> State:
        """The state after one more round."""
        return replace(
            self,
            step=snapshot.step,
            phase=snapshot.phase,
            theta=snapshot.theta,
            tracker=snapshot.tracker,
            settled=snapshot.settled,
            memory=snapshot.memory,
        )

    def copy(self) -> State:
        """A copy that later rounds do not change: the update history and the memory are changed in place."""
        memory = {name: tensor.clone() for name, tensor in self.memory.items()}
        return replace(self, memory=memory, history=None if self.history is None else self.history.copy())


@dataclass(frozen=True, eq=False)
class RoundCounts:
    """What happened to the messages of a round, per arc of the graph [M, P]."""

    unheard: Tensor | None  # bool: expected and not acceptable; None: no such message
    far_out: Tensor | None  # bool: clipped as far out; None: not measured

    @staticmethod
    def of(inbox: Inbox, far_out: Tensor | None, size: int) -> RoundCounts:
        """From an inbox of a graph of `size` nodes and a mask [B, P] of messages far out."""
        unheard = None if inbox.complete else inbox.by_sender(inbox.unheard, size)
        return RoundCounts(unheard, None if far_out is None else inbox.by_sender(far_out, size))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The result of one round or one detection. `verdict` and `network` are set by a detection.

    A round gathered from several ranks has `counts` in place of an inbox.
    """

    step: int
    phase: str
    theta: Tensor  # [B, D]
    inbox: Inbox | None
    capped: Tensor | None = None  # [B] bool: local steps cut to the cap
    floored: Tensor | None = None  # [B] bool: tracker entries raised to the floor
    share: Tensor | None = None  # [B, P] share of each message kept by clipping
    far_out: Tensor | None = None  # [B, P] bool: messages far out
    verdict: Verdict | None = None
    network: Network | None = None
    tracker: Tensor | None = None  # [B, M] after the round
    settled: bool = False
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # [B, ...] each, after the round
    stopped: bool = False  # early stopping: the run ends here
    state: State | None = None  # to resume after this round
    counts: RoundCounts | None = None
