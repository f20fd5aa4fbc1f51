"""Verdicts from answers at the receiver's own point: every receiver has a cloud of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.detection.identify import Detector, Verdict
from bymi.detection.products import Products, multiply, weigh
from bymi.detection.reasons import REASONS
from bymi.staying import Replies
from bymi.vectors import inner

_RECEIVERS = 256  # whose products are held at a time


@dataclass(frozen=True, eq=False)
class _Cloud:
    """What is left of the replies to one receiver: those heard and itself (last), by their products."""

    receiver: int
    senders: Tensor  # [J]
    heard: Tensor  # [J] bool
    member: Tensor  # [J + 1] bool
    gram: Tensor  # [J + 1, J + 1] of the first halves
    cross: Tensor  # [J + 1, J + 1] of first and second halves
    products: Products | None  # with a centre that is no weighted mean, which needs the vectors


def identify_asked(replies: Iterable[Replies], detector: Detector, arcs: Tensor) -> Verdict:
    """Every receiver judges those whom it asked, from the first and second halves that they returned at its own point.

    `arcs` [B, J] says who hears whom. The receiver's own halves, taken at the same point, enter the robust mean and are
    never judged. Good neighbours differ by the noise of their samples only, however far apart the models are.
    """
    shape, device = arcs.shape, arcs.device
    scores = torch.full(shape, torch.nan, dtype=torch.float64, device=device)
    limit = torch.full(shape[:1], torch.inf, dtype=torch.float64, device=device)
    flagged = torch.zeros(shape, dtype=torch.bool, device=device)
    why = torch.zeros(shape, dtype=torch.int8, device=device)
    walk = iter(replies)
    while clouds := [_condense(reply, detector) for reply in islice(walk, _RECEIVERS)]:
        found = [detector.scale.scores(*pair)[0, :-1] for pair in _centred(clouds, detector)]
        judged = _pad([cloud.heard for cloud in clouds], False)
        some = _pad(found, 0.0)
        limits = detector.threshold(some, judged, fdr_level=detector.fdr_level, offset=detector.offset)
        for cloud, score, bound in zip(clouds, found, limits, strict=True):
            row, columns, heard = cloud.receiver, cloud.senders, cloud.heard
            by_score = heard & (score >= bound)
            scores[row, columns] = torch.where(heard, score, torch.nan)
            limit[row] = bound
            flagged[row, columns] = by_score | ~heard
            why[row, columns] = torch.where(heard, by_score.to(torch.int8), REASONS.index("not heard")).to(torch.int8)
    return Verdict(scores, limit, flagged, why)


def _condense(reply: Replies, detector: Detector) -> _Cloud:
    """From vectors [J + 1, D] to products [J + 1, J + 1]."""
    first, second = reply.read()
    rows, member, heard = first.rows, first.member, first.heard[0]
    products = None
    if isinstance(detector.centre, SetRule):
        cross = inner(rows.vectors, second.rows.vectors, rows.origin)
    else:
        products = multiply(rows, second.rows, member, detector.centre, cross_fit=False)
        cross = products.first_second
    return _Cloud(reply.receiver, reply.senders, heard, member[0], rows.gram, cross, products)


def _centred(clouds: list[_Cloud], detector: Detector) -> Iterator[tuple[Products, Tensor]]:
    """Products with the centre of each cloud, and its members [1, J + 1]. Robust means are found for all clouds at once."""
    centre = detector.centre
    weights = None
    if isinstance(centre, SetRule):
        weights = centre.weights(_pad_square([cloud.gram for cloud in clouds]), _pad([cloud.member for cloud in clouds], False))
    for place, cloud in enumerate(clouds):
        member = cloud.member[None]
        if cloud.products is not None or weights is None:
            assert cloud.products is not None
            yield cloud.products, member
        else:
            own = weights[place : place + 1, : len(cloud.member)]
            yield weigh(cloud.gram, cloud.cross, own, cross_fit=detector.cross_fit), member


def _pad(rows: list[Tensor], value: float | bool) -> Tensor:
    """Rows of different length as one matrix."""
    output = rows[0].new_full((len(rows), max(len(row) for row in rows)), value)
    for place, row in enumerate(rows):
        output[place, : len(row)] = row
    return output


def _pad_square(matrices: list[Tensor]) -> Tensor:
    """Square matrices of different size as one stack, zero around them."""
    size = max(len(matrix) for matrix in matrices)
    output = matrices[0].new_zeros(len(matrices), size, size)
    for place, matrix in enumerate(matrices):
        output[place, : len(matrix), : len(matrix)] = matrix
    return output
