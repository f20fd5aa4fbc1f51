"""Every attack against nobody, a rule, the published detection and the hardened one; limits; what each piece buys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bymi.core.errors import InputError, require
from bymi.experiment.spec import Spec, read_spec
from bymi.paper.study_images import image_spec

DIM, SAMPLES, NODES = 30, 100, 150
_STEPS, _WARM_UP = 2000, 300
_WAKE = 950  # a sleeper's first round: between two detections

COLUMNS: dict[str, dict[str, Any]] = {
    "nobody": {"method": "dsgd"},
    "BALANCE": {"method": "rule"},
    "published": {"method": "drsgd-bymi", "profile": "paper"},
    "hardened": {"method": "drsgd-bymi", "profile": "hardened"},
}
"""Who defends."""

ATTACKS: dict[str, dict[str, Any]] = {
    "no attackers": {"attack": "zero", "byzantine_ratio": 0.0},
    "wrong parameter (Scenario A)": {"attack": "parameter"},
    "wrong parameter, trained alone": {"attack": "parameter", "byzantine_mixing": "none"},
    "wrong covariates (Scenario B)": {"attack": "covariate"},
    "response flip": {"attack": "response-flip"},
    "gradient attack": {"attack": "gradient"},
    "IPM, a = 0.5": {"attack": "ipm:a=0.5"},
    "IPM, a = 1": {"attack": "ipm"},
    "IPM, a = 5": {"attack": "ipm:a=5.0"},
    "sign flip": {"attack": "sign-flip"},
    "sign flip, trained alone": {"attack": "sign-flip", "byzantine_mixing": "none"},
    "Gaussian": {"attack": "gaussian"},
    "zero": {"attack": "zero"},
    "same value": {"attack": "same-value"},
    "ALIE": {"attack": "alie"},
    "ALIE, z = 1.5": {"attack": "alie:z=1.5"},
    "min-max": {"attack": "min-max"},
    "mimic": {"attack": "mimic"},
    "NaN": {"attack": "nan"},
    "infinite": {"attack": "inf"},
    "huge": {"attack": "huge"},
    "silent": {"attack": "silent"},
    "sleeper, sign flip": {"attack": "sign-flip", "byzantine_start": _WAKE},
    "sleeper, poison under the fuse": {"attack": "poison:how=fuse", "byzantine_start": _WAKE},
    "intermittent gradient attack": {"attack": "gradient", "byzantine_period": 400},
    "poison right after each detection": {"attack": "poison:how=fuse", "byzantine_start": 301, "byzantine_period": 300},
    "poison after the last but one": {"attack": "poison:how=fuse", "byzantine_start": 1801},
    "sleeping neighbourhood": {"attack": "poison:how=fuse", "byzantine_start": 301, "byzantine_placement": "neighbourhood"},
    "two-faced sign flip": {"attack": "sign-flip", "byzantine_faces": "two"},
    "two-faced gradient attack": {"attack": "gradient", "byzantine_faces": "two"},
    "poisoned parameter, large": {"attack": "poison:how=large"},
    "poisoned parameter, under the fuse": {"attack": "poison:how=fuse"},
    "poisoned parameter, ALIE": {"attack": "poison:how=alie"},
    "dissensus": {"attack": "dissensus"},
    "isolation": {"attack": "isolation"},
    "negative injection": {"attack": "negative-injection"},
    "negative injection inside the screen": {"attack": "negative-injection:strength=1.0"},
    "decorrelated halves": {"attack": "decorrelated"},
    "decorrelated halves inside the screen": {"attack": "decorrelated:strength=1.0"},
    "decoy": {"attack": "decoy"},
    "joint shift 0.3": {"attack": "shift:size=0.3"},
    "joint shift 0.5": {"attack": "shift:size=0.5"},
    "joint shift 0.7": {"attack": "shift:size=0.7"},
    "other deeds than claims, 0.3": {"attack": "deed:size=0.3"},
    "other deeds than claims, 0.6": {"attack": "deed:size=0.6"},
    "IPM in training alone": {"attack": "ipm:a=5.0", "byzantine_level": "training"},
    "filter steering, 0.5": {"attack": "steer:size=0.5"},
    "filter steering, 1": {"attack": "steer:size=1.0"},
    "collusion on one victim": {"attack": "victim"},
    "tracker, invalid": {"attack": "y-poison:kind=invalid"},
    "tracker, unit vector": {"attack": "y-poison:kind=unit"},
    "sign flip at high degrees": {"attack": "sign-flip", "byzantine_placement": "high-degree"},
    "poisoned parameter, one neighbourhood": {"attack": "poison:how=alie", "byzantine_placement": "neighbourhood"},
    "wrong parameter at cut vertices": {"attack": "parameter", "byzantine_placement": "cut-vertex"},
    "steady push": {"attack": "adaptive"},
    "wobble": {"attack": "wobble"},
    "inflated noise": {"attack": "inflate"},
    "answers fitted to updates": {"attack": "fitted"},
    "framing": {"attack": "frame"},
    "wobble and framing": {"attack": "wobble-frame"},
    "wobble, framing and retreat": {"attack": "wobble-frame:teams=2,last=2"},
    "retreat to a poisoned state": {"attack": "retreat"},
    "two teams in turns": {"attack": "flip"},
    "five teams in turns": {"attack": "rotation"},
    "two teams in turns that claim their pushes": {"attack": "flip:size=1.75,answers=shifted"},
    "copies of honest neighbours": {"attack": "copies"},
    "kin of honest neighbours": {"attack": "kin"},
    "joint shift with decoys": {"attack": "shift-decoys"},
}
"""Rows of the table: what is changed of the default run."""

BELOW_NOISE = ("joint shift 0.3", "other deeds than claims, 0.3")
"""Shifts below 4.5 sigma / sqrt(N) = 0.45, which nobody can find: the only exception."""

PAPERS = ("wrong parameter (Scenario A)", "wrong covariates (Scenario B)", "gradient attack", "IPM, a = 1")
"""Rows of the paper's attacks."""

