"""How the receivers of a round used each message: the rows that the update history is built from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bymi.core.cuda_graphs import captured_up_to
from bymi.core.linalg import VectorStack, any_true, dist2_to_median, lower_median, norms, on_host, sample_stride, sort_rows_
from bymi.core.message_validity import OVERFLOW
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists, median_by_number
from bymi.core.performance_thresholds import LIMITS

if TYPE_CHECKING:
    from bymi.core.inbox import Inbox

_ARCS = 1 << 14  # arcs per gathered block of receivers' vectors
_FAR = 3.0  # far out: beyond this times the median distance from the medoid


class Usage(NamedTuple):
    """The messages whose history this process stores, as they were used, and which of them are valid."""

    rows: Tensor  # [K, D] messages as used: clipped by the median share over their receivers
    acceptable: Tensor  # [K] bool: heard by at least half of the receivers


@dataclass(frozen=True, eq=False)
class Receivers:
    """The receivers that expect each message, and what follows from these arcs alone, computed once.

    Of PerArcLists: the receivers of each node's own message. Over other lists columns are places, not messages: nothing is
    computed from them.
    """

    expected: Tensor  # [M, J] bool

    @staticmethod
    def of(inbox: Inbox, known: Receivers | None = None) -> Receivers:
        """Those of an inbox; `known` if these are of the same arcs."""
        expected = inbox.lists.first if isinstance(inbox.lists, PerArcLists) else inbox.expected
        return Receivers(expected) if known is None or known.expected is not expected else known

    @cached_property
    def by_message(self) -> Tensor:
        """[J, M] float64: one for a receiver of the message, else zero."""
        return self.expected.T.to(torch.float64, memory_format=torch.contiguous_format)

    @cached_property
    def count(self) -> Tensor:
        """[J]"""
        return self.expected.sum(0)

    @cached_property
    def half(self) -> Tensor:
        """Least number [J] that is at least half of them, one or more."""
        return ((self.count + 1) // 2).clamp_min(1)

    @cached_property
    def middle(self) -> Tensor:
        """Place [J] of the lower median among them."""
        return (self.count - 1).clamp_min(0) // 2

    def clipped_by_half(self, share: Tensor) -> Clipped:
        """The messages that at least half of them clipped, as `Clipped`, from the shares [M, J] that they used."""
        clipped = ((share < 1) & self.expected).sum(0) >= self.half
        # On an accelerator all messages, those not clipped with a share of one: the host would wait for their numbers.
        numbers = clipped.nonzero().flatten() if on_host(share) else torch.arange(len(clipped), device=share.device)
        audience = self.by_message.index_select(0, numbers)
        # Shares over one or zero: those of others are infinite, or NaN, and sorted last.
        ordered = sort_rows_(share.T.index_select(0, numbers).div_(audience))
        median = ordered.gather(1, self.middle.index_select(0, numbers)[:, None])
        return Clipped(numbers, median if on_host(share) else torch.where(clipped[:, None], median, 1.0), audience)


class Clipped(NamedTuple):
    """Messages that at least half of their receivers clipped; on an accelerator all messages, others with a share of one."""

    numbers: Tensor  # [n]
    share: Tensor  # [n, 1] lower median share used, one where fewer clipped it
    audience: Tensor  # [n, M] float64: one for a receiver of the message, else zero


def of_columns(inbox: Inbox, share: Tensor, receivers: Receivers) -> Usage:
    """Usage of the messages of a dense inbox, of which each receiver used a share [B, J]."""
    if not on_host(share) and inbox.own is inbox.messages and inbox.complete and inbox.receiver_group is None:
        return Usage(*captured_up_to(LIMITS.captured_vectors, _of_all, inbox.messages, share, receivers.expected))
    usage = _ColumnUsage.of(inbox, share, receivers)
    return Usage(_as_used(inbox, usage), usage.heard)


def _of_all(messages: Tensor, share: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Usage where all nodes are here and all messages are heard, without a look at any number."""
    receivers = Receivers(expected)
    rows = _scale_towards_receivers(
        messages, messages, _near(messages, VectorStack(messages)), receivers.clipped_by_half(share)
    )
    return rows, receivers.count >= receivers.half


