"""How well detection on arrays keeps its level: false discoveries and power over dimension, machines, share and data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

import bymi
from bymi.aggregation import Filtering
from bymi.core.linalg import VectorStack, inner
from bymi.core.random_streams import stream
from bymi.datasets import load_images
from bymi.detection import Identity, identify, threshold
from bymi.detection.published_score import weigh
from bymi.problems import lenet, start_of

NAME = "detect-level"
FOLDER = "detection"
LEVEL = 0.2
UNITS = 30.0  # standard deviations of an honest score that the score of a bad machine has

DETECTORS: dict[str, dict[str, Any]] = {
    "hardened": {},
    "published, offset 1": {"profile": "published", "offset": 1},
    "published, offset 0": {"profile": "published", "offset": 0},
    "without cross-fit, offset 1": {"profile": "published", "offset": 1, "cross_fit": False},
    "without cross-fit, offset 0": {"profile": "published", "offset": 0, "cross_fit": False},
}
"""What is compared, as arguments of `identify`."""

_MACHINES, _BAD, _DIM = 64, 6, 10_000  # around which one factor at a time is varied
_HEAVY = (30, 100, 1_000)  # dimensions of heavy-tailed noise, beside the one above
_LENET = 61_706
_SAMPLES = 50  # of a half gradient of LeNet
_STEPS, _BATCH, _RATE = 100, 32, 0.05  # of SGD before LeNet's gradients are taken


@dataclass(frozen=True)
class Setting:
    """One point of the study. `sweep` is the factor that it varies."""

    sweep: str
    data: str  # normal, t3 or lenet
    machines: int
    bad: int
    dim: int
    draws: int


def settings(*, fast: bool = False) -> list[Setting]:
    """All points; `fast`: few draws of those that take little time."""
    found = [
        Setting("dimension", "normal", _MACHINES, _BAD, dim, draws)
        for dim, draws in ((100, 100), (1_000, 100), (10_000, 100), (100_000, 50), (1_000_000, 20))
    ]
    counts = ((5, 100), (10, 100), (20, 100), (50, 50), (100, 50), (200, 30), (500, 10))
    found += [Setting("machines", "normal", n, max(1, round(0.1 * n)), _DIM, draws) for n, draws in counts]
    shares = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
    found += [Setting("share", "normal", _MACHINES, round(share * _MACHINES), _DIM, 50) for share in shares]
    found += [
        Setting("clean", "normal", 60, 0, dim, draws) for dim, draws in ((10, 100), (100, 100), (10_000, 100), (100_000, 50))
    ]
    found += [Setting("clean", "t3", 60, 0, dim, 100) for dim in _HEAVY]
    found += [Setting("data", "t3", _MACHINES, _BAD, dim, 100) for dim in _HEAVY]
    for data, dim in (("t3", _DIM), ("lenet", _LENET)):
        found += [Setting("data", data, _MACHINES, bad, dim, 30) for bad in (0, _BAD, 13)]
    if fast:
        small = [each for each in found if each.dim * each.machines <= 1_000_000 and each.data != "lenet"]
        return [Setting(**{**asdict(each), "draws": 3}) for each in small]
    return found


def measure(setting: Setting, data: Path | None = None, tell: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Mean FDP with its standard error, power, the share of draws that flag no honest machine, and the reasons of false flags.

    For every detector.
    """
    fdp: dict[str, list[float]] = {name: [] for name in DETECTORS}
    power: dict[str, list[float]] = {name: [] for name in DETECTORS}
    reasons: dict[str, Counter[str]] = {name: Counter() for name in DETECTORS}
    for halves in draws_of(setting, data):
        for name, how in DETECTORS.items():
            verdict = identify(*halves, fdr_level=LEVEL, **how)
            flagged = verdict.flagged
            wrong = flagged[setting.bad :].sum()
            reasons[name].update(reason for reason in verdict.reasons[setting.bad :] if reason != "kept")
            fdp[name].append(float(wrong / flagged.sum().clamp_min(1)))
            power[name].append(float(flagged[: setting.bad].to(torch.float64).mean()) if setting.bad else math.nan)
        tell(1)
    found = {}
    for name in DETECTORS:
        rates = torch.tensor(fdp[name], dtype=torch.float64)
        found[name] = {
            "fdp": round(float(rates.mean()), 4),
            "fdp_error": round(float(rates.std() / len(rates) ** 0.5), 4),
            "power": round(sum(power[name]) / len(rates), 4) if setting.bad else None,
            "whole": round(float((rates == 0).to(torch.float64).mean()), 4),
            "false_flags": dict(reasons[name]),
        }
    return {**asdict(setting), "detectors": found, "bymi": bymi.__version__}


