"""The test against many small shifts in one direction, each too small for a score of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.detection.evidence import Evidence
from bymi.detection.noise_edge import Centre
from bymi.detection.robust import spread
from bymi.detection.spectrum import directions, uniform

_DIRECTIONS = 3


def shifted(evidence: Evidence, centre: Centre, *, edge: float, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to flag [b, n], and the largest |z| of each over the directions looked at [b, n].

    Colluders stretch the cloud: directions u are the top eigenvectors of the first halves' covariance whose variance
    exceeds `edge` x that of noise. z = u'((x1 + x2) / 2 - c) over the spread of u'(x1 - x2) / 2, which is noise alone.
    Beyond `bound` [b, 1], only the side that holds most of those beyond it is flagged: a victim that liars try to drag
    along stands on the other.
    """
    flagged, largest = torch.zeros_like(evidence.valid), torch.zeros_like(centre.weights)
    at = centre.stretched.nonzero().flatten()
    if not len(at):
        return flagged, largest
    valid, judged, weights = evidence.valid[at], evidence.judged[at], centre.weights[at]
    votes, sizes = [], []
    # A direction found on some vectors fits their noise, too: both halves must agree, each with directions of its own.
    for side in (evidence, evidence.swapped):
        points = None if side.points is None else side.points[0][at]
        found, size = torch.zeros_like(valid), torch.zeros_like(weights)
        for value, combination in directions(side.first[at], points, uniform(valid), _DIRECTIONS):
            one, two = (_project(part[at], combination, weights) for part in (side.first, side.cross))
            z = (one + two) / 2 / spread((one - two) / 2, valid)
            looked = value > edge * centre.noise[at]
            outside = judged & (z.abs() > bound[at]) & looked
            up, down = (outside & (z > 0)).sum(1, keepdim=True), (outside & (z < 0)).sum(1, keepdim=True)
            found = found | (outside & torch.where(z > 0, up >= down, down > up))
            size = torch.where(looked, torch.maximum(size, z.abs()), size)
        votes.append(found)
        sizes.append(size)
    flagged[at], largest[at] = votes[0] & votes[1], torch.minimum(*sizes)
    return flagged, largest


def _project(products: Tensor, combination: Tensor, weights: Tensor) -> Tensor:
    """Products of u with rows, about the weighted mean of those rows [b, n]."""
    along = (combination[:, None, :] @ products).squeeze(1)
    return along - (along * weights).sum(1, keepdim=True)
