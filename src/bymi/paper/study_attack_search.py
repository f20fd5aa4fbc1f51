"""A random search over attackers that know the hardened detection: the most harm found, and how visible it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bymi.core.errors import require
from bymi.experiment.spec import Spec
from bymi.paper.study_red_team import COLUMNS, red_team_spec

RUNS = 200
"""Draws of each family in full at the first place."""

RUNS_ELSEWHERE = 20
"""The first of these draws, at each of the other places."""

PLACES: dict[str, dict[str, Any]] = {
    "ratio 0.2, degree 75": {},
    "ratio 0.1, degree 75": {"byzantine_ratio": 0.1},
    "ratio 0.3, degree 75": {"byzantine_ratio": 0.3},
    "ratio 0.2, degree 20": {"graph": "erdos-renyi:p=0.14"},
}
"""Ratios and degrees, and what is changed of the red-team study for each."""

_SEEDS = 5
Parameters = dict[str, Any]


def _zero_sum(draw: random.Random) -> Parameters:
    return {"size": draw.uniform(0.2, 2.0), "zero_sum": True, "bias": draw.choice([0.0, draw.uniform(0.0, 0.6)])}


def _steady(draw: random.Random, most: float = 2.0) -> Parameters:
    return {"size": draw.uniform(0.2, most)}


def _turns(draw: random.Random) -> Parameters:
    return {**draw.choice([_steady, _zero_sum])(draw), "teams": draw.randint(2, 8)}


def _late(draw: random.Random) -> Parameters:
    return {**_turns(draw), "teams": draw.randint(2, 4), "last": draw.randint(1, 6)}


def _decoys(draw: random.Random) -> Parameters:
    return {**_steady(draw, 0.8), "decoys": draw.uniform(0.0, 0.45), "groups": draw.randint(1, 4)}


def _answers(kind: str) -> Callable[[random.Random], Parameters]:
    def parameters(draw: random.Random) -> Parameters:
        return {"answers": kind, "noise": draw.choice([1.0, draw.uniform(1.0, 5.0)])}

    return parameters


_PUSHES = {"wobble": _zero_sum, "shift": lambda draw: _steady(draw, 1.0), "turns": _turns, "retreat": _late, "decoys": _decoys}
_STORIES = {kind: _answers(kind) for kind in ("honest", "shifted", "fitted", "framed", "copied", "kin")}

FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "wobble": (("wobble",), ("honest",)),
    "inflated noise": (("shift",), ("shifted",)),
    "fitted answers": (("wobble", "shift"), ("fitted",)),
    "framing": (("wobble", "shift"), ("framed",)),
    "teams in turns": (("turns",), ("honest",)),
    "retreat": (("retreat",), ("honest",)),
    "copies": (("shift",), ("copied",)),
    "kin": (("shift",), ("kin",)),
    "shift with decoys": (("decoys",), ("shifted",)),
    "any push with any answer": (tuple(_PUSHES), tuple(_STORIES)),
}
"""Attacks by how they push and how they answer; of each, parameters are drawn."""

FRONTIER_STUDIES: dict[str, str] = {
    "frontier": "A random search over the parameters of attackers that know the hardened detection (linear model).",
}
"""Name, and what it shows."""


@dataclass(frozen=True)
class SearchTrial:
    """One run: where it is, the family that its attack was drawn from, and its spec."""

    place: str
    family: str
    spec: Spec


@dataclass(frozen=True)
class Frontier:
    """A figure to be: runs by place and family."""

    name: str
    trials: list[SearchTrial] = field(repr=False)

    @property
    def folder(self) -> str:
        return "reproduce-frontier"

    @property
    def specs(self) -> list[Spec]:
        return [trial.spec for trial in self.trials]


def build_frontier(*, only: Sequence[str] = (), fast: bool = False, runs: int = RUNS) -> Frontier:
    """The search: of each family as many draws at the first place, and the first `RUNS_ELSEWHERE` of them at each other one.

    `fast` makes two at the first place; `only` keeps some families. Draws come in turns of families and places: however early a
    search is interrupted, all of them have been tried about equally often.
    """
    for family in only:
        require(family in FAMILIES, "--only", family, f"for frontier: {', '.join(FAMILIES)}")
    first, *elsewhere = PLACES
    trials = [
        SearchTrial(place, family, _spec(place, family, number))
        for number in range(2 if fast else runs)
        for place in (first, *(elsewhere if number < RUNS_ELSEWHERE and not fast else ()))
        for family in FAMILIES
        if not only or family in only
    ]
    return Frontier("frontier" + ("-fast" if fast else ""), trials)


def _spec(place: str, family: str, number: int) -> Spec:
    return red_team_spec(number % _SEEDS, COLUMNS["hardened"], PLACES[place], {"attack": attack_of(family, number)})


def attack_of(family: str, number: int) -> dict[str, Any]:
    """The attack of one draw of a family, as part of a spec."""
    draw = random.Random(f"{family} {number}")
    pushes, stories = FAMILIES[family]
    values = {**_PUSHES[draw.choice(pushes)](draw), **_STORIES[draw.choice(stories)](draw)}
    return {
        "name": "adaptive",
        **{key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()},
    }
