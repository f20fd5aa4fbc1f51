"""Studies with a table of rows and columns: rules alone and as warm-up, rules told a wrong share, few neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bymi.aggregation import RULES
from bymi.core.errors import require
from bymi.experiment.spec import Spec, read_spec
from bymi.paper.study_images import image_spec
from bymi.paper.study_rules_linear import SMALL

RATIO = 0.2
STEPS = 600
NODES = {"misspecified": 100, "rules": 60}
_LINEAR: dict[str, Any] = {"steps": STEPS, "byzantine_ratio": RATIO, "record_every": STEPS}
ATTACKS: dict[str, dict[str, Any]] = {
    "IPM": {"attack": "ipm"},
    "ALIE": {"attack": "alie"},
    "Gaussian": {"attack": "gaussian"},
    "dissensus": {"attack": "dissensus"},
}
DATA: dict[str, dict[str, Any]] = {"equal": {}, "different": {"optimum_spread": 0.3}}
"""Linear data of one distribution, and with node optima theta* + 0.3 z_i."""

METHODS: dict[str, dict[str, Any]] = {
    "alone": {"method": "rule"},
    "published": {"method": "drsgd-bymi", "profile": "paper"},
    "hardened": {"method": "drsgd-bymi", "profile": "hardened"},
}
TOLD = {"0": 0.0, "half": RATIO / 2, "exact": RATIO, "double": 2 * RATIO}
TOLD_RULES = ("ubar", "ios", "trimmed-mean", "krum")
UNTOLD = ("published", "hardened")
MNIST_RULES = ("average", "balance", "ubar", "ios", "trimmed-mean", "geometric-median", "krum", "faba", "scclip", "rtc", "caf")

_MNIST: dict[str, Any] = {  # as in the recipe mnist
    **{"nodes": 100, "steps": 150, "record_every": 75, "byzantine_ratio": RATIO, "byzantine_mixing": "none"},
    "warm_up": {"steps": 30, "step_size": 0.02, "schedule": "constant", "batch": 16},
    "optimisation": {
        **{"step_size": 0.15, "schedule": "trapezoid", "batch": 16, "max_local_step": 0.2},
        "order": "adapt-then-combine",
    },
}
_MNIST_HARDENED: dict[str, Any] = {"detection": {"sample": "identification"}, "watch": {"every": 60}}

GRID_STUDIES = {
    "misspecified": "Rules told 0, half, the exact and twice the share of Byzantine nodes, beside ByMI, which is told none.",
    "rules": "Every rule alone and as warm-up of the published and the hardened method, under four attacks, linear model.",
    "rules-mnist": f"{len(MNIST_RULES)} of these rules on MNIST, stratified and Dirichlet 0.3, alone and as warm-up.",
    "few-neighbours": "The hardened method on MNIST where nodes have few neighbours: degrees 6, 10, 20, and twelve nodes.",
}
"""Names, and what each shows."""


@dataclass(frozen=True)
class GridStudy:
    """A table to be: runs by row and column."""

    name: str
    trials: list[tuple[str, str, Spec]] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.name}"

    @property
    def specs(self) -> list[Spec]:
        return [spec for _, _, spec in self.trials]


def build_grid(name: str, *, seeds: int = 5, only: Sequence[str] = (), fast: bool = False) -> GridStudy:
    """A study by name. `only`: rows (rules) to keep; `fast`: one seed, two attacks, three rules."""
    found = _BUILD[name](range(1 if fast else seeds))
    rows = list(dict.fromkeys(row for row, _, _ in found))
    require(set(only) <= set(rows), "--only", list(only), ", ".join(rows))
    kept = set(only) or set(rows)
    if fast:
        kept &= {"balance", "median", "ios 0", "ios exact", "published", "hardened"}
        found = [(row, column, values) for row, column, values in found if column.startswith(("IPM", "Gaussian"))]
    trials = [(row, column, read_spec(values)) for row, column, values in found if row in kept]
    return GridStudy(name + ("-fast" if fast else ""), trials)


Trial = tuple[str, str, dict[str, Any]]


def _misspecified(seeds: range) -> list[Trial]:
    base = {**_LINEAR, "nodes": NODES["misspecified"], "data": {"name": "linear"}}
    told = {
        f"{rule} {word}": {"method": "rule", "warm_up": {"rule": f"{rule}:share={share}"}}
        for rule in TOLD_RULES
        if rule in RULES
        for word, share in TOLD.items()
    }
    rows = {**told, **{name: METHODS[name] for name in UNTOLD}}
    return [
        (row, column, {**base, **attack, **how, "seed": seed})
        for row, how in rows.items()
        for column, attack in ATTACKS.items()
        for seed in seeds
    ]


def _rules(seeds: range) -> list[Trial]:
    trials = []
    for rule in RULES:
        part, graph = SMALL.get(rule, (rule, "erdos-renyi"))
        base = {**_LINEAR, "nodes": NODES["rules"], "graph": graph, "warm_up": {"rule": part}}
        for data_name, data in DATA.items():
            for attack_name, attack in ATTACKS.items():
                for method_name, method in METHODS.items():
                    values = {**base, **attack, **method, "data": {"name": "linear", **data}}
                    trials += [(rule, f"{attack_name}, {data_name}, {method_name}", {**values, "seed": seed}) for seed in seeds]
    return trials


def _mnist(seeds: range) -> list[Trial]:
    trials = []
    for rule in (rule for rule in MNIST_RULES if rule in RULES):
        for data_name, partition in (("stratified", "stratified"), ("Dirichlet 0.3", "dirichlet:dirichlet_alpha=0.3")):
            for attack_name, attack in ATTACKS.items():
                for method_name, method in METHODS.items():
                    values: dict[str, Any] = {
                        **{**_MNIST, **attack, **method},
                        "data": {"name": "mnist", "identification": 20, "partition": partition},
                        "warm_up": {**_MNIST["warm_up"], "rule": rule},
                        **(_MNIST_HARDENED if method_name == "hardened" else {}),
                    }
                    trials += [(rule, f"{attack_name}, {data_name}, {method_name}", {**values, "seed": seed}) for seed in seeds]
    return trials


FEW_NEIGHBOURS: dict[str, dict[str, Any]] = {
    **{f"150 nodes, degree {degree}": {"graph": f"regular:degree={degree}"} for degree in (6, 10, 20)},
    "12 nodes, complete": {"nodes": 12, "byzantine_ratio": 0.17, "graph": "complete"},  # two Byzantine nodes
}
FEW_ATTACKS = {
    **{"no attackers": "zero", "IPM": "ipm", "gradient": "gradient", "OOD": "ood"},
    **{"sign flip": "sign-flip", "label flip": "label-flip"},
}


def _few_neighbours(seeds: range) -> list[Trial]:
    trials = []
    for row, network in FEW_NEIGHBOURS.items():
        for column, attack in FEW_ATTACKS.items():
            for seed in seeds:
                spec = image_spec("mnist", "ipm" if attack == "ipm" else "gradient", "balance", RATIO, "hardened", seed)
                values = {**spec.model_dump(mode="json"), "record_every": 500, **network, "attack": attack}
                trials.append((row, column, values if attack != "zero" else {**values, "byzantine_ratio": 0.0}))
    return trials


_BUILD = {"misspecified": _misspecified, "rules": _rules, "rules-mnist": _mnist, "few-neighbours": _few_neighbours}
