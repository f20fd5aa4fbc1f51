"""Omega, the matrix inside the score, which weights directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.named_parts import Checked, bounded
from bymi.core.neighbourhoods import padded
from bymi.detection.products_of_halves import Products

_SMALLEST = 1e-10  # eigenvalues below this share of the largest are rounding


class Scale(Checked, ABC):
    """Scores from inner products of the halves. It may use first halves only, or the scores lose their symmetry."""

    arrays_only: ClassVar[bool] = False
    """Whether it changes the vectors themselves, which `identify` does on arrays and a detection in a network does not."""

    def rescale(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Halves [n, d] before products are taken."""
        return first, second

    @abstractmethod
    def scores(self, products: Products, member: Tensor) -> Tensor:
        """S[b, r] = (x1_r - c1_b)' Omega_b (x2_r - c2_b) for every row, [B, R]. Paper: eq:score."""


@dataclass(frozen=True)
class Identity(Scale):
    """Omega = I: every direction counts. The paper's choice for the linear model, and hard to exploit."""

    def scores(self, products: Products, member: Tensor) -> Tensor:
        both = products.first_second.diagonal(dim1=-2, dim2=-1)  # [R], or [B, R]
        return both - products.first_c2 - products.second_c1 + products.c1_c2[:, None]


@dataclass(frozen=True)
class Principal(Scale):
    """Omega = projector on the principal components of the first halves that explain a share `variance` of their variance.

    The paper's choice for images. Components of the first halves heard and the own one, centred at their plain mean. One far
    outlier can take all the variance and hide others orthogonal to it.
    """

    variance: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.variance <= 1, "variance", self.variance, "0 < variance <= 1")

    def scores(self, products: Products, member: Tensor) -> Tensor:
        gram, cross = products.first_first, products.first_second
        if gram.ndim == 3:
            basis = self._basis(gram, member)
            one, two = products.first_c1[:, :, None], products.first_c2[:, :, None]
            return ((basis @ (gram - one)) * (basis @ (cross - two))).sum(1)
        output = torch.empty(member.shape, dtype=torch.float64, device=gram.device)
        for receivers, index, valid in padded(member, width=len(gram)):
            basis = self._basis(gram[index[:, :, None], index[:, None, :]], valid)
            one, two = (torch.gather(c[receivers], 1, index)[:, :, None] for c in (products.first_c1, products.first_c2))
            output[receivers] = ((basis @ (gram[index] - one)) * (basis @ (cross[index] - two))).sum(1)
        return output

    def _basis(self, gram: Tensor, valid: Tensor) -> Tensor:
        """Rows b_k [b, n, n] such that sum_l b_k[l] x1_l is the k-th kept principal direction, zero for those not kept."""
        share = valid / valid.sum(1, keepdim=True, dtype=torch.float64)
        centring = torch.diag_embed(valid.to(torch.float64)) - valid[:, :, None] * share[:, None, :]
        values, vectors = torch.linalg.eigh(centring @ gram @ centring.mT)
        values, vectors = values.flip(1).clamp_min(0.0), vectors.flip(2)
        kept = self._kept(values) & (values > _SMALLEST * values[:, :1])
        inverse = torch.where(kept, values, 1.0).rsqrt() * kept
        basis: Tensor = inverse[:, :, None] * (vectors.mT @ centring)
        return basis

    def _kept(self, values: Tensor) -> Tensor:
        """Mask of the components to keep, from variances in descending order [b, n]."""
        # The fewest components that reach the share: keep one while those before it fall short.
        before = torch.cumsum(values, 1) - values
        return before < self.variance * values.sum(1, keepdim=True)


@dataclass(frozen=True)
class Projected(Principal):
    """Omega = projector on the first `components` principal components of the first halves (Qian et al. 2024).

    Components with more than a share `variance` of the variance before them are left out; 1 keeps all `components`.
    """

    variance: float = 1.0
    components: int = bounded(5, ge=1)

    def _kept(self, values: Tensor) -> Tensor:
        return super()._kept(values) & (torch.arange(values.shape[1], device=values.device) < self.components)


@dataclass(frozen=True)
class MedianDeviation(Identity):
    """Omega = diag(1 / MAD) over machines and both halves, per coordinate: the centralised method's (Qian et al. 2024).

    A MAD below `floor` times the median MAD is raised to that: many gradients of a neural network are zero. On arrays only.
    """

    arrays_only: ClassVar[bool] = True
    floor: float = bounded(0.01, gt=0, le=1)

    def rescale(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        full = (first.to(torch.float64) + second.to(torch.float64)) / 2
        middle = full.quantile(0.5, dim=0)
        deviation = (full - middle).abs().quantile(0.5, dim=0)
        deviation = deviation.clamp_min(self.floor * float(deviation.median()))
        root = torch.where(deviation > 0, deviation, 1.0).rsqrt()
        return first * root, second * root
