"""What the convergence theorem requires of a run, and what the run did: numbers for `theory` in summary.json.

The theorem is about the core after pruning: its block A of the mixing matrix, row-stochastic where the core hears no other
node, its left Perron vector v, and the v-weighted mean of its models. Constants of the loss are computed for least squares and
unknown for networks. Paper: thm:main0, coro:consensus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bymi.core.graph import Core, Graph
from bymi.core.performance_thresholds import LIMITS

_POWERS = 32  # of A - 1 v', each of which gives one pair (c, rho)
_TINY = 1e-40  # an entry of v below this gives numbers that overflow float64
_DIAGONALS = 64  # powers of A whose diagonals are computed; later ones are taken as their limit v

THEORY_KEYS = (
    *("holds", "nodes", "least_perron", "perron_norm", "lambda_2", "contraction_factor", "contraction_rate"),
    *("inverse_diagonal", "smoothness", "noise", "heterogeneity", "start_gap", "premix_rounds", "d1", "d2", "d3", "d4"),
    *("least_rounds", "rounds", "step", "mean_gradient", "bound_gradient", "mean_distance", "bound_distance", "looks"),
)
"""Keys of `theory` in summary.json; null where a number is unknown. docs/theory.md defines each."""


class Loss(NamedTuple):
    """Constants of a loss, over the honest nodes and at the minimiser of their pooled loss."""

    smoothness: float  # L: the largest curvature of any node's loss
    node_variance: float  # of one sample's gradient about its node's mean: the largest of any node
    variance: float  # sigma_0^2: of one sample's gradient about the mean of all
    samples: int  # N_0


class Look(NamedTuple):
    """Measurements at the v-weighted mean theta~ of the core's models after a round; None if not finite or unknown."""

    step: int
    gap: float | None  # f(theta~) - f*
    gradient: float | None  # ||grad f(theta~)||^2
    distance: float | None  # mean of ||theta_i - theta~||^2 over the core


class Contraction(NamedTuple):
    """||A^k - 1 v'||_2 <= factor * rate^k for all k >= 0."""

    factor: float  # c
    rate: float  # rho


@dataclass(frozen=True)
class Mixing:
    """The core's block of the mixing matrix. If too large, a single node or not closed, only the first three are set."""

    nodes: int  # m_g
    least_perron: float  # m_g times the smallest entry of v: 1 if all weigh the same
    perron_norm: float  # ||v||
    lambda_2: float | None = None  # modulus of the second largest eigenvalue
    inverse_diagonal: float | None = None  # w
    contractions: tuple[Contraction, ...] = ()  # any of them is valid


@dataclass(frozen=True)
class Constants:
    """Constants of the loss and of the starting point."""

    smoothness: float  # L
    noise: float  # sigma^2, of a mini-batch
    heterogeneity: float  # zeta^2
    gap: float  # f(theta~_0) - f*


def mixing_of(graph: Graph, core: Core) -> Mixing:
    """What the theorem needs to know of a pruned graph."""
    perron = core.perron[core.members].cpu()
    size = len(perron)
    known = Mixing(size, float(size * perron.min()), float(perron.norm()))
    if not 2 <= size <= LIMITS.theory_size or not core.closed or bool(perron.min() < _TINY):
        return known
    block = block_of(graph, core.members)
    return Mixing(
        *(known.nodes, known.least_perron, known.perron_norm),
        second_eigenvalue(block),
        inverse_diagonal(block, perron),
        contractions(block, perron),
    )


def block_of(graph: Graph, members: Tensor) -> Tensor:
    """Rows and columns of the mixing matrix for the nodes in a mask [M]."""
    return graph.block(members).cpu()


def second_eigenvalue(block: Tensor) -> float:
    """|lambda_2(A)|, the second largest modulus of an eigenvalue."""
    return float(torch.linalg.eigvals(block).abs().sort(descending=True).values[1])


def inverse_diagonal(block: Tensor, perron: Tensor) -> float:
    """w = sup_k ||Diag(A^k)^-1||_2: one over the smallest entry on the diagonal of any power of A."""
    least, power = min(1.0, float(perron.min())), block
    for _ in range(_DIAGONALS):
        least = min(least, float(power.diagonal().min()))
        power = power @ block
    return 1 / least if least > 0 else math.inf


def contractions(block: Tensor, perron: Tensor) -> tuple[Contraction, ...]:
    """Pairs (c, rho) with ||A^k - 1 v'|| <= c rho^k for all k, one for each power n = 1, 2, ... whose norm is below one.

    With D = A - 1 v' the powers are A^k - 1 v' = D^k, k >= 1. Let rho = ||D^n||^(1/n) and c the largest ||A^r - 1 v'|| / rho^r
    for r < n. Then k = j n + r has ||D^k|| <= ||D^n||^j ||D^r|| <= rho^(jn) c rho^r. As n grows rho falls to |lambda_2|.
    """
    change = block - perron
    lengths = [math.sqrt(len(block)) * float(perron.norm())]  # A^0 - 1 v' is a projector: its norm is that of 1 v'
    pairs, power = [], change
    for exponent in range(1, _POWERS + 1):
        lengths.append(float(torch.linalg.matrix_norm(power, 2)))
        rate = max(lengths[-1], 1e-300) ** (1 / exponent)
        if rate < 1:
            pairs.append(Contraction(max(length / rate**index for index, length in enumerate(lengths[:-1])), rate))
        power = power @ change
    return tuple(pairs)


