"""Figures of run folders: gap or accuracy over rounds, scores of a verdict, several methods side by side. PNG and SVG."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bymi.core import files
from bymi.core.errors import InputError
from bymi.runs import run_folder as store

_log = logging.getLogger("bymi")

# Okabe and Ito's palette, which is safe for all kinds of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "svg.hashsalt": "bymi",
}
KINDS = ("png", "svg")
_METADATA: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
_LARGEST = 1 << 28  # bytes of a figure


def draw_run(folder: Path) -> list[Path]:
    """Draw the figures of one run folder, in its subfolder `figures`; complete ones are left alone."""
    target = folder / "figures"

    def draw() -> list[Path]:
        jobs = {_measure(folder): lambda: _measure_figure([folder])}
        if (folder / store.VERDICT).exists():
            jobs["scores"] = lambda: _scores_figure(folder)
        todo = [name for name in jobs if not all(_is_whole(target / f"{name}.{kind}") for kind in KINDS)]
        return [path for name in todo for path in try_to_save(jobs[name], target, name)]

    return _try(draw, target)


def draw_comparison(folders: Sequence[Path], target: Path, name: str) -> list[Path]:
    """Gap or accuracy over rounds of several runs in one figure."""
    return try_to_save(lambda: _measure_figure(folders), target, name)


def try_to_save(make: Callable[[], Figure], target: Path, name: str) -> list[Path]:
    """As `save`, but an error is only a warning: the numbers are in their files."""
    return _try(lambda: save(make, target, name), target / name)


def _try(draw: Callable[[], list[Path]], what: Path) -> list[Path]:
    try:
        return draw()
    except Exception as problem:
        _log.warning("bymi: no figure %s: %s", what, " ".join(str(problem).split()) or type(problem).__name__)
        return []


def save(
    make: Callable[[], Figure], target: Path, name: str, kinds: Sequence[str] = KINDS, style: dict[Any, Any] = STYLE
) -> list[Path]:
    """Draw in a style, by default the common one, and write a file of each kind atomically."""
    files.refuse_link(target)
    contents = render(make, kinds, style)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"{name}.{kind}" for kind in kinds]
    for path, content in zip(paths, contents, strict=True):
        files.write_bytes(path, content)
    return paths


def render(make: Callable[[], Figure], kinds: Sequence[str], style: dict[Any, Any] = STYLE) -> list[bytes]:
    """A figure as the content of files: png, svg or pdf. The same figure gives the same bytes."""
    contents = []
    with matplotlib.rc_context(style):
        figure = make()
        for kind in kinds:
            content = io.BytesIO()
            dpi = 150.0 if kind == "png" and "savefig.dpi" not in style else None
            figure.savefig(content, format=kind, dpi=dpi, metadata=_METADATA[kind])
            contents.append(content.getvalue())
    return contents


def _is_whole(path: Path) -> bool:
    """Whether a PNG or SVG is complete."""
    try:
        content = files.read_bytes(path, limit=_LARGEST, links=False)
    except InputError:
        return False
    return content.rstrip().endswith(b"</svg>") or content.endswith(b"IEND\xaeB`\x82")


def _measure(folder: Path) -> str:
    """What the rows of a run measure: the optimality gap, or accuracy on test images."""
    rows = store.read_rows(folder / store.METRICS)
    return "accuracy" if rows and "acc_normal" in rows[0] else "gap"


def _measure_figure(folders: Sequence[Path]) -> Figure:
    accuracy = _measure(folders[0]) == "accuracy"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    detection = None
    for folder, colour in zip(folders, COLOURS, strict=False):
        rows = store.read_rows(folder / store.METRICS)
        points = [(row["step"], _accuracy(row) if accuracy else row["gap"]) for row in rows]
        points = [(step, value) for step, value in points if value is not None and (accuracy or value > 0)]
        label = str(store.read_json(folder / store.SUMMARY)["method"])
        marker = "o" if len(points) < 10 else None  # make few points visible
        axes.plot(
            [step for step, _ in points],
            [value for _, value in points],
            color=colour,
            label=label,
            linewidth=1.8,
            marker=marker,
        )
        detection = next((row["step"] for row in rows if row["phase"] == "detection"), detection)
    if detection is not None:
        axes.axvline(detection, color="0.4", linestyle="--", linewidth=1)
        axes.annotate(
            "detection", (detection, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), textcoords="offset points"
        )
    if accuracy:
        axes.set(ylim=(0, 1))
    else:
        axes.set(yscale="log")
    axes.set(
        xlabel="round",
        ylabel="test accuracy" if accuracy else "optimality gap",
        title=describe(store.read_json(folders[0] / store.SPEC)),
    )
    axes.legend(frameon=False)
    return figure


def _accuracy(row: dict[str, Any]) -> Any:
    """Accuracy of the core once there is one, of the honest nodes before."""
    return row["acc_normal"] if row["acc_scc"] is None else row["acc_scc"]


def describe(values: Mapping[str, Any]) -> str:
    """The setting of a resolved spec in a few words, from its plain values: nothing that they name is imported."""
    attack, data = dict(values["attack"]), values["data"]
    data_name = f"d = {data['dim']}" if "dim" in data else "own data" if ":" in data["name"] else data["name"]
    if not values["byzantine_ratio"]:
        return f"{values['nodes']} nodes, no simulated attack, {data_name}"
    name = attack.pop("name")
    detail = f" ({', '.join(f'{key} {value}' for key, value in attack.items())})" if attack else ""
    return f"{values['nodes']} nodes, {100 * values['byzantine_ratio']:g} % Byzantine, {name} attack{detail}, {data_name}"


def _scores_figure(folder: Path) -> Figure:
    """All scores in units of their receiver's threshold: honest ones around zero, Byzantine ones beyond one."""
    verdict = store.read_json(folder / store.VERDICT)
    bad = set(verdict["byzantine"] or ())
    if any("statistics" in receiver for receiver in verdict["receivers"]):
        return _reasons_figure(folder, verdict, bad)
    shares: dict[bool, list[float]] = {False: [], True: []}
    for receiver in verdict["receivers"]:
        if receiver["node"] in bad or receiver["threshold"] is None:
            continue
        for neighbour, score in zip(receiver["neighbours"], receiver["scores"], strict=True):
            if score is not None:
                shares[neighbour in bad].append(score / receiver["threshold"])
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    _score_histogram(axes, shares)
    title = describe(store.read_json(folder / store.SPEC))
    axes.set(xlabel="score / threshold of the receiver", ylabel="arcs", title=title)
    if any(shares.values()):  # else no receiver had a threshold
        axes.legend(frameon=False)
    return figure


