"""Optimisers of the third phase: the update of a round. To add one, write a class and list it in OPTIMISERS.

Letters in formulas: x parameters, g gradient, W mixing weights (rows sum to one), a step size, y tracker of the left Perron
vector of W (y_i <- sum_j W_ij y_j), m number of nodes. Mixed vectors are clipped where monitoring clips parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from bymi.core.named_parts import Checked, Table, bounded

Memory = Mapping[str, Tensor]
"""Vectors [B, D] that an optimiser carries from round to round, by name."""


class MixingRound(Protocol):
    """One round as an optimiser sees it: step sizes, and one exchange."""

    @property
    def adapt_first(self) -> bool:
        """Whether nodes step before they mix."""
        ...

    def mix(self, theta: Tensor) -> Tensor:
        """Parameters [B, D] averaged over the neighbourhood; y is averaged with them. Once per round. Collective."""
        ...

    def mix_both(self, theta: Tensor, directions: Tensor, *, push: bool = False) -> tuple[Tensor, Tensor]:
        """As `mix`, for parameters and directions [B, D] in one exchange.

        `push`: directions are summed with weights whose columns sum to one, 1 / (1 + number of receivers) of each sender.
        """
        ...

    def local_steps(self, *, limited: bool = True) -> Tensor:
        """a / [y_i]_i [B, 1], or a / (m [y_i]_i) in convention "mean", with y as it is now; `limited`: by cap and floor."""
        ...

    def rescaling(self) -> Tensor:
        """1 / (m [y_i]_i) [B, 1], with y as it is now, so limited that no gradient is taken with a larger step than the cap."""
        ...

    def usual_steps(self, spread: float) -> Tensor:
        """Step sizes for rescaled directions [B, 1]: node i takes a (1 + spread u_i), u_i uniform on [-1, 1]."""
        ...


class Optimiser(Checked, ABC):
    """The update of one round of the third phase."""

    tracked: ClassVar[bool] = True
    """Whether steps are divided by the tracker y, unless weights are doubly stochastic."""

    premixed: ClassVar[bool] = True
    """Whether y starts at its value after `premix_rounds`; else at y_i = e_i."""

    doubly_stochastic: ClassVar[bool] = False
    """Whether it needs weights whose columns sum to one, so mutual pruning."""

    adapts_first: ClassVar[bool] = False
    """Whether its order is "adapt-then-combine", whatever `order` says."""

    push: ClassVar[bool] = False
    """Whether directions are pushed, so that a graph must be symmetric before pruning."""

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the vectors carried between rounds. They are checkpointed, and dropped at every detection."""
        return ()

    @abstractmethod
    def update(self, theta: Tensor, gradient: Tensor, memory: Memory, round: MixingRound) -> tuple[Tensor, Memory]:
        """Parameters [B, D] and memory after a round, from parameters, gradients at these [B, D] and memory before it.

        `memory` is empty in the first round after a detection.
        """


@dataclass(frozen=True)
class DRSGD(Optimiser):
    """x_i <- sum_j W_ij x_j - a g_i / [y_i]_i with y after the round. Paper: eq:local_dsgdrs.

    With order "adapt-then-combine", which is ours, y before the round divides a step that is taken first. `momentum` b replaces
    g_i by its local average d_i <- b d_i + (1 - b) g_i, d_i = g_i at first (Karimireddy, He, Jaggi 2021).
    """

    momentum: float = bounded(0.0, ge=0, lt=1)

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def update(self, theta: Tensor, gradient: Tensor, memory: Memory, round: MixingRound) -> tuple[Tensor, Memory]:
        direction = gradient
        if self.momentum and memory:
            direction = self.momentum * memory["momentum"] + (1 - self.momentum) * gradient
        after = {"momentum": direction} if self.momentum else {}
        if round.adapt_first:
            return round.mix(theta - round.local_steps() * direction), after
        return round.mix(theta) - round.local_steps() * direction, after


@dataclass(frozen=True)
class DSGD(DRSGD):
    """x_i <- sum_j W_ij x_j - a g_i, no tracker (Lian et al. 2017): after one-sided cuts it favours nodes that many hear."""

    tracked: ClassVar[bool] = False


@dataclass(frozen=True)
class DGDRS(Optimiser):
    """x_i <- sum_j W_ij x_j - a g_i / [y_i]_i with y before the round and y_i = e_i at first. Paper: eq:DGDRS.

    No premixing, no cap on local steps, no floor under [y_i]_i. It is as printed (Mai, Abed 2016) only with `convention` =
    "paper" and directed pruning: "mean" divides steps by m, and after mutual pruning there is no tracker.
    """

    premixed: ClassVar[bool] = False

    def update(self, theta: Tensor, gradient: Tensor, memory: Memory, round: MixingRound) -> tuple[Tensor, Memory]:
        local = round.local_steps(limited=False) * gradient
        return round.mix(theta) - local, {}


