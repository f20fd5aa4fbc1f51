"""Half gradients of neighbours per receiver, and their products with the update history where that is known."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from threading import Barrier
from types import TracebackType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bymi.core.dense_inbox import DenseInbox
from bymi.core.inbox import Inbox
from bymi.core.linalg import VectorStack, inner, inner_of_both, inner_of_sets, medoid
from bymi.core.list_inbox import ListInbox
from bymi.core.network import NeighbourhoodReply
from bymi.core.performance_thresholds import LIMITS
from bymi.detection.half_gradient_products import Evidence, NeighbourIndex
from bymi.detection.update_history import by_kind

_BEHIND = 2  # tasks and threads
_LONG = 1 << 20  # entries from which the cost of a thread hand-over is negligible


class BackgroundReader:
    """A context in which tasks run in a few background threads, in any order; all are done when it exits.

    CPU only: a GPU queues its own work. With a single core, tasks run in the caller.
    """

    def __enter__(self) -> BackgroundReader:
        self._pool: ThreadPoolExecutor | None = None
        self._open: deque[Future[None]] = deque()
        self._spare = _cores() > 1
        return self

    def __call__(self, work: Callable[[], None], *, numbers: int, device: torch.device) -> None:
        """Run `work` on `numbers` entries: in the background if they are many, else at once."""
        if not self._spare or device.type != "cpu" or numbers < _LONG:
            work()
            return
        if self._pool is None:
            self._pool = _threads(_BEHIND)
        while len(self._open) >= _BEHIND:
            self._open.popleft().result()
        self._open.append(self._pool.submit(work))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            while kind is None and self._open:
                self._open.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown()


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads with one torch thread each, which leaves the other cores to the caller."""
    before, started = torch.get_num_threads(), Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # torch applies the setting of a thread when it is first queried
        started.wait()

    pool = ThreadPoolExecutor(count, "aside")
    for task in [pool.submit(begin) for _ in range(count)]:
        task.result()
    torch.set_num_threads(before)  # the new threads have changed the default of later threads
    return pool


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TestInputs(NamedTuple):
    """Inputs of the tests for b receivers, products [b, n, n] by neighbour index."""

    evidence: Evidence
    origin: Tensor  # [b, n + 1]: <o, (x1 + x2) / 2 - o> with the origin o of the evidence, then |o|^2
    crossed: Sequence[Tensor] | None = None  # <q, (x1 + x2) / 2> of the update history q of each kind and half gradients
    history_grams: Sequence[Tensor] | None = None  # <q, q> of each kind, if it came with the half gradients


class HalfGradients(Protocol):
    """Half gradients of the neighbours of each receiver."""

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        """Test inputs of one group of receivers. Call it once per group, in order.

        `rows` [b, n]: row of the update history of each neighbour, if known.
        """
        ...


@dataclass(frozen=True, eq=False)
class HalfGradientMakers:
    """HalfGradients from half gradients that were broadcast; `deeds` [R, D]: the update history, if it is stored here.

    `zero`: whether evidence has products with the zero vector.
    """

    deeds: Tensor | None = None
    zero: bool = False

    def common(self, first: DenseInbox, second: DenseInbox) -> HalfGradients:
        return CommonHalfGradients(first, second, self.deeds, zero=self.zero)

    def lists(self, first: ListInbox, second: ListInbox) -> HalfGradients:
        return ListedHalfGradients(first, second, self.deeds, zero=self.zero)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return QueriedHalfGradients(replies, self.deeds)


@dataclass(frozen=True, eq=False)
class ProbeMakers(HalfGradientMakers):
    """HalfGradientMakers for the probe of receivers [b], which is read after other half gradients."""

    zero: bool = True
    receivers: Tensor = field(kw_only=True)
    arcs: Tensor = field(kw_only=True)
    nodes: Tensor = field(kw_only=True)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return BufferedHalfGradients(QueriedHalfGradients(replies, zero=self.zero), self.receivers, self.arcs, self.nodes)


class CommonHalfGradients:
    """Half gradients in rows that most receivers share: products of all rows, gathered per receiver."""

    def __init__(self, first: DenseInbox, second: DenseInbox, deeds: Tensor | None, *, zero: bool = False) -> None:
        self._first, self._second, self._deeds = first, second, deeds
        self._zero = _ZeroProducts.of(first, second) if zero else None

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        index, valid = seats.rows(self._first)
        if self._points is not None:
            evidence = _from_points(self._points[0][index], self._points[1][index], valid, seats)
        else:
            first, second, cross = (_pick(products, index) for products in self._products)
            evidence = Evidence(first, second, cross, valid, valid & seats.judged)
        if self._zero is not None:
            evidence = replace(evidence, zero=self._zero.at(index))
        origin = torch.cat([self._origin[:-1][index], self._origin[-1:].expand(len(index), 1)], 1)
        if self._deeds is None or rows is None:
            return TestInputs(evidence, origin)
        return TestInputs(evidence, origin, [crossed[rows[:, :, None], index[:, None, :]] for crossed in self._crossed])

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor, Tensor]:
        return _multiply(self._first, self._second)

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor] | None:
        return _points(self._first, self._second)

    @cached_property
    def _origin(self) -> Tensor:
        return _origin(self._first, self._second)

    @cached_property
    def _crossed(self) -> list[Tensor]:
        assert self._deeds is not None
        return _cross(self._deeds, self._first, self._second)


