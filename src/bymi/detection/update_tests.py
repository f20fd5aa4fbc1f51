"""Tests on updates: the parameters that a neighbour sent, against those of others and against its claimed gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.detection.robust_statistics import log, robust_z, robust_z_above
from bymi.detection.spectrum import centred_diagonal

_PASSES = 4
_CROWD, _LOWER = 0.1, 0.65  # if a tenth of all, at least four, exceed 0.65 of the bound, that becomes the bound
_EXPLAINED = 4.0  # residuals below this times the noise of a claim are explained by it
_ANSWER = (0.7, 2.0)  # range of kappa, the multiple of its gradient by which a node may differ from the others


def drift_test(history_gram: Tensor, valid: Tensor, judged: Tensor, centre: SetRule, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose parameters were far off for long [b, n], and their robust z of log |q - c|^2 [b, n].

    `history_gram` [b, n, n]: products of q_j, the mean of theta_j over a window of rounds over that of the step sizes. An
    honest node differs from the others by about its own gradient, at every step size.
    """
    flagged = torch.zeros_like(valid)
    z = torch.zeros_like(history_gram[:, 0])
    for _ in range(_PASSES):
        weights = centre.weights(history_gram, valid & ~flagged)
        z = robust_z(log(centred_diagonal(history_gram, weights)), valid & ~flagged)
        new = judged & (z > _lowered(z, judged & ~flagged, bound)) & ~flagged
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
        z = robust_z_above(log(residual), valid & ~flagged)
        new = judged & (z > _lowered(z, judged & ~flagged, bound)) & (residual > _EXPLAINED * kappa.square() * noise) & ~flagged
        if not bool(new.any()):
            break
        flagged = flagged | new
    return flagged, z


def _lowered(z: Tensor, judged: Tensor, bound: Tensor) -> Tensor:
    """The bound [b, 1], lower where many rows are off: these widen the spread by which each is measured."""
    beyond = (judged & (z > _LOWER * bound)).sum(1, keepdim=True)
    crowded = beyond >= (_CROWD * judged.sum(1, keepdim=True)).clamp_min(4)
    return torch.where(crowded, _LOWER * bound, bound)
