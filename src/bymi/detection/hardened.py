"""The hardened verdict: the panel on what neighbours claim at two points, then a look at what they did."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.aggregation.base import SetRule
from bymi.core.linalg import VectorStack
from bymi.detection.detector import Detector, Verdict
from bymi.detection.evidence import Evidence, NeighbourIndex
from bymi.detection.half_gradients import HalfGradients, groups
from bymi.detection.monitoring import Watch
from bymi.detection.panel import Findings, hear
from bymi.detection.reasons import FIRM, HARD, reason_code
from bymi.detection.update_history import UpdateHistory
from bymi.detection.update_tests import claim_mismatch, drift_test

_FEW_ROUNDS = 10  # of fewer, one refused message says nothing
_MIDDLE = GeometricMedian(iterations=100, tolerance=1e-9)  # of deeds: their noise has no edge that is known


def judge_neighbours(
    receivers: Tensor,
    arcs: Tensor,
    nodes: Tensor,
    claims: HalfGradients,
    probed: HalfGradients | None,
    trail: UpdateHistory | None,
    suspended: Tensor,
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
    deeds = _UpdateTests(trail) if trail is not None and trail.rounds else None
    verdict = _blank(arcs)
    for some in groups(receivers):
        seats = NeighbourIndex.of(arcs, nodes, some)
        rows = None if deeds is None else deeds.rows(seats)
        out = seats.judged & torch.gather(suspended[some], 1, seats.at)
        evidence, crossed, moves = claims.before(seats, rows)
        evidence = evidence.without(out)
        found = _hear(evidence, detector, quiet=probed is None)
        asked = seats.judged & ~out
        code = torch.where(asked & ~evidence.judged, reason_code("not heard"), found.code)
        figure = found.figure
        guarded = found.guarded
        if probed is not None:
            there = probed.before(seats, None).evidence.without(out)
            more = _hear(there, detector, quiet=True)
            extra = torch.where(asked & ~there.judged, reason_code("not heard"), more.code)
            new = (code == 0) & (extra != 0)
            code, figure = torch.where(new, extra, code), torch.where(new, more.figure, figure)
            code, failed = _guard(code, asked, panel.guard)
            guarded = guarded | more.guarded | failed
        if deeds is not None:
            bounds = panel.wider(asked.sum(1, keepdim=True).to(torch.float64))
            noise = unasked * evidence.difference2 / 4
            seen = deeds.before(seats) if moves is None else moves
            code, figure, failed = deeds.judge(
                seats, asked, evidence, seen, crossed, noise, code, figure, watch, bounds, panel.guard
            )
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
        torch.isin(code, torch.tensor([reason_code(name) for name in names], dtype=code.dtype, device=code.device))
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


class _UpdateTests:
    """The trail of all nodes, ready to be looked at by groups of receivers."""

    def __init__(self, trail: UpdateHistory) -> None:
        assert trail.inbox is not None
        assert trail.refused is not None
        self._trail, self._inbox, self._refused, self._rounds = trail, trail.inbox, trail.refused, trail.rounds

    @cached_property
    def _rows(self) -> VectorStack:
        return VectorStack(self._trail.vectors())

    def before(self, seats: NeighbourIndex) -> Tensor:
        """Products of the deeds of each seat [b, n, n]."""
        return self._inbox.gram_among(self._rows, self.rows(seats))

    def rows(self, seats: NeighbourIndex) -> Tensor:
        """Which row of the trail's vectors each seat's deeds are [b, n]."""
        own = seats.taken & ~seats.judged
        count = len(self._inbox.messages)
        return torch.where(own, count + seats.receivers[:, None], seats.columns(self._inbox))

    def judge(
        self,
        seats: NeighbourIndex,
        asked: Tensor,
        claims: Evidence,
        trail: Tensor,
        crossed: Tensor | None,
        noise: Tensor,
        code: Tensor,
        figure: Tensor,
        watch: Watch,
        wider: Tensor,
        guard: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Codes and figures with tests on deeds, by their products `trail`, and whether the guard dropped these [b]."""
        before = code, figure
        counts = self._inbox.tallied(self._refused, seats.receivers, seats.places(self._inbox))
        refused = counts / max(_FEW_ROUNDS, self._rounds)
        far_out = asked & (refused > watch.fuse_share) & (code == 0)
        code, figure = torch.where(far_out, reason_code("fuse"), code), torch.where(far_out, refused.to(figure), figure)
        valid = (asked | (seats.taken & ~seats.judged)) & (code == 0)
        if watch.drift is not None:
            found, off = drift_test(trail, valid, valid & seats.judged, _MIDDLE, watch.drift * wider)
            code, figure = torch.where(found, reason_code("drift"), code), torch.where(found, off, figure)
            valid = valid & ~found
        if watch.deed is not None and crossed is not None:
            found, off = claim_mismatch(
                trail, claims.middle, crossed, noise, valid, valid & seats.judged, _MIDDLE, watch.deed * wider
            )
            code, figure = torch.where(found, reason_code("deed"), code), torch.where(found, off, figure)
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
