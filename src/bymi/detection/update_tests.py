"""What neighbours do, against what the others do and what they claim: tests on the parameters that are really used."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.detection.robust_statistics import log, robust_z, robust_z_above
from bymi.detection.spectrum import centred_diagonal

_PASSES = 4
_CROWD, _LOWER = 0.1, 0.65  # a tenth of all, four at least, beyond 0.65 of the bound are no accident: then that is the bound
_EXPLAINED = 4.0  # times the noise of a claim
_ANSWER = (0.7, 2.0)  # by how much of its gradient a node may stand off the others


def drift_test(trail: Tensor, valid: Tensor, judged: Tensor, centre: SetRule, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose parameters stood off for long [b, n], and by how many spreads of log |q - c|^2 [b, n].

    `trail` [b, n, n] are products of q_j, the mean of theta_j over a window of rounds, over that of the step sizes: a good node
    stands off by its own gradient, more or less, at every step size.
    """
    gone = torch.zeros_like(valid)
    off = torch.zeros_like(trail[:, 0])
    for _ in range(_PASSES):
        weights = centre.weights(trail, valid & ~gone)
        off = robust_z(log(centred_diagonal(trail, weights)), valid & ~gone)
        found = judged & (off > _lowered(off, judged & ~gone, bound)) & ~gone
        if not bool(found.any()):
            break
        gone = gone | found
    return gone, off


def claim_mismatch(
    trail: Tensor,
    claims: Tensor,
    both: Tensor,
    noise: Tensor,
    valid: Tensor,
    judged: Tensor,
    centre: SetRule,
    bound: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rows whose deeds do not follow from their claims [b, n], and by how many spreads of log |residual|^2 [b, n].

    A node that uses the gradient g_j it claims stands off by about -g_j (less the mean). `claims` are products of the
    g_j, `both` products <q_r, g_s>. Residual: q_j + kappa g_j about the centres, with the best kappa in a narrow range.
    `noise` [b, n] is what |g_j|^2 is off by because only part of the samples were asked about: a residual that this explains
    is no lie.
    """
    gone = torch.zeros_like(valid)
    off = torch.zeros_like(trail[:, 0])
    for _ in range(_PASSES):
        weights = centre.weights(trail, valid & ~gone)
        deed, claim, pair = (centred_diagonal(matrix, weights) for matrix in (trail, claims, both))
        kappa = (-pair / claim.clamp_min(1e-300)).clamp(*_ANSWER)
        residual = deed + 2 * kappa * pair + kappa.square() * claim
        off = robust_z_above(log(residual), valid & ~gone)
        found = judged & (off > _lowered(off, judged & ~gone, bound)) & (residual > _EXPLAINED * kappa.square() * noise) & ~gone
        if not bool(found.any()):
            break
        gone = gone | found
    return gone, off


def _lowered(off: Tensor, judged: Tensor, bound: Tensor) -> Tensor:
    """The bound [b, 1], lower where a crowd stands off: it widens the spread by which each of it is measured."""
    beyond = (judged & (off > _LOWER * bound)).sum(1, keepdim=True)
    receiver_group = beyond >= (_CROWD * judged.sum(1, keepdim=True)).clamp_min(4)
    return torch.where(receiver_group, _LOWER * bound, bound)
