"""Half gradients of neighbours per receiver, and their products with the update history where that is known."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from threading import Barrier
from types import TracebackType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bymi.core.dense_inbox import DenseInbox
from bymi.core.inbox import Inbox
from bymi.core.linalg import inner, inner_of_both, inner_of_sets, medoid, on_host, pad_rows
from bymi.core.list_inbox import ListInbox
from bymi.core.network import NeighbourhoodReply, read_together, replies_at_a_time
from bymi.core.performance_thresholds import LIMITS
from bymi.detection.half_gradient_products import Evidence, NeighbourIndex
from bymi.detection.update_history import by_kind

_WORKERS = 2  # threads, and tasks that may be open
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
            self._pool = _threads(_WORKERS)
        while len(self._open) >= _WORKERS:
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

    pool = ThreadPoolExecutor(count, "half gradients")
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
    """HalfGradients from half gradients that were broadcast; `deeds` [R, D]: the update history, if it is stored here."""

    deeds: Tensor | None = None

    def common(self, first: DenseInbox, second: DenseInbox) -> HalfGradients:
        return CommonHalfGradients(first, second, self.deeds)

    def lists(self, first: ListInbox, second: ListInbox) -> HalfGradients:
        return ListedHalfGradients(first, second, self.deeds)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return QueriedHalfGradients(replies, self.deeds)


@dataclass(frozen=True, eq=False)
class ProbeMakers(HalfGradientMakers):
    """HalfGradientMakers for the probe of receivers [b], which is read after other half gradients."""

    receivers: Tensor = field(kw_only=True)
    arcs: Tensor = field(kw_only=True)
    nodes: Tensor = field(kw_only=True)

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> HalfGradients:
        return BufferedHalfGradients(QueriedHalfGradients(replies), self.receivers, self.arcs, self.nodes)


class CommonHalfGradients:
    """Half gradients in rows that most receivers share: products of all rows, gathered per receiver."""

    def __init__(self, first: DenseInbox, second: DenseInbox, deeds: Tensor | None) -> None:
        self._first, self._second, self._deeds = first, second, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        index, valid = seats.rows(self._first)
        if self._points is not None:
            evidence = _from_points(self._points[0][index], self._points[1][index], valid, seats)
        else:
            first, second, cross = (_pick(products, index) for products in self._products)
            evidence = Evidence(first, second, cross, valid, valid & seats.judged)
        origin = torch.cat([self._origin[:-1][index], self._origin[-1:].expand(len(index), 1)], 1)
        if self._deeds is None or rows is None:
            return TestInputs(evidence, origin)
        return TestInputs(evidence, origin, [crossed[rows[:, :, None], index[:, None, :]] for crossed in self._crossed])

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor, Tensor]:
        one, two = self._first.rows, self._second.rows
        return inner_of_both(one.vectors, two.vectors, one.origin)

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor] | None:
        return _points(self._first, self._second)

    @cached_property
    def _origin(self) -> Tensor:
        one, two = self._first.rows, self._second.rows
        return _origin(one.vectors, two.vectors, one.origin)

    @cached_property
    def _crossed(self) -> list[Tensor]:
        assert self._deeds is not None
        one, two = self._first.rows.vectors, self._second.rows.vectors
        return _cross(by_kind(self._deeds, one.shape[1]), one, two)


class ListedHalfGradients:
    """Half gradients where each receiver has few of all rows: products within each neighbourhood."""

    def __init__(self, first: ListInbox, second: ListInbox, deeds: Tensor | None) -> None:
        self._first, self._second, self._deeds = first, second, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        index, valid = seats.rows(self._first)
        one, two, origin = self._first.rows, self._second.rows, self._first.rows.origin
        second = inner_of_sets(two.vectors, index, two.vectors, index, origin)
        cross = inner_of_sets(one.vectors, index, two.vectors, index, origin)
        points = None
        if self._first.own.shape[1] <= LIMITS.points_dim:
            points = one.points(index), _about(two.vectors[index], origin)
        evidence = Evidence(one.among(index), second, cross, valid, valid & seats.judged, points)
        to_origin = _origin(one.vectors, two.vectors, origin)
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
    """Half gradients from replies: those of a receiver's neighbours, then its own. Read once, in order.

    They were queried at the receiver's own point, or broadcast by senders whose rows are in other processes.
    """

    def __init__(self, replies: Iterator[NeighbourhoodReply], deeds: Tensor | None = None) -> None:
        """`deeds`: the update history if stored here; otherwise it may come with the replies."""
        self._replies, self._deeds = replies, deeds

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        valid, own = torch.zeros_like(seats.taken), seats.taken & ~seats.judged
        stored = None if rows is None or self._deeds is None else (self._deeds, rows)
        found: dict[int, _BatchInputs] = {}  # by the first receiver of each batch

        def read(start: int, replies: Sequence[NeighbourhoodReply]) -> None:
            first, second = read_together(replies)
            dim, (count, size) = first.messages.shape[1], first.heard.shape
            here = slice(start, start + count), slice(size)
            valid[here] = first.heard | own[here]
            one, two = (half.messages.view(count, size, dim) for half in (first, second))
            history = None
            if replies[0].history is not None:
                history = by_kind(pad_rows([reply.history() for reply in replies if reply.history is not None], size), dim)
            elif stored is not None and dim > LIMITS.points_dim:
                history = tuple(kind[stored[1][here]] for kind in by_kind(stored[0], dim))
            crossed = None if history is None else _cross(history, one, two)
            grams = None
            if history is not None and replies[0].history is not None:
                grams = [inner(kind, kind, medoid(kind, seats.taken[here])) for kind in history]
            if dim <= LIMITS.points_dim:
                found[start] = _BatchInputs((one, two), None, crossed, grams)
                return
            present = first.heard | (own[here] & (first.own_column >= 0)[:, None])
            origin = medoid(one, present)
            found[start] = _BatchInputs(inner_of_both(one, two, origin), _origin(one, two, origin), crossed, grams)

        replies, start = islice(self._replies, len(seats.receivers)), 0
        with BackgroundReader() as run:
            for reply in replies:
                device, numbers = reply.point.device, seats.taken.shape[1] * len(reply.point)
                # A GPU reads many at once. On a CPU threads read them one by one, and few numbers stay in its cache.
                more = 0 if on_host(reply.point) else max(0, replies_at_a_time(device, LIMITS.read_cuda) // numbers - 1)
                some = [reply, *islice(replies, more)]
                run(partial(read, start, some), numbers=len(some) * numbers, device=device)
                start += len(some)
        return self._inputs(seats, rows, valid, [part for _, part in sorted(found.items())])

    def _inputs(self, seats: NeighbourIndex, rows: Tensor | None, valid: Tensor, found: Sequence[_BatchInputs]) -> TestInputs:
        """Test inputs of all receivers, from those of batches."""
        taken = seats.taken
        crossed, grams = (
            [_stack(kind, taken) for kind in zip(*by_batch, strict=True)] if by_batch[0] is not None else None
            for by_batch in ([part.crossed for part in found], [part.grams for part in found])
        )
        if found[0].origin is not None:
            one, two, cross = (_stack(products, taken) for products in zip(*(part.products for part in found), strict=True))
            to_origin = torch.cat([_pad_origin(part.origin, taken.shape[1]) for part in found if part.origin is not None])
            evidence = Evidence(one, two, cross, valid, valid & seats.judged)
            return TestInputs(evidence, to_origin * torch.nn.functional.pad(taken, (0, 1), value=True), crossed, grams)
        one, two = (
            torch.cat([_pad(part.products[half], taken.shape[1]) for part in found]).to(torch.float64) for half in range(2)
        )
        origin, mask = medoid(one, valid)[:, None], taken[:, :, None]
        evidence = _from_points((one - origin) * mask, (two - origin) * mask, valid, seats)
        middle = (one + two) / 2
        to_origin = torch.cat([((middle - origin) * mask) @ origin.mT, origin @ origin.mT], 1).squeeze(2)
        if self._deeds is None or rows is None:
            return TestInputs(evidence, to_origin, crossed, grams)
        kinds = by_kind(self._deeds[rows].to(torch.float64) * mask, one.shape[2])
        return TestInputs(evidence, to_origin, [kind @ middle.mT for kind in kinds])


class _BatchInputs(NamedTuple):
    """Test inputs of a batch of b receivers, padded to the longest of their replies; in few dimensions halves [b, n, d]."""

    products: tuple[Tensor, ...]
    origin: Tensor | None
    crossed: Sequence[Tensor] | None
    grams: Sequence[Tensor] | None


class BufferedHalfGradients:
    """Test inputs computed in advance, group by group: two streams of replies cannot be read at once."""

    def __init__(self, answers: QueriedHalfGradients, receivers: Tensor, arcs: Tensor, nodes: Tensor) -> None:
        self._groups = iter([answers.before(NeighbourIndex.of(arcs, nodes, group), None) for group in groups(receivers)])

    def before(self, seats: NeighbourIndex, rows: Tensor | None) -> TestInputs:
        return next(self._groups)


def groups(receivers: Tensor) -> tuple[Tensor, ...]:
    """Receivers in groups whose products are held at a time."""
    at_a_time = LIMITS.hardened_receivers if receivers.device.type == "cpu" else LIMITS.hardened_receivers_cuda
    return receivers.split(at_a_time) if len(receivers) else ()


def _from_points(one: Tensor, two: Tensor, valid: Tensor, seats: NeighbourIndex) -> Evidence:
    """Evidence from halves [b, n, d] about one point per receiver, in few dimensions."""
    return Evidence(one @ one.mT, two @ two.mT, one @ two.mT, valid, valid & seats.judged, (one, two))


def _points(first: Inbox, second: Inbox) -> tuple[Tensor, Tensor] | None:
    if first.own.shape[1] > LIMITS.points_dim:
        return None
    origin = first.rows.origin
    return _about(first.rows.vectors, origin), _about(second.rows.vectors, origin)


def _cross(history: Sequence[Tensor], one: Tensor, two: Tensor) -> list[Tensor]:
    """Products of the update history of each kind with the mean of both halves."""
    middle = (one + two) / 2
    return [inner(kind, middle) for kind in history]


def _origin(one: Tensor, two: Tensor, origin: Tensor) -> Tensor:
    """<o, (x1 + x2) / 2 - o> of every row and the origin o, then |o|^2 [..., R + 1]."""
    rows = origin[..., None, :]
    along, square = (inner(vectors, rows).squeeze(-1) for vectors in ((one + two) / 2, rows))
    return torch.cat([along - square, square], -1)


def _about(vectors: Tensor, origin: Tensor) -> Tensor:
    return vectors.to(torch.float64) - origin.to(torch.float64)


def _pick(products: Tensor, rows: Tensor) -> Tensor:
    """Products [R, R] of common rows gathered per receiver [b, n, n]."""
    return products[rows[:, :, None], rows[:, None, :]]


def _pad(values: Tensor, size: int, dim: int = -2) -> Tensor:
    """Values with zeros up to `size` along the last or the second-last dimension."""
    missing = size - values.shape[dim]
    return torch.nn.functional.pad(values, (0, missing) if dim == -1 else (0, 0, 0, missing)) if missing else values


def _pad_origin(values: Tensor, size: int) -> Tensor:
    """Values of `_origin` [b, m + 1] with |o|^2 behind the padding [b, size + 1]."""
    return torch.cat([_pad(values[:, :-1], size, -1), values[:, -1:]], 1)


def _stack(batches: Sequence[Tensor], taken: Tensor) -> Tensor:
    """Products [b, m, m] of several batches of receivers in one stack, zero where no row is `taken` [b, n]."""
    size = taken.shape[1]
    products = torch.cat([_pad(_pad(batch, size, -1), size) for batch in batches])
    return products * (taken[:, :, None] & taken[:, None, :])
