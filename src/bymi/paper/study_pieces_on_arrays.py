"""What each test of the hardened panel buys on plain arrays: found and falsely flagged machines with and without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bymi.core.random_streams import stream
from bymi.detection.detection_settings import Panel
from bymi.detection.identify_arrays import PANEL, identify
from bymi.paper.committed_results import span
from bymi.paper.computed_study import ComputedStudy, paragraph
from bymi.paper.study_red_team import SHOWN_AS
from bymi.report.tables import markdown_table

NAME = "pieces-arrays"
SHOWS = "Detection on arrays without each test of the hardened panel, against attacks of all kinds."
MACHINES, DRAWS = 60, 20
DIMS, SHARES = (30, 1000, 10_000), (0.2, 0.4)
CHANGED = 0.02
"""Change of the share of machines found, or flagged falsely, from which a row counts."""

WHOLE = "all tests"
PIECES: dict[str, Panel] = {
    "hard rejects": replace(PANEL, absurd=None),
    "duplicates": replace(PANEL, duplicate=None),
    "screen, upper side": replace(PANEL, high=None),
    "screen, lower side": replace(PANEL, low=None),
    "kinship of differences": replace(PANEL, alike=None),
    "noise edge": replace(PANEL, edge=None),
    "hybrid threshold": replace(PANEL, strong=None),
    "directional test": replace(PANEL, direction=None),
    "guard": replace(PANEL, guard=None),
}
"""The panel without each of its tests."""

_TAIL = 3  # degrees of freedom of the heavy tails


@dataclass(frozen=True, eq=False)
class Cloud:
    """Halves [n, d] of unit noise about a common mean [d]; the first `bad` rows are to be overwritten by an attack."""

    first: Tensor
    second: Tensor
    mean: Tensor
    bad: int
    draw: int

    @staticmethod
    def drawn(share: float, dim: int, draw: int, *, heavy: bool) -> Cloud:
        noise = [_normal(draw, half, MACHINES, dim) for half in ("first", "second")]
        if heavy:  # Student's t: normal noise over the root of a mean of squares
            tails = [_normal(draw, f"tail {half}", _TAIL, MACHINES, dim) for half in ("first", "second")]
            noise = [each / tail.square().mean(0).sqrt() for each, tail in zip(noise, tails, strict=True)]
        mean = 0.3 * _normal(draw, "mean", dim)
        return Cloud(noise[0] + mean, noise[1] + mean, mean, round(share * MACHINES), draw)

    def normal(self, name: str, *shape: int) -> Tensor:
        return _normal(self.draw, name, *shape)

    @property
    def dim(self) -> int:
        return len(self.mean)

    def send(self, first: Tensor, second: Tensor) -> None:
        """The bad machines send these in place of their own halves."""
        self.first[: self.bad], self.second[: self.bad] = first, second

    def map(self, made: Callable[[Tensor], Tensor]) -> None:
        """Each bad machine sends what is made from its own half."""
        self.send(made(self.first[: self.bad]), made(self.second[: self.bad]))

    def one(self, made: Callable[[Tensor], Tensor]) -> None:
        """All bad machines send one vector per half, made from the honest ones [n, d]."""
        self.send(made(self.first[self.bad :]), made(self.second[self.bad :]))

    def shift(self, length: float) -> None:
        """All bad machines are shifted by one vector of this length."""
        way = self.normal("way", self.dim)
        self.map(lambda own: own + length * way / way.norm())

    def apart(self, way: Tensor, noise: float = 0.0) -> None:
        """The two halves of a bad machine point in opposite directions."""
        one, two = noise * self.normal("apart noise", 2, self.bad, self.dim)
        self.send(self.mean + way + one, self.mean - way + two)


def _normal(draw: int, name: str, *shape: int) -> Tensor:
    return stream(draw, f"pieces {name}").normal(*shape)


def _own_shifts(cloud: Cloud) -> None:
    shifts = cloud.normal("shifts", cloud.bad, cloud.dim)
    cloud.map(lambda own: own + shifts)


ATTACKS: dict[str, Callable[[Cloud], None] | None] = {
    "none": None,
    "own shifts": _own_shifts,
    "one far shift": lambda cloud: cloud.shift(4.5 * cloud.dim**0.25),
    "one small shift": lambda cloud: cloud.shift(1.2 * cloud.dim**0.25),
    "minus the mean": lambda cloud: cloud.one(lambda honest: -honest.mean(0)),
    "ALIE": lambda cloud: cloud.one(lambda honest: honest.mean(0) + 0.3 * honest.std(0)),
    "sign flip": lambda cloud: cloud.map(torch.neg),
    "zero": lambda cloud: cloud.map(torch.zeros_like),
    "copies of one": lambda cloud: cloud.one(lambda honest: honest[0]),
    "opposite halves": lambda cloud: cloud.apart(3 * cloud.normal("ways", cloud.bad, cloud.dim)),
    "one opposite plan": lambda cloud: cloud.apart(cloud.normal("plan", cloud.dim), 0.3),
    "a billion times longer": lambda cloud: cloud.map(lambda own: 1e9 * own),
    "ten times the noise": lambda cloud: cloud.map(lambda own: cloud.mean + 10 * (own - cloud.mean)),
    "none, heavy tails": None,
    "own shifts, heavy tails": _own_shifts,
}
"""What the bad machines send; None if there are none."""


def halves_of(attack: str, share: float, dim: int, draw: int) -> tuple[Tensor, Tensor, int]:
    """Halves [n, d], and how many of the first rows are bad."""
    change = ATTACKS[attack]
    cloud = Cloud.drawn(share if change else 0.0, dim, draw, heavy=attack.endswith("heavy tails"))
    if change is not None:
        change(cloud)
    return cloud.first, cloud.second, cloud.bad


def points(fast: bool) -> list[dict[str, Any]]:
    dims, shares, draws = ((30,), (0.2,), 2) if fast else (DIMS, SHARES, DRAWS)
    return [
        {"attack": attack, "share": share, "dim": dim, "draws": draws}
        for dim in dims
        for share in shares
        for attack in ATTACKS
        if share == shares[0] or ATTACKS[attack] is not None
    ]


def measure(point: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Shares of the bad machines found and of the honest ones flagged, means over draws, with all tests and without each."""
    panels = {WHOLE: PANEL, **PIECES}
    found: dict[str, list[float]] = {name: [] for name in panels}
    lost: dict[str, list[float]] = {name: [] for name in panels}
    for draw in range(point["draws"]):
        first, second, bad = halves_of(point["attack"], point["share"], point["dim"], draw)
        for name, panel in panels.items():
            flagged = torch.as_tensor(identify(first, second, panel=panel).flagged).double()
            lost[name].append(float(flagged[bad:].mean()))
            found[name].append(float(flagged[:bad].mean()) if bad else 1.0)
    return {key: {name: sum(of) / len(of) for name, of in values.items()} for key, values in (("found", found), ("lost", lost))}


