"""Attackers that know the hardened detection: pushes timed between detections, and answers made for each receiver.

All sizes are in spreads: the root mean square distance of the honest vectors of the same round, or half, to their mean. So a
strength means the same for a linear model and for a neural network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.attacks.base import AttackContext, RoleAttack, directions, spread_of
from bymi.core.errors import is_integer, require
from bymi.core.linalg import VectorStack
from bymi.core.random_streams import Stream

_Answers = Literal["honest", "shifted", "fitted", "framed", "copied", "kin"]
_ALONG = 0.36  # share of additional noise along the direction of the push
_COPIES = 4  # attackers that repeat one honest node
_APART = 0.5  # spreads between attackers with the same difference of halves
_MIDDLE = GeometricMedian(iterations=30, tolerance=1e-6)  # as the centre of updates
_BELOW = 0.9  # of the median residual, where framing attackers place their own
_GOLDEN = 0.6180339887498949  # multiples of it, less their integer parts, are spread evenly: decoys in every team and group


@dataclass(frozen=True)
class Adaptive(RoleAttack):
    """A push in training between detections, and answers that hide it or make honest nodes look guilty.

    The push: own gradient + `size` spreads along one direction per run. `zero_sum`: minus that in the first half of each window
    between detections (by step size), so that the window's mean is that of an honest node; `bias` is added throughout. `teams`:
    the attackers take turns, one team per window. `last`: only in the windows before so many of the last detections. `groups`:
    number of directions in the coalition. `decoys`: share of the attackers that pushes the other way.

    `answers` to a query. "honest": the own half gradients. "shifted": these with the push. "fitted": made up from the updates
    since the last detection, so that claim and updates match. "framed": the same with the residual just below the receiver's
    median, which shrinks the spread by which honest nodes are measured. "copied": every four attackers repeat the halves of one
    honest neighbour, another one for each receiver. "kin": halves whose difference resembles those of two honest neighbours,
    others for each receiver. `noise`: squared distance of made-up halves over the usual one.
    """

    size: float = 1.4
    zero_sum: bool = False
    bias: float = 0.0
    teams: int = 1
    last: int | None = None
    groups: int = 1
    decoys: float = 0.0
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "honest"
    noise: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 0, "size", self.size, "0 or above")
        require(self.bias >= 0, "bias", self.bias, "0 or above")
        require(is_integer(self.teams) and self.teams >= 1, "teams", self.teams, "an integer, 1 or more")
        require(self.last is None or (is_integer(self.last) and self.last >= 1), "last", self.last, "an integer, 1 or more")
        require(is_integer(self.groups) and self.groups >= 1, "groups", self.groups, "an integer, 1 or more")
        require(0 <= self.decoys <= 1, "decoys", self.decoys, "0 to 1")
        require(self.answers in get_args(_Answers), "answers", self.answers, ", ".join(get_args(_Answers)))
        require(self.noise >= 1, "noise", self.noise, "1 or above")

    @property
    def reads_updates(self) -> bool:
        return self.answers in ("fitted", "framed")

    def act(self, honest: Tensor, would_send: Tensor, shared: Stream, fresh: Stream, moment: AttackContext) -> Tensor:
        spread = spread_of(honest)
        if moment.part not in ("first half", "second half"):
            return would_send + spread * self._push(would_send, shared, moment, moment.step)
        if self.answers == "shifted":
            # About the window that has just ended, in which a push that sums to zero is none.
            pushed = spread * self._push(would_send, shared, moment, moment.step - 1)
            extra = self._noise(spread * ((self.noise - 1) / 2) ** 0.5, would_send, shared, moment)
            return would_send + pushed + extra
        if moment.asker is None or self.answers == "honest":
            return would_send
        if self.answers == "copied":
            return _copied(honest, would_send, moment)
        if self.answers == "kin":
            return _kin(honest, spread, moment)
        if moment.updates is None:  # nothing to fit to before the first window
            return would_send
        # About the centre that the test will have: weighted means of updates and claims, the attackers' own included.
        updates = torch.cat([moment.updates[moment.honest], moment.updates[moment.own]]).to(torch.float64)
        updates = updates[:, : honest.shape[1]]  # the first kind, the plain mean over the window
        weights = _MIDDLE.coefficients(
            VectorStack(updates), torch.ones(1, len(updates), dtype=torch.bool, device=updates.device)
        )[0]
        update = updates - weights @ updates
        away, others = update[len(honest) :].to(would_send), weights[: len(honest)].to(honest)
        claimed = (others @ honest - weights[len(honest) :].to(honest) @ away) / others.sum()
        answer = claimed - away + self._noise(spread * (self.noise / 2) ** 0.5, would_send, shared, moment)
        if self.answers == "framed" and moment.part == "second half" and moment.first is not None:
            first = (others @ moment.first - weights[len(honest) :].to(honest) @ away) / others.sum()
            claims = (moment.first - first + honest - claimed) / 2
            # The mean of both halves is compared with the updates: this one moves it by half as much.
            answer = answer + 2 * _residual(claims, update[: len(honest)], away, moment)
        return answer

    def _push(self, like: Tensor, shared: Stream, moment: AttackContext, step: int) -> Tensor:
        """Push of each attacker in a round, or as it is claimed, in spreads [b, D]."""
        ranks, size = moment.ranks, self.size
        acting = torch.ones_like(ranks, dtype=torch.bool)
        if moment.timetable is not None:
            window, count = moment.timetable.window(step), len(moment.timetable.detections)
            # The warm-up has its own rule, and updates are not judged yet; without any detection there is nothing to wait for.
            if count and (window < 0 or (self.last is not None and not count - 1 - self.last <= window < count - 1)):
                return torch.zeros_like(like)
            acting = acting if not count else ranks % self.teams == window % self.teams
            size = -size if self.zero_sum and not moment.timetable.is_late(step) else size
        if self.zero_sum and moment.part != "training":
            size = 0.0
        decoy = (ranks * _GOLDEN) % 1.0 < self.decoys
        along = directions(shared, self.groups, like.shape[1], like)[ranks // self.teams % self.groups]
        factor = (self.bias + size) * acting.to(like) * torch.where(decoy, -1.0, 1.0).to(like)
        return factor[:, None] * along

    def _noise(self, length: Tensor, like: Tensor, shared: Stream, moment: AttackContext) -> Tensor:
        """Vectors e [b, D] of a length: one half is moved by e, the other by -e."""
        along = directions(shared, 1, like.shape[1], like)[0]
        draw = moment.paired.normal(like.shape[1] + 1).to(like)
        side, draw = draw[:, :1].sign(), draw[:, 1:]
        across = torch.nn.functional.normalize(draw - (draw @ along)[:, None] * along, dim=1)
        share = _ALONG if self.noise > 1 else 0.0
        sign = 1.0 if moment.part == "first half" else -1.0
        moved: Tensor = sign * length * (share**0.5 * side * along + (1 - share) ** 0.5 * across)
        return moved


def _residual(claims: Tensor, update: Tensor, away: Tensor, moment: AttackContext) -> Tensor:
    """What is added to claims that fit the updates exactly [b, D], so that the residual is just below the honest median.

    Honest `claims` and `update` [h, D] are about their centres. The test takes the best multiple kappa of a claim, so the
    residual is the shortest (1 - kappa) away + kappa r, with r across `away`; it is shorter than `away`, however long r is.
    """
    claim = claims.to(update)
    pair, square = (update * claim).sum(1), claim.square().sum(1).clamp_min(1e-300)
    kappa = (-pair / square).clamp_min(0.0)
    length = away.to(update).square().sum(1)
    target = _BELOW * torch.minimum((update + kappa[:, None] * claim).square().sum(1).median(), length)
    wanted = (target * length / (length - target).clamp_min(1e-300)).sqrt()
    draw = moment.lasting.normal(away.shape[1]).to(away)
    unit = torch.nn.functional.normalize(away, dim=1)
    across = torch.nn.functional.normalize(draw - (draw * unit).sum(1, keepdim=True) * unit, dim=1)
    return wanted.to(away)[:, None] * across


def _copied(honest: Tensor, would_send: Tensor, moment: AttackContext) -> Tensor:
    """Halves of one honest neighbour for every four attackers.

    Of several copies the first is kept, so the neighbour is one with a larger number than the first of the four.
    """
    groups = torch.arange(len(would_send), device=honest.device) // _COPIES
    first = torch.searchsorted(moment.honest, moment.own[groups * _COPIES])
    first = torch.where(first < len(honest), first, 0)
    return honest[first + _victims(moment, groups, len(honest) - first)]


def _kin(honest: Tensor, spread: Tensor, moment: AttackContext) -> Tensor:
    """Halves whose difference is as much like that of one honest neighbour as like that of another: (n_1 + n_2) / sqrt 2.

    All attackers around the receiver have that difference, each about another point.
    """
    victims = _victims(moment, torch.arange(2, device=honest.device), len(honest))
    mean = honest.mean(0)
    own = torch.nn.functional.normalize(moment.lasting.normal(honest.shape[1]), dim=1).to(honest)
    return mean + (honest[victims] - mean).sum(0) / 2**0.5 + _APART * spread * own


def _victims(moment: AttackContext, groups: Tensor, count: Tensor | int) -> Tensor:
    """One of `count` honest neighbours for each group of attackers, others for each receiver."""
    assert moment.asker is not None
    return (31 * moment.asker + 17 * groups) % count


@dataclass(frozen=True)
class Wobble(Adaptive):
    """Pushes that sum to zero over every window, the later half of which stays in the model."""

    size: float = 1.45
    zero_sum: bool = True


@dataclass(frozen=True)
class Inflate(Adaptive):
    """A joint shift, claimed as it is done, behind halves that differ by more than usual along it."""

    size: float = 0.7
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "shifted"
    noise: float = 3.2


@dataclass(frozen=True)
class Fitted(Adaptive):
    """Wobble and a shift, with answers made up from the updates, and halves that differ by more than usual."""

    size: float = 1.0
    zero_sum: bool = True
    bias: float = 0.45
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "fitted"
    noise: float = 3.2


@dataclass(frozen=True)
class Frame(Adaptive):
    """Honest updates, and answers that place the attackers' residuals just below each receiver's median."""

    size: float = 0.0
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "framed"


@dataclass(frozen=True)
class WobbleFrame(Frame):
    """Wobble and framing together."""

    size: float = 1.45
    zero_sum: bool = True


@dataclass(frozen=True)
class Flip(Adaptive):
    """Two teams push in turns, one window each: a flag of one window ends when a team's turn comes."""

    teams: int = 2


@dataclass(frozen=True)
class Rotation(Flip):
    """More teams in turns: longer suspensions end as well."""

    teams: int = 5


@dataclass(frozen=True)
class Retreat(Flip):
    """One team poisons the state after the last detection but one, another makes all nodes roll back to it."""

    last: int | None = 2


@dataclass(frozen=True)
class Copies(Adaptive):
    """Four attackers repeat one honest neighbour, another one for each receiver, to have it cut as a duplicate."""

    size: float = 0.0
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "copied"


@dataclass(frozen=True)
class Kin(Adaptive):
    """Differences of halves copied from honest neighbours, others for each receiver, to have these cut as alike."""

    size: float = 0.0
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "kin"


@dataclass(frozen=True)
class ShiftWithDecoys(Adaptive):
    """A small joint shift, claimed as it is done, with some attackers on the other side, which voids counts of both sides."""

    size: float = 0.4
    decoys: float = 0.25
    answers: Literal["honest", "shifted", "fitted", "framed", "copied", "kin"] = "shifted"
