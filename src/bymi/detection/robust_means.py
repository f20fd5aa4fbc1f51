"""Robust means for detection, all from inner products: filters that lower the weight of outliers until a criterion holds.

With weights w (sum one), mean mu_w and top eigenpair (lambda, v) of the weighted covariance: tau_j = <x_j - mu_w, v>^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation.base import SetRule
from bymi.aggregation.spectral_filtering import spread_of_products
from bymi.core.named_parts import bounded

_EMPTY = 1e-18  # weights below count as zero
_AT_MOST = 0.49  # share of all weight that the stability filter removes at most


def _top(gram: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Largest variance [b, 1] and projections [b, n] on its direction, for weights [b, n]."""
    along = spread_of_products(gram, weight)
    return (weight * along.square()).sum(1, keepdim=True) / weight.sum(1, keepdim=True), along


def _lowered(weight: Tensor, tau: Tensor) -> Tensor:
    """w_j (1 - tau_j / max tau): the farthest point loses all of its weight."""
    peak = tau.amax(1, keepdim=True)
    return weight * (1 - tau / torch.where(peak > 0, peak, 1.0))


def _normalised(weight: Tensor) -> Tensor:
    return weight / weight.sum(1, keepdim=True)


@dataclass(frozen=True)
class BudgetFilter(SetRule):
    """The filter of the published R code of centralised ByMI: w_j <- w_j (1 - tau_j / max tau), floor(share n) times at most.

    It ends when sum w / (n max w) <= 1 - share, and so spends its budget on clean data, too. `share`: 1.2 times the share of
    Byzantine machines, there. That code subtracts the covariance of the master's samples from the weighted one, which half
    gradients do not contain: here nothing is subtracted (Qian et al. 2024).
    """

    share: float = bounded(0.24, ge=0, lt=0.5)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        weight = valid.to(torch.float64)
        count = weight.sum(1, keepdim=True)
        budget = torch.floor(self.share * count + 1e-9)
        for number in range(int(budget.max())):
            left = weight.sum(1, keepdim=True) / (count * weight.amax(1, keepdim=True))
            active = (number < budget) & ((left > 1 - self.share) | (number == 0))
            if not bool(active.any()):
                break
            lower = _lowered(weight, _top(gram, weight)[1].square())
            weight = torch.where(active, torch.where(lower < _EMPTY, 0.0, lower), weight)
        return _normalised(weight)


@dataclass(frozen=True)
class StabilityFilter(SetRule):
    """w_j <- w_j (1 - tau_j / max tau) while lambda > `bound` sigma^2 (Diakonikolas, Kane 2019). Clean data are left alone.

    `sigma`: standard deviation of the noise in any direction; None: sigma^2 is the median of the positive eigenvalues of the
    covariance of all points. At most 49 % of the weight is removed.
    """

    bound: float = bounded(8.0, gt=0)
    sigma: float | None = bounded(None, gt=0)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        weight = valid.to(torch.float64)
        start = weight.sum(1, keepdim=True)
        limit = self.bound * (_noise(gram, weight) if self.sigma is None else self.sigma**2)
        for _ in range(gram.shape[1]):
            value, along = _top(gram, weight)
            lower = _lowered(weight, along.square())
            active = (value > limit) & (lower.sum(1, keepdim=True) >= (1 - _AT_MOST) * start)
            if not bool(active.any()):
                break
            weight = torch.where(active, lower, weight)
        return _normalised(weight)


def _noise(gram: Tensor, weight: Tensor) -> Tensor:
    """Median of the positive eigenvalues of the covariance of points of weight one [b, 1]."""
    share = _normalised(weight)
    towards = gram @ share[:, :, None]
    centred = gram - towards - towards.mT + share[:, None, :] @ towards
    root = share.sqrt()[:, :, None]
    values = torch.linalg.eigvalsh(root * centred * root.mT)
    positive = values > 1e-10 * values[:, -1:].clamp_min(1e-300)
    return torch.where(positive, values, torch.nan).nanmedian(1, keepdim=True).values.nan_to_num(0.0)


@dataclass(frozen=True)
class SpectralSolver(SetRule):
    """min over w of lambda_max, 0 <= w_j <= 1 / ((1 - share) n), by multiplicative updates. Paper: appendix A, prop:robust_est.

    w <- KL projection of w_j exp(-tau_j / (2 max tau)); the iterate with the smallest lambda is returned. The paper prints the
    bound as (1 - share)^-1, which never binds.
    """

    share: float = bounded(0.4, ge=0, lt=0.5)
    rounds: int = bounded(100, ge=1, le=10_000)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        cap = 1 / ((1 - self.share) * valid.sum(1, keepdim=True))
        weight = _normalised(valid.to(torch.float64))
        best, least = weight, torch.full_like(cap, torch.inf)
        for _ in range(self.rounds):
            value, along = _top(gram, weight)
            tau = along.square()
            best, least = torch.where(value < least, weight, best), torch.minimum(value, least)
            peak = tau.amax(1, keepdim=True)
            weight = capped(weight * (-tau / (2 * torch.where(peak > 0, peak, 1.0))).exp(), cap)
        return best


def capped(weight: Tensor, cap: Tensor) -> Tensor:
    """KL projection of weights [b, n] on {w_j <= cap, sum w = 1}, cap [b, 1]: the fewest largest at the cap, others scaled."""
    ordered = weight.sort(1, descending=True).values
    number = torch.arange(weight.shape[1], device=weight.device)
    rest = ordered.flip(1).cumsum(1).flip(1)  # sum from the k-th largest on
    scale = (1 - number * cap).clamp_min(0.0) / rest.clamp_min(1e-300)
    fits = ordered * scale <= cap * (1 + 1e-12)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    return torch.minimum(weight * scale.gather(1, first), cap)