def draws_of(setting: Setting, data: Path | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Half gradients [n, d] in float32, draw by draw; the first `bad` machines are bad."""
    for draw in range(setting.draws):
        yield _lenet_halves(setting, draw, data) if setting.data == "lenet" else _noise_halves(setting, draw)


def _noise_halves(setting: Setting, draw: int) -> tuple[Tensor, Tensor]:
    """Noise of unit variance, row by row so that float64 is held for one of them; bad rows share one shift."""
    dim = setting.dim
    way = stream(draw, f"{NAME} way").normal(dim)
    shift = (math.sqrt(UNITS * math.sqrt(dim)) * way / way.norm()).to(torch.float32)
    halves = []
    for half in ("first", "second"):
        rows = torch.empty(setting.machines, dim)
        for row in range(setting.machines):
            rows[row] = _noise(setting.data, f"{NAME} {half}", row, draw, dim)
        rows[: setting.bad] += shift
        halves.append(rows)
    return halves[0], halves[1]


def _noise(data: str, purpose: str, row: int, draw: int, dim: int) -> Tensor:
    if data == "normal":
        return stream(draw, purpose, node=row).normal(dim)
    # Student t with three degrees of freedom, whose variance is 3.
    parts = stream(draw, purpose, node=row).normal(4, dim)
    return parts[0] / parts[1:].square().sum(0).sqrt()


@cache
def _trained(data: Path | None) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """LeNet after a little training, and images and labels of MNIST."""
    images = load_images("mnist", data)
    inputs, labels = images.train_images.to(torch.float32) / 255, images.train_labels
    model = lenet()
    torch.nn.utils.vector_to_parameters(start_of(model, seed=0).to(torch.float32), model.parameters())
    order = stream(0, f"{NAME} training").permutation(len(labels))
    for batch in order[: _STEPS * _BATCH].split(_BATCH):
        change = _gradient(model, inputs[batch], labels[batch])
        values = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.nn.utils.vector_to_parameters(values - _RATE * change, model.parameters())
    return model, inputs, labels


def _gradient(model: torch.nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    parameters = list(model.parameters())
    parts = torch.autograd.grad(nnf.cross_entropy(model(inputs), labels), parameters)
    return torch.cat([part.flatten() for part in parts])


def _lenet_halves(setting: Setting, draw: int, data: Path | None) -> tuple[Tensor, Tensor]:
    """Mean gradients of LeNet on disjoint samples of MNIST at one common parameter; bad machines have labels 9 - y."""
    model, inputs, labels = _trained(data)
    samples = min(_SAMPLES, len(labels) // (2 * setting.machines))
    order = stream(draw, f"{NAME} samples").permutation(len(labels))[: setting.machines * 2 * samples]
    halves = torch.empty(2, setting.machines, sum(part.numel() for part in model.parameters()))
    for row, own in enumerate(order.view(setting.machines, 2, samples)):
        for half, chosen in enumerate(own):
            targets = 9 - labels[chosen] if row < setting.bad else labels[chosen]
            halves[half, row] = _gradient(model, inputs[chosen], targets)
    return halves[0], halves[1]


def symmetric(draws: int = 20_000) -> dict[str, float]:
    """The mean FDP of the threshold alone, for honest scores that are exactly symmetric and six far ones."""
    scores = stream(0, f"{NAME} symmetric").normal(draws, _MACHINES)
    scores[:, :_BAD] = UNITS
    everybody = torch.ones_like(scores, dtype=torch.bool)
    found = {}
    for offset in (0, 1):
        flagged = scores >= threshold(scores, everybody, fdr_level=LEVEL, offset=offset)[:, None]
        rates = flagged[:, _BAD:].sum(1) / flagged.sum(1).clamp_min(1)
        found[f"offset {offset}"] = round(float(rates.mean()), 4)
    return found


def cause(*, fast: bool = False) -> list[dict[str, Any]]:
    """Mean scores of honest machines, in standard deviations of one, by their weight in the centre. ADR 0014.

    Predicted from the weights w of the centre alone: sqrt(d) (sum of w^2 - w_j). `filter` has the weights of the filter;
    `subset` is a mean of 35 honest machines chosen without a look at the data; `all` the mean of all honest ones.
    """
    points = ((100, 100), (1_000, 100), (10_000, 50), (100_000, 20))
    return [_cause(dim, 2 if fast else draws) for dim, draws in (points[:2] if fast else points)]


def _cause(dim: int, draws: int) -> dict[str, Any]:
    setting = Setting("cause", "normal", _MACHINES, _BAD, dim, draws)
    sums: dict[str, list[float]] = {}

    def add(name: str, values: Tensor) -> None:
        sums.setdefault(name, []).extend(values.tolist())

    for draw, (first, second) in enumerate(draws_of(setting)):
        rows = VectorStack(first)
        gram, cross = rows.gram, inner(first, second, rows.origin)
        everybody = torch.ones(1, _MACHINES, dtype=torch.bool)
        honest = torch.arange(_MACHINES) >= _BAD
        chosen = _BAD + stream(draw, f"{NAME} subset").permutation(_MACHINES - _BAD)[:35]
        for name, weights in _weights(Filtering().coefficients(rows, everybody)[0], honest, chosen):
            bias = math.sqrt(dim) * (weights.square().sum() - weights)
            for fit in (False, True):
                products = weigh(gram, cross, weights[None], cross_fit=fit)
                scores = Identity().scores(products, everybody)[0] / math.sqrt(dim)
                for inside, word in ((weights > 0, "inside"), (weights == 0, "outside")):
                    add(f"{name} {word}{', cross-fit' if fit else ''}", scores[honest & inside])
                    add(f"{name} {word}, predicted", bias[honest & inside])
    return {"dim": dim, "draws": draws, **{name: _mean(values) for name, values in sorted(sums.items())}}


def _weights(filtered: Tensor, honest: Tensor, chosen: Tensor) -> Sequence[tuple[str, Tensor]]:
    subset = torch.zeros_like(filtered)
    subset[chosen] = 1 / len(chosen)
    return ("filter", filtered), ("subset", subset), ("all", honest / honest.sum(dtype=torch.float64))


def _mean(values: list[float]) -> dict[str, float] | None:
    if len(values) < 2:
        return None
    found = torch.tensor(values, dtype=torch.float64)
    return {"mean": round(float(found.mean()), 3), "error": round(float(found.std() / len(values) ** 0.5), 3)}
