"""The constants of thm:main0 and its corollary, letter by letter, and what they are made of, by loops."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def left_perron(block: Matrix) -> Matrix:
    values, vectors = np.linalg.eig(block.T)
    vector = np.real(vectors[:, np.argmax(np.real(values))])
    return vector / vector.sum()


def second_modulus(block: Matrix) -> float:
    return sorted(abs(value) for value in np.linalg.eigvals(block))[-2]


def spectral_norm(matrix: Matrix) -> float:
    return float(np.linalg.svd(matrix, compute_uv=False)[0])


def distances(block: Matrix, powers: int) -> list[float]:
    """||A^k - 1 v'||_2 for k = 0, 1, ..., powers."""
    size = len(block)
    limit = np.outer(np.ones(size), left_perron(block))
    return [spectral_norm(np.linalg.matrix_power(block, k) - limit) for k in range(powers + 1)]


def sup_inverse_diagonal(block: Matrix, powers: int) -> float:
    """sup_k ||Diag(A^k)^-1||_2 over so many powers."""
    return max(spectral_norm(np.linalg.inv(np.diag(np.diag(np.linalg.matrix_power(block, k))))) for k in range(powers + 1))


def t0(m_g: int, c: float, rho: float, w: float, v: Matrix) -> int:
    value = math.log(m_g / (48 * c**2 * w**4 * float(np.dot(v, v)))) / (2 * math.log(rho))
    return max(0, math.ceil(value))


def d1(m_g: int, c: float, rho: float, w: float, L: float, sigma: float, zeta: float, gap: float) -> float:  # noqa: N803
    top = 6 * w**2 * c * zeta**2 + 8 * m_g * L**2 * sigma**2 * w**2 * c**2 + 72 * m_g * L**2 * zeta**2 * w**2 * c**2
    return top**2 / ((1 - rho) ** 2 * m_g * gap**2)


def d2(m_g: int, c: float, rho: float, w: float, L: float, sigma: float, zeta: float, gap: float) -> float:  # noqa: N803
    top = 54 * L**2 * zeta**2 * w**4 * c**3
    top += 216 * L**4 * w**6 * c**5 * sigma**2
    top += 6 * L**2 * sigma**2 * w**4 * c**3
    top += 1944 * L**4 * zeta**2 * w**6 * c**5
    return float((top / (m_g**0.5 * (1 - rho) ** 3 * gap)) ** (2 / 3))


def d3(m_g: int, c: float, rho: float, w: float, L: float) -> float:  # noqa: N803
    return 432 * L**2 * w**4 * c**3 / (m_g * (1 - rho) * (1 - rho**2))


def d4(c: float, rho: float, w: float, L: float) -> float:  # noqa: N803
    return 288 * L**2 * w**2 * c**2 / (1 - rho) ** 2


def bound(m_g: int, w: float, v: Matrix, L: float, sigma: float, gap: float, K: int) -> float:  # noqa: N803
    return (20 * gap + 4 * w**2 * float(np.dot(v, v)) * sigma**2 * L) / (K * m_g) ** 0.5


def bound_consensus(
    m_g: int,
    c: float,
    rho: float,
    w: float,
    v: Matrix,
    L: float,  # noqa: N803
    sigma: float,
    zeta: float,
    gap: float,
    K: int,  # noqa: N803
) -> float:
    """The last but one line of the corollary's proof."""
    top = 20 * gap + 4 * w**2 * float(np.dot(v, v)) * sigma**2 * L
    first = 36 * w**2 * c**2 / (1 - rho) ** 2 * top / (K**1.5 * m_g**1.5)
    second = 36 * zeta**2 * w**2 * c**2 / ((1 - rho) ** 2 * K)
    return first + second + 4 * sigma**2 * w**2 * c**2 / ((1 - rho**2) * K)


def loss_constants(features: Matrix, targets: Matrix, batch: int) -> tuple[float, float, float, Matrix]:
    """L, sigma, zeta (so that zeta^2 = 4 sigma_0^2 / N_0) of least squares on nodes [m, N, d], [m, N], and the minimiser."""
    nodes, samples, dim = features.shape
    theta = np.linalg.lstsq(features.reshape(-1, dim), targets.reshape(-1), rcond=None)[0]
    smoothness, sigma2, total = 0.0, 0.0, 0.0
    for i in range(nodes):
        hessian = sum(np.outer(x, x) for x in features[i]) / samples
        smoothness = max(smoothness, float(np.linalg.eigvalsh(hessian)[-1]))
        gradients = [x * (x @ theta - y) for x, y in zip(features[i], targets[i], strict=True)]
        mean = sum(gradients) / samples
        variance = sum(float((g - mean) @ (g - mean)) for g in gradients) / samples
        sigma2 = max(sigma2, variance / batch)  # of a mini-batch drawn with replacement
        total += sum(float(g @ g) for g in gradients)
    return smoothness, sigma2**0.5, (4 * total / (nodes * samples) / samples) ** 0.5, theta