@dataclass(frozen=True)
class NoRegret(SetRule):
    """w_j <- w_j (1 - tau_j / (2 max distance^2)), projected on w_j <= 1 / ((1 - share) n), while lambda > bound sigma^2.

    First the ceil(share n) points with the largest Krum scores are removed (Zhu et al. 2022, whose code stops at lambda^2 <=
    20 sigma^2: we take lambda). `sigma` as in the stability filter; at most `rounds` rounds.
    """

    share: float = bounded(1 / 12, ge=0, lt=0.5)
    bound: float = bounded(20.0, gt=0)
    sigma: float | None = bounded(None, gt=0)
    rounds: int = bounded(100, ge=1, le=10_000)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        count = valid.sum(1, keepdim=True)
        limit = self.bound * (_noise(gram, valid.to(torch.float64)) if self.sigma is None else self.sigma**2)
        kept = valid & ~self._worst(gram, valid)
        cap = 1 / ((1 - self.share) * count)
        weight = capped(_normalised(kept.to(torch.float64)), cap)
        step = 0.5 / _distances(gram).masked_fill(~(kept[:, :, None] & kept[:, None, :]), 0.0).amax((1, 2)).clamp_min(1e-300)
        for _ in range(self.rounds):
            value, along = _top(gram, weight)
            active = value > limit
            if not bool(active.any()):
                break
            lower = capped(weight * (1 - step[:, None] * along.square()).clamp_min(0.0), cap)
            weight = torch.where(active, lower, weight)
        return _normalised(weight)

    def _worst(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Mask of the ceil(share n) points whose n - ceil(share n) - 2 nearest others are farthest in sum."""
        count = valid.sum(1, keepdim=True)
        bad = torch.ceil(self.share * count - 1e-9).to(torch.int64).minimum(count - 1)  # somebody stays
        far = _distances(gram).masked_fill(~(valid[:, :, None] & valid[:, None, :]), torch.inf)
        ordered = far.diagonal_scatter(torch.full_like(gram[:, 0], torch.inf), dim1=1, dim2=2).sort(2).values
        near = (count - bad - 2).clamp_min(1)
        number = torch.arange(gram.shape[1], device=gram.device)
        scores = torch.where(number < near[:, :, None], ordered, 0.0).sum(2).masked_fill(~valid, -torch.inf)
        order = torch.argsort(scores, dim=1, descending=True, stable=True)
        rank = torch.argsort(order, dim=1)
        return (rank < bad) & valid


def _distances(gram: Tensor) -> Tensor:
    """Squared distances [b, n, n]."""
    square = gram.diagonal(dim1=1, dim2=2)
    return (square[:, :, None] + square[:, None, :] - 2 * gram).clamp_min(0.0)


@dataclass(frozen=True)
class AgnosticFilter(SetRule):
    """A filter that is not told the share of outliers (Deshmukh, Liu, Veeravalli 2023).

    Repeatedly, along the top direction, it keeps the points nearest to the median whose squared deviations sum to at most
    `budget` n sigma^2, until nothing changes. `sigma` = None, unknown noise (Jain et al. 2022): of sigma_max, sigma_max /
    `ratio`, ... down to a twentieth, the smallest is taken whose mean is within 4 (sigma + sigma') of those of all larger ones;
    those that leave fewer than half of the points are not considered.
    """

    budget: float = bounded(2.0, gt=0)
    sigma: float | None = bounded(None, gt=0)
    ratio: float = bounded(1.1, gt=1)

    def weights(self, gram: Tensor, valid: Tensor) -> Tensor:
        if self.sigma is not None:
            return self._filter(gram, valid, torch.full_like(gram[:, :1, 0], self.sigma**2))
        largest = _top(gram, valid.to(torch.float64))[0].sqrt()
        sigmas = [largest / self.ratio**power for power in range(1 + math.floor(math.log(20) / math.log(self.ratio)))]
        chosen = means = self._filter(gram, valid, largest.square())
        known = [(largest, means)]
        consistent = torch.ones_like(largest, dtype=torch.bool)
        for sigma in sigmas[1:]:
            means = self._filter(gram, valid, sigma.square())
            consistent = consistent & (2 * (means > 0).sum(1, keepdim=True) >= valid.sum(1, keepdim=True))
            if not bool(consistent.any()):
                break
            for other, before in known:
                apart = means - before
                distance = (apart[:, None, :] @ gram @ apart[:, :, None]).squeeze(2).clamp_min(0.0).sqrt()
                consistent = consistent & (distance <= 4 * (sigma + other))
            known.append((sigma, means))
            chosen = torch.where(consistent, means, chosen)
        return chosen

    def _filter(self, gram: Tensor, valid: Tensor, variance: Tensor) -> Tensor:
        """Weights [b, n] for a noise variance [b, 1]."""
        kept, limit = valid, self.budget * valid.sum(1, keepdim=True) * variance
        for _ in range(100):
            along = _top(gram, kept.to(torch.float64))[1]
            masked = torch.where(kept, along, torch.nan)
            middle = (masked.nanmedian(1, keepdim=True).values - (-masked).nanmedian(1, keepdim=True).values) / 2
            away = torch.where(kept, (along - middle).square(), torch.inf)
            ordered, order = torch.sort(away, dim=1, stable=True)
            within = (ordered.nan_to_num(posinf=0.0).cumsum(1) <= limit * (1 + 1e-12)) & ordered.isfinite()
            within[:, 0] = True
            still = torch.zeros_like(kept).scatter(1, order, within)
            if torch.equal(still, kept):
                break
            kept = still
        return _normalised(kept.to(torch.float64))