_FEW = ("no attackers", *PAPERS, "sign flip", "ALIE", "poisoned parameter, ALIE")
ADAPTIVE = tuple(ATTACKS)[list(ATTACKS).index("steady push") :]
"""Rows of attackers that know the hardened detection."""

LIMITS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ratio 0.1": ({"byzantine_ratio": 0.1}, _FEW[1:]),
    "ratio 0.3": ({"byzantine_ratio": 0.3}, (*_FEW[1:], *ADAPTIVE)),
    "ratio 0.4": ({"byzantine_ratio": 0.4}, _FEW[1:]),
    "degree 20": ({"graph": "erdos-renyi:p=0.14"}, (*_FEW, *ADAPTIVE)),
    "degree 10": ({"graph": "erdos-renyi:p=0.07"}, _FEW),
}
"""Where it gets harder: what is changed, and against which attacks."""

PIECES: dict[str, dict[str, Any]] = {
    "receiver point": {"detection": {"point": "sender"}},
    "cross-fitted centre": {"detection": {"cross_fit": False}},
    "probe point": {"detection": {"probe": False}},
    "noise edge": {"panel": {"edge": "off"}},
    "hard rejects": {"panel": {"absurd": "off"}},
    "duplicates": {"panel": {"duplicate": "off"}},
    "screen, upper side": {"panel": {"high": "off"}},
    "screen, lower side": {"panel": {"low": "off"}},
    "kinship of differences": {"panel": {"alike": "off"}},
    "hybrid threshold": {"panel": {"strong": "off"}},
    "directional test": {"panel": {"direction": "off"}},
    "tests for different data": {"panel": {"mixed": "off"}},
    "mutual pruning": {"detection": {"pruning": "directed"}},
    "exile rule": {"detection": {"exile": "off"}},
    "guard": {"panel": {"guard": "off"}},
    "fuse": {"watch": {"fuse": "off"}},
    "drift test": {"watch": {"drift": "off"}},
    "deed test": {"watch": {"deed": "off"}},
    "joint test on updates": {"watch": {"joint": "off"}},
    "fading history": {"watch": {"fade": "off"}},
    "detection again": {"watch": {"every": "off"}},
    "longer terms": {"watch": {"longest": 1}},
    "retreat": {"watch": {"retreat": "off"}},
}
"""Each piece of the hardened profile, and how to switch it off."""

SHOWN_AS = {
    "hard rejects": "gross outliers",
    "screen, upper side": "consistency (upper side)",
    "screen, lower side": "consistency (lower side)",
    "kinship of differences": "likeness",
    "hybrid threshold": "score test",
    "tests for different data": "different data",
    "fuse": "self-centred clipping",
    "deed test": "claim mismatch",
    "joint test on updates": "joint test",
    "detection again": "repetition",
    "longer terms": "suspensions",
    "retreat": "rollback",
}
"""Names of pieces in docs/hardened.md, where they differ from those in the JSON of studies."""

WHOLE = "all pieces"
_DIFFERENT = {"data": {"name": "linear", "dim": DIM, "samples": SAMPLES, "optimum_spread": 0.3}}
_ABLATED = (
    *("no attackers", "wrong parameter, trained alone", "wrong covariates (Scenario B)", "IPM, a = 1", "sign flip", "mimic"),
    *("huge", "sleeper, sign flip", "poison after the last but one", "sleeping neighbourhood", "isolation"),
    *("poisoned parameter, under the fuse", "poisoned parameter, ALIE", "decorrelated halves", "decoy", "joint shift 0.7"),
    *("collusion on one victim", "tracker, unit vector", "wobble", "inflated noise", "answers fitted to updates", "framing"),
    *("two teams in turns", "copies of honest neighbours", "kin of honest neighbours"),
)
ABLATED: dict[str, dict[str, Any]] = {
    **{row: ATTACKS[row] for row in _ABLATED},
    **{f"{row}, data differ": {**ATTACKS[row], **_DIFFERENT} for row in ("no attackers", "IPM, a = 1", "sign flip")},
}
"""Attacks against which every piece is left out; where data differ, node optima are theta* + 0.3 z_i."""