_SETTING = f"""{MACHINES} machines of unit normal noise about a common mean, of which a share is bad, over d = {DIMS[0]} to
{DIMS[-1]:,}; heavy tails are Student's t with {_TAIL} degrees of freedom. Each test of the panel is switched off by itself.
Named are settings in which the share of bad machines found, or of honest ones flagged, changes by {100 * CHANGED:g} points or
more, with the values with and without the test in per cent, found / flagged falsely. Without the noise edge the centre is
`filtering`; without the score test scores are compared with the published threshold."""


def page(values: dict[str, Any]) -> str:
    """The page, every number on it from the values."""
    shown = values["points"]
    rows = []
    for piece in PIECES:
        worse, better = [], []
        for point in shown:
            (found, lost), (found_without, lost_without) = (
                tuple(point[key][name] for key in ("found", "lost")) for name in (WHOLE, piece)
            )
            bad = f", {point['share']:.0%} bad" if ATTACKS[point["attack"]] else ""
            words = (
                f"{point['attack']}, d = {point['dim']:,}{bad} ({_both(found, lost)} -> {_both(found_without, lost_without)})"
            )
            if found_without <= found - CHANGED or lost_without >= lost + CHANGED:
                worse.append(words)
            elif found_without >= found + CHANGED or lost_without <= lost - CHANGED:
                better.append(words)
        rows.append([SHOWN_AS.get(piece, piece), str(len(shown)), "; ".join(worse) or "none", "; ".join(better) or "none"])
    nothing = [piece for piece, _, worse, better in rows if worse == better == "none"]
    return "\n".join(
        [
            "# What each test buys on arrays",
            "",
            f"`{values['command']}`. Every value: [JSON]({NAME}.json).",
            "",
            paragraph(f"{_SETTING} {_draws(shown)}"),
            "",
            markdown_table(["without", "settings", "worse", "better"], rows),
            "",
            f"No setting changes without: {', '.join(nothing) or 'none of them'}.",
            "",
        ]
    )


def _draws(points: list[dict[str, Any]]) -> str:
    """How many draws a setting has, and how many bad machines the smallest change that counts is."""
    draws = span((point["draws"] for point in points), str)
    bad = [point["draws"] * round(point["share"] * MACHINES) for point in points if ATTACKS[point["attack"]]]
    few = [span((part * count for count in bad), "{:.0f}".format) for part in (1, CHANGED)]
    return f"Draws per setting: {draws}" + (
        f", with {few[0]} bad machines, of whom {100 * CHANGED:g} points are {few[1]}." if bad else "."
    )


def _both(found: float, lost: float) -> str:
    return f"{100 * found:.0f} / {100 * lost:.1f}"


STUDY = ComputedStudy(NAME, SHOWS, points, measure, page)
