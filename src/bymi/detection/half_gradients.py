"""What receivers have before them: half gradients of their neighbours and, if deeds are known, how these go with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bymi.core.dense_inbox import DenseInbox
from bymi.core.inbox import Inbox
from bymi.core.linalg import VectorStack, inner, inner_of_both, inner_of_sets, medoid
from bymi.core.list_inbox import ListInbox
from bymi.core.neighbourhood_reply import NeighbourhoodReply
from bymi.detection.background import BackgroundReader
from bymi.detection.evidence import Evidence, NeighbourIndex, pick, stack, stack_rows
from bymi.detection.spectrum import FEW_DIMENSIONS

_RECEIVERS = 128  # whose products are held at a time


class TestInputs(NamedTuple):
    """What b receivers have before them, products [b, n, n] by seats."""

    evidence: Evidence
    crossed: Tensor | None = None  # <q, (x1 + x2) / 2> of deeds and claims
    trail: Tensor | None = None  # <q, q> of deeds, where they came with the claims


class HalfGradients(Protocol):
    """Half gradients before receivers, by seats."""

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        """`rows` [b, n] says which deeds are those of each seat, if any are known. Every group of receivers once, in order."""
        ...


@dataclass(frozen=True, eq=False)
class HalfGradientMakers:
    """Claims from half gradients that neighbours sent of their own accord, the same to all; `deeds` [R, D] if they are here."""

    deeds: Tensor | None = None

    def common(self, first: DenseInbox, second: DenseInbox) -> HalfGradients:
        return CommonHalfGradients(first, second, self.deeds)

    def lists(self, first: ListInbox, second: ListInbox) -> HalfGradients:
        return ListedHalfGradients(first, second, self.deeds)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return QueriedHalfGradients(replies, self.deeds)


@dataclass(frozen=True, eq=False)
class ProbeMakers(HalfGradientMakers):
    """The same for the probe, of receivers [b], which is looked at after other claims."""

    receivers: Tensor = field(kw_only=True)
    arcs: Tensor = field(kw_only=True)
    nodes: Tensor = field(kw_only=True)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return BufferedHalfGradients(QueriedHalfGradients(replies), self.receivers, self.arcs, self.nodes)


class CommonHalfGradients:
    """Rows that most receivers share: products of all of them, from which each receiver's are picked."""

    def __init__(self, first: DenseInbox, second: DenseInbox, deeds: Tensor | None) -> None:
        self._first, self._second, self._deeds = first, second, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        at, there = seats.rows(self._first)
        if self._points is not None:
            evidence = _from_points(self._points[0][at], self._points[1][at], there, seats)
        else:
            first, second, cross = (pick(products, at) for products in self._products)
            evidence = Evidence(first, second, cross, there, there & seats.judged)
        if self._deeds is None or rows is None:
            return TestInputs(evidence)
        return TestInputs(evidence, self._crossed[rows[:, :, None], at[:, None, :]])

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor, Tensor]:
        return _multiply(self._first, self._second)

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor] | None:
        return _points(self._first, self._second)

    @cached_property
    def _crossed(self) -> Tensor:
        assert self._deeds is not None
        return _cross(self._deeds, self._first, self._second)


class ListedHalfGradients:
    """Each receiver has few of all rows before it: products of these alone."""

    def __init__(self, first: ListInbox, second: ListInbox, deeds: Tensor | None) -> None:
        self._first, self._second, self._deeds = first, second, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        at, there = seats.rows(self._first)
        one, two, origin = self._first.rows, self._second.rows, self._first.rows.origin
        second = inner_of_sets(two.vectors, at, two.vectors, at, origin)
        cross = inner_of_sets(one.vectors, at, two.vectors, at, origin)
        points = None
        if self._first.own.shape[1] <= FEW_DIMENSIONS:
            points = one.points(at), _about(two.vectors[at], origin)
        evidence = Evidence(one.among(at), second, cross, there, there & seats.judged, points)
        if self._deeds is None or rows is None:
            return TestInputs(evidence)
        parts = [inner_of_sets(self._deeds, rows, half.vectors, at, torch.zeros_like(origin)) for half in (one, two)]
        return TestInputs(evidence, (parts[0] + parts[1]) / 2)