def of_places(inbox: Inbox, lists: NeighbourLists, kept: Tensor, share: Tensor, receivers: Receivers) -> Usage:
    """Usage of the messages `kept` [K, D] of an inbox with lists, of which each receiver used a share [B, n]."""
    if isinstance(lists, PerArcLists) and inbox.complete and inbox.receiver_group is None and lists.alone:
        return Usage(_as_used_by_table(inbox, share, lists, receivers), lists.count(lists.mask, len(inbox.messages)) > 0)
    places = _Places.of(inbox, share, lists)
    if places is None:
        return Usage(kept, torch.ones_like(kept[:, 0], dtype=torch.bool))
    return Usage(_as_used_by_lists(inbox, kept, places), places.acceptable(len(kept)))


@dataclass(frozen=True, eq=False)
class _ColumnUsage:
    """Usage of each message received here [J] by all of its receivers, including those of other processes."""

    heard: Tensor  # [J] bool: heard by at least half of the receivers
    clipped: Clipped | None  # those received here; None if there are none in any process

    @staticmethod
    def of(inbox: Inbox, share: Tensor, receivers: Receivers) -> _ColumnUsage:
        expected, heard, receiver_group = inbox.expected, inbox.heard, inbox.receiver_group
        if receiver_group is None:
            clipped = receivers.clipped_by_half(share)
            heard_by = receivers.count if inbox.complete else heard.sum(0)
            return _ColumnUsage(heard_by >= receivers.half, clipped if len(clipped.numbers) else None)
        untouched = inbox.complete and bool((share >= 1).logical_or(~expected).all())
        if receiver_group.all_agree(untouched):  # most rounds: no traffic
            return _ColumnUsage(torch.ones_like(expected[0]), None)
        packed = torch.stack([share, expected.to(share), heard.to(share)], 1)
        wide = packed.new_zeros(*packed.shape[:2], receiver_group.total).index_copy(2, receiver_group.columns, packed)
        share, expected, heard = receiver_group.gather(wide).unbind(1)
        receivers, columns = Receivers(expected > 0), receiver_group.columns
        acceptable, clipped = (heard > 0).sum(0) >= receivers.half, receivers.clipped_by_half(share)
        here = torch.isin(columns, clipped.numbers).nonzero().flatten()
        places = torch.searchsorted(clipped.numbers, columns[here])
        received = Clipped(here, clipped.share[places], clipped.audience[places])
        return _ColumnUsage(acceptable[columns], received if len(clipped.numbers) else None)


def _as_used(inbox: Inbox, usage: _ColumnUsage) -> Tensor:
    """Messages [J, D], clipped ones at the length at which they were used: the excess of a far one must not count.

    A clipped message is scaled by the median share of its receivers towards the mean of those that are not far out themselves.
    With a single receiver, or one message per receiver, this is exact.
    """
    clipped = usage.clipped
    if clipped is None:
        return inbox.messages
    own_vectors, finite = _OwnVectors(inbox), inbox.complete and inbox.receiver_group is None
    near = own_vectors.near()
    blocks = [
        _scale_towards_receivers(inbox.messages[:, part], rows if finite else _zeroed(rows, near), near, clipped)
        for part, rows in own_vectors.blocks()
    ]
    return inbox.messages.index_copy(0, clipped.numbers, torch.cat(blocks, 1)) if len(clipped.numbers) else inbox.messages


def _zeroed(own_vectors: Tensor, near: Tensor) -> Tensor:
    """Own vectors of receivers that are near [M], else zero: non-finite rows would spoil products."""
    return torch.where(near[:, None], own_vectors, torch.zeros_like(own_vectors))


def _scale_towards_receivers(messages: Tensor, own_vectors: Tensor, near: Tensor, clipped: Clipped) -> Tensor:
    """The clipped messages, scaled towards the mean of their receivers that are near [M]. Own vectors are finite."""
    audience = (clipped.audience * near).to(own_vectors.dtype)
    towards = (audience @ own_vectors).div_(audience.sum(1, keepdim=True).clamp_min_(1))
    original = messages.index_select(0, clipped.numbers)
    if on_host(messages):
        return original.sub_(towards).mul_(clipped.share.to(original.dtype)).add_(towards)
    moved = (original - towards).mul_(clipped.share.to(original.dtype)).add_(towards)
    return torch.where(clipped.share < 1, moved, original)