IMAGES: dict[str, dict[str, Any]] = {
    "no attackers": {"attack": "zero", "byzantine_ratio": 0.0},
    "intermittent gradient attack": {"attack": "gradient", "byzantine_period": 260},
    "sleeping neighbourhood": {"attack": "poison:how=fuse", "byzantine_start": 101, "byzantine_placement": "neighbourhood"},
    "dissensus": {"attack": "dissensus"},
    "IPM in training alone": {"attack": "ipm:a=5.0", "byzantine_level": "training"},
    "poisoned parameter, large": {"attack": "poison:how=large"},
    "poisoned parameter, under the fuse": {"attack": "poison:how=fuse"},
    "sleeper, poison under the fuse": {"attack": "poison:how=fuse", "byzantine_start": 200},
    "negative injection": {"attack": "negative-injection"},
    "decorrelated halves": {"attack": "decorrelated"},
    "decorrelated halves inside the screen": {"attack": "decorrelated:strength=1.0"},
}
"""On MNIST: the ten rows above with the largest gaps of the published detection, with rounds that fit 500 of them."""
_IMAGE_COLUMNS = {"nobody": "undefended", "BALANCE": "alone", "published": "published", "hardened": "hardened"}

RED_TEAM_STUDIES: dict[str, str] = {
    "red-team": "Every attack against nobody, BALANCE, the published detection and the hardened one (linear model).",
    "red-team-limits": "The hardened detection at other ratios and degrees (linear model).",
    "red-team-pieces": "The hardened detection without each of its pieces, against attacks of all kinds (linear model).",
    "red-team-mnist": "The ten attacks that harm the published detection most, on MNIST.",
}
"""Names, and what they show."""


@dataclass(frozen=True)
class Trial:
    """One run: the row and the column it belongs to, and its spec."""

    row: str
    column: str
    spec: Spec


@dataclass(frozen=True)
class RedTeam:
    """A table to be."""

    name: str
    trials: list[Trial] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-red-team{'-mnist' if self.name.startswith('red-team-mnist') else ''}"

    @property
    def specs(self) -> list[Spec]:
        return [trial.spec for trial in self.trials]


def build_red_team(name: str, *, seeds: int = 5, only: Sequence[str] = (), fast: bool = False) -> RedTeam:
    """A study by name. `only` keeps some columns of red-team; `fast` keeps one seed of every sixth attack."""
    if name not in RED_TEAM_STUDIES:
        raise InputError(f"{name!r}: unknown study, allowed: {', '.join(RED_TEAM_STUDIES)}")
    for column in only:
        known = name in ("red-team", "red-team-mnist") and column in COLUMNS
        require(known, "--only", column, f"for red-team and red-team-mnist: {', '.join(COLUMNS)}")
    trials = _TRIALS[name](1 if fast else seeds)
    chosen = [trial for trial in trials if not only or trial.column in only]
    if fast:
        rows = list(dict.fromkeys(trial.row for trial in chosen))[::6]
        chosen = [trial for trial in chosen if trial.row in rows]
    return RedTeam(name + ("-fast" if fast else ""), chosen)


def _attacks(seeds: int) -> list[Trial]:
    return [
        Trial(row, column, red_team_spec(seed, who, what))
        for seed in range(seeds)
        for row, what in ATTACKS.items()
        for column, who in COLUMNS.items()
    ]


def _limits(seeds: int) -> list[Trial]:
    return [
        Trial(row, column, red_team_spec(seed, COLUMNS["hardened"], ATTACKS[row], where))
        for seed in range(seeds)
        for column, (where, rows) in LIMITS.items()
        for row in rows
    ]


def _pieces(seeds: int) -> list[Trial]:
    return [
        Trial(piece, column, red_team_spec(seed, COLUMNS["hardened"], attack, off))
        for seed in range(seeds)
        for column, attack in ABLATED.items()
        for piece, off in ((WHOLE, {}), *PIECES.items())
    ]


def _images(seeds: int) -> list[Trial]:
    trials = []
    for seed in range(seeds):
        for row, what in IMAGES.items():
            for column, settings in _IMAGE_COLUMNS.items():
                values = image_spec("mnist", "gradient", "balance", 0.2, settings, seed).model_dump(mode="json")
                trials.append(
                    Trial(row, column, read_spec({**values, "byzantine_mixing": "plain", "record_every": 500, **what}))
                )
    return trials


_TRIALS = {"red-team": _attacks, "red-team-limits": _limits, "red-team-pieces": _pieces, "red-team-mnist": _images}


def red_team_spec(seed: int, *changes: dict[str, Any]) -> Spec:
    values: dict[str, Any] = {
        "nodes": NODES,
        "steps": _STEPS,
        "warm_up": {"steps": _WARM_UP},
        "record_every": _STEPS,
        "seed": seed,
        "data": {"name": "linear", "dim": DIM, "samples": SAMPLES},
    }
    for change in changes:
        values.update(change)
    return read_spec(values)
