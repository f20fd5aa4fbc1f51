"""Detectors that centralised ByMI was compared with: from the gradients of n machines, of which the first is trusted.

Krum, FABA and Zeno are told how many machines are Byzantine; RMDP with Benjamini-Hochberg is told a level.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_REFINED = 5  # starting sets of the diagonal product that are refined until they stay
_STEPS = 50


def farthest_from_krum(gradients: Tensor, count: int) -> Tensor:
    """Mask [n] of the `count` machines farthest from the Krum point (Blanchard et al. 2017), from gradients [n, d]."""
    far = torch.cdist(gradients.double(), gradients.double()).square()
    near = max(1, len(gradients) - count - 2)
    scores = far.fill_diagonal_(torch.inf).sort(1).values[:, :near].sum(1)
    point = int(scores.argmin())
    return _largest(far[point].index_fill(0, torch.tensor(point), 0.0), count)


def removed_by_faba(gradients: Tensor, count: int) -> Tensor:
    """Mask [n] of the `count` machines that FABA removes: each the farthest from the mean of those left (Xia et al. 2019)."""
    rows, left = gradients.double(), torch.ones(len(gradients), dtype=torch.bool)
    for _ in range(count):
        distance = (rows - rows[left].mean(0)).square().sum(1).masked_fill(~left, -torch.inf)
        left[int(distance.argmax())] = False
    return ~left


def least_by_zeno(gradients: Tensor, trusted: Tensor, count: int, *, step: float = 1.0, penalty: float | None = None) -> Tensor:
    """Mask [n] of the `count` machines with the least scores a <g_j, g> - rho |g_j|^2 (Xie, Koyejo, Gupta 2019).

    g: the trusted gradient [d], by which the loss after a step a falls to first order. rho = a / 2 by default: the second order
    of a loss with curvature one.
    """
    rows = gradients.double()
    weight = step / 2 if penalty is None else penalty
    return _largest(weight * rows.square().sum(1) - step * rows @ trusted.double(), count)


def rmdp_bh(gradients: Tensor, level: float) -> Tensor:
    """Mask [n] of outliers by robust distances with Benjamini-Hochberg at a level (Ro et al. 2015).

    RMDP: of sets of half of the machines, that with the least product of variances. Its mean and variances give squared
    distances sum_k (x_k - mean_k)^2 / variance_k, standardised by their median and MAD, compared with a normal tail. Machines
    that are accepted at 5 % re-estimate mean and variances once.
    """
    rows = gradients.double()
    size = len(rows) // 2 + 1
    # Starts are pairs of consecutive machines: the published ones are random pairs.
    starts = [_concentrate(rows, rows[[number - 1, number]], size, 2) for number in range(len(rows))]
    best = sorted(starts, key=lambda chosen: _product(rows[chosen]))[:_REFINED]
    core = min((_concentrate(rows, rows[chosen], size, _STEPS) for chosen in best), key=lambda chosen: _product(rows[chosen]))
    z = _standardised(rows, rows[core])
    z = _standardised(rows, rows[z < 1.645])
    p = torch.erfc(z / math.sqrt(2)) / 2
    ordered, order = p.sort()
    passed = (ordered <= level * torch.arange(1, len(p) + 1) / len(p)).nonzero().flatten()
    flagged = torch.zeros(len(p), dtype=torch.bool)
    if len(passed):
        flagged[order[: int(passed[-1]) + 1]] = True
    return flagged


def _variances(part: Tensor) -> Tensor:
    spread = part.var(0, correction=0)
    return spread.clamp_min(1e-12 * float(spread.mean()) + 1e-300)


def _product(part: Tensor) -> float:
    """Logarithm of the product of the variances of a set."""
    return float(_variances(part).log().sum())


def _distances(rows: Tensor, part: Tensor) -> Tensor:
    return ((rows - part.mean(0)).square() / _variances(part)).sum(1)


def _concentrate(rows: Tensor, part: Tensor, size: int, steps: int) -> Tensor:
    """Numbers of the `size` rows nearest to a set, taken as the next set, until it stays or for some steps."""
    chosen = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        nearest = _distances(rows, part).argsort()[:size].sort().values
        if torch.equal(nearest, chosen):
            break
        chosen, part = nearest, rows[nearest]
    return chosen


def _standardised(rows: Tensor, part: Tensor) -> Tensor:
    distance = _distances(rows, part)
    middle = distance.median()
    return (distance - middle) / (1.4826 * (distance - middle).abs().median()).clamp_min(1e-300)


def _largest(values: Tensor, count: int) -> Tensor:
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.argsort(descending=True)[:count]] = True
    return mask
