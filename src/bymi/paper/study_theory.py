"""Studies of the theory: what the convergence theorem asks of runs, speed-up over nodes, realised false discovery rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bymi.core.errors import InputError, require
from bymi.experiment.spec import Spec, read_spec
from bymi.paper.study_images import image_spec

LEVELS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
NODES = (40, 80, 160, 320)
ROUNDS = (1000, 2000, 4000)

PROFILES: dict[str, dict[str, Any]] = {"published": {"profile": "paper"}, "hardened": {"profile": "hardened"}}
"""Whose detection."""

KINDS = {**PROFILES, "published, every 300 rounds": {"profile": "paper", "detection": {"every": 300}}}
"""Rows of the table on the linear model."""

_ONCE = {"watch": {"every": "off", "fuse": "off"}}
# Enough samples and long batches: the theorem's step is m_g times a usual one, and diverges on shorter ones.
_THEOREM = {
    "data": {"name": "linear", "dim": 30, "samples": 300},
    "optimisation": {
        "convention": "paper",
        "step_size": "theorem",
        "schedule": "constant",
        "batch": 100,
        "max_local_step": 1e3,  # longer than any: not capped
    },
}
_FEW = 4  # rounds per node below which the theorem's step is too long

THEORY_STUDIES: dict[str, str] = {
    "theory": "What the convergence theorem asks for, and what runs do (linear model). Paper: thm:main0.",
    "theory-mnist": "The same on MNIST, as far as it is known of a network.",
    "speed-up": "Gradient norm and gap over the number of honest nodes (linear model).",
    "fdr-level": "Realised false discovery rate over the level that was asked for (linear model).",
}
"""Names, and what they show."""


@dataclass(frozen=True)
class Trial:
    """One run: the cell it belongs to, and its spec."""

    cell: dict[str, Any]
    spec: Spec


@dataclass(frozen=True)
class TheoryStudy:
    """A table or figure to be."""

    name: str
    kind: str  # one of THEORY_STUDIES
    trials: list[Trial] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.kind}"

    @property
    def specs(self) -> list[Spec]:
        return [trial.spec for trial in self.trials]


def build_theory(name: str, *, seeds: int = 5, only: Sequence[str] = (), fast: bool = False) -> TheoryStudy:
    """A study by name. `only` keeps some detections; `fast` keeps one seed of the first cells."""
    if name not in THEORY_STUDIES:
        raise InputError(f"{name!r}: unknown study, allowed: {', '.join(THEORY_STUDIES)}")
    for one in only:
        require(one in PROFILES, "--only", one, ", ".join(PROFILES))
    trials = [trial for seed in range(1 if fast else seeds) for trial in _TRIALS[name](seed)]
    trials = [trial for trial in trials if not only or trial.cell["detection"] in only]
    return TheoryStudy(name + ("-fast" if fast else ""), name, trials[:2] if fast else trials)


def _theory(seed: int) -> list[Trial]:
    return [Trial({"detection": kind}, _spec(seed, changes)) for kind, changes in KINDS.items()]


def _mnist(seed: int) -> list[Trial]:
    found = []
    for kind, column in (("published", "published"), ("hardened", "hardened")):
        values = image_spec("mnist", "gradient", "balance", 0.2, column, seed).model_dump(mode="json")
        found.append(Trial({"detection": kind}, read_spec({**values, "record_every": 10})))
    return found


def _speed_up(seed: int) -> list[Trial]:
    """The theorem's step for some numbers of rounds, after one hardened detection; and the default settings."""
    found = []
    for nodes in NODES:
        for rounds in ROUNDS:
            if rounds >= _FEW * nodes:
                cell = {"panel": "theorem's step", "detection": "hardened", "nodes": nodes, "rounds": rounds}
                size = {"nodes": nodes, "steps": 300 + rounds, "warm_up": {"steps": 300}}
                found.append(Trial(cell, _spec(seed, PROFILES["hardened"], _ONCE, _THEOREM, size)))
        for kind, changes in PROFILES.items():
            cell = {"panel": "default", "detection": kind, "nodes": nodes, "rounds": 2700}
            found.append(Trial(cell, _spec(seed, changes, {"nodes": nodes})))
    return found


def _fdr_level(seed: int) -> list[Trial]:
    """The default run up to its first detection: one round more, in which anybody counts as at rest."""
    stop = {"stop": {"on": "movement", "tolerance": 1e9, "patience": 1}}
    return [
        Trial({"detection": kind, "level": level}, _spec(seed, changes, stop, {"detection": {"fdr_level": level}}))
        for level in LEVELS
        for kind, changes in PROFILES.items()
    ]


_TRIALS: dict[str, Callable[[int], list[Trial]]] = {
    "theory": _theory,
    "theory-mnist": _mnist,
    "speed-up": _speed_up,
    "fdr-level": _fdr_level,
}


def _spec(seed: int, *changes: dict[str, Any]) -> Spec:
    values: dict[str, Any] = {"method": "drsgd-bymi", "seed": seed, "record_every": 100}
    for change in changes:
        values.update(change)
    return read_spec(values)
