"""The published detection: scores about a robust mean, and one threshold per receiver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.core.dense_inbox import DenseInbox
from bymi.core.inbox import Inbox
from bymi.core.linalg import inner
from bymi.core.list_inbox import ListInbox
from bymi.core.network import NeighbourhoodReply
from bymi.core.performance_thresholds import LIMITS
from bymi.detection.detection_settings import Detector
from bymi.detection.published_score import Products, multiply, multiply_sets, weigh
from bymi.detection.verdict import CODES, Verdict


@dataclass(frozen=True, eq=False)
class _Cloud:
    """Products of the replies to one receiver: rows of the nodes asked, then its own."""

    receiver: int
    senders: Tensor  # [J]
    heard: Tensor  # [J] bool
    member: Tensor  # [J + 1] bool
    gram: Tensor  # [J + 1, J + 1] of the first halves
    cross: Tensor  # [J + 1, J + 1] of first and second halves
    products: Products | None  # set if the centre is not a weighted mean, and so needs the vectors


def identify_neighbours(first: Inbox, second: Inbox, detector: Detector) -> Verdict:
    """Verdict of every receiver on the senders it heard; its own first half enters the robust mean and is never judged.

    The two inboxes come from one exchange, so that their rows line up.
    """
    return _judge(first.paired(second, _Scores(detector)), detector, first.expected)


def judge_replies(replies: Iterator[NeighbourhoodReply], detector: Detector, arcs: Tensor) -> Verdict:
    """Verdict of every receiver on the nodes it asked, from both halves returned at its own point.

    `arcs` [B, J]: who hears whom. The receiver's own halves, taken at the same point, enter the robust mean and are never
    judged. Honest neighbours differ by the noise of their samples only, however far apart the models are.
    """
    return _judge(_Scores(detector).replies(replies), detector, arcs)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the neighbours of b receivers, padded to n places."""

    receivers: Tensor  # [b]
    columns: Tensor  # [b, n] column of the verdict of each place
    expected: Tensor  # [b, n] bool: neighbours
    judged: Tensor  # [b, n] bool: neighbours that were heard
    scores: Tensor  # [b, n] float64


def _judge(batches: Iterable[Scored], detector: Detector, arcs: Tensor) -> Verdict:
    """The verdict over arcs [B, J]: scores at or above the threshold are flagged, and so are nodes not heard."""
    shape, device = arcs.shape, arcs.device
    scores = torch.full(shape, torch.nan, dtype=torch.float64, device=device)
    limit = torch.full(shape[:1], torch.inf, dtype=torch.float64, device=device)
    flagged = torch.zeros(shape, dtype=torch.bool, device=device)
    reason = torch.zeros(shape, dtype=torch.int8, device=device)
    for batch in batches:
        bound = detector.threshold(batch.scores, batch.judged, fdr_level=detector.fdr_level, offset=detector.offset)
        limit[batch.receivers] = bound
        by_score = batch.judged & (batch.scores >= bound[:, None])
        codes = torch.where(batch.judged, by_score.to(torch.int8), CODES["not heard"]).to(torch.int8)
        row, place = batch.expected.nonzero(as_tuple=True)
        target = batch.receivers[row], batch.columns[row, place]
        scores[target] = torch.where(batch.judged, batch.scores, torch.nan)[row, place]
        flagged[target] = (by_score | ~batch.judged)[row, place]
        reason[target] = codes[row, place]
    return Verdict(scores, limit, flagged, reason)


@dataclass(frozen=True)
class _Scores:
    """Scores of all receivers, one method per representation: each has its own order of sums."""

    how: Detector

    def common(self, first: DenseInbox, second: DenseInbox) -> Iterator[Scored]:
        member, count = first.member, first.heard.shape[1]
        products = multiply(first.rows, second.rows, member, self.how.centre, cross_fit=self.how.cross_fit)
        scores = self.how.scale.scores(products, member)
        expected, judged = (
            torch.nn.functional.pad(mask, (0, member.shape[1] - count)).contiguous() for mask in (first.expected, first.heard)
        )
        receivers, columns = (torch.arange(size, device=member.device) for size in member.shape)
        yield Scored(receivers, columns.expand_as(member), expected, judged, scores)

    def lists(self, first: ListInbox, second: ListInbox) -> Iterator[Scored]:
        how = self.how
        for hood in first.neighbourhoods("nothing"):
            assert hood.index is not None
            assert isinstance(hood.receivers, Tensor)
            products = multiply_sets(first.rows, second.rows, hood.index, hood.valid, how.centre, cross_fit=how.cross_fit)
            judged = hood.valid[:, :-1]
            expected = first.expected[hood.receivers, : judged.shape[1]]
            columns = torch.arange(judged.shape[1], device=judged.device).expand_as(judged)
            yield Scored(hood.receivers, columns, expected, judged, how.scale.scores(products, hood.valid)[:, :-1])

    def replies(self, replies: Iterator[NeighbourhoodReply]) -> Iterator[Scored]:
        how = self.how
        while clouds := [_condense(reply, how) for reply in islice(replies, LIMITS.published_receivers)]:
            scores = _pad([how.scale.scores(*pair)[0, :-1] for pair in _centred(clouds, how)], 0.0)
            judged = _pad([cloud.heard for cloud in clouds], False)
            expected = _pad([torch.ones_like(cloud.heard) for cloud in clouds], False)
            receivers = torch.tensor([cloud.receiver for cloud in clouds], device=judged.device)
            yield Scored(receivers, _pad([cloud.senders for cloud in clouds], 0), expected, judged, scores)


def _condense(reply: NeighbourhoodReply, detector: Detector) -> _Cloud:
    """The cloud of one receiver: products [J + 1, J + 1] from vectors [J + 1, D]."""
    first, second = reply.read()
    rows, member, heard = first.rows, next(first.neighbourhoods("nothing")).valid, first.heard[0]
    products = None
    if isinstance(detector.centre, SetRule):
        cross = inner(rows.vectors, second.rows.vectors, rows.origin)
    else:
        products = multiply(rows, second.rows, member, detector.centre, cross_fit=False)
        cross = products.first_second
    return _Cloud(reply.receiver, reply.senders, heard, member[0], rows.gram, cross, products)


def _centred(clouds: list[_Cloud], detector: Detector) -> Iterator[tuple[Products, Tensor]]:
    """Products with the centre of each cloud, and its members [1, J + 1]. Robust means of all clouds are found in one batch."""
    centre = detector.centre
    weights = None
    if isinstance(centre, SetRule):
        weights = centre.weights(_pad_square([cloud.gram for cloud in clouds]), _pad([cloud.member for cloud in clouds], False))
    for position, cloud in enumerate(clouds):
        member = cloud.member[None]
        if cloud.products is not None or weights is None:
            assert cloud.products is not None
            yield cloud.products, member
        else:
            own = weights[position : position + 1, : len(cloud.member)]
            yield weigh(cloud.gram, cloud.cross, own, cross_fit=detector.cross_fit), member


def _pad(rows: list[Tensor], value: float | bool) -> Tensor:
    """Rows of different lengths as one matrix, padded with `value`."""
    output = rows[0].new_full((len(rows), max(len(row) for row in rows)), value)
    for position, row in enumerate(rows):
        output[position, : len(row)] = row
    return output


def _pad_square(matrices: list[Tensor]) -> Tensor:
    """Square matrices of different sizes as one stack, padded with zeros."""
    size = max(len(matrix) for matrix in matrices)
    output = matrices[0].new_zeros(len(matrices), size, size)
    for position, matrix in enumerate(matrices):
        output[position, : len(matrix), : len(matrix)] = matrix
    return output