def _reasons_figure(folder: Path, verdict: dict[str, Any], bad: set[int]) -> Figure:
    """Which test flagged how many arcs of honest receivers: one pair of bars per reason."""
    counts: dict[str, list[int]] = {}
    for receiver in verdict["receivers"]:
        if receiver["node"] not in bad:
            for neighbour, reason in zip(receiver["neighbours"], receiver["reasons"], strict=True):
                counts.setdefault(reason, [0, 0])[neighbour in bad] += 1
    names = sorted(counts, key=lambda name: (name != "kept", sum(counts[name])))
    figure = Figure(figsize=(7, 1.4 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    for side, (colour, label) in enumerate(((COLOURS[0], "honest sender"), (COLOURS[4], "Byzantine sender"))):
        places = [place + 0.2 - 0.4 * side for place in range(len(names))]
        values = [counts[name][side] for name in names]
        bars = axes.barh(places, values, height=0.38, color=colour, alpha=0.85, label=label)
        axes.bar_label(bars, labels=[str(value) if value else "" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(left=0, right=4 * max(max(pair) for pair in counts.values()))
    axes.set_xlabel("arcs of honest receivers, last detection")
    axes.set_title(describe(store.read_json(folder / store.SPEC)), fontsize=9, loc="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def _score_histogram(axes: Axes, shares: dict[bool, list[float]]) -> None:
    everything = np.array(shares[False] + shares[True] or [0.0])
    reach = max(2.0, float(np.abs(everything).max()))
    positive = np.concatenate([np.linspace(0, 1, 11)[1:], np.geomspace(1, reach, 25)[1:]])
    bins = np.concatenate([-positive[::-1], [0.0], positive])
    for byzantine, colour, label in ((False, COLOURS[0], "honest sender"), (True, COLOURS[4], "Byzantine sender")):
        if shares[byzantine]:
            axes.hist(shares[byzantine], bins=bins.tolist(), color=colour, alpha=0.75, label=label)
    axes.axvline(1.0, color="0.2", linestyle="--", linewidth=1)
    axes.annotate(
        "flagged from here on", (1, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), textcoords="offset points"
    )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    axes.set_ylim(top=4 * axes.get_ylim()[1])  # room for the text above the bars