def premix_rounds(mixing: Mixing, pair: Contraction) -> int | None:
    """t_0: rounds of mixing y before the first step."""
    if mixing.inverse_diagonal is None:
        return None
    left = 48 * pair.factor**2 * mixing.inverse_diagonal**4 * mixing.perron_norm**2
    return max(0, math.ceil(math.log(mixing.nodes / left) / (2 * math.log(pair.rate))))


def demands(mixing: Mixing, pair: Contraction, known: Constants) -> dict[str, float]:
    """D_1 to D_4, and the least number of rounds K that they require."""
    assert mixing.inverse_diagonal is not None
    size, w, (c, rho) = mixing.nodes, mixing.inverse_diagonal, pair
    smooth, noise, heterogeneity = known.smoothness**2, known.noise, known.heterogeneity
    first = (
        6 * w**2 * c * heterogeneity
        + 8 * size * smooth * noise * w**2 * c**2
        + 72 * size * smooth * heterogeneity * w**2 * c**2
    )
    second = (
        54 * smooth * heterogeneity * w**4 * c**3
        + 216 * smooth**2 * w**6 * c**5 * noise
        + 6 * smooth * noise * w**4 * c**3
        + 1944 * smooth**2 * heterogeneity * w**6 * c**5
    )
    terms = {
        "d1": first**2 / ((1 - rho) ** 2 * size * known.gap**2),
        "d2": (second / (math.sqrt(size) * (1 - rho) ** 3 * known.gap)) ** (2 / 3),
        "d3": 432 * smooth * w**4 * c**3 / (size * (1 - rho) * (1 - rho**2)),
        "d4": 288 * smooth * w**2 * c**2 / (1 - rho) ** 2,
    }
    return {**terms, "least_rounds": max(1 / size, 4 * size * smooth, *terms.values())}


def bound_gradient(mixing: Mixing, known: Constants, rounds: int) -> float:
    """Bound on the expected mean of ||grad f(theta~_k)||^2 over `rounds` rounds, if these are enough."""
    assert mixing.inverse_diagonal is not None
    noise = 4 * mixing.inverse_diagonal**2 * mixing.perron_norm**2 * known.noise * known.smoothness
    return (20 * known.gap + noise) / math.sqrt(rounds * mixing.nodes)


def bound_distance(mixing: Mixing, pair: Contraction, known: Constants, rounds: int) -> float:
    """Bound on the expected mean squared distance to theta~_k, from the last lines of the corollary's proof."""
    assert mixing.inverse_diagonal is not None
    (c, rho), w = pair, mixing.inverse_diagonal
    factor = 36 * w**2 * c**2 / (1 - rho) ** 2
    start = factor * bound_gradient(mixing, known, rounds) / (rounds * mixing.nodes)
    return start + factor * known.heterogeneity / rounds + 4 * known.noise * w**2 * c**2 / ((1 - rho**2) * rounds)


def mean_over(points: Sequence[tuple[int, float | None]]) -> float | None:
    """Mean of a quantity over rounds, by the trapezoidal rule through the measured ones; None if one is unknown.

    With every round measured it is the theorem's mean over k = 0 ... K - 1 up to half the difference of its ends.
    """
    values = [(step, value) for step, value in points if value is not None]
    if not values or len(values) < len(points):
        return None
    area = sum((two - one) * (left + right) / 2 for (one, left), (two, right) in pairwise(values))
    length = values[-1][0] - values[0][0]
    return area / length if length else values[-1][1]


def theory_of(
    graph: Graph, core: Core, byzantine: Tensor, looks: Sequence[Look], loss: Loss | None, batch: int
) -> dict[str, Any]:
    """All of THEORY_KEYS for a run over a pruned graph with mini-batches of size `batch`, from the first detection on."""
    mixing = mixing_of(graph, core)
    rounds = looks[-1].step - looks[0].step if looks else 0
    theory: dict[str, Any] = dict.fromkeys(THEORY_KEYS)
    theory.update(
        holds=core.closed and torch.equal(core.members, ~byzantine),
        nodes=mixing.nodes,
        least_perron=mixing.least_perron,
        perron_norm=mixing.perron_norm,
        lambda_2=mixing.lambda_2,
        inverse_diagonal=mixing.inverse_diagonal,
        rounds=rounds,
        step=math.sqrt(mixing.nodes / rounds) if rounds else None,
        mean_gradient=mean_over([(one.step, one.gradient) for one in looks]),
        mean_distance=mean_over([(one.step, one.distance) for one in looks]),
        looks=len(looks),
    )
    gap = looks[0].gap if looks else None
    known = None
    if loss is not None and gap:
        # Paper gap: zeta is printed as 4 sigma_0^2 / N_0; the proof, after eq:heter, needs that of its square.
        known = Constants(loss.smoothness, loss.node_variance / batch, 4 * loss.variance / loss.samples, gap)
        theory.update(
            smoothness=known.smoothness,
            noise=math.sqrt(known.noise),
            heterogeneity=math.sqrt(known.heterogeneity),
            start_gap=gap,
        )
    if not mixing.contractions:
        return theory
    with suppress(ArithmeticError, ValueError):  # overflow: what could not be computed stays unknown
        # Any pair is valid: take the one that requires least.
        pair = min(
            mixing.contractions,
            key=lambda one: one.factor / (1 - one.rate) if known is None else demands(mixing, one, known)["least_rounds"],
        )
        theory.update(contraction_factor=pair.factor, contraction_rate=pair.rate, premix_rounds=premix_rounds(mixing, pair))
        if known is not None and rounds:
            theory.update(demands(mixing, pair, known))
            theory["bound_gradient"] = bound_gradient(mixing, known, rounds)
            theory["bound_distance"] = bound_distance(mixing, pair, known, rounds)
    return theory