def _as_used_by_table(inbox: Inbox, share: Tensor, table: PerArcLists, receivers: Receivers) -> Tensor:
    """`_as_used` where all receivers are held here and each variant has one of them."""
    messages, further = inbox.messages, table.further
    part = share.flatten().index_select(0, further.index)
    clipped, alone = receivers.clipped_by_half(share), (part < 1).nonzero().flatten()
    if not len(clipped.numbers) and not len(alone):
        return messages
    near = _near(inbox.own)
    own = _zeroed(inbox.own, near)
    output = messages.index_copy(0, clipped.numbers, _scale_towards_receivers(messages, own, near, clipped))
    towards, numbers = own.index_select(0, further.receivers[alone]), further.numbers[alone]
    original = messages.index_select(0, numbers)
    return output.index_copy_(0, numbers, towards + part[alone, None].to(original.dtype) * (original - towards))


@dataclass(frozen=True, eq=False)
class _Places:
    """Usage by lists: what all receivers, including those of other processes, did to the messages kept here."""

    arcs: NeighbourLists  # [M, n], or [B, n] where all receivers are held here: kept message at each place
    share: Tensor  # [M, n] share used
    heard: Tensor  # [M, n] bool
    any_clipped: bool  # whether any message of the round was clipped, in any process

    @staticmethod
    def of(inbox: Inbox, share: Tensor, lists: NeighbourLists) -> _Places | None:
        """None if no message was clipped or lost in any process, as in most rounds. Collective."""
        receiver_group, expected, heard = inbox.receiver_group, inbox.expected, inbox.heard
        any_clipped = bool(((share < 1) & expected).any())
        if receiver_group is None:
            arcs = lists if expected is lists.mask else NeighbourLists(lists.index, expected)
            return _Places(arcs, share, heard, any_clipped)
        if receiver_group.all_agree(inbox.complete and not any_clipped):
            return None
        # Shards number columns differently: send those of the round, -1 for none.
        number = torch.where(expected, receiver_group.columns[lists.index], -1)
        gathered = receiver_group.gather(torch.stack([number.to(share), share, heard.to(share)], 1))
        number, share, heard = gathered[:, 0].to(torch.int64), gathered[:, 1], gathered[:, 2] > 0
        local = torch.full((receiver_group.total + 1,), -1, device=number.device)  # the last entry is for -1
        index = local.index_copy(0, receiver_group.kept, torch.arange(len(receiver_group.kept), device=number.device))[number]
        # Over all messages of the round, so that all processes decide alike: is any median below one?
        clipped_count, expected_count = (
            torch.bincount(number[mask], minlength=receiver_group.total) for mask in ((share < 1) & (number >= 0), number >= 0)
        )
        return _Places(
            NeighbourLists(index.clamp_min(0), index >= 0),
            share,
            heard,
            bool(((2 * clipped_count >= expected_count) & (clipped_count > 0)).any()),
        )

    def acceptable(self, count: int) -> Tensor:
        """Mask [J] of messages that at least half of their receivers heard."""
        receiver_count = self.arcs.count(self.arcs.mask, count)
        return (2 * self.arcs.count(self.heard, count) >= receiver_count) & (receiver_count > 0)


