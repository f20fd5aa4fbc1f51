"""The hardened detection: the panel on half gradients at two points, then tests on the update history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.aggregation import GeometricMedian
from bymi.aggregation.base import SetRule, smallest
from bymi.core.linalg import VectorStack, norms
from bymi.core.message_validity import OVERFLOW
from bymi.core.performance_thresholds import LIMITS
from bymi.detection.detection_settings import Detector, Watch
from bymi.detection.duplicates import repeats
from bymi.detection.half_gradient_products import Evidence, NeighbourIndex
from bymi.detection.half_gradient_tests import Findings, hear
from bymi.detection.neighbour_half_gradients import HalfGradients, groups
from bymi.detection.robust_statistics import (
    centred,
    centred_diagonal,
    directions,
    log,
    median,
    robust_z,
    robust_z_above,
    uniform,
)
from bymi.detection.update_history import UpdateHistory, by_kind
from bymi.detection.verdict import CODES, FIRM, HARD, Verdict, has_reason

_COPY = 1e-3  # of the usual distance between update histories: the same history
_MOSTLY = 0.5  # least share of rounds far out that counts where data differ
_FEW_ROUNDS = 10  # least denominator of a share of rounds: one refused message means little
_MIDDLE = GeometricMedian(iterations=100, tolerance=1e-9)  # centre of update histories, whose noise edge is unknown


def judge_neighbours(
    receivers: Tensor,
    arcs: Tensor,
    nodes: Tensor,
    claims: HalfGradients,
    probed: HalfGradients | None,
    history: UpdateHistory | None,
    suspended: Tensor,
    detector: Detector,
    watch: Watch,
    unasked: float = 0.0,
) -> Verdict:
    """Verdict of the receivers [b], given by position, on all nodes that they can hear, arcs [B, M]; the first reason counts.

    Nodes `suspended` [B, M] are neither judged nor part of any estimate. `unasked`: share of a node's samples that half
    gradients do not cover.
    """
    panel = detector.panel
    assert panel is not None
    update_tests = _UpdateTests(history) if history is not None and history.rounds else None
    verdict = _blank(arcs)
    for group in groups(receivers):
        seats = NeighbourIndex.of(arcs, nodes, group)
        rows = None if update_tests is None else update_tests.rows(seats)
        excluded = seats.judged & torch.gather(suspended[group], 1, seats.at)
        evidence, origin, crossed, history_grams = claims.before(seats, rows)
        evidence = evidence.without(excluded)
        asked = seats.judged & ~excluded
        if probed is None:
            findings = _hear(evidence, detector, quiet=True)
            code, statistic, bound, guard_acted = findings.code, findings.statistic, findings.bound, findings.guard_acted
            code = torch.where(asked & ~evidence.judged, CODES["not heard"], code)
        else:
            probe_evidence = probed.before(seats, None).evidence.without(excluded)
            probe_findings = _hear(probe_evidence, detector, quiet=True)
            findings = _hear(evidence, detector, quiet=False, known_degree=probe_findings.degree)
            code, extra = (
                torch.where(asked & ~there.judged, CODES["not heard"], found.code)
                for there, found in ((evidence, findings), (probe_evidence, probe_findings))
            )
            new = (code == 0) & (extra != 0)
            code, statistic = torch.where(new, extra, code), torch.where(new, probe_findings.statistic, findings.statistic)
            bound = torch.where(new, probe_findings.bound, findings.bound)
            code, failed = _guard(code, asked, panel.guard)
            guard_acted = findings.guard_acted | probe_findings.guard_acted | failed
        alike = findings.degree <= (torch.inf if panel.mixed is None else panel.mixed)
        if update_tests is not None:
            wider = panel.wider(asked.sum(1, keepdim=True).to(torch.float64))
            noise, so_far = unasked * evidence.difference2 / 4, (code, statistic, bound)
            (code, statistic, bound), failed = update_tests.judge(
                seats, asked, evidence, history_grams, crossed, noise, alike, so_far, watch, wider, panel.guard
            )
            guard_acted = guard_acted | failed
        verdict.mean_claim[group] = _mean_claim(evidence, origin, code)
        seats.spread(code, verdict.reason)
        seats.spread(code != 0, verdict.flagged)
        seats.spread(findings.scores, verdict.scores)
        seats.spread(statistic, verdict.statistic)
        seats.spread(bound, verdict.bound)
        verdict.filtered_weight[group], verdict.guard_acted[group] = findings.filtered_weight, guard_acted
        verdict.pull[group] = findings.pull
        verdict.different[group] = ~alike.squeeze(1)
    return verdict


def _mean_claim(evidence: Evidence, origin: Tensor, code: Tensor) -> Tensor:
    """Length of the mean of the full gradients that neighbours which are not flagged claim, and of the own [b]."""
    weights = uniform(evidence.valid & (code == 0))
    about = (weights * (evidence.middle @ weights[:, :, None]).squeeze(2)).sum(1)
    return (about + 2 * (weights * origin[:, :-1]).sum(1) + origin[:, -1]).clamp_min(0.0).sqrt()


def _guard(code: Tensor, asked: Tensor, share: float | None) -> tuple[Tensor, Tensor]:
    """Reason codes after the guard over both points, and whether it acted [b].

    If both together flag more than a share of the nodes asked [b, n], one of the two estimates has failed: then only FIRM
    reasons stay. If these are too many as well, only HARD ones do.
    """
    limit = torch.inf if share is None else share

    def is_most(flagged: Tensor) -> Tensor:
        return flagged.sum(1, keepdim=True) > limit * asked.sum(1, keepdim=True)

    firm, hard = (has_reason(code, names) for names in (FIRM, HARD))
    failed = is_most(code != 0)
    kept = torch.where(is_most(firm), hard, firm)
    return torch.where(failed & ~kept, torch.zeros_like(code), code), failed.squeeze(1)


def _hear(evidence: Evidence, detector: Detector, *, quiet: bool, known_degree: Tensor | None = None) -> Findings:
    """Findings of the panel. `quiet`: whether too little noise is a reason.

    It is none at a receiver's own point if there is a probe: where a neural network fits all samples of an honest node, that
    node's gradients almost vanish.
    """
    assert detector.panel is not None
    assert isinstance(detector.centre, SetRule)
    panel = detector.panel if quiet else replace(detector.panel, low=None)
    level = {"fdr_level": detector.fdr_level, "offset": detector.offset}
    how = {"centre": detector.centre, "cross_fit": detector.cross_fit, "answers_differ": True}
    return hear(evidence, panel, **how, **level, known_degree=known_degree)  # type: ignore[arg-type]


class _UpdateTests:
    """The tests on the update history, for groups of receivers."""

    def __init__(self, history: UpdateHistory) -> None:
        assert history.inbox is not None
        assert history.refused is not None
        self._history, self._inbox, self._refused, self._rounds = history, history.inbox, history.refused, history.rounds

    @cached_property
    def _rows(self) -> list[VectorStack]:
        assert self._history.own is not None
        # A simulated Byzantine node that trains alone may overflow: its row must not become the origin of all products.
        kinds = [kind.contiguous() for kind in by_kind(self._history.vectors(), self._history.own.shape[2])]
        return [VectorStack(kind, norms(kind) < OVERFLOW) for kind in kinds]

    def rows(self, seats: NeighbourIndex) -> Tensor:
        """Row of each neighbour in the update history's vectors [b, n]."""
        own = seats.taken & ~seats.judged
        count = len(self._inbox.messages)
        return torch.where(own, count + seats.receivers[:, None], seats.columns(self._inbox))

    def judge(
        self,
        seats: NeighbourIndex,
        asked: Tensor,
        claims: Evidence,
        history_grams: Sequence[Tensor] | None,
        crossed: Sequence[Tensor] | None,
        noise: Tensor,
        alike: Tensor,
        so_far: tuple[Tensor, Tensor, Tensor],
        watch: Watch,
        wider: Tensor,
        guard: float | None,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Reason codes, statistics and bounds with tests on the update history, and whether the guard dropped these [b].

        `history_grams`: products of it [b, n, n] of each kind, if it came with the claims. `alike` [b, 1]: the neighbours' data
        are of one distribution. Otherwise the cloud of updates is wide by itself, and there is no test on joint shifts of it.
        """
        limit = (torch.inf if guard is None else guard) * asked.sum(1, keepdim=True)
        own = seats.taken & ~seats.judged
        failed = torch.zeros_like(limit, dtype=torch.bool)
        code, statistic, bounds = so_far

        def note(name: str, new: Tensor, z: Tensor, bound: Tensor, together: Tensor | None = None) -> None:
            """Add the flags of one test, unless that makes a majority: then this test has failed, not those before it.

            Rows below the bound were flagged with others, by the lower bound `together`.
            """
            nonlocal code, statistic, bounds, failed
            too_many = ((code != 0) | new).sum(1, keepdim=True) > limit
            failed = failed | (too_many & new.any(1, keepdim=True))
            new = new & (code == 0) & ~too_many
            code, statistic = torch.where(new, CODES[name], code), torch.where(new, z.to(statistic), statistic)
            bound = bound if together is None else torch.where(z > bound, bound, together)
            bounds = torch.where(new, bound.to(bounds), bounds)

        counts = self._inbox.tallied(self._refused, seats.receivers, seats.places(self._inbox))
        refused = counts / max(_FEW_ROUNDS, self._rounds)
        # Where data differ, so do models: an honest node is far out now and then, an attacker all the time.
        most = torch.where(alike, watch.fuse_share, max(watch.fuse_share, _MOSTLY))
        note("fuse", asked & (refused > most), refused, most)
        for kind in range(len(self._history.rates)):
            if history_grams is None:
                rows, at = self._rows[kind], self.rows(seats)
                products = self._inbox.gram_among(rows, at)
                points = rows.points(at) if rows.vectors.shape[1] <= LIMITS.points_dim else None
            else:
                products, points = history_grams[kind], None
            # Attackers that send one vector have one history: many at a point would draw the centre to them.
            alone = (asked | own) & ~repeats([products], asked | own, asked, _COPY)[0]

            def rows_of(alone: Tensor = alone) -> tuple[Tensor, Tensor]:
                """Rows for the estimates of the next test, and rows that it judges."""
                return alone & (code == 0), asked & (code == 0)

            def left() -> Tensor:
                return limit - (code != 0).sum(1, keepdim=True)

            if watch.drift is not None:
                bound = watch.drift * wider
                note("drift", *drift_test(products, *rows_of(), _MIDDLE, bound, left()), bound, _LOWER * bound)
            if watch.deed is not None and crossed is not None:
                matrices = products, claims.middle, crossed[kind], noise
                # A crowd that pushes together is no chance of few neighbours.
                bound, crowd = watch.deed * wider, _LOWER * watch.deed * torch.ones_like(wider)
                found = claim_mismatch(*matrices, *rows_of(), _MIDDLE, bound, crowd, left(), different=~alike)
                note("deed", *found, bound, torch.where(alike, crowd, _LONG_CROWD * bound))
            if watch.joint is not None:
                bound = watch.joint * wider
                flagged, z = joint_test(products, points, *rows_of(), bound, wider)
                note("joint update", flagged & alike, z, bound, _JOINT * wider)
        return (code, statistic, bounds), failed.squeeze(1)


def _blank(arcs: Tensor) -> Verdict:
    shape, device = arcs.shape, arcs.device
    return Verdict(
        scores=torch.full(shape, torch.nan, dtype=torch.float64, device=device),
        threshold=torch.full(shape[:1], torch.inf, dtype=torch.float64, device=device),
        flagged=torch.zeros(shape, dtype=torch.bool, device=device),
        reason=torch.zeros(shape, dtype=torch.int8, device=device),
        statistic=torch.full(shape, torch.nan, dtype=torch.float64, device=device),
        filtered_weight=torch.zeros(shape[0], dtype=torch.float64, device=device),
        guard_acted=torch.zeros(shape[0], dtype=torch.bool, device=device),
        pull=torch.full(shape[:1], torch.nan, dtype=torch.float64, device=device),
        mean_claim=torch.full(shape[:1], torch.nan, dtype=torch.float64, device=device),
        different=torch.zeros(shape[0], dtype=torch.bool, device=device),
        bound=torch.full(shape, torch.nan, dtype=torch.float64, device=device),
    )


# Tests on updates: the parameters that a neighbour sent, against those of others and against its claimed gradients.

_PASSES = 4
_STEPS = 4  # towards the half of the rows that lies closest together
_LONG = 1e100  # squared length of an update from which on a cloud of updates is scaled down
_CROWD, _LOWER = 0.1, 0.65  # where a tenth of all, at least four, are off together, 0.65 of the bound is enough
_EXPLAINED = 4.0  # residuals below this times the noise of a claim are explained by it
_LEAST = 0.35  # least spread of the logarithm of residuals
_DIRECTIONS = 3
_FEW = 15  # neighbours below which a crowd cannot be told from chance
_JOINT = 2.5  # deviations from which on a row may belong to a crowd, and by which one side must outnumber the other
_LONG_CROWD, _LONG_UPDATE = 0.5, 1.6  # where data differ: share of the bound for a crowd with updates so many times the usual
_IN_COMMON = 0.5  # share of the squared residuals of a crowd that is their mean's
_LEAST_ANSWER, _MOST_ANSWER = 0.7, 2.0  # multiples of its claimed gradient by which a node differs from the others
_FOLLOWED = 0.5  # usual multiple from which on nodes follow their claims


def drift_test(
    history_gram: Tensor, valid: Tensor, judged: Tensor, centre: SetRule, bound: Tensor, most: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rows whose parameters were far off for long [b, n], and their robust z of log |q - c|^2 [b, n].

    `history_gram` [b, n, n]: products of q_j, the mean of theta_j over a window of rounds over that of the step sizes. An
    honest node differs from the others by about its own gradient, at every step size. `most` [b, 1]: how many rows may be
    flagged; a pass that would flag more is the last, and counts for nothing.
    """
    flagged = torch.zeros_like(valid)
    z = torch.zeros_like(history_gram[:, 0])
    for _ in range(_PASSES):
        weights = centre.weights(history_gram, valid & ~flagged)
        z = robust_z(log(centred_diagonal(history_gram, weights)), valid & ~flagged)
        new = _up_to(most, flagged, judged & (z > _lowered(z, judged & ~flagged, bound)) & ~flagged)
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


def claim_mismatch(
    history_gram: Tensor,
    claims: Tensor,
    both: Tensor,
    noise: Tensor,
    valid: Tensor,
    judged: Tensor,
    centre: SetRule,
    bound: Tensor,
    crowd_bound: Tensor,
    most: Tensor | None = None,
    *,
    different: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows whose updates do not follow from their claimed gradients [b, n], and their robust z of log |residual|^2 [b, n].

    A node that uses the gradient g_j it claims is off by about -g_j (less the mean), or by less where its messages were
    clipped. `claims`: products of the g_j; `both`: products <q_r, g_s>. Residual: q_j + kappa g_j about the centres, with the
    best kappa up to `_MOST_ANSWER`. `noise` [b, n]: error of |g_j|^2 where g_j covers part of the samples only; a residual
    that it explains is not flagged.

    kappa |g_j| is at least 0.7 of |g_j|, or of the usual claim's length if g_j is longer: clipping leaves an update as long as
    usual. A row whose best kappa is less is detached from its claim; many of them at the centre narrow the spread by which
    `joint_test` measures all others. Where data are `different` [b, 1], or the usual kappa is at most a half, kappa is from 0:
    claims about few samples are mostly noise, and nobody follows them.

    First a crowd that pushes together: a tenth of all rows and at least four, beyond `crowd_bound` [b, 1], with more than half
    of their residuals in common. They are measured about the majority of the q_j + g_j, and by its spread, which a minority
    does not change. Honest nodes that attackers have led astray are many, too, but each goes its own way, and follows its
    gradient as well; so as many detached rows are also a crowd. Then single rows beyond `bound` [b, 1], about the centre of
    the q_j: about a sharper centre misled nodes would stand out.

    Where data are different, attackers need not push together to be a crowd: half of the bound is enough for a tenth of all
    rows, at least four, whose updates are 1.6 times as long as usual. Honest updates are hardly ever so long in numbers.
    """

    def residuals(weights: Tensor, among: Tensor, usual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z of residuals, whether the noise of a claim does not explain them, which rows are detached, and |q_j|^2 [b, n]."""
        update, claim, pair = (centred_diagonal(matrix, weights) for matrix in (history_gram, claims, both))
        square = claim.clamp_min(1e-300)
        best, least = -pair / square, _LEAST_ANSWER * (median(square, among) / square).clamp_max(1.0).sqrt()
        followed = median(best, among) > _FOLLOWED
        if different is not None:
            followed = followed & ~different
        kappa = torch.maximum(best, torch.where(followed, least, 0.0)).clamp_max(_MOST_ANSWER)
        residual = update + 2 * kappa * pair + kappa.square() * claim
        z = robust_z_above(log(residual), among, usual, _LEAST)
        unexplained = judged & among & (residual > _EXPLAINED * kappa.square() * noise)
        return z, unexplained, unexplained & followed & (best < least), update

    weights = centre.weights(history_gram, valid)
    majority = _majority(history_gram, claims, both, valid, weights)
    z, unexplained, detached, _ = residuals(majority, valid, majority > 0)
    crowd, detached = (_if_many(rows & (z > crowd_bound), judged) for rows in (unexplained, detached))
    if bool(crowd.any()):
        crowd = crowd & _one_way(history_gram, claims, both, majority, crowd)
    flagged = _up_to(most, torch.zeros_like(valid), crowd | detached)
    for number in range(_PASSES):
        if number or bool(flagged.any()):
            weights = centre.weights(history_gram, valid & ~flagged)
        among = valid & ~flagged
        now, unexplained, _, update = residuals(weights, among, among)
        z = torch.where(flagged, z, now)
        off = unexplained & (now > bound)
        if different is not None:
            long = unexplained & different & (now > _LONG_CROWD * bound) & (update > _LONG_UPDATE**2 * median(update, among))
            off = off | (long & ((flagged | long).sum(1, keepdim=True) >= _least_crowd(judged)))
        new = _up_to(most, flagged, off)
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


def _one_way(history_gram: Tensor, claims: Tensor, both: Tensor, centre: Tensor, rows: Tensor) -> Tensor:
    """Whether the q_j + g_j of `rows` [b, n], about a centre with these weights, are for the most part their mean [b, 1]."""
    products = centred(_answered(history_gram, claims, both), centre)
    share = uniform(rows)
    mean = (share * (products @ share[:, :, None]).squeeze(2)).sum(1, keepdim=True)
    return mean > _IN_COMMON * (share * products.diagonal(dim1=1, dim2=2)).sum(1, keepdim=True)


def _answered(history_gram: Tensor, claims: Tensor, both: Tensor) -> Tensor:
    """Products of the q_j + g_j [b, n, n]."""
    return (history_gram + both).add_(both.mT).add_(claims)


def _majority(history_gram: Tensor, claims: Tensor, both: Tensor, valid: Tensor, weights: Tensor) -> Tensor:
    """Weights [b, n] of the mean of that half of the valid rows which is nearest to it, from the centre with `weights` on.

    Rows are the q_j + g_j or, where these lie closer together, the q_j. A minority that lies elsewhere pulls a geometric median
    as long as it outweighs the noise of the others; this mean it does not enter.
    """
    residuals, half = _answered(history_gram, claims, both), valid.sum(1, keepdim=True) // 2 + 1
    usual = [median(centred_diagonal(cloud, uniform(valid)), valid) for cloud in (history_gram, residuals)]
    cloud = torch.where((usual[1] < usual[0])[:, :, None], residuals, history_gram)
    for _ in range(_STEPS):
        weights = uniform(smallest(centred_diagonal(cloud, weights), valid, half))
    return weights


def joint_test(
    history_gram: Tensor, points: Tensor | None, valid: Tensor, judged: Tensor, bound: Tensor, wider: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows whose updates are shifted along one direction [b, n], alone or together with others, and their largest |z| [b, n].

    What is left of an update in its receiver is its harm, whatever was claimed. The directions are those in which the cloud of
    updates is widest; a row's own part in a direction is left out of its coordinate along it, or one long row would make its
    own direction. z is in spreads between nodes. Flagged are rows beyond `bound` [b, 1] and, where one side outnumbers the
    other by more than chance (a sign test), rows of that crowd: beyond 2.5 `wider` and 0.65 of its median. The other side is no
    count of false flags, since Byzantine nodes could stand there. `points` [b, n, d]: the same rows, in few dimensions.
    """
    history_gram, points, valid = _bounded(history_gram, points, valid)
    judged = judged & valid
    flagged, largest = torch.zeros_like(valid), torch.zeros_like(history_gram[:, 0])
    weights, enough = uniform(valid), judged.sum(1, keepdim=True) >= _FEW
    about = centred(history_gram, weights)
    own = about.diagonal(dim1=1, dim2=2)
    for _, combination in directions(history_gram, points, weights, _DIRECTIONS):
        along = (about @ combination[:, :, None]).squeeze(2) - combination * own
        z = robust_z(along, valid)
        far = _JOINT * wider
        up, down = ((judged & (side > far)).sum(1, keepdim=True) for side in (z, -z))
        side = torch.where(up >= down, 1.0, -1.0).to(z)
        crowded = (up - down).abs() > _JOINT * (up + down).sqrt()
        crowd = judged & (side * z > far)
        least = torch.maximum(far, _LOWER * median(side * z, crowd).nan_to_num(torch.inf))
        flagged = flagged | (enough & judged & ((z.abs() > bound) | (crowded & (side * z > least))))
        largest = torch.maximum(largest, z.abs().nan_to_num(0.0))
    return flagged, largest


def _bounded(gram: Tensor, points: Tensor | None, valid: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Products and points with finite squares: rows that overflow are not valid and zero, long clouds are scaled down."""
    lengths = gram.diagonal(dim1=1, dim2=2)
    if bool((lengths <= _LONG).all()):  # nearly always
        return gram, points, valid
    valid = valid & lengths.isfinite()
    longest = torch.where(valid, lengths, 0.0).amax(1, keepdim=True)
    factor = torch.where(longest > _LONG, longest, 1.0)
    gram = torch.where(valid[:, :, None] & valid[:, None, :], gram, 0.0) / factor[:, :, None]
    return gram, None if points is None else torch.where(valid[:, :, None], points, 0.0) / factor.sqrt()[:, :, None], valid


def _up_to(most: Tensor | None, flagged: Tensor, new: Tensor) -> Tensor:
    """New flags [b, n], none where these and the earlier ones would be more than `most` [b, 1]."""
    return new if most is None else new & ((flagged | new).sum(1, keepdim=True) <= most)


def _lowered(z: Tensor, judged: Tensor, bound: Tensor) -> Tensor:
    """The bound [b, 1], lower where many rows are off: these widen the spread by which each is measured."""
    beyond = (judged & (z > _LOWER * bound)).sum(1, keepdim=True)
    return torch.where(beyond >= _least_crowd(judged), _LOWER * bound, bound)


def _if_many(rows: Tensor, judged: Tensor) -> Tensor:
    """Rows [b, n], none where they are no crowd."""
    return rows & (rows.sum(1, keepdim=True) >= _least_crowd(judged))


def _least_crowd(judged: Tensor) -> Tensor:
    """Number of rows [b, 1] from which on they are a crowd."""
    return (_CROWD * judged.sum(1, keepdim=True)).clamp_min(4)
