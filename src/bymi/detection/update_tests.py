"""Tests on updates: the parameters that a neighbour sent, against those of others and against its claimed gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.detection.robust_statistics import log, median, robust_z, robust_z_above
from bymi.detection.spectrum import centred, centred_diagonal, directions, uniform

_PASSES = 4
_LONG = 1e100  # squared length of an update from which on a cloud of updates is scaled down
_CROWD, _LOWER = 0.1, 0.65  # if a tenth of all, at least four, exceed 0.65 of the bound, that becomes the bound
_EXPLAINED = 4.0  # residuals below this times the noise of a claim are explained by it
_LEAST = 0.35  # least spread of the logarithm of residuals
_DIRECTIONS = 3
_FEW = 15  # neighbours below which a crowd cannot be told from chance
_JOINT = 2.5  # deviations from which on a row may belong to a crowd, and by which one side must outnumber the other
_ANSWER = (0.7, 2.0)  # range of kappa, the multiple of its gradient by which a node may differ from the others


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
    most: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows whose updates do not follow from their claimed gradients [b, n], and their robust z of log |residual|^2 [b, n].

    A node that uses the gradient g_j it claims is off by about -g_j (less the mean). `claims`: products of the g_j; `both`:
    products <q_r, g_s>. Residual: q_j + kappa g_j about the centres, with the best kappa in a narrow range. `noise` [b, n]:
    error of |g_j|^2 where g_j covers part of the samples only; a residual that it explains is not flagged.
    """
    flagged = torch.zeros_like(valid)
    z = torch.zeros_like(history_gram[:, 0])
    for _ in range(_PASSES):
        weights = centre.weights(history_gram, valid & ~flagged)
        update, claim, pair = (centred_diagonal(matrix, weights) for matrix in (history_gram, claims, both))
        kappa = (-pair / claim.clamp_min(1e-300)).clamp(*_ANSWER)
        residual = update + 2 * kappa * pair + kappa.square() * claim
        z = robust_z_above(log(residual), valid & ~flagged, _LEAST)
        far = (z > _lowered(z, judged & ~flagged, bound)) & (residual > _EXPLAINED * kappa.square() * noise)
        new = _up_to(most, flagged, judged & far & ~flagged)
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


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
    crowded = beyond >= (_CROWD * judged.sum(1, keepdim=True)).clamp_min(4)
    return torch.where(crowded, _LOWER * bound, bound)
