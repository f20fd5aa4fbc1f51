"""Centralised ByMI: a star graph with a trusted centre that judges all machines, beside the detectors it was compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bymi.core.random_streams import stream
from bymi.datasets import load_images
from bymi.detection import identify
from bymi.detection.published_score import Projected
from bymi.detection.robust_means import BudgetFilter
from bymi.paper.centralised_detectors import farthest_from_krum, least_by_zeno, removed_by_faba, rmdp_bh
from bymi.paper.computed_study import ComputedStudy, paragraph
from bymi.report.figures import COLOURS
from bymi.report.tables import markdown_table

NAME = "centralised"
SHOWS = "Centralised ByMI and the detectors it was compared with, at level 0.1 on principal components of MNIST pixels."
LEVEL = 0.1
MACHINES, SAMPLES, FEATURES, CLASSES, DRAWS = 100, 200, 20, 10, 10
SHARES = (0.0, 0.1, 0.2, 0.3)
ATTACKS = ("ood", "gradient", "ipm")
_STEPS, _RATE = 200, 0.5  # of the centre's own training

Halves = tuple[Tensor, Tensor]


def _published(scale: Any) -> Callable[[Halves, int], Tensor]:
    def judge(halves: Halves, count: int) -> Tensor:
        how = {"centre": BudgetFilter(min(0.49, 1.2 * count / MACHINES)), "scale": scale}
        return identify(*halves, profile="published", fdr_level=LEVEL, offset=1, cross_fit=False, own=0, **how).flagged

    return judge


def _full(halves: Halves) -> Tensor:
    return (halves[0] + halves[1]) / 2


DETECTORS: dict[str, Callable[[Halves, int], Tensor]] = {
    "ByMI, diag(1/MAD)": _published("mad"),
    "ByMI, projected": _published(Projected(components=20)),
    "ByMI, identity": _published(None),
    "hardened panel": lambda halves, count: identify(*halves, fdr_level=LEVEL, own=0).flagged,
    "Krum": lambda halves, count: farthest_from_krum(_full(halves), count),
    "FABA": lambda halves, count: removed_by_faba(_full(halves), count),
    "Zeno": lambda halves, count: least_by_zeno(_full(halves), _full(halves)[0], count),
    "RMDP + BH": lambda halves, count: rmdp_bh(_full(halves), LEVEL),
}
"""From half gradients [n, d] and the number of Byzantine machines, which Krum, FABA, Zeno and the filter of ByMI are told."""


def points(fast: bool) -> list[dict[str, Any]]:
    pairs = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in SHARES if share)]
    return [{"attack": attack, "share": share, "draw": draw} for attack, share in pairs for draw in range(1 if fast else DRAWS)]


def measure(point: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """FDP and share found of every detector on one draw; machine 0 is the trusted centre and never Byzantine."""
    count = round(point["share"] * MACHINES)
    halves = _halves(point["attack"], count, point["draw"], data)
    bad = torch.arange(MACHINES) >= MACHINES - count
    found = {}
    for name, detect in DETECTORS.items():
        flagged = detect(halves, count)
        flagged[0] = False
        wrong = int((flagged & ~bad).sum())
        power = float((flagged & bad).sum()) / count if count else None
        found[name] = {"fdp": wrong / max(1, int(flagged.sum())), "power": power, "flagged": int(flagged.sum())}
    return {"detectors": found}


@cache
def _components(data: Path | None) -> tuple[Tensor, Tensor]:
    """First principal components of the raw pixels of the training images, scaled to unit variance, and labels."""
    images = load_images("mnist", data)
    pixels = images.train_images[:30_000].flatten(1).double() / 255
    centred = pixels - pixels.mean(0)
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    features = centred @ vectors[:, -FEATURES:]
    return features / features.std(0), images.train_labels[:30_000]


def _halves(attack: str, count: int, draw: int, data: Path | None) -> Halves:
    """Mean gradients of softmax regression on both halves of each machine's samples, at the centre's own model."""
    features, labels = _components(data)
    order = stream(draw, "centralised samples").permutation(len(features))[: MACHINES * SAMPLES].view(MACHINES, SAMPLES)
    x, y = features[order], labels[order].long()
    if attack == "ood" and count:
        way = stream(draw, "centralised way").normal(FEATURES)
        noise = stream(draw, "centralised noise").normal(count, SAMPLES, FEATURES)
        x[-count:] = 0.7 * x[-count:] + way / way.norm() + 0.2 * noise
    model = torch.zeros(FEATURES, CLASSES, dtype=torch.float64)
    for _ in range(_STEPS):
        model = model - _RATE * _gradients(x[:1], y[:1], model)[0].view(FEATURES, CLASSES)
    halves = [_gradients(x[:, part], y[:, part], model) for part in (slice(0, SAMPLES // 2), slice(SAMPLES // 2, SAMPLES))]
    if attack in ("gradient", "ipm") and count:
        good = torch.stack([half[:-count].mean(0) for half in halves]).mean(0)
        spread = ((halves[0] + halves[1]) / 2)[:-count].std(0)
        way = stream(draw, "centralised way").normal(len(good))
        for number, half in enumerate(halves):
            noise = stream(draw, f"centralised noise {number}").normal(count, len(good)) * spread
            half[-count:] = -0.2 * good if attack == "ipm" else good + 0.8 * way / way.norm() * spread * SAMPLES**0.5 + noise
    return halves[0], halves[1]


def _gradients(x: Tensor, y: Tensor, model: Tensor) -> Tensor:
    """Mean gradients of cross entropy [machines, FEATURES * CLASSES]."""
    error = torch.softmax(x @ model, 2) - torch.nn.functional.one_hot(y, CLASSES)
    return (x.mT @ error / x.shape[1]).flatten(1)


def figure(values: dict[str, Any]) -> Figure:
    """False discoveries above, power below, over the share of Byzantine machines: one column for each attack."""
    picture = Figure(figsize=(12, 6.5), layout="constrained")
    grid = picture.subplots(2, len(ATTACKS), sharex=True, sharey=True)
    for column, attack in enumerate(ATTACKS):
        for row, key in enumerate(("fdp", "power")):
            panel = grid[row][column]
            for number, name in enumerate(DETECTORS):
                shares = [share for share in SHARES if _mean(values, attack, share, name, key) is not None]
                rates = [_mean(values, attack, share, name, key) for share in shares]
                style = "-" if number < 4 else "--"
                panel.plot(shares, rates, style, marker="o", ms=4, color=COLOURS[number % len(COLOURS)], label=name)
            if key == "fdp":
                panel.axhline(LEVEL, color="0.5", lw=0.8)
                panel.set_title(attack)
            else:
                panel.set_xlabel("share of Byzantine machines")
    grid[0][0].set_ylabel("false discoveries")
    grid[1][0].set_ylabel("share found")
    grid[1][-1].legend(fontsize=7)
    return picture


_SETTING = f"""{MACHINES} machines of {SAMPLES} samples each report the gradients of softmax regression on two halves of their
samples at a model that machine 0, the trusted centre of a star graph, has trained on its own samples. Features are the first
{FEATURES} principal components of raw MNIST pixels, not features of a network; d = {FEATURES * CLASSES}. Attacks as in the
published code of Qian et al. (2024): ood x <- 0.7 x + v + 0.2 z; gradient, mean + 0.8 v sd sqrt(n) + noise; ipm, -0.2 times the
mean. Level {LEVEL}, offset 1. Krum, FABA, Zeno and the filter of ByMI are told how many machines are Byzantine (the filter 1.2
times that); RMDP + BH and the hardened panel are told nothing. Zeno's penalty is rho = 1/2 with step 1, the second order of a
loss of curvature one; the published code has 0.01, on a measured decrease of the loss. Means over {{draws}} draws."""


def page(values: dict[str, Any]) -> str:
    """The page, every number on it from the values."""
    draws = len({point["draw"] for point in values["points"]})
    lines = [
        "# Centralised ByMI and detectors it was compared with",
        "",
        f"`{values['command']}`. Every value: [JSON]({NAME}.json).",
        "",
        paragraph(_SETTING.format(draws=draws)),
        "",
        f"![False discoveries and power]({NAME}.png)",
        "",
    ]
    settings = list(dict.fromkeys((point["attack"], point["share"]) for point in values["points"]))
    for title, key in (("False discovery proportion", "fdp"), ("Share of Byzantine machines found", "power")):
        rows = []
        for name in DETECTORS:
            rates = [_mean(values, attack, share, name, key) for attack, share in settings]
            rows.append([name, *("-" if rate is None else f"{rate:.2f}" for rate in rates)])
        heads = ["clean" if attack == "none" else f"{attack} {share:.0%}" for attack, share in settings]
        lines += [f"## {title}", "", markdown_table(["detector", *heads], rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _mean(values: dict[str, Any], attack: str, share: float, name: str, key: str) -> float | None:
    wanted = attack if share else "none"
    found = [p["detectors"][name][key] for p in values["points"] if (p["attack"], p["share"]) == (wanted, share)]
    known = [rate for rate in found if rate is not None]
    return sum(known) / len(known) if known else None


STUDY = ComputedStudy(NAME, SHOWS, points, measure, page, figure, data="mnist")
