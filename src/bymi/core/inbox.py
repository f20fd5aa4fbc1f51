"""The types of one communication round: messages received (`Inbox`), weights on them (`Mixture`), and its context (`Round`).

Everything holds for any number of receivers: all M nodes in one process, a shard of them, or a single one. Letters: B receivers
held here, J messages received here, P places of a receiver's row, D coordinates, R = J plus own vectors that were not sent.

On a small graph a receiver's row has one place per message, P = J. On a large graph, where a receiver hears few of the J
messages, it has one place per entry of its neighbour list. Elementwise code is the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from bymi.core.errors import is_integer, require
from bymi.core.linalg import VectorStack, any_true, join, norms, norms_surely_below
from bymi.core.message_usage import Receivers, Usage, of_columns, of_places
from bymi.core.message_validity import MAX_NORM_RATIO, OVERFLOW, acceptable, heard
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.neighbourhoods import Need, Neighbourhoods, Trial, Work
from bymi.core.recall import Recall

if TYPE_CHECKING:
    from bymi.core.dense_inbox import DenseInbox
    from bymi.core.list_inbox import ListInbox
    from bymi.core.network import NeighbourhoodReply

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Sides = tuple[Tensor, Tensor]
"""Update history of the nodes held here: as their neighbours received it, and as it is, [B, D] each."""


class PairMakers(Protocol[T_co]):
    """Constructors from two inboxes of one round, one per representation; `Inbox.paired` calls the right one."""

    def common(self, first: DenseInbox, second: DenseInbox) -> T_co:
        """From rows that most receivers share."""
        ...

    def lists(self, first: ListInbox, second: ListInbox) -> T_co:
        """From neighbourhoods of few rows out of many."""
        ...

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> T_co:
        """From one neighbourhood at a time, each with rows of its own."""
        ...


class Losses(Protocol):
    """Losses of models on a receiver's own samples."""

    def __call__(self, vectors: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        """Losses [B, R] of vectors [R, D] where wanted [B, R] bool, on the current samples of all or of given receivers [B]."""
        ...


@dataclass(frozen=True)
class Round:
    """What a rule may know of a round besides its messages: its number, and the losses of models on own samples.

    `step_size`: that of the gradient step of this round. `seed` and `nodes` [B], the numbers of the receivers, name the random
    streams of rules that draw.
    """

    step: int = 0
    steps: int = 1
    losses: Losses | None = None
    step_size: float = 1.0
    seed: int = 0
    nodes: Tensor | None = None

    def __post_init__(self) -> None:
        require(is_integer(self.step) and self.step >= 0, "step", self.step, "an integer, 0 or more")
        require(is_integer(self.steps) and self.steps >= 1, "steps", self.steps, "an integer, 1 or more")
        require(self.losses is None or callable(self.losses), "losses", self.losses, "a function or None")


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights chosen by B receivers: on the own vector [B] and on the message at each place [B, P], float64."""

    own: Tensor
    weight: Tensor

    def __post_init__(self) -> None:
        tensors = isinstance(self.own, Tensor) and isinstance(self.weight, Tensor)
        require(tensors and self.own.ndim == 1, "own", self.own, "a tensor [receivers], with `weight` [receivers, messages]")
        fits = self.weight.ndim == 2 and self.weight.shape[0] == self.own.shape[0]
        require(fits, "weight", self.weight, "a tensor [receivers, messages]")


@dataclass(frozen=True, eq=False)
class ReceiverGroup:
    """All receivers of a round, of which this process holds some. The functions are collective: all must call them."""

    columns: Tensor  # [J] index into the round's `total` messages of each message received here
    total: int  # messages of the round, over all processes
    kept: Tensor  # [K] the messages whose usage history this process stores: those received here, or those sent from here
    all_agree: Callable[[bool], bool]  # whether a flag holds in all processes
    gather: Callable[[Tensor], Tensor]  # rows of all receivers [M, ...] from those held here [B, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Inbox(ABC):
    """Own vectors and received messages of B receivers in one round. Build it with `Inbox.receive`, which validates messages.

    Each of P places of a receiver's row stands for one message: message j in a `DenseInbox`, an entry of the receiver's
    neighbour list in a `ListInbox`. Callers of the operations below need not know which. Where rows are sharded over processes,
    every operation is collective: all shards must call the same operations in the same order, or the run deadlocks.
    """

    history_at_senders: ClassVar[bool] = False
    """Whether a node's update history is stored at the node itself and comes with replies, or at its receivers."""

    own: Tensor  # [B, D]
    messages: Tensor  # [J, D], finite; zero where no receiver may use the row
    expected: Tensor  # [B, P] bool: arcs of the graph
    heard: Tensor  # [B, P] bool: expected messages that are valid
    weight: Tensor  # [B, P] float64 mixing weights, zero where unheard
    self_weight: Tensor  # [B] float64; with all heard, weights and self-weight of a row sum to one
    own_column: Tensor  # [B] index of the message that equals the own vector, -1 if none
    lists: NeighbourLists | None = None  # [B, P] message at each place; None: message j is at place j
    senders: Tensor | None = None  # [J] sender of each message; None: message j comes from node j
    receiver_group: ReceiverGroup | None = None  # None: all receivers of the round are held here, or only these count
    recall: Recall | None = None  # what follows from arcs and weights alone, for all rounds in which all messages are heard

    @staticmethod
    def receive(
        own: Tensor,
        messages: Tensor | Sequence[Tensor | None],
        *,
        expected: Tensor,
        weight: Tensor,
        self_weight: Tensor,
        own_column: Tensor | None = None,
        senders: Tensor | None = None,
        lists: NeighbourLists | None = None,
        recall: Recall | None = None,
    ) -> Inbox:
        """Validate messages and build the inbox: the only way in for vectors of other nodes.

        `weight` [B, J] is zero without an arc. Missing, mis-shaped, non-finite and far too long messages are not heard. A
        receiver whose own vector has diverged hears none, since it has nothing to compare with. Raises InputError if the number
        of messages does not match the arcs: every column after a missing one would belong to another sender.
        """
        _check_parts(own, messages, expected, weight, self_weight)
        if lists is not None or senders is not None or not len(messages) == expected.shape[1] == weight.shape[1]:
            _check_widths(len(messages), expected, weight, senders, lists)
        from bymi.core.dense_inbox import DenseInbox
        from bymi.core.list_inbox import ListInbox

        kind: type[Inbox] = DenseInbox if lists is None else ListInbox
        make = partial(kind, own=own, expected=expected, self_weight=self_weight, lists=lists, senders=senders, recall=recall)
        stacked, present = stack(messages, own)
        own_position = torch.full((len(own),), -1, device=own.device) if own_column is None else own_column
        if (
            present is None
            and len(stacked)
            and norms_surely_below(stacked, MAX_NORM_RATIO)
            and (stacked is own or norms_surely_below(own, MAX_NORM_RATIO))
        ):
            return make(messages=stacked, heard=expected, weight=weight, own_column=own_position)

        length = norms(stacked)
        own_length = length if stacked is own else norms(own)
        if present is not None:
            length = torch.where(present, length, torch.nan)
        valid = acceptable(length, own_length)
        if valid is None:
            if present is None:
                return make(messages=stacked, heard=expected, weight=weight, own_column=own_position)
            valid = present
        stacked = torch.where(valid[:, None], stacked, torch.zeros_like(stacked))
        if len(stacked):
            own_position = torch.where((own_position >= 0) & valid[own_position.clamp_min(0)], own_position, -1)
        arcs = heard(length, own_length, expected, lists)
        return make(messages=stacked, heard=arcs, weight=weight * arcs, own_column=own_position)

    @staticmethod
    def align(inboxes: Sequence[Inbox]) -> tuple[Inbox, ...]:
        """Inboxes of one round, aligned: a sender is heard in all of them or in none, and their rows line up."""
        complete = all(inbox.complete for inbox in inboxes)
        # Inboxes with different places have different rows, some perhaps in other processes.
        same_places = all(inbox.lists is inboxes[0].lists for inbox in inboxes)
        if complete and (not same_places or all(inbox.own_column is inboxes[0].own_column for inbox in inboxes)):
            return tuple(inboxes)
        own_column = torch.stack([inbox.own_column for inbox in inboxes]).amin(0)
        places = [own_column if same_places else inbox.own_column for inbox in inboxes]
        if complete:
            return tuple(replace(inbox, own_column=place) for inbox, place in zip(inboxes, places, strict=True))
        heard = torch.stack([inbox.heard for inbox in inboxes]).all(0)
        return tuple(
            replace(inbox, heard=heard, weight=inbox.weight * heard, own_column=place)
            for inbox, place in zip(inboxes, places, strict=True)
        )

    def of(self, receivers: Tensor) -> Self:
        """The same round for some of the receivers, given by position [b] in this inbox."""
        return replace(self, **self._selected(receivers))

    def _selected(self, receivers: Tensor) -> dict[str, Any]:
        expected = self.expected.index_select(0, receivers)
        return {
            "own": self.own.index_select(0, receivers),
            "expected": expected,
            "heard": expected if self.complete else self.heard.index_select(0, receivers),
            "weight": self.weight.index_select(0, receivers),
            "self_weight": self.self_weight.index_select(0, receivers),
            "own_column": self.own_column.index_select(0, receivers),
            "lists": None if self.lists is None else self.lists.of(receivers),
            "receiver_group": None,
            "recall": None,
        }

    def where(self, mask: Tensor) -> Self:
        """The same round with the messages in a mask [B, P] only."""
        heard = self.heard & mask
        return replace(self, heard=heard, weight=self.weight * heard)

    def accept_rows(self, test: Callable[[Tensor], Tensor]) -> Self:
        """The same round without the messages that fail `test`, a function from rows [J, D] to a mask [J]."""
        accepted = test(self.messages)
        return self if bool(accepted.all()) else self.where(self._at_places(accepted))

    def _at_places(self, values: Tensor) -> Tensor:
        """Values per message [J] at each place [B, P], or [1, P] if equal for all receivers."""
        return values[None, :] if self.lists is None else self.lists.at_places(values)

    def metadata_only(self) -> Inbox:
        """The inbox with zero-width vectors: who is at which place and who was heard, at little memory."""
        return replace(self, own=self.own[:, :0].clone(), messages=self.messages[:, :0].clone())

    # Places and nodes: they differ only where a sender has several messages.

    def by_node(self, values: Tensor, size: int, fill: float) -> Tensor:
        """Values per place [B, P] as values per sender [B, size], `fill` elsewhere. Over lists, places are senders."""
        return values

    def by_sender(self, mask: Tensor, size: int) -> Tensor:
        """Mask per place [B, P] as mask per sender [B, size]: true if it is for any of the sender's messages."""
        return mask

    def from_node(self, values: Tensor) -> Tensor:
        """Values per sender [B, size] as values per place [B, P]."""
        return values

    def places_of(self, receivers: Tensor, columns: Tensor) -> Tensor:
        """Places of neighbours in the rows of receivers [b], from their columns in the network's arcs [b, n]."""
        return columns

    def messages_at(self, receivers: Tensor, places: Tensor) -> Tensor:
        """Message number at places [b, n] of receivers [b]."""
        return places if self.lists is None else self.lists.index[receivers].gather(1, places)

    @property
    def complete(self) -> bool:
        """Whether every expected message is heard, and every own vector is valid."""
        return self.heard is self.expected

    @property
    def unheard(self) -> Tensor:
        """Mask [B, P]: expected, but not valid."""
        return self.expected & ~self.heard

    @property
    def dim(self) -> int:
        """Number of coordinates, D."""
        return self.own.shape[1]

    # Operations for rules and detection.

    def fetch(self) -> None:  # noqa: B027 (a no-op unless sharded)
        """Announce that vectors will be used, so that a sharded inbox fetches them now. Collective."""

    def dist2_to_own(self) -> Tensor:
        """Squared distance of each message to the receiver's own vector [B, P], float64."""
        return self._dist2_to_own

    def distance_to_own(self) -> Tensor:
        """Distance of each message to the receiver's own vector [B, P], float64."""
        return self.dist2_to_own().sqrt()

    def message_norms(self) -> Tensor:
        """Norm of each message [B, P], or [1, P] if equal for all receivers, float64."""
        return self._at_places(norms(self.messages))

    @abstractmethod
    def neighbourhoods(self, need: Need, *, common: bool = False) -> Iterator[Neighbourhoods]:
        """Neighbourhoods of all receivers in batches; `common`: in one frame with common products where the form has these."""

    @abstractmethod
    def mixing(self, hood: Neighbourhoods) -> Tensor:
        """Mixing weights at the places of neighbourhoods [b, n], with the self-weight at the own vector."""

    @abstractmethod
    def mixture(self, found: Iterable[tuple[Neighbourhoods, Tensor]]) -> Mixture:
        """The Mixture from weights [b, n] of all neighbourhoods."""

    @abstractmethod
    def reduce_coordinates(self, work: Work) -> Tensor:
        """Vectors [B, D] that `work` computes from each neighbourhood, coordinate by coordinate."""

    @abstractmethod
    def iter_receivers(self, wanted: Tensor) -> Iterator[Trial]:
        """Vectors at the places `wanted` [B, P] and own vectors, for a batch of receivers at a time."""

    def gram_among(self, rows: VectorStack, index: Tensor) -> Tensor:
        """Inner products [b, n, n] of sets of rows [b, n], computed as for this inbox's own rows."""
        return rows.gram[index[:, :, None], index[:, None, :]] if self.lists is None else rows.among(index)

    @abstractmethod
    def paired(self, second: Inbox, makers: PairMakers[T], *, who: Tensor | None = None, history: Sides | None = None) -> T:
        """What `makers` build from this inbox and a second one of the same exchange, whose rows line up.

        Where rows are in other processes: receiver by receiver, for those of `who` [B] only, with their neighbours' `history`.
        """

    @property
    def kept(self) -> Tensor:
        """Messages whose history is stored here [K, D]."""
        return self.messages

    def usage(self, share: Tensor, receivers: Receivers | None = None) -> Usage:
        """How the messages whose history is stored here were used, where receivers took a share [B, P] of each.

        `receivers`: `Receivers.of` this inbox, if they are known.
        """
        receivers = receivers or Receivers.of(self)
        if self.lists is None:
            return of_columns(self, share, receivers)
        return of_places(self, self.lists, self.kept, share, receivers)

    def tally(self, counts: Tensor | None, mask: Tensor) -> Tensor:
        """Counts over a run, with a mask [B, P] added in place; None: start at zero."""
        counts = torch.zeros(mask.shape, dtype=torch.int32, device=mask.device) if counts is None else counts
        return counts.add_(mask)

    def tallied(self, counts: Tensor, receivers: Tensor, places: Tensor) -> Tensor:
        """Counts of `tally` at places [b, n] of receivers [b]."""
        return torch.gather(counts[receivers], 1, places)

    def average(self) -> Mixture:
        """The mixing weights, normalised over the messages heard (rows sum to one)."""
        if self.complete:
            return Mixture(self.self_weight, self.weight)
        total = self.weight.sum(1) + self.self_weight
        return Mixture(self.self_weight / total, self.weight / total[:, None])

    def averages_of(self, receivers: Tensor) -> Tensor:
        """Averages [b, D] by the mixing weights of some receivers, given by position [b]."""
        some = self.of(receivers)
        return some.mix(some.average())

    @abstractmethod
    def mix(self, mixture: Mixture) -> Tensor:
        """Weighted sums [B, D] of own vector and messages."""

    # Rows: messages and own vectors in one stack.

    @cached_property
    def rows(self) -> VectorStack:
        """All distinct vectors of the round [R, D]: messages first, then own vectors that were not sent."""
        if not self._recalled("any unsent", (self.own_column,), lambda: any_true(self.own_column < 0)):
            return VectorStack(self.messages, None if self.complete else self._present)
        unsent = self.own_column < 0
        if self.complete:
            return VectorStack(join(self.messages, self.own if bool(unsent.all()) else self.own[unsent]))
        # A diverged vector is not used; zero keeps the products of the others finite.
        valid = norms(self.own[unsent]) < OVERFLOW
        extra = torch.where(valid[:, None], self.own[unsent], torch.zeros_like(self.own[:1]))
        return VectorStack(torch.cat([self.messages, extra]), torch.cat([self._present, valid]))

    @cached_property
    def own_row(self) -> Tensor:
        """Row of each receiver's own vector in `rows` [B]."""

        def make() -> Tensor:
            unsent = self.own_column < 0
            return torch.where(unsent, len(self.messages) + torch.cumsum(unsent, 0) - 1, self.own_column)

        return self._recalled("own row", (self.own_column,), make)

    def _recalled(self, name: str, of: tuple[object, ...], make: Callable[[], T]) -> T:
        """The result of `make`, which depends on `of` and the number of messages; new in a round in which any is not heard."""
        return make() if self.recall is None or not self.complete else self.recall(name, of, make)

    @property
    def _present(self) -> Tensor:
        """Mask [J] of messages that a receiver hears or holds, so that were not zeroed."""
        held = torch.zeros(len(self.messages), dtype=torch.bool, device=self.heard.device)
        held[self.own_column[self.own_column >= 0]] = True
        return held | (self.heard.any(0) if self.lists is None else self.lists.count(self.heard, len(held)) > 0)

    @property
    @abstractmethod
    def _dist2_to_own(self) -> Tensor:
        """`dist2_to_own` of messages that are here; cached."""


def _check_parts(own: Any, messages: Any, expected: Any, weight: Any, self_weight: Any) -> None:
    """Raise an InputError unless the arguments are tensors of the right kind."""
    require(isinstance(own, Tensor) and own.ndim == 2, "own", own, "a tensor [receivers, coordinates]")
    receivers, dim = own.shape
    stacked = isinstance(messages, Tensor) and messages.ndim == 2 and messages.shape[1] == dim
    fits = stacked or isinstance(messages, (list, tuple))
    require(fits, "messages", messages, "a tensor [messages, coordinates], or a list of vectors and None")
    for name, mask in (("expected", expected), ("weight", weight)):
        fits = isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == receivers
        fits = fits and (name == "weight" or mask.dtype == torch.bool)
        require(fits, name, mask, "a tensor [receivers, messages]" + " of torch.bool" * (name == "expected"))
    fits = isinstance(self_weight, Tensor) and self_weight.shape == (receivers,)
    require(fits, "self_weight", self_weight, "a tensor [receivers]")


def fold(mask: Tensor, senders: Tensor, size: int) -> Tensor:
    """Mask per sender [B, size] from a mask per column [B, J] with senders [J]: true if any column is."""
    counts = torch.zeros(len(mask), size, dtype=torch.int64, device=mask.device)
    return counts.index_add_(1, senders, mask.to(torch.int64)) > 0


def _check_widths(count: int, expected: Tensor, weight: Tensor, senders: Tensor | None, lists: NeighbourLists | None) -> None:
    """Raise an InputError unless arcs [B, J], or lists [B, n], fit `count` messages."""
    require(weight.shape == expected.shape, "weight", list(weight.shape), f"{list(expected.shape)}, as expected has it")
    if lists is None:
        require(expected.shape[1] == count, "messages", count, f"{expected.shape[1]}, one for each column of expected")
    else:
        require(
            lists.index.shape == expected.shape, "lists", list(lists.index.shape), f"{list(expected.shape)}, as expected has it"
        )
        require(lists.last < count, "messages", count, f"{lists.last + 1} or more, as the lists name them")
    if senders is not None:
        require(len(senders) == count, "messages", count, f"{len(senders)}, one for each of senders")


def stack(messages: Tensor | Sequence[Tensor | None], own: Tensor) -> tuple[Tensor, Tensor | None]:
    """Messages as [J, D], and mask [J] of those that have the right shape, None for all."""
    if isinstance(messages, Tensor):
        return messages, None
    blank = torch.zeros_like(own[0])
    fits = [message is not None and message.shape == blank.shape for message in messages]
    rows = [message.to(blank) if fit and message is not None else blank for message, fit in zip(messages, fits, strict=True)]
    stacked = torch.stack(rows) if rows else own[:0]
    return stacked, torch.tensor(fits, dtype=torch.bool, device=own.device)
