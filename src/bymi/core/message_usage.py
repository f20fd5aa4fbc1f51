"""How messages were used in a round, over all of their receivers: what the update history of a run is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bymi.core.linalg import VectorStack, ascending, from_medoid, norms, stride_of
from bymi.core.message_validity import OVERFLOW
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists, median_by_number

if TYPE_CHECKING:
    from bymi.core.dense_inbox import DenseInbox
    from bymi.core.inbox import Inbox
    from bymi.core.list_inbox import ListInbox

_ARCS = 1 << 14  # whose receivers' vectors are copied at a time
_FAR = 3.0  # times the median distance from the midst
_NUMBERS = 1 << 23  # of receivers held elsewhere that are here at a time


class Usage(NamedTuple):
    """Messages of which this process keeps the history, as they were used, and which of them count."""

    rows: Tensor  # [K, D] at the length at which they were used
    usable: Tensor  # [K] bool: at least half of their receivers heard them


def of_columns(inbox: DenseInbox, share: Tensor) -> Usage:
    """The usage of messages by matrices, of which each receiver used a share [B, J]."""
    fate = _Fate.of(inbox, share)
    return Usage(_as_used(inbox, fate), fate.heard)


def of_places(inbox: ListInbox, kept: Tensor, share: Tensor) -> Usage:
    """The usage of the messages `kept` [K, D] by lists, of which each receiver used a share [B, n]."""
    if isinstance(inbox.lists, PerArcLists) and inbox.complete and inbox.receiver_group is None and inbox.lists.alone:
        size = len(inbox.messages)
        return Usage(_as_used_by_table(inbox, share, inbox.lists), inbox.lists.count(inbox.lists.there, size) > 0)
    places = _Places.of(inbox, share, inbox.lists)
    if places is None:
        return Usage(kept, torch.ones_like(kept[:, 0], dtype=torch.bool))
    return Usage(_as_used_by_lists(inbox, kept, places), places.usable(len(kept)))


@dataclass(frozen=True, eq=False)
class _Fate:
    """What became of each message heard here [J] at all of its receivers, also at those held elsewhere."""

    left: Tensor  # [J] the median of what they left of it
    heard: Tensor  # [J] bool: at least half of them could use it
    receivers: Tensor  # [M, J] bool, or [B, J] where all receivers are held here
    shortened: bool  # whether any message of the round was, here or elsewhere

    @staticmethod
    def of(inbox: Inbox, share: Tensor) -> _Fate:
        expected, heard, receiver_group = inbox.expected, inbox.heard, inbox.receiver_group
        if receiver_group is not None:
            whole = inbox.complete and bool((share >= 1).logical_or(~expected).all())
            if receiver_group.agree(whole):  # as in most rounds: nothing to tell
                return _Fate(torch.ones_like(share[0]), torch.ones_like(expected[0]), expected, False)
            told = torch.stack([share, expected.to(share), heard.to(share)], 1)
            wide = told.new_zeros(*told.shape[:2], receiver_group.total).index_copy(2, receiver_group.columns, told)
            share, expected, heard = receiver_group.gather(wide).unbind(1)
            expected, heard = expected > 0, heard > 0
        most = expected.sum(0)
        left = _usual(share, expected, most)
        usable = most > 0 if inbox.complete and receiver_group is None else (2 * heard.sum(0) >= most) & (most > 0)
        shortened = bool((left < 1).any())
        if receiver_group is None:
            return _Fate(left, usable, expected, shortened)
        here = receiver_group.columns
        return _Fate(left[here], usable[here], expected[:, here], shortened)


def _usual(share: Tensor, expected: Tensor, most: Tensor) -> Tensor:
    """The (lower) median over those who expect each message [J] of what they left of it: sought only where it is not all."""
    low = ((share < 1) & expected).sum(0)
    short = ((2 * low >= most) & (most > 0)).nonzero().flatten()
    left = torch.ones_like(share[0])
    if not len(short):
        return left
    parts, there = share.index_select(1, short).T, expected.index_select(1, short).T
    ordered = ascending(parts.masked_fill(~there, torch.inf))
    return left.index_copy(0, short, ordered.gather(1, (most[short, None] - 1) // 2).squeeze(1))


def _as_used(inbox: Inbox, fate: _Fate) -> Tensor:
    """Messages [J, D], those that were shortened at their usual length: what a far one pretends does not count.

    Usual: by the median of what its receivers left of it, towards the mean of those of them who are not far off themselves.
    Of a single receiver, or with a message for each, that is exact.
    """
    if not fate.shortened:
        return inbox.messages
    everyone, short = _Everyone(inbox), (fate.left < 1).nonzero().flatten()
    if not len(short) and inbox.receiver_group is None:
        return inbox.messages
    sane = everyone.near()
    drawn = [_drawn(inbox.messages[:, part], rows, sane, fate, short) for part, rows in everyone.blocks()]
    return inbox.messages.index_copy(0, short, torch.cat(drawn, 1)) if len(short) else inbox.messages


def _drawn(messages: Tensor, everyone: Tensor, sane: Tensor, fate: _Fate, short: Tensor) -> Tensor:
    """Some of the messages, drawn towards those of their receivers who are `sane` [M]."""
    own = torch.where(sane[:, None], everyone, torch.zeros_like(everyone))  # what is not finite would spoil the product
    who = (fate.receivers.index_select(1, short) & sane[:, None]).to(own.dtype)
    towards = (who.T @ own) / who.sum(0).clamp_min(1)[:, None]
    part = fate.left[short][:, None].to(own.dtype)
    return towards + part * (messages[short] - towards)


def _as_used_by_table(inbox: Inbox, share: Tensor, table: PerArcLists) -> Tensor:
    """As `_as_used`, where all receivers are held here and each further message has one of them."""
    messages, further = inbox.messages, table.further
    part = share.flatten().index_select(0, further.at)
    most = table.count(table.there, len(messages))[: share.shape[1]]
    fate = _Fate(_usual(share, table.first, most), table.there, table.first, True)
    short, some = (fate.left < 1).nonzero().flatten(), (part < 1).nonzero().flatten()
    if not len(short) and not len(some):
        return messages
    sane = _near(inbox.own)
    output = messages.index_copy(0, short, _drawn(messages, inbox.own, sane, fate, short)) if len(short) else messages.clone()
    towards = torch.where(sane[:, None], inbox.own, torch.zeros_like(inbox.own)).index_select(0, further.receivers[some])
    numbers = further.numbers[some]
    told = messages.index_select(0, numbers)
    return output.index_copy_(0, numbers, towards + part[some, None].to(told.dtype) * (told - towards))


@dataclass(frozen=True, eq=False)
class _Places:
    """The same by lists: what all receivers, also those held elsewhere, did to the messages heard here."""

    arcs: NeighbourLists  # [M, n], or [B, n] where all receivers are held here: which of the messages kept is at each place
    share: Tensor  # of it that was used, at each place
    heard: Tensor  # bool
    shortened: bool  # whether any message of the round was, here or elsewhere

    @staticmethod
    def of(inbox: Inbox, share: Tensor, lists: NeighbourLists) -> _Places | None:
        """None if all is whole, here and elsewhere: in most rounds there is nothing to tell."""
        receiver_group, expected, heard = inbox.receiver_group, inbox.expected, inbox.heard
        shortened = bool(((share < 1) & expected).any())
        if receiver_group is None:
            arcs = lists if expected is lists.there else NeighbourLists(lists.at, expected)
            return _Places(arcs, share, heard, shortened)
        if receiver_group.agree(inbox.complete and not shortened):
            return None
        # Each shard counts its own columns: others are told those of the round, -1 for none.
        number = torch.where(expected, receiver_group.columns[lists.at], -1)
        told = receiver_group.gather(torch.stack([number.to(share), share, heard.to(share)], 1))
        number, share, heard = told[:, 0].to(torch.int64), told[:, 1], told[:, 2] > 0
        here = torch.full((receiver_group.total + 1,), -1, device=number.device)  # the last one is for none
        at = here.index_copy(0, receiver_group.kept, torch.arange(len(receiver_group.kept), device=number.device))[number]
        # Of all messages of the round, so that all processes go on alike: is the median of any one below one?
        low, all_ = (
            torch.bincount(number[some], minlength=receiver_group.total) for some in ((share < 1) & (number >= 0), number >= 0)
        )
        return _Places(NeighbourLists(at.clamp_min(0), at >= 0), share, heard, bool(((2 * low >= all_) & (low > 0)).any()))

    def usable(self, count: int) -> Tensor:
        """Which messages [J] at least half of their receivers heard."""
        most = self.arcs.count(self.arcs.there, count)
        return (2 * self.arcs.count(self.heard, count) >= most) & (most > 0)


def _as_used_by_lists(inbox: Inbox, kept: Tensor, places: _Places) -> Tensor:
    """As `_as_used`, with those who hear a message found in their lists."""
    if not places.shortened:
        return kept
    everyone, arcs, size = _Everyone(inbox), places.arcs, len(kept)
    receivers, numbers = arcs.flat
    parts = arcs.flatten(places.share)
    # Where less than half of its receivers shortened a message, the median is one.
    low = torch.bincount(numbers[parts < 1], minlength=size)
    short = (2 * low >= arcs.count(arcs.there, size)) & (low > 0)
    some = short[numbers].nonzero().flatten()
    if not len(some) and inbox.receiver_group is None:
        return kept
    which, place = short.nonzero().flatten(), torch.cumsum(short, 0) - 1
    receivers, numbers = receivers[some], place[numbers[some]]
    left = median_by_number(numbers, parts[some], len(which), 1.0).to(inbox.own.dtype)
    near = everyone.near()[receivers]
    towards, count = inbox.own.new_zeros(len(which), inbox.own.shape[1]), torch.zeros_like(left)
    count.index_add_(0, numbers[near], torch.ones_like(receivers[near], dtype=count.dtype))
    for part, rows in everyone.blocks():
        for at, of in zip(receivers[near].split(_ARCS), numbers[near].split(_ARCS), strict=True):
            towards[:, part].index_add_(0, of, rows[at])
    if not len(which):
        return kept
    towards = towards / count.clamp_min(1)[:, None]
    moved = towards + left[:, None] * (kept[which] - towards)
    return kept.index_copy(0, which, moved)


class _Everyone:
    """Own vectors of all receivers of a round [M, D]; of those held elsewhere some coordinates are here at a time.

    Where there is a crowd, all processes walk through all blocks, also those that have nothing to look for.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox, dim = inbox, inbox.own.shape[1]
        size = dim if inbox.receiver_group is None else max(1, _NUMBERS // inbox.receiver_group.total)
        self._parts = [slice(start, start + size) for start in range(0, dim, max(1, size))]
        self._whole = self._fetch(self._parts[0]) if len(self._parts) == 1 else None

    def _fetch(self, part: slice) -> Tensor:
        own = self._inbox.own if len(self._parts) == 1 else self._inbox.own[:, part]
        return own if self._inbox.receiver_group is None else self._inbox.receiver_group.gather(own)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for part in self._parts:
            yield part, self._fetch(part) if self._whole is None else self._whole

    def near(self) -> Tensor:
        """Who of them [M] is not far beyond the others; all where that leaves nobody."""
        own, receiver_group, whole = self._inbox.own, self._inbox.receiver_group, self._whole
        if whole is not None or receiver_group is None:
            assert whole is not None
            return _near(whole, self._inbox.rows if whole is self._inbox.messages else None)
        usable = (receiver_group.gather(norms(own)[:, None]) < OVERFLOW).squeeze(1)
        usable = usable if bool(usable.any()) else torch.ones_like(usable)
        places = usable.nonzero().flatten()
        sample = own[:, :: stride_of(own.shape[1])].split(max(1, _NUMBERS // receiver_group.total), 1)
        origin = places[torch.stack([from_medoid(receiver_group.gather(part)[places]) for part in sample]).sum(0).argmin()]
        away = torch.zeros_like(usable, dtype=torch.float64)
        for _, rows in self.blocks():
            away = torch.hypot(away, norms(rows - rows[origin]))
        return _within(away)


def _near(own: Tensor, rows: VectorStack | None = None) -> Tensor:
    """Receivers [B] that are not far beyond the others, by their own vectors; all where that leaves nobody.

    `rows`: the same vectors, if their midst may be known already.
    """
    if rows is None:
        # A finite sum has finite terms, and is much sooner found than the lengths of all rows.
        rows = VectorStack(own, None if bool(torch.isfinite(own.sum())) else norms(own) < OVERFLOW)
    return _within(norms(own - rows.origin))


def _within(away: Tensor) -> Tensor:
    near = away <= _FAR * away.nanmedian()  # NaN compares false
    return near if bool(near.any()) else torch.isfinite(away)
