"""Base classes of rules: a rule maps an Inbox to one new vector per receiver.

A rule is a final frozen dataclass: hyper-parameters and one pure method. Choose the base by what the rule needs: `WeightedRule`
chooses weights in any way, `DistanceRule` from distances to the own vector, `SetRule` from inner products without treating the
own vector specially (so it is a robust mean, too), `CoordinateRule` works on each coordinate separately, and
`OwnCoordinateRule` does so with the own value apart from the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bymi.aggregation.gradient_estimators import LocalGradient, MiniBatch
from bymi.core.cuda_graphs import captured
from bymi.core.errors import InputError, require
from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.linalg import VectorStack, ascending, on_host
from bymi.core.named_parts import Checked, bounded
from bymi.core.neighbourhoods import Need, Neighbourhoods, Work, of_members, of_sets, over_rows, reduce_members
from bymi.core.threaded_work import in_threads

Order = Literal["adapt-then-combine", "combine-then-adapt"]

_ENTRIES = 1 << 19  # entries of a block of coordinates on a CPU, which fits its cache
_ENTRIES_AT_ONCE = 1 << 23  # the same on a GPU: few large kernels
_TURNS = 4  # on an accelerator, turns between two looks at what is left to do
TIE = 1e-9  # relative difference below which two values are equal


class Rule(Checked, ABC):
    """A map from the messages heard to one new vector per receiver [B, D].

    `order`: whether nodes take their gradient step before they exchange (adapt-then-combine) or subtract it after; a run may
    choose the other one. A rule can also be called with n plain vectors, as aggregators of other libraries are: a list, tensor
    or array in, a vector of the same type out. The first vector then counts as the own one, and mixing weights are equal.
    """

    order: ClassVar[Order] = "adapt-then-combine"
    plain: ClassVar[bool] = False  # whether the output is the average by the mixing weights

    @abstractmethod
    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        """New vectors [B, D]."""
        ...

    @overload
    def __call__(self, inbox: Inbox, round: Round) -> Tensor: ...

    @overload
    def __call__(self, inbox: Vectors) -> Any: ...

    def __call__(self, inbox: Any, round: Round | None = None) -> Any:
        if not are_vectors(inbox):
            return self.combine(inbox, Round() if round is None else round)
        rows, as_given = stacked(inbox)
        return as_given(self.combine(inbox_of(rows), Round() if round is None else round)[0])

    @property
    def local_gradient(self) -> LocalGradient:
        """How nodes estimate their gradients."""
        return MiniBatch()

    def descent(self, gradient: Tensor, round: Round) -> Tensor:
        """What a node steps along in this round, from its gradient [B, D]: usually that gradient."""
        return gradient


class WeightedRule(Rule):
    """A rule whose output is a weighted sum of own vector and messages. It never forms anything of size [B, J, D]."""

    @abstractmethod
    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        """Weights on the own vector and on the messages."""
        ...

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        return inbox.mix(self.weigh(inbox, round))


def with_own(chosen: Tensor, self_weight: float) -> Mixture:
    """`self_weight` on the own vector, and the rest in equal parts on the messages `chosen` [B, P]; none: all on the own."""
    number = chosen.sum(1).to(torch.float64)
    own = torch.where(number > 0, torch.full_like(number, self_weight), 1.0)  # two scalars would make it float32
    return Mixture(own, chosen * ((1 - own) / number.clamp_min(1))[:, None])


class NeighbourhoodRule(WeightedRule):
    """A weighted rule that decides from inner products within a neighbourhood, so that wrappers can change these before."""

    need: ClassVar[Need] = "products"  # what `weights_at` uses
    common: ClassVar[bool] = False  # whether it can use products of all rows in a common frame

    @abstractmethod
    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        """Weights [b, n] of the points of neighbourhoods, zero at padding, from mixing weights [b, n].

        The parts of `hood` must not be changed: those of the next round may be the same tensors.
        """

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        hoods = inbox.neighbourhoods(self.need, common=self.common)
        return inbox.mixture((hood, self.weights_at(hood, inbox.mixing(hood), round)) for hood in hoods)


@dataclass(frozen=True, eq=False)
class Around:
    """What b receivers know of their messages without comparing these with each other."""

    dist2: Tensor  # [b, n] squared distances to the own vector
    heard: Tensor  # [b, n] bool
    weight: Tensor  # [b, n] mixing weights of messages; with that of the own vector they sum to one
    self_weight: Tensor  # [b]


class DistanceRule(NeighbourhoodRule):
    """A weighted rule that needs the distances of messages to the own vector and the mixing weights only."""

    @abstractmethod
    def choose(self, around: Around, round: Round) -> Tensor:
        """Weights [b, n] of the messages, zero where unheard; the own vector gets the rest of one."""

    def weigh(self, inbox: Inbox, round: Round) -> Mixture:
        usual = inbox.average()
        weight = self.choose(Around(inbox.dist2_to_own(), inbox.heard, usual.weight, usual.own), round)
        return Mixture(1 - weight.sum(1), weight)

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        assert hood.gram is not None
        assert hood.own is not None
        share = mixing * hood.valid / (mixing * hood.valid).sum(1, keepdim=True)
        dist2 = dist2_to_own(hood.gram, hood.own)
        rest = share.scatter(1, hood.own, 0.0)
        weight = self.choose(Around(dist2, hood.neighbours, rest, share.gather(1, hood.own).squeeze(1)), round)
        return weight.scatter(1, hood.own, 1 - weight.sum(1, keepdim=True))


class SetRule(NeighbourhoodRule):
    """A weighted rule in which the own vector is one of the set: a mean over N_i and i, robust or not."""

    recorded: ClassVar[bool] = False  # whether a GPU may record `weights`: it looks at no number on the host

    @abstractmethod
    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Weights [b, n] of the points of b sets, from their inner products about any origin [b, n, n], float64.

        `valid` [b, n] marks points that are not padding; padding gets zero, and rows sum to one.
        """

    def weights_in(self, hood: Neighbourhoods) -> Tensor:
        """Weights [b, n] of neighbourhoods, which come with what the rule has a `need` for."""
        assert hood.gram is not None
        return captured(self.weights, hood.gram, hood.valid) if self.recorded else self.weights(hood.gram, hood.valid)

    def weights_of(self, rows: VectorStack, at: Tensor, valid: Tensor) -> Tensor:
        """Weights [b, n] of sets of few rows out of many, given by `at` [b, n]."""
        return self.weights_in(of_sets(rows, at, valid, self.need))

    def coefficients(self, rows: VectorStack, member: Tensor) -> Tensor:
        """Weights over `rows` [B, R] of sets that share their points, zero outside `member` [B, R]."""
        hoods = of_members(rows, member, self.need)
        return over_rows(((hood, self.weights_in(hood) * hood.valid) for hood in hoods), member.shape, member.device)

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        return self.weights_in(hood) * hood.valid