def _as_used_by_lists(inbox: Inbox, kept: Tensor, places: _Places) -> Tensor:
    """`_as_used` with the receivers of a message found in their lists. Collective with a receiver group."""
    if not places.any_clipped:
        return kept
    own_vectors, arcs, size = _OwnVectors(inbox), places.arcs, len(kept)
    receivers, numbers = arcs.flat
    parts = arcs.flatten(places.share)
    # Where less than half of the receivers clipped a message, the median is one.
    clipped_count = torch.bincount(numbers[parts < 1], minlength=size)
    short = (2 * clipped_count >= arcs.count(arcs.mask, size)) & (clipped_count > 0)
    on_clipped = short[numbers].nonzero().flatten()
    if not len(on_clipped) and inbox.receiver_group is None:
        return kept
    clipped_numbers, position = short.nonzero().flatten(), torch.cumsum(short, 0) - 1
    receivers, numbers = receivers[on_clipped], position[numbers[on_clipped]]
    left = median_by_number(numbers, parts[on_clipped], len(clipped_numbers), 1.0).to(inbox.own.dtype)
    near = own_vectors.near()[receivers]
    towards, count = inbox.own.new_zeros(len(clipped_numbers), inbox.own.shape[1]), torch.zeros_like(left)
    count.index_add_(0, numbers[near], torch.ones_like(receivers[near], dtype=count.dtype))
    for part, rows in own_vectors.blocks():
        for receiver_block, number_block in zip(receivers[near].split(_ARCS), numbers[near].split(_ARCS), strict=True):
            towards[:, part].index_add_(0, number_block, rows[receiver_block])
    if not len(clipped_numbers):
        return kept
    towards = towards / count.clamp_min(1)[:, None]
    moved = towards + left[:, None] * (kept[clipped_numbers] - towards)
    return kept.index_copy(0, clipped_numbers, moved)


class _OwnVectors:
    """Own vectors of all receivers of a round [M, D]; those of other processes in blocks of coordinates.

    Collective with a receiver group: all processes iterate over all blocks, even if they need none.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox, dim = inbox, inbox.own.shape[1]
        size = dim if inbox.receiver_group is None else max(1, LIMITS.remote_vectors // inbox.receiver_group.total)
        self._parts = [slice(start, start + size) for start in range(0, dim, max(1, size))]
        self._whole = self._fetch(self._parts[0]) if len(self._parts) == 1 else None

    def _fetch(self, part: slice) -> Tensor:
        own = self._inbox.own if len(self._parts) == 1 else self._inbox.own[:, part]
        return own if self._inbox.receiver_group is None else self._inbox.receiver_group.gather(own)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for part in self._parts:
            yield part, self._fetch(part) if self._whole is None else self._whole

    def near(self) -> Tensor:
        """Mask [M] of receivers that are not far out; all finite ones if that leaves none."""
        own, receiver_group, whole = self._inbox.own, self._inbox.receiver_group, self._whole
        if whole is not None or receiver_group is None:
            assert whole is not None
            return _near(whole, self._inbox.rows if whole is self._inbox.messages else None)
        acceptable = (receiver_group.gather(norms(own)[:, None]) < OVERFLOW).squeeze(1)
        acceptable = acceptable if bool(acceptable.any()) else torch.ones_like(acceptable)
        sane = acceptable.nonzero().flatten()
        sample = own[:, :: sample_stride(own.shape[1])].split(max(1, LIMITS.remote_vectors // receiver_group.total), 1)
        origin = sane[torch.stack([dist2_to_median(receiver_group.gather(part)[sane]) for part in sample]).sum(0).argmin()]
        away = torch.zeros_like(acceptable, dtype=torch.float64)
        for _, rows in self.blocks():
            away = torch.hypot(away, norms(rows - rows[origin]))
        return _within(away)


def _near(own: Tensor, rows: VectorStack | None = None) -> Tensor:
    """Mask [B] of receivers whose own vectors are not far out; all finite ones if that leaves none.

    `rows`: the same vectors, whose origin may be cached.
    """
    if rows is None:
        # A finite sum has finite terms and is much faster to compute than all norms.
        rows = VectorStack(own, None if bool(torch.isfinite(own.sum())) else norms(own) < OVERFLOW)
    return _within(norms(own - rows.origin))


def _within(away: Tensor) -> Tensor:
    if on_host(away):
        near = away <= _FAR * away.nanmedian()  # NaN compares false
        return near if any_true(near) else torch.isfinite(away)
    near = away <= _FAR * lower_median(away, torch.ones_like(away, dtype=torch.bool))
    return torch.where(near.any(), near, torch.isfinite(away))
