"""The test against many small shifts in one direction, each too small for a score of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.noise_edge import Centre
from bymi.detection.robust_statistics import median, spread
from bymi.detection.spectrum import directions, uniform
from bymi.detection.threshold import threshold

_DIRECTIONS = 3
_NOTHING = 1e-12  # of a direction's variance: with less noise than this there is nothing to measure by


def shifted(
    evidence: Evidence, centre: Centre, *, edge: float, strong: Tensor, weak: Tensor, fdr_level: float
) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and the largest |z| of each over the directions looked at [b, n].

    Colluders stretch the cloud: directions u are the top eigenvectors of a half's covariance whose variance exceeds `edge`
    times that of noise. Each half lies along the direction found on the other, so that nobody's noise has shaped its own ruler:
    z is the mean of the two, over the spread of half their difference, which is noise alone; of a row whose own halves differ
    by more than usual, over so much more. Flagged are rows beyond
    `strong` [b, 1], and rows beyond `weak` as far as the false discovery rate allows, with the other side to count by.
    Only the side that holds most of those far out is flagged: a victim that liars try to drag along stands on the other.
    """
    flagged, largest = torch.zeros_like(evidence.valid), torch.zeros_like(centre.weights)
    at = centre.stretched.nonzero().flatten()
    if not len(at):
        return flagged, largest
    valid, judged, weights = evidence.valid[at], evidence.judged[at], centre.weights[at]
    first, second, cross = evidence.first, evidence.second, evidence.cross
    points: tuple[Tensor | None, Tensor | None] = (None, None)
    if evidence.points is not None:
        points = evidence.points[0][at], evidence.points[1][at]
    if len(at) < len(flagged):
        cross = cross[at]
        if evidence.points is None:  # beside points these are not looked at
            first, second = first[at], second[at]
    ones = directions(first, points[0], uniform(valid), _DIRECTIONS)
    usual = median(evidence.difference2[at], valid)
    louder = (evidence.difference2[at] / usual).clamp_min(1.0).sqrt()
    twos = torch.stack([own for _, own in directions(second, points[1], uniform(valid), _DIRECTIONS)], 1)
    for value, one in ones:
        looked = value > edge * centre.noise[at]
        likeness = (twos @ cross.mT @ one[:, :, None]).squeeze(2)
        best = likeness.abs().argmax(1, keepdim=True)
        two = twos.gather(1, best[:, :, None].expand(-1, -1, twos.shape[2])).squeeze(1) * likeness.gather(1, best).sign()
        ahead, back = _project(cross, one, weights), _project(cross.mT, two, weights)
        width = spread((ahead - back) / 2, valid)
        looked = looked & (width.square() > _NOTHING * value)
        z = (ahead + back) / 2 / width
        z = (z - median(z, valid)) / louder
        z = z * _heavier(z, judged, weak[at])
        limit = threshold(torch.where(judged, z, 0.0), judged, fdr_level=fdr_level, offset=1)
        found = looked & judged & ((z > strong[at]) | ((z > weak[at]) & (z >= limit[:, None])))
        flagged[at] |= found
        largest[at] = torch.where(looked, torch.maximum(largest[at], z.abs()), largest[at])
    return flagged, largest


def _heavier(z: Tensor, judged: Tensor, beyond: Tensor) -> Tensor:
    """Sign [b, 1] of the side with more rows far out; of two equal ones, of the side with the farthest."""
    up, down = ((judged & (side > beyond)).sum(1, keepdim=True) for side in (z, -z))
    top, bottom = (torch.where(judged, side, -torch.inf).amax(1, keepdim=True) for side in (z, -z))
    return torch.where((up > down) | ((up == down) & (top >= bottom)), 1.0, -1.0).to(z)


def _project(products: Tensor, combination: Tensor, weights: Tensor) -> Tensor:
    """Products of u with rows, about the weighted mean of those rows [b, n]: u combines the rows of the first side."""
    along = (combination[:, None, :] @ products).squeeze(1)
    return along - (along * weights).sum(1, keepdim=True)
