"""The published method with and without what the paper does not print: cap, floor, falling step, tracker at its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bymi.experiment.spec import Spec, read_spec

_NO_CAP, _NO_FLOOR = {"max_local_step": 1e100}, {"min_weight": 1e-100}  # bounds that no step reaches
_THEOREM = {"convention": "paper", "step_size": "theorem", "schedule": "constant"}

SETTINGS: dict[str, dict[str, Any]] = {
    "the profile as it is: step falling to zero, y at its limit, cap, floor": {},
    "constant step": {"schedule": "constant"},
    "floor off": _NO_FLOOR,
    "cap off": _NO_CAP,
    "cap and floor off": {**_NO_CAP, **_NO_FLOOR},
    "theorem's step, y at its limit, cap and floor off": {**_THEOREM, **_NO_CAP, **_NO_FLOOR},
    "theorem's step, y_0 = e_i, cap and floor off": {**_THEOREM, **_NO_CAP, **_NO_FLOOR, "premix_rounds": 0},
    "theorem's step, y at its limit, cap and floor on": _THEOREM,
}
"""Rows of the table, and what each changes of the optimisation."""

STEP_STUDIES = {"published-step": "The published method with and without the cap, floor and falling step that are ours."}
"""Name, and what it shows."""


@dataclass(frozen=True)
class StepStudy:
    """A table to be: its runs by row. The warm-up and the detection are the same in all rows of a seed."""

    name: str
    trials: list[tuple[str, Spec]] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.name}"

    @property
    def specs(self) -> list[Spec]:
        return [spec for _, spec in self.trials]


def build_step_study(*, seeds: int = 5, fast: bool = False) -> StepStudy:
    """The default experiment under the published profile, once a setting and seed; `fast` keeps one seed."""
    base = {"method": "published", "record_every": 500}
    trials = [
        (name, read_spec({**base, "seed": seed, "optimisation": changes}))
        for seed in range(1 if fast else seeds)
        for name, changes in SETTINGS.items()
    ]
    return StepStudy("published-step" + ("-fast" if fast else ""), trials)