@dataclass(frozen=True)
class _Tracking(Optimiser):
    """Gradient tracking: z estimates the mean gradient of all nodes, so a constant step converges to the exact optimum.

    x_i <- sum_j W_ij x_j - a_i z_i + b (x_i - its predecessor) and z_i <- sum_j C_ij z_j + s_i - s_i before, where s_i is the
    gradient at the new x_i, rescaled, and z_i = s_i at first. `heavy_ball`: b. `spread`: nodes choose their own step sizes a_i.
    """

    heavy_ball: float = bounded(0.0, ge=0, lt=1)
    spread: float = bounded(0.0, ge=0, lt=1)

    @property
    def memory(self) -> tuple[str, ...]:
        return ("mixed", "scaled", "previous") if self.heavy_ball else ("mixed", "scaled")

    def update(self, theta: Tensor, gradient: Tensor, memory: Memory, round: MixingRound) -> tuple[Tensor, Memory]:
        scaled = gradient * round.rescaling()
        direction = memory["mixed"] + scaled - memory["scaled"] if memory else scaled
        local = round.usual_steps(self.spread) * direction
        sent = theta - local if round.adapt_first else theta
        after, mixed = round.mix_both(sent, direction, push=self.push)
        if not round.adapt_first:
            after = after - local
        if self.heavy_ball and memory:
            after = after + self.heavy_ball * (theta - memory["previous"])
        kept = {"mixed": mixed, "scaled": scaled, "previous": theta}
        return after, {name: kept[name] for name in self.memory}


@dataclass(frozen=True)
class FROST(_Tracking):
    """Gradient tracking with row-stochastic weights: C = W, s_i = g_i / (m [y_i]_i), for one-sided cuts (Xin, Xi, Khan 2019).

    x_i <- sum_j W_ij x_j - a_i z_i, z_i <- sum_j W_ij z_j + g_i(x_i) / (m [y_i]_i) - the same before. Published without m,
    which is in `convention`, and with uncoordinated steps a_i (`spread`). `heavy_ball` adds b (x_i - its predecessor).
    Published with y_i = e_i at first and no bound on steps: here y starts at its limit (`premix_rounds` = 0 for e_i), and steps
    are limited by `max_local_step` and `min_weight`.
    """


@dataclass(frozen=True)
class AB(_Tracking):
    """Gradient tracking that pulls parameters and pushes directions: C has columns that sum to one, s_i = g_i (Xin, Khan 2018).

    x_i <- sum_j W_ij x_j - a z_i, z_i <- sum_j C_ij z_j + g_i(x_i) - the same before, C_ij = 1 / (1 + receivers of j).
    Order "adapt-then-combine" is `push-pull`. Receivers of j are neighbours that it hears, too: what it
    pushed to a node that it has cut would be lost. It must know which have cut it, so nodes have to announce their cuts; a
    simulation reads them off the graph, which must be symmetric before pruning. Exact where these arcs connect all nodes.
    """

    tracked: ClassVar[bool] = False
    push: ClassVar[bool] = True


@dataclass(frozen=True)
class PushPull(AB):
    """AB in order "adapt-then-combine", the only one that it has: x_i <- sum_j W_ij (x_j - a z_j) (Pu, Shi, Xu, Nedic 2021)."""

    adapts_first: ClassVar[bool] = True


@dataclass(frozen=True)
class GradientTracking(_Tracking):
    """Gradient tracking with doubly stochastic weights: C = W, s_i = g_i, on the mutually pruned graph (Nedic et al. 2017).

    x_i <- sum_j W_ij x_j - a z_i, z_i <- sum_j W_ij z_j + g_i(x_i) - the same before. Needs `detection.pruning` = "mutual".
    """

    tracked: ClassVar[bool] = False
    doubly_stochastic: ClassVar[bool] = True


_OPTIMISERS: dict[str, type[Optimiser]] = {
    "drsgd": DRSGD,
    "dsgd": DSGD,
    "dgd-rs": DGDRS,
    "frost": FROST,
    "ab": AB,
    "push-pull": PushPull,
    "gradient-tracking": GradientTracking,
}
OPTIMISERS: Table[Optimiser] = Table(Optimiser, _OPTIMISERS, "bymi.optimisers")

ALIASES: dict[str, str] = {"gt": "gradient-tracking", "diging": "gradient-tracking"}