class CoordinateRule(Rule):
    """A rule on each coordinate separately, computed in blocks of bounded memory."""

    @abstractmethod
    def reduce(self, ordered: Tensor, count: Tensor) -> Tensor:
        """One value per coordinate [b, c] from values sorted along dim 1 [b, n, c], the first `count` [b, 1] of them valid."""

    def centre(self, rows: VectorStack, member: Tensor) -> Tensor:
        """The rule's value over each set of `member` [B, R], as vectors [B, D]."""
        return reduce_members(rows, member, self.centre_of)

    def centre_of(self, rows: VectorStack, at: Tensor, valid: Tensor) -> Tensor:
        """The rule's value over sets of rows `at` [b, n], as vectors [b, D]."""

        count = valid.sum(1, keepdim=True)
        return _by_blocks(rows.vectors, at, lambda block: self.reduce(ascending(block, 1), count), valid)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        return _by_coordinate(inbox, self.centre_of)


class OwnCoordinateRule(Rule):
    """A rule on each coordinate separately, in which the own value is not one of the set."""

    @abstractmethod
    def update(self, own: Tensor, messages: Tensor, heard: Tensor, round: Round) -> Tensor:
        """New values [b, c] from own ones [b, c] and those of messages [b, n, c], of which `heard` [b, n] count."""

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        def work(rows: VectorStack, at: Tensor, valid: Tensor) -> Tensor:
            return _by_blocks(rows.vectors, at, lambda block: self.update(block[:, -1], block[:, :-1], valid[:, :-1], round))

        return _by_coordinate(inbox, work)


def _by_coordinate(inbox: Inbox, work: Work) -> Tensor:
    """What `work` computes; a receiver that hears no message keeps its own vector, even if it is not finite."""
    return torch.where(inbox.heard.any(1, keepdim=True), inbox.reduce_coordinates(work), inbox.own)


