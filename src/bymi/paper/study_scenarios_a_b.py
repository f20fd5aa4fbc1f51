"""The paper's studies: grids of specs behind a figure. To add one: write it and list it in STUDIES."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bymi.core.errors import InputError, require
from bymi.experiment.recipes import WARM_UPS
from bymi.experiment.spec import Spec, read_spec

SAMPLES = {30: 100, 80: 200}  # samples per node for each dimension of the paper
# Values of the two figures are ours: the paper says what happens near s_r = 0.1 and from a ratio of 0.3 on, and prints no list.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)


@dataclass(frozen=True)
class Cell:
    """One run of a study: where it belongs in the figure, and its spec."""

    dim: int
    warm_up: str
    value: float
    spec: Spec


@dataclass(frozen=True)
class Study:
    """A figure to be: its runs over `values` of one quantity, called `axis` on the page."""

    name: str
    title: str
    axis: str
    values: tuple[float, ...]
    cells: list[Cell] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.name}"

    @property
    def specs(self) -> list[Spec]:
        return [cell.spec for cell in self.cells]


def build_study(name: str, *, seeds: int = 5, mu: float = 5.0, dims: Sequence[int] = (), fast: bool = False) -> Study:
    """A study by name. `mu` belongs to scenario-a; `fast` keeps one seed, three values and d = 30."""
    if name not in STUDIES:
        raise InputError(f"{name!r}: unknown study, allowed: {', '.join(STUDIES)}")
    require(math.isfinite(mu) and (mu == 5.0 or name == "scenario-a"), "--mu", mu, "a finite number, for scenario-a only")
    for dim in dims:
        require(dim in SAMPLES, "--dim", dim, " or ".join(map(str, SAMPLES)))
    chosen = tuple(dict.fromkeys(dims)) or tuple(SAMPLES)
    return STUDIES[name](range(1 if fast else seeds), chosen[:1] if fast else chosen, mu, fast)


def scenario_a(seeds: Sequence[int], dims: Sequence[int], mu: float, fast: bool) -> Study:
    """FDP, P_a and gap over the contamination s_r. Paper: fig:sr-dim30-80."""
    values = SHARES[2::2] if fast else SHARES
    name = "scenario-a" + ("" if mu == 5.0 else f"-mu{mu:g}") + ("-fast" if fast else "")
    cells = _grid(seeds, dims, values, lambda value: {"attack": {"name": "parameter", "share": value, "mu": mu}})
    return Study(name, f"Scenario A, 20 % Byzantine, mu_c = {mu:g}", "s_r", values, cells)


def scenario_b(seeds: Sequence[int], dims: Sequence[int], mu: float, fast: bool) -> Study:
    """FDP, P_a and gap over the share of Byzantine nodes. Paper: fig:varrho-dim30-80."""
    values = RATIOS[1::3] if fast else RATIOS
    cells = _grid(seeds, dims, values, lambda value: {"attack": "covariate", "byzantine_ratio": value})
    return Study("scenario-b" + ("-fast" if fast else ""), "Scenario B", "Byzantine ratio", values, cells)


STUDIES: dict[str, Callable[[Sequence[int], Sequence[int], float, bool], Study]] = {
    "scenario-a": scenario_a,
    "scenario-b": scenario_b,
}


def _grid(
    seeds: Sequence[int], dims: Sequence[int], values: Sequence[float], change: Callable[[float], dict[str, object]]
) -> list[Cell]:
    """All combinations, seeds outermost, so that an interrupted study has complete pictures of fewer seeds."""
    return [
        Cell(
            dim,
            label,
            value,
            read_spec(
                {
                    "profile": "paper",
                    "method": "drsgd-bymi",
                    "seed": seed,
                    "data": {"dim": dim, "samples": SAMPLES[dim]},
                    "warm_up": warm_up,
                    "record_every": 500,
                    **change(value),
                }
            ),
        )
        for seed in seeds
        for dim in dims
        for value in values
        for label, warm_up in WARM_UPS.items()
    ]