class ListedHalfGradients:
    """Half gradients where each receiver has few of all rows: products within each neighbourhood."""

    def __init__(self, first: ListInbox, second: ListInbox, deeds: Tensor | None, *, zero: bool = False) -> None:
        self._first, self._second, self._deeds = first, second, deeds
        self._zero = _ZeroProducts.of(first, second) if zero else None

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        index, valid = seats.rows(self._first)
        one, two, origin = self._first.rows, self._second.rows, self._first.rows.origin
        second = inner_of_sets(two.vectors, index, two.vectors, index, origin)
        cross = inner_of_sets(one.vectors, index, two.vectors, index, origin)
        points = None
        if self._first.own.shape[1] <= LIMITS.points_dim:
            points = one.points(index), _about(two.vectors[index], origin)
        zero = None if self._zero is None else self._zero.at(index)
        evidence = Evidence(one.among(index), second, cross, valid, valid & seats.judged, points, zero)
        to_origin = _origin(self._first, self._second)
        to_origin = torch.cat([to_origin[:-1][index], to_origin[-1:].expand(len(index), 1)], 1)
        if self._deeds is None or rows is None:
            return TestInputs(evidence, to_origin)
        nowhere = torch.zeros_like(origin)
        parts = [
            [inner_of_sets(deeds, rows, half.vectors, index, nowhere) for half in (one, two)]
            for deeds in by_kind(self._deeds, len(origin))
        ]
        return TestInputs(evidence, to_origin, [(first + second) / 2 for first, second in parts])


class QueriedHalfGradients:
    """Half gradients from replies, receiver by receiver: those of its neighbours, then its own. Read once, in order.

    They were queried at the receiver's own point, or broadcast by senders whose rows are in other processes.
    """

    def __init__(self, replies: Iterator[NeighbourhoodReply], deeds: Tensor | None = None, *, zero: bool = False) -> None:
        """`deeds`: the update history if stored here; otherwise it may come with the replies."""
        self._replies, self._deeds, self._zero = replies, deeds, zero

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        valid = torch.zeros_like(seats.taken)
        deeds, size = None if rows is None else self._deeds, seats.taken.shape[1]
        halves: dict[int, tuple[Tensor, Tensor]] = {}
        products: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        origins: dict[int, Tensor] = {}
        crossed: dict[int, list[Tensor]] = {}
        history_grams: dict[int, list[Tensor]] = {}
        zeros: dict[int, _ZeroProducts] = {}

        def read(position: int, reply: NeighbourhoodReply) -> None:
            first, second = reply.read()
            valid[position, : len(reply.senders)] = first.heard[0]
            valid[position, len(reply.senders)] = True  # the receiver's own
            if reply.history is not None:
                history = reply.history()
                crossed[position] = _cross(history, first, second)
                history_grams[position] = [VectorStack(kind).gram for kind in by_kind(history, len(reply.point))]
            if len(reply.point) <= LIMITS.points_dim:
                halves[position] = first.rows.vectors, second.rows.vectors
                return
            products[position], origins[position] = _multiply(first, second), _origin(first, second)
            if self._zero:
                zeros[position] = _ZeroProducts.of(first, second)
            if reply.history is None and deeds is not None and rows is not None:
                crossed[position] = _cross(deeds[rows[position, : len(reply.senders) + 1]], first, second)

        with BackgroundReader() as run:
            for position, reply in enumerate(islice(self._replies, len(seats.receivers))):
                numbers = len(reply.senders) * len(reply.point)
                run(partial(read, position, reply), numbers=numbers, device=reply.point.device)
        crossed_products, history_products = (
            [
                _stack([by_position[position][kind] for position in sorted(by_position)], size)
                for kind in range(len(next(iter(by_position.values()))))
            ]
            if by_position
            else None
            for by_position in (crossed, history_grams)
        )
        if not halves:
            one, two, cross = (_stack([products[position][part] for position in sorted(products)], size) for part in range(3))
            # The receiver's own row, then |o|^2 behind the padding.
            to_origin = torch.stack(
                [
                    torch.cat([torch.nn.functional.pad(row[:-1], (0, size + 1 - len(row))), row[-1:]])
                    for _, row in sorted(origins.items())
                ]
            )
            zero = _ZeroProducts.stacked([zeros[position] for position in sorted(zeros)], size) if zeros else None
            evidence = Evidence(one, two, cross, valid, valid & seats.judged, zero=zero)
            return TestInputs(evidence, to_origin, crossed_products, history_products)
        one, two = (
            _stack_rows([halves[position][half] for position in sorted(halves)], size).to(torch.float64) for half in range(2)
        )
        origin, taken = medoid(one, valid)[:, None], seats.taken[:, :, None]
        evidence = _from_points((one - origin) * taken, (two - origin) * taken, valid, seats)
        if self._zero and evidence.points is not None:
            along = [-(points @ origin.mT).squeeze(2) for points in evidence.points]
            evidence = replace(evidence, zero=(along[0], along[1], origin.square().sum(2)))
        middle = (one + two) / 2
        to_origin = torch.cat([((middle - origin) * taken) @ origin.mT, origin @ origin.mT], 1).squeeze(2)
        if deeds is None or rows is None:
            return TestInputs(evidence, to_origin, crossed_products, history_products)
        kinds = by_kind(deeds[rows].to(torch.float64) * taken, one.shape[2])
        return TestInputs(evidence, to_origin, [kind @ middle.mT for kind in kinds])