class QueriedHalfGradients:
    """Half gradients before each receiver by itself: its neighbours' and, last, its own. Walked through once, in order.

    Those it asked for, at its own point, or those that came to it where rows stay with who sent them.
    """

    def __init__(self, replies: Iterator[NeighbourhoodReply], deeds: Tensor | None = None) -> None:
        """`deeds` if they are here; they may come with the replies."""
        self._replies, self._deeds = replies, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        there = torch.zeros_like(seats.taken)
        deeds, size = None if rows is None else self._deeds, seats.taken.shape[1]
        halves: dict[int, tuple[Tensor, Tensor]] = {}
        products: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        crossed: dict[int, Tensor] = {}
        trail: dict[int, Tensor] = {}

        def read(place: int, reply: NeighbourhoodReply) -> None:
            first, second = reply.read()
            there[place, : len(reply.senders)] = first.heard[0]
            there[place, len(reply.senders)] = True  # its own
            if reply.deeds is not None:
                came = reply.deeds()
                crossed[place], trail[place] = _cross(came, first, second), VectorStack(came).gram
            if len(reply.point) <= FEW_DIMENSIONS:
                halves[place] = first.rows.vectors, second.rows.vectors
                return
            products[place] = _multiply(first, second)
            if reply.deeds is None and deeds is not None and rows is not None:
                crossed[place] = _cross(deeds[rows[place, : len(reply.senders) + 1]], first, second)

        with BackgroundReader() as aside:
            for place, reply in enumerate(islice(self._replies, len(seats.receivers))):
                numbers = len(reply.senders) * len(reply.point)
                aside(partial(read, place, reply), numbers=numbers, device=reply.point.device)
        with_deeds, moves = (
            stack([some[place] for place in sorted(some)], size) if some else None for some in (crossed, trail)
        )
        if not halves:
            one, two, cross = (stack([products[place][part] for place in sorted(products)], size) for part in range(3))
            return TestInputs(Evidence(one, two, cross, there, there & seats.judged), with_deeds, moves)
        one, two = (stack_rows([halves[place][half] for place in sorted(halves)], size).to(torch.float64) for half in range(2))
        origin, taken = medoid(one, there)[:, None], seats.taken[:, :, None]
        evidence = _from_points((one - origin) * taken, (two - origin) * taken, there, seats)
        if deeds is None or rows is None:
            return TestInputs(evidence, with_deeds, moves)
        return TestInputs(evidence, (deeds[rows].to(torch.float64) * taken) @ ((one + two) / 2).mT)


class BufferedHalfGradients:
    """What was before receivers, written down group by group before others are heard: two walks never go on at once."""

    def __init__(self, answers: QueriedHalfGradients, receivers: Tensor, arcs: Tensor, nodes: Tensor) -> None:
        self._pages = iter([answers.before(NeighbourIndex.of(arcs, nodes, some), None) for some in groups(receivers)])

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        return next(self._pages)


def groups(receivers: Tensor) -> tuple[Tensor, ...]:
    """Those whose products are held at a time."""
    return receivers.split(_RECEIVERS) if len(receivers) else ()


def _from_points(one: Tensor, two: Tensor, there: Tensor, seats: NeighbourIndex) -> Evidence:
    """Evidence of halves [b, n, d] about one point a receiver, in few dimensions."""
    return Evidence(one @ one.mT, two @ two.mT, one @ two.mT, there, there & seats.judged, (one, two))


def _multiply(first: Inbox, second: Inbox) -> tuple[Tensor, Tensor, Tensor]:
    return inner_of_both(first.rows.vectors, second.rows.vectors, first.rows.origin)


def _points(first: Inbox, second: Inbox) -> tuple[Tensor, Tensor] | None:
    if first.own.shape[1] > FEW_DIMENSIONS:
        return None
    origin = first.rows.origin
    return _about(first.rows.vectors, origin), _about(second.rows.vectors, origin)


def _cross(deeds: Tensor, first: Inbox, second: Inbox) -> Tensor:
    middle = (first.rows.vectors + second.rows.vectors) / 2
    return inner(deeds, middle, torch.zeros_like(middle[0]))


def _about(vectors: Tensor, origin: Tensor) -> Tensor:
    return vectors.to(torch.float64) - origin.to(torch.float64)