def _by_blocks(vectors: Tensor, at: Tensor, value: Callable[[Tensor], Tensor], valid: Tensor | None = None) -> Tensor:
    """Vectors [b, D] that `value` computes from blocks of coordinates [b, n, c] of the rows `at` [b, n].

    With `valid` [b, n], infinity stands at all other places.
    """
    output = torch.empty(len(at), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    entries = _ENTRIES if vectors.device.type == "cpu" else _ENTRIES_AT_ONCE
    step = max(1, entries // max(1, at.numel()))
    padded = valid is not None and not bool(valid.all())
    index = (torch.where(valid, at, len(vectors)) if padded and valid is not None else at).flatten()

    def work(start: int) -> None:
        part = vectors[:, start : start + step]
        part = torch.nn.functional.pad(part, (0, 0, 0, 1), value=torch.inf) if padded else part
        output[:, start : start + step] = value(part.index_select(0, index).view(*at.shape, -1))

    starts = range(0, vectors.shape[1], step)
    if vectors.device.type == "cpu":  # a block per thread, since sorting uses one
        in_threads(work, starts)
    else:
        for start in starts:
            work(start)
    return output


def whole(share: float, count: Tensor) -> Tensor:
    """`share` of `count` without rounding errors, for floor and ceil: 7 where 0.07 x 100 gives 7.000000000000001."""
    exact: Tensor = torch.round(share * count.to(torch.float64), decimals=9)
    return exact


@dataclass(frozen=True)
class Tolerant(Checked):
    """A rule or wrapper that assumes a `share` of Byzantine neighbours, or their number `f`."""

    share: float = bounded(0.35, ge=0, lt=1)
    f: int | None = bounded(None, ge=0)

    def assumed(self, neighbours: Tensor, most: Tensor) -> Tensor:
        """Assumed number of Byzantine vectors, int64: `f`, or ceil(share x neighbours); never above `most`, nor below 0."""
        number = torch.ceil(whole(self.share, neighbours)).long() if self.f is None else torch.full_like(neighbours, self.f)
        return number.minimum(most).clamp_min(0)


def smallest(values: Tensor, among: Tensor, count: Tensor, tie: float = TIE) -> Tensor:
    """Membership [b, n] of the `count` [b, 1] smallest values in `among`, as float64 that sums to `count`.

    Values equal to the largest of them, up to a relative `tie`, share what is left: the order of senders decides nothing.
    """
    count = count.minimum(among.sum(1, keepdim=True))
    masked = torch.where(among, values, torch.inf)
    last = ascending(masked).gather(1, (count - 1).clamp_min(0))
    room = tie * last.abs()
    below = masked < last - room
    tied = among & ~below & (masked <= last + room)
    left = (count - below.sum(1, keepdim=True)).double() / tied.sum(1, keepdim=True).clamp_min(1)
    return (below + tied * left) * (count > 0)


def ranks(values: Tensor) -> Tensor:
    """Rank [b, n] of each value in its row, ascending; of equal values the one in the first column. No value is NaN.

    Equal up to rounding is equal: clipping and NNM make messages that are equally far off, and matrices, lists and ranks of a
    distributed run round differently.
    """
    if not values.shape[1]:
        return torch.zeros_like(values, dtype=torch.long)
    ordered, order = values.sort(dim=1, stable=True)
    middle = ordered.gather(1, (ordered.isfinite().sum(1, keepdim=True) // 2).clamp_max(values.shape[1] - 1))
    larger = ordered.diff(dim=1) > TIE * torch.maximum(ordered[:, :-1].abs(), middle.abs())
    group = torch.zeros_like(order)
    group[:, 1:] = larger.cumsum(1)
    return torch.zeros_like(order).scatter(1, order, group).argsort(dim=1, stable=True).argsort(dim=1, stable=True)


def first_least(values: Tensor, tie: Tensor) -> Tensor:
    """Column [b, 1, ...] of the least value of each row [b, n, ...]; of values that exceed it by at most `tie` the first.

    Neighbours are in the same order in every form of a round. The own vector is not: it is in its node's column, or last.
    """
    return (values <= values.amin(1, keepdim=True) + tie).to(torch.int8).argmax(1, keepdim=True)


def iterate(
    step: Callable[..., tuple[Tensor, ...]],
    fixed: tuple[Tensor, ...],
    state: tuple[Tensor, ...],
    going: Tensor,
    most: int,
    **constants: Hashable,
) -> tuple[Tensor, ...]:
    """The `state` of b sets after at most `most` steps of those that are `going` [b].

    `step(*fixed, *state, **constants)` returns the next state and which sets go on; all tensors have a row per set. On a CPU
    only sets that go on take part; on an accelerator all do, in a few turns between two looks at what is left to do.
    """
    if not on_host(going):
        for _ in range(0, most, _TURNS):
            *rest, going = captured(_turns, *fixed, *state, going, step=step, number=len(fixed), **constants)
            state = tuple(rest)
            if not bool(going.any()):
                break
        return state
    for _ in range(most):
        some = going.nonzero().flatten()
        if not len(some):
            break
        *rest, again = step(*(value[some] for value in (*fixed, *state)), **constants)
        state = tuple(old.index_copy(0, some, new) for old, new in zip(state, rest, strict=True))
        going = going.index_copy(0, some, again)
    return state


def _turns(*values: Tensor, step: Callable[..., tuple[Tensor, ...]], number: int, **constants: Hashable) -> tuple[Tensor, ...]:
    """State and `going` after a few steps: of `values` the first ones are fixed, then comes the state, then `going`."""
    fixed, state, going = values[:number], values[number:-1], values[-1]
    for _ in range(_TURNS):
        *rest, again = step(*fixed, *state, **constants)
        state = tuple(
            torch.where(going.view(-1, *[1] * (old.ndim - 1)), new, old) for old, new in zip(state, rest, strict=True)
        )
        going = going & again
    return (*state, going)


def squared_distances(gram: Tensor) -> Tensor:
    """Squared distances [b, n, n] between the points of sets, from their inner products."""
    square = gram.diagonal(dim1=1, dim2=2)
    return (square[:, :, None] + square[:, None, :] - 2 * gram).clamp_min_(0.0)


def others(valid: Tensor) -> Tensor:
    """Mask [b, n, n] of the valid points other than the point itself, for each point of sets."""
    return valid[:, None, :] & ~torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)


def dist2_to_own(gram: Tensor, own: Tensor) -> Tensor:
    """Squared distances [b, n] of the points of sets to that at place `own` [b, 1], from their inner products [b, n, n]."""
    square = gram.diagonal(dim1=1, dim2=2)
    products = gram.gather(1, own[:, :, None].expand(-1, 1, gram.shape[2])).squeeze(1)
    return (square + square.gather(1, own) - 2 * products).clamp_min(0.0)


def dist2_to_mean(weight: Tensor, gram: Tensor) -> Tensor:
    """Squared distances [b, n] of points to their mean with weights [b, n], from their inner products [b, n, n]."""
    product = (weight[:, None, :] @ gram).squeeze(1)
    return (gram.diagonal(dim1=1, dim2=2) - 2 * product + (weight * product).sum(1, keepdim=True)).clamp_min(0.0)


# Rules called with plain vectors in place of an inbox.

Vectors = Tensor | NDArray[Any] | Sequence[Any]
"""n vectors: a tensor or array [n, d], or a list of n tensors or arrays [d]."""

_ALLOWED = "an Inbox with a Round; or vectors: a tensor or array [n, d], or a list of n tensors or arrays [d]"


def are_vectors(given: object) -> bool:
    """Whether a rule was called with vectors, not with an inbox."""
    return isinstance(given, (Tensor, np.ndarray, list, tuple))


def stacked(given: Vectors) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Vectors as one floating-point tensor [n, d], and a function that gives a result the type of what came in."""
    first = given[0] if isinstance(given, (list, tuple)) and len(given) else given
    try:
        if isinstance(given, Tensor):
            rows = given
        elif isinstance(first, Tensor):
            rows = torch.stack(list(given))
        else:
            rows = torch.from_numpy(np.array(given))
    except (ValueError, TypeError, RuntimeError) as problem:
        raise InputError(f"vectors: got {type(given).__name__} ({problem}), allowed: {_ALLOWED}") from None
    require(rows.ndim == 2 and len(rows) > 0, "vectors", rows, _ALLOWED)
    rows = rows.detach() if rows.is_floating_point() else rows.to(torch.float64)
    return rows, (lambda result: result) if isinstance(first, Tensor) else (lambda result: result.numpy())


def inbox_of(rows: Tensor) -> Inbox:
    """The inbox of one node that holds the first of n vectors and hears the others, with equal mixing weights."""
    share = torch.full((1, len(rows) - 1), 1 / len(rows), dtype=torch.float64, device=rows.device)
    own_share = torch.full((1,), 1 / len(rows), dtype=torch.float64, device=rows.device)
    expected = torch.ones_like(share, dtype=torch.bool)
    return Inbox.receive(rows[:1], rows[1:], expected=expected, weight=share, self_weight=own_share)
