"""The test against many small shifts in one direction, each too small for its own score."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.noise_edge import Centre
from bymi.detection.robust_statistics import median, spread
from bymi.detection.spectrum import directions, uniform
from bymi.detection.threshold import threshold

_DIRECTIONS = 3
_NOTHING = 1e-12  # of a direction's variance: with less noise, z is undefined


def shifted(
    evidence: Evidence, centre: Centre, *, edge: float, strong: Tensor, weak: Tensor, fdr_level: float
) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and the largest |z| of each over the tested directions [b, n].

    Colluding nodes stretch the cloud: the directions u are the top eigenvectors of a half's covariance whose variance exceeds
    `edge` times that of noise. Each half is projected on the direction found on the other, so that a row's noise does not shape
    its own direction. z is the mean of both projections over the spread of half their difference, which is noise alone; for a
    row whose halves differ by more than usual, over as much more.

    Flagged are rows beyond `strong` [b, 1], and rows beyond `weak` as far as the false discovery rate allows, estimated from
    the other side. Only the side with more rows far out is flagged: an honest node that Byzantine ones try to push out is on
    the other.
    """
    flagged, largest = torch.zeros_like(evidence.valid), torch.zeros_like(centre.weights)
    active = centre.stretched.nonzero().flatten()
    if not len(active):
        return flagged, largest
    valid, judged, weights = evidence.valid[active], evidence.judged[active], centre.weights[active]
    first, second, cross = evidence.first, evidence.second, evidence.cross
    points: tuple[Tensor | None, Tensor | None] = (None, None)
    if evidence.points is not None:
        points = evidence.points[0][active], evidence.points[1][active]
    if len(active) < len(flagged):
        cross = cross[active]
        if evidence.points is None:  # not used where there are points
            first, second = first[active], second[active]
    ones = directions(first, points[0], uniform(valid), _DIRECTIONS)
    usual = median(evidence.difference2[active], valid)
    noise_ratio = (evidence.difference2[active] / usual).clamp_min(1.0).sqrt()
    twos = torch.stack([own for _, own in directions(second, points[1], uniform(valid), _DIRECTIONS)], 1)
    for value, one in ones:
        tested = value > edge * centre.noise[active]
        likeness = (twos @ cross.mT @ one[:, :, None]).squeeze(2)
        best = likeness.abs().argmax(1, keepdim=True)
        two = twos.gather(1, best[:, :, None].expand(-1, -1, twos.shape[2])).squeeze(1) * likeness.gather(1, best).sign()
        forward, backward = _project(cross, one, weights), _project(cross.mT, two, weights)
        width = spread((forward - backward) / 2, valid)
        tested = tested & (width.square() > _NOTHING * value)
        z = (forward + backward) / 2 / width
        z = (z - median(z, valid)) / noise_ratio
        z = z * _heavier(z, judged, weak[active])
        limit = threshold(torch.where(judged, z, 0.0), judged, fdr_level=fdr_level, offset=1)
        new = tested & judged & ((z > strong[active]) | ((z > weak[active]) & (z >= limit[:, None])))
        flagged[active] |= new
        largest[active] = torch.where(tested, torch.maximum(largest[active], z.abs()), largest[active])
    return flagged, largest


def _heavier(z: Tensor, judged: Tensor, beyond: Tensor) -> Tensor:
    """Sign [b, 1] of the side with more rows beyond the bound; on a tie, of the side with the farthest row."""
    up, down = ((judged & (side > beyond)).sum(1, keepdim=True) for side in (z, -z))
    top, bottom = (torch.where(judged, side, -torch.inf).amax(1, keepdim=True) for side in (z, -z))
    return torch.where((up > down) | ((up == down) & (top >= bottom)), 1.0, -1.0).to(z)


def _project(products: Tensor, combination: Tensor, weights: Tensor) -> Tensor:
    """Products of u with rows, minus their weighted mean [b, n], where u combines the rows of the first side."""
    along = (combination[:, None, :] @ products).squeeze(1)
    return along - (along * weights).sum(1, keepdim=True)
