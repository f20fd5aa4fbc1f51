"""Every rule on the linear model, alone and as the warm-up of the hardened method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bymi.aggregation import RULES
from bymi.experiment.spec import Spec, read_spec

RULES_LINEAR = {"rules-linear": "Every rule and some chains, alone and as warm-up of the hardened method, linear model."}
"""Name, and what it shows."""

CHAINS = ("momentum+scclip", "momentum+monna:beta=0.99", "nnm+krum", "bucketing+krum")
ATTACKS = ("ipm", "gaussian")
METHODS = {"alone": "rule", "warm-up": "drsgd-bymi"}

_BASE: dict[str, Any] = {"nodes": 60, "steps": 600, "warm_up": {"steps": 60}, "record_every": 300}
SMALL = {"mda": ({"name": "mda", "f": 3}, "regular:degree=14")}
"""Rules that look at all subsets of a neighbourhood: their setting, and a graph on which they can."""


@dataclass(frozen=True)
class RulesStudy:
    """A table to be: runs by rule, attack and whether the rule runs alone."""

    name: str
    trials: list[tuple[str, str, str, Spec]] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.name}"

    @property
    def specs(self) -> list[Spec]:
        return [spec for *_, spec in self.trials]


def build_rules_linear(*, seeds: int = 5, fast: bool = False) -> RulesStudy:
    """The default experiment with 60 nodes and 600 rounds, once a rule, attack, role and seed; `fast` has four rules."""
    rules = ("balance", "krum", "drsa", "nnm+krum") if fast else (*RULES, *CHAINS)
    trials = [
        (rule, attack, role, _spec(rule, attack, method, seed))
        for seed in range(1 if fast else seeds)
        for rule in rules
        for attack in ATTACKS
        for role, method in METHODS.items()
    ]
    return RulesStudy("rules-linear" + ("-fast" if fast else ""), trials)


def _spec(rule: str, attack: str, method: str, seed: int) -> Spec:
    part, graph = SMALL.get(rule, (rule, "erdos-renyi"))
    warm_up = {**_BASE["warm_up"], "rule": part}
    return read_spec({**_BASE, "method": method, "attack": attack, "seed": seed, "warm_up": warm_up, "graph": graph})