class BufferedHalfGradients:
    """Test inputs computed in advance, group by group: two streams of replies cannot be read at once."""

    def __init__(self, answers: QueriedHalfGradients, receivers: Tensor, arcs: Tensor, nodes: Tensor) -> None:
        self._pages = iter([answers.before(NeighbourIndex.of(arcs, nodes, group), None) for group in groups(receivers)])

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        return next(self._pages)


class _ZeroProducts(NamedTuple):
    """Products of the zero vector with first and second halves [R] and with itself, about the origin of all products."""

    first: Tensor
    second: Tensor
    square: Tensor

    @staticmethod
    def of(first: Inbox, second: Inbox) -> _ZeroProducts:
        origin = first.rows.origin
        zero = torch.zeros_like(origin)[None]
        one, two, own = (inner(rows, zero, origin).squeeze(1) for rows in (first.rows.vectors, second.rows.vectors, zero))
        return _ZeroProducts(one, two, own)

    def at(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Those of rows [b, n]."""
        return self.first[index], self.second[index], self.square.expand(len(index), 1)

    @staticmethod
    def stacked(parts: list[_ZeroProducts], size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Those of several receivers, padded with zeros."""
        one, two = (_stack_rows([part[half][:, None] for part in parts], size).squeeze(2) for half in range(2))
        return one, two, torch.stack([part.square for part in parts])


def groups(receivers: Tensor) -> tuple[Tensor, ...]:
    """Receivers in groups whose products are held at a time."""
    at_a_time = LIMITS.hardened_receivers if receivers.device.type == "cpu" else LIMITS.hardened_receivers_cuda
    return receivers.split(at_a_time) if len(receivers) else ()


def _from_points(one: Tensor, two: Tensor, valid: Tensor, seats: NeighbourIndex) -> Evidence:
    """Evidence from halves [b, n, d] about one point per receiver, in few dimensions."""
    return Evidence(one @ one.mT, two @ two.mT, one @ two.mT, valid, valid & seats.judged, (one, two))


def _multiply(first: Inbox, second: Inbox) -> tuple[Tensor, Tensor, Tensor]:
    return inner_of_both(first.rows.vectors, second.rows.vectors, first.rows.origin)


def _points(first: Inbox, second: Inbox) -> tuple[Tensor, Tensor] | None:
    if first.own.shape[1] > LIMITS.points_dim:
        return None
    origin = first.rows.origin
    return _about(first.rows.vectors, origin), _about(second.rows.vectors, origin)


def _cross(history: Tensor, first: Inbox, second: Inbox) -> list[Tensor]:
    middle = (first.rows.vectors + second.rows.vectors) / 2
    return [inner(kind, middle, torch.zeros_like(middle[0])) for kind in by_kind(history, middle.shape[1])]


def _origin(first: Inbox, second: Inbox) -> Tensor:
    """<o, (x1 + x2) / 2 - o> of every row and the origin o, then |o|^2 [R + 1]."""
    origin = first.rows.origin[None]
    along = inner((first.rows.vectors + second.rows.vectors) / 2, origin, torch.zeros_like(origin[0])).squeeze(1)
    square = inner(origin, origin, torch.zeros_like(origin[0])).squeeze(1)
    return torch.cat([along - square, square])


def _about(vectors: Tensor, origin: Tensor) -> Tensor:
    return vectors.to(torch.float64) - origin.to(torch.float64)


def _pick(products: Tensor, rows: Tensor) -> Tensor:
    """Products [R, R] of common rows gathered per receiver [b, n, n]."""
    return products[rows[:, :, None], rows[:, None, :]]


def _stack(matrices: Sequence[Tensor], size: int) -> Tensor:
    """Square matrices of different sizes as one stack, padded with zeros."""
    return torch.stack([torch.nn.functional.pad(m, (0, size - m.shape[1], 0, size - m.shape[0])) for m in matrices])


def _stack_rows(matrices: Sequence[Tensor], size: int) -> Tensor:
    """Matrices with different numbers of rows as one stack, padded with zero rows."""
    return torch.stack([torch.nn.functional.pad(m, (0, 0, 0, size - len(m))) for m in matrices])
