"""The hardened verdict: the panel on what neighbours claim at two points, then a look at what they did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.aggregation.base import SetRule
from bymi.detection.aside import Aside
from bymi.detection.deeds import belying, drifting
from bymi.detection.evidence import Evidence, Seats, pick, stack, stack_rows
from bymi.detection.identify import Detector, Verdict
from bymi.detection.panel import Findings, hear
from bymi.detection.reasons import FIRM, HARD, reason
from bymi.detection.spectrum import FEW_DIMENSIONS
from bymi.detection.trail import Trail
from bymi.detection.watch import Watch
from bymi.inbox import Inbox
from bymi.lists import Table
from bymi.network import Replies
from bymi.vectors import Rows, inner, inner_of_both, inner_of_sets, midst

_FEW_ROUNDS = 10  # of fewer, one refused message says nothing
_RECEIVERS = 128  # whose products are held at a time
_MIDDLE = GeometricMedian(iterations=100, tolerance=1e-9)  # of deeds: their noise has no edge that is known


class Claims:
    """Half gradients that neighbours sent of their own accord, the same to all."""

    def __init__(self, first: Inbox, second: Inbox, deeds: Tensor | None = None) -> None:
        self._first, self._second, self._deeds = first, second, deeds

    def before(self, seats: Seats, rows: Tensor | None) -> tuple[Evidence, Tensor | None]:
        """Evidence, and products <q, (x1 + x2) / 2> [b, n, n] if deeds are known: `rows` [b, n] has those of each seat."""
        at, there = seats.rows(self._first)
        if self._first.lists is not None:
            return self._before_few(at, there, seats, rows)
        if self._points is not None:
            evidence = _from_points(self._points[0][at], self._points[1][at], there, seats)
        else:
            first, second, cross = (pick(products, at) for products in self._products)
            evidence = Evidence(first, second, cross, there, there & seats.judged)
        if self._deeds is None or rows is None:
            return evidence, None
        return evidence, self._crossed[rows[:, :, None], at[:, None, :]]

    def _before_few(self, at: Tensor, there: Tensor, seats: Seats, rows: Tensor | None) -> tuple[Evidence, Tensor | None]:
        """The same where each receiver has few of all rows before it: products of these alone."""
        one, two, origin = self._first.rows, self._second.rows, self._first.rows.origin
        second = inner_of_sets(two.vectors, at, two.vectors, at, origin)
        cross = inner_of_sets(one.vectors, at, two.vectors, at, origin)
        points = None
        if self._first.own.shape[1] <= FEW_DIMENSIONS:
            points = one.points(at), _about(two.vectors[at], origin)
        evidence = Evidence(one.among(at), second, cross, there, there & seats.judged, points)
        if self._deeds is None or rows is None:
            return evidence, None
        parts = [inner_of_sets(self._deeds, rows, half.vectors, at, torch.zeros_like(origin)) for half in (one, two)]
        return evidence, (parts[0] + parts[1]) / 2

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


class Answers:
    """Half gradients at each receiver's own point: its neighbours' and, last, its own. Walked through once, in order."""

    def __init__(self, replies: Iterator[Replies], deeds: Tensor | None = None) -> None:
        self._replies, self._deeds = replies, deeds

    def before(self, seats: Seats, rows: Tensor | None) -> tuple[Evidence, Tensor | None]:
        there = torch.zeros_like(seats.taken)
        deeds, size = None if rows is None else self._deeds, seats.taken.shape[1]
        halves: dict[int, tuple[Tensor, Tensor]] = {}
        products: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        crossed: dict[int, Tensor] = {}

        def read(place: int, reply: Replies) -> None:
            first, second = reply.read()
            there[place, : len(reply.senders)] = first.heard[0]
            there[place, len(reply.senders)] = True  # its own
            if len(reply.point) <= FEW_DIMENSIONS:
                halves[place] = first.rows.vectors, second.rows.vectors
                return
            products[place] = _multiply(first, second)
            if deeds is not None and rows is not None:
                crossed[place] = _cross(deeds[rows[place, : len(reply.senders) + 1]], first, second)

        with Aside() as aside:
            for place, reply in enumerate(islice(self._replies, len(seats.receivers))):
                numbers = len(reply.senders) * len(reply.point)
                aside(partial(read, place, reply), numbers=numbers, device=reply.point.device)
        if not halves:
            one, two, cross = (stack([products[place][part] for place in sorted(products)], size) for part in range(3))
            with_deeds = stack([crossed[place] for place in sorted(crossed)], size) if crossed else None
            return Evidence(one, two, cross, there, there & seats.judged), with_deeds
        one, two = (stack_rows([halves[place][half] for place in sorted(halves)], size).to(torch.float64) for half in range(2))
        origin, taken = midst(one, there)[:, None], seats.taken[:, :, None]
        evidence = _from_points((one - origin) * taken, (two - origin) * taken, there, seats)
        if deeds is None or rows is None:
            return evidence, None
        return evidence, (deeds[rows].to(torch.float64) * taken) @ ((one + two) / 2).mT


def _from_points(one: Tensor, two: Tensor, there: Tensor, seats: Seats) -> Evidence:
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


def sit(
    receivers: Tensor,
    arcs: Tensor,
    nodes: Tensor,
    claims: Answers | Claims,
    probed: Claims | None,
    trail: Trail | None,
    serving: Tensor,
    detector: Detector,
    watch: Watch,
    unasked: float = 0.0,
) -> Verdict:
    """The receivers [b], given by place, judge all whom they can hear, arcs [B, M]; the first reason found counts.

    Whoever is `serving` [B, M] time is neither judged nor part of any estimate. `unasked`: the share of a node's samples that
    no claim is about.
    """
    panel = detector.panel
    assert panel is not None
    deeds = _Deeds(trail) if trail is not None and trail.rounds else None
    verdict = _blank(arcs)
    for some in receivers.split(_RECEIVERS) if len(receivers) else ():
        seats = Seats.of(arcs, nodes, some)
        rows = None if deeds is None else deeds.rows(seats)
        out = seats.judged & torch.gather(serving[some], 1, seats.at)
        evidence, crossed = claims.before(seats, rows)
        evidence = evidence.without(out)
        found = _hear(evidence, detector, quiet=probed is None)
        asked = seats.judged & ~out
        code = torch.where(asked & ~evidence.judged, reason("not heard"), found.code)
        figure = found.figure
        guarded = found.guarded
        if probed is not None:
            there = probed.before(seats, None)[0].without(out)
            more = _hear(there, detector, quiet=True)
            extra = torch.where(asked & ~there.judged, reason("not heard"), more.code)
            new = (code == 0) & (extra != 0)
            code, figure = torch.where(new, extra, code), torch.where(new, more.figure, figure)
            code, failed = _guard(code, asked, panel.guard)
            guarded = guarded | more.guarded | failed
        if deeds is not None:
            bounds = panel.wider(asked.sum(1, keepdim=True).to(torch.float64))
            noise = unasked * evidence.difference2 / 4
            code, figure, failed = deeds.judge(seats, asked, evidence, crossed, noise, code, figure, watch, bounds, panel.guard)
            guarded = guarded | failed
        seats.spread(code, verdict.why)
        seats.spread(code != 0, verdict.flagged)
        seats.spread(found.scores, verdict.scores)
        seats.spread(figure, verdict.figure)
        verdict.taken[some], verdict.guarded[some] = found.taken, guarded
    return verdict


def _guard(code: Tensor, asked: Tensor, share: float | None) -> tuple[Tensor, Tensor]:
    """Both points together: if they flag a majority of those asked [b, n], one of the two estimates has failed.

    Then what stands far beyond any bound stays. If that is a majority, too, only what needs no centre does.
    """
    limit = torch.inf if share is None else share

    def is_most(flagged: Tensor) -> Tensor:
        return flagged.sum(1, keepdim=True) > limit * asked.sum(1, keepdim=True)

    firm, hard = (
        torch.isin(code, torch.tensor([reason(name) for name in names], dtype=code.dtype, device=code.device))
        for names in (FIRM, HARD)
    )
    failed = is_most(code != 0)
    stays = torch.where(is_most(firm), hard, firm)
    return torch.where(failed & ~stays, torch.zeros_like(code), code), failed.squeeze(1)


def _hear(evidence: Evidence, detector: Detector, *, quiet: bool) -> Findings:
    """`quiet`: whether too little noise is held against a neighbour. Not at a receiver's own point if there is a probe: where a
    network fits all samples of a good node, that node's gradients are next to nothing.
    """
    assert detector.panel is not None
    assert isinstance(detector.centre, SetRule)
    panel = detector.panel if quiet else replace(detector.panel, low=None)
    how = {"fdr_level": detector.fdr_level, "offset": detector.offset}
    return hear(evidence, panel, centre=detector.centre, cross_fit=detector.cross_fit, **how)  # type: ignore[arg-type]


class _Deeds:
    """The trail of all nodes, ready to be looked at by groups of receivers."""

    def __init__(self, trail: Trail) -> None:
        assert trail.inbox is not None
        assert trail.refused is not None
        self.vectors = trail.vectors()
        self._inbox, self._refused, self._rounds = trail.inbox, trail.refused, trail.rounds
        self._rows = Rows(self.vectors)

    def rows(self, seats: Seats) -> Tensor:
        """Which row of `vectors` each seat's deeds are [b, n]."""
        own = seats.taken & ~seats.judged
        count = len(self._inbox.messages)
        return torch.where(own, count + seats.receivers[:, None], seats.columns(self._inbox))

    def judge(
        self,
        seats: Seats,
        asked: Tensor,
        claims: Evidence,
        crossed: Tensor | None,
        noise: Tensor,
        code: Tensor,
        figure: Tensor,
        watch: Watch,
        wider: Tensor,
        guard: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Codes and figures with those of the tests on deeds, and whether the guard dropped these [b]."""
        rows, before = self.rows(seats), (code, figure)
        by_place = self._inbox.lists is not None and not isinstance(self._inbox.lists, Table)
        places = seats.at if by_place else seats.columns(self._inbox)
        refused = torch.gather(self._refused[seats.receivers], 1, places) / max(_FEW_ROUNDS, self._rounds)
        blown = asked & (refused > watch.fuse_share) & (code == 0)
        code, figure = torch.where(blown, reason("fuse"), code), torch.where(blown, refused.to(figure), figure)
        trail = pick(self._rows.gram, rows) if self._inbox.lists is None else self._rows.among(rows)
        valid = (asked | (seats.taken & ~seats.judged)) & (code == 0)
        if watch.drift is not None:
            found, off = drifting(trail, valid, valid & seats.judged, _MIDDLE, watch.drift * wider)
            code, figure = torch.where(found, reason("drift"), code), torch.where(found, off, figure)
            valid = valid & ~found
        if watch.deed is not None and crossed is not None:
            found, off = belying(trail, claims.middle, crossed, noise, valid, valid & seats.judged, _MIDDLE, watch.deed * wider)
            code, figure = torch.where(found, reason("deed"), code), torch.where(found, off, figure)
        share = torch.inf if guard is None else guard
        failed = (code != 0).sum(1, keepdim=True) > share * asked.sum(1, keepdim=True)
        return torch.where(failed, before[0], code), torch.where(failed, before[1], figure), failed.squeeze(1)


def _blank(arcs: Tensor) -> Verdict:
    shape, device = arcs.shape, arcs.device
    return Verdict(
        scores=torch.full(shape, torch.nan, dtype=torch.float64, device=device),
        threshold=torch.full(shape[:1], torch.inf, dtype=torch.float64, device=device),
        flagged=torch.zeros(shape, dtype=torch.bool, device=device),
        why=torch.zeros(shape, dtype=torch.int8, device=device),
        figure=torch.full(shape, torch.nan, dtype=torch.float64, device=device),
        taken=torch.zeros(shape[0], dtype=torch.float64, device=device),
        guarded=torch.zeros(shape[0], dtype=torch.bool, device=device),
    )
