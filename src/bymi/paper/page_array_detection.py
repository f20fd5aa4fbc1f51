"""The study of detection on arrays: its values, its figure and its page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bymi
from bymi.core.files import MEBIBYTE, read_bytes, write_bytes
from bymi.paper.computed_study import paragraph
from bymi.paper.study_array_detection import DETECTORS, LEVEL, NAME, Setting, cause, measure, settings, symmetric
from bymi.report.figures import COLOURS, save
from bymi.report.tables import markdown_table
from bymi.runs import run_folder as store

VALUES, PAGE = f"{NAME}.json", "README.md"

_LOOKS = {
    "hardened": (COLOURS[2], "D", "-"),
    "published, offset 1": (COLOURS[0], "o", "-"),
    "published, offset 0": (COLOURS[5], "s", "-"),
    "without cross-fit, offset 1": (COLOURS[4], "^", "--"),
    "without cross-fit, offset 0": (COLOURS[1], "v", "--"),
}
_DATA = {"normal": "normal", "t3": "Student t", "lenet": "LeNet"}


def run(folder: Path, *, fast: bool = False, data: Path | None = None, tell: Callable[[int], None] = lambda _: None) -> Path:
    """Measure every setting that `folder` does not hold yet, writing after each one; the file with all values."""
    path = folder / VALUES
    folder.mkdir(parents=True, exist_ok=True)
    known = _known(path)
    values = _head(fast)
    for setting in settings(fast=fast):
        found = next((each for each in known.get("settings", []) if _same(each, setting)), None)
        if found is None:
            found = measure(setting, data, tell)
        else:
            tell(setting.draws)
        values["settings"].append(found)
        _write(path, values)
    same = known.get("command") == values["command"]
    values["symmetric"] = (same and known.get("symmetric")) or symmetric()
    values["cause"] = (same and known.get("cause")) or cause(fast=fast)
    _write(path, values)
    return path


def draws(*, fast: bool = False) -> int:
    """How many draws a study has."""
    return sum(setting.draws for setting in settings(fast=fast))


def draw(folder: Path) -> list[Path]:
    """Figure (PNG, SVG) and page from the values in a folder."""
    values = json.loads(read_bytes(folder / VALUES, limit=16 * MEBIBYTE))
    paths = save(lambda: figure(values), folder, NAME)
    write_bytes(folder / PAGE, page(values).encode())
    return [folder / VALUES, *paths, folder / PAGE]


def _head(fast: bool) -> dict[str, Any]:
    command = f"bymi reproduce {NAME}" + (" --fast" if fast else "")
    return {"command": command, "level": LEVEL, "environment": store.environment(), "settings": []}


def _known(path: Path) -> dict[str, Any]:
    """Values of an earlier call of this version; nothing if there are none that can be read."""
    try:
        found = json.loads(read_bytes(path, limit=16 * MEBIBYTE))
        return found if found["environment"]["bymi"] == bymi.__version__ else {}
    except (bymi.InputError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _same(values: dict[str, Any], setting: Setting) -> bool:
    return {key: values.get(key) for key in asdict(setting)} == asdict(setting)


def _write(path: Path, values: dict[str, Any]) -> None:
    write_bytes(path, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())


def figure(values: dict[str, Any]) -> Figure:
    """False discoveries above, power below; one column for each factor that is varied."""
    picture = Figure(figsize=(14, 7), layout="constrained")
    grid = picture.subplots(2, 4, sharey="row")
    columns = (
        ("dimension", "dim", "dimension d"),
        ("machines", "machines", "machines n"),
        ("share", "share", "share of bad machines"),
    )
    for column, (sweep, key, label) in enumerate(columns):
        rows = _rows(values, sweep)
        for row, measured in enumerate(("fdp", "power")):
            _lines(grid[row][column], rows, key, measured)
            if key != "share":
                grid[row][column].set_xscale("log")
            ticks = sorted({each["machines"] for each in rows})
            if key == "machines":
                grid[row][column].set_xticks(ticks, map(str, ticks))
                grid[row][column].minorticks_off()
        grid[1][column].set_xlim(grid[0][column].get_xlim())
        grid[1][column].set_xlabel(label)
    for row, measured in enumerate(("fdp", "power")):
        _groups(grid[row][3], values, measured)
        grid[row][0].set_ylabel(("mean false discovery proportion", "power: share of bad machines found")[row])
    for axes in grid[0]:
        axes.axhline(values["level"], color="0.2", linestyle=":", linewidth=1.4, label=f"level {values['level']:g}")
        axes.set_ylim(-0.04, 1.04)
    for axes in grid[1]:
        axes.set_ylim(-0.04, 1.08)
    titles = ("64 machines, 6 bad", "d = 10,000, a tenth bad", "64 machines, d = 10,000", "64 machines, 6 bad, data and d")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, frameon=False, loc="outside lower center", ncols=6)
    return picture


def _rows(values: dict[str, Any], sweep: str) -> list[dict[str, Any]]:
    found = [each for each in values["settings"] if each["sweep"] == sweep]
    return [{**each, "share": each["bad"] / each["machines"]} for each in found]


def _lines(axes: Axes, rows: list[dict[str, Any]], key: str, measured: str) -> None:
    for name in DETECTORS:
        colour, marker, style = _LOOKS[name]
        shown = [row for row in rows if row["detectors"][name][measured] is not None]
        heights = [row["detectors"][name][measured] for row in shown]
        errors = [2 * row["detectors"][name]["fdp_error"] for row in shown] if measured == "fdp" else None
        look: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "linestyle": style,
            "markersize": 5,
            "linewidth": 1.6,
            "capsize": 2,
        }
        axes.errorbar([row[key] for row in shown], heights, yerr=errors, label=name, **look)


def _groups(axes: Axes, values: dict[str, Any], measured: str) -> None:
    """Bad machines on data of several kinds, detectors side by side."""
    base = [row for row in _rows(values, "share") if row["bad"] == 6]
    rows = [row for row in (*base, *_rows(values, "data")) if row["bad"] == 6]
    for place, name in enumerate(DETECTORS):
        colour, marker, _ = _LOOKS[name]
        along = [at + 0.13 * (place - 2) for at in range(len(rows))]
        heights = [row["detectors"][name][measured] for row in rows]
        errors = [2 * row["detectors"][name]["fdp_error"] for row in rows] if measured == "fdp" else None
        axes.errorbar(along, heights, yerr=errors, color=colour, marker=marker, linestyle="", markersize=6, capsize=2)
    axes.set_xticks(range(len(rows)), [f"{_DATA[row['data']]}\n{row['dim']:,}" for row in rows], fontsize=7)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.grid(axis="x", visible=False)


def page(values: dict[str, Any]) -> str:
    """The page of the study; every number on it is one of the values."""
    parts = [
        _INTRODUCTION.format(command=values["command"]),
        _found(values),
        f"![False discoveries and power]({NAME}.png)\n",
        *(f"## {title}\n\n{markdown_table(*_table(values, sweep))}" for sweep, title in _TITLES.items()),
        f"## Why cross-fit\n\n{_CAUSE}\n{markdown_table(*_cause_table(values['cause']))}",
    ]
    return "\n".join(parts)


_INTRODUCTION = """# Detection on arrays: false discoveries and power

Written by `{command}` from [{name}.json]({name}.json): false discovery
proportion (FDP) and power, means over draws, of `bymi.identify` at level 0.2. One factor is varied at a time around 64
machines, 6 of them bad, d = 10,000, normal noise. A bad machine is shifted so that its score is 30 standard deviations of an
honest one; on LeNet gradients (50 samples a half, after 100 steps of SGD) it has labels 9 - y. `t3` is noise of a Student t
distribution with 3 degrees of freedom, whose tails are heavy. Bars are two standard errors.
[How to use it](../../detect.md), [why it is so](../../adr/0014-detection-on-arrays.md).
""".replace("{name}", NAME)

_TITLES = {
    "dimension": "Over the dimension",
    "machines": "Over the number of machines",
    "share": "Over the share of bad machines",
    "clean": "Nobody is bad",
    "data": "Other data",
}

_CAUSE = """Mean scores of honest machines in standard deviations of one. As printed, E S_j = sqrt(d) (sum of w^2 - w_j):
machines outside of the centre (w_j = 0) are lifted, whether the filter chose the weights w or chance did (35 machines
drawn blindly); with all honest machines in the centre nobody is. Cross-fitted scores have mean zero.
"""


def _found(values: dict[str, Any]) -> str:
    """What the values say, in sentences."""
    by_dim = _rows(values, "dimension")
    ends = [by_dim[place]["detectors"]["without cross-fit, offset 0"]["fdp"] for place in (0, -1)]
    normal = f"normal noise, {by_dim[0]['machines']} machines of which {by_dim[0]['bad']} are bad, {_over(by_dim, 'dim')}"
    exact = values["symmetric"]
    one, zero = "published, offset 1", "published, offset 0"
    few = [row for row in _rows(values, "share") if 0 < row["bad"] < 1 / values["level"]]
    most = _rows(values, "share")[-1]
    lines = [
        f"* **Published, cross-fitted** (its default), {normal}: FDP {_span(by_dim, one, 'fdp')} with offset 1 and "
        f"{_span(by_dim, zero, 'fdp')} with offset 0, where exactly symmetric scores would give {exact['offset 1']:.2f} and "
        f"{exact['offset 0']:.2f}; power {_span(by_dim, zero, 'power')}. "
        + "".join(
            f"With {row['bad']} bad machines, fewer than 1 / level, offset 1 finds a share of {_span([row], one, 'power')}. "
            for row in few
        ),
        f"* **Without cross-fit**, the exact form of the paper, in the same settings: FDP from {ends[0]:.2f} to {ends[1]:.2f} "
        "with offset 0.",
        f"* **Hardened** (the default), {normal}: FDP {_span(by_dim, 'hardened', 'fdp')}, power "
        f"{_span(by_dim, 'hardened', 'power')}. {_clean(values)}",
        f"* With {most['bad']} bad machines of {most['machines']} the filter of the paper leaves them a part of the centre: "
        f"FDP {_span([most], one, 'fdp')} with offset 1, {_span([most], 'hardened', 'fdp')} for the hardened profile.",
    ]
    return "\n".join(paragraph(line) for line in lines) + "\n"


def _clean(values: dict[str, Any]) -> str:
    """How many clean sets lose nobody, by the kind of noise, and why the others do."""
    parts = []
    for data, words in (("normal", "normal noise"), ("t3", "heavy tails (Student t, 3 degrees of freedom)")):
        rows = [row for row in _rows(values, "clean") if row["data"] == data]
        if rows:
            parts.append(f"with {words} {_span(rows, 'hardened', 'whole', '{:.0%}')} lose nobody ({_over(rows, 'dim')})")
    reasons: Counter[str] = Counter()
    for row in _rows(values, "clean"):
        reasons.update(row["detectors"]["hardened"].get("false_flags", {}) if row["data"] == "t3" else {})
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    text = f"Of sets of honest machines, {'; '.join(parts)}." if parts else ""
    return f"{text} Reasons of the false flags with heavy tails: {why}." if why else text


def _span(rows: list[dict[str, Any]], detector: str, measured: str, write: str = "{:.2f}") -> str:
    """The range of a measured value over some settings."""
    found = [row["detectors"][detector][measured] for row in rows]
    return " to ".join(dict.fromkeys(write.format(value).replace("%", " %") for value in (min(found), max(found))))


def _over(rows: list[dict[str, Any]], key: str) -> str:
    """The dimensions or numbers of machines of some settings: "d = 100 to 1,000,000"."""
    found = [row[key] for row in rows]
    return f"{'d' if key == 'dim' else 'n'} = " + " to ".join(dict.fromkeys(f"{value:,}" for value in (min(found), max(found))))


def profiles(values: dict[str, Any]) -> str:
    """The table of detect.md: what was measured for the profiles that a user can choose."""
    names = ("hardened", "published, offset 1", "published, offset 0")
    normal, heavy = ([row for row in _rows(values, "clean") if row["data"] == data] for data in ("normal", "t3"))
    shifted = [row for row in _rows(values, "data") if row["data"] == "t3" and row["bad"]]
    rows = [
        [f"sets of honest machines without a false flag, {words}, {_over(some, 'dim')}"]
        + [_span(some, name, "whole", "{:.0%}") for name in names]
        for some, words in ((normal, "normal noise"), (heavy, "heavy tails"))
        if some
    ]
    groups = [("normal noise", _rows(values, "dimension")), ("heavy tails", shifted)]
    groups += [("normal noise", [row]) for row in _rows(values, "share") if 0 < row["bad"] < 6]
    groups += [("normal noise", [row]) for row in _rows(values, "machines") if row["machines"] <= 20]
    for words, some in groups:
        if some:
            what = f"{_range(some, 'bad')} bad of {_range(some, 'machines')}, {words}, {_over(some, 'dim')}: FDP, power"
            rows.append([what, *(", ".join(_span(some, name, key) for key in ("fdp", "power")) for name in names)])
    return markdown_table([f"level {values['level']:g}", *names], rows)


def _range(rows: list[dict[str, Any]], key: str) -> str:
    found = [row[key] for row in rows]
    return " to ".join(dict.fromkeys(str(value) for value in (min(found), max(found))))


def _table(values: dict[str, Any], sweep: str) -> tuple[list[str], list[list[str]]]:
    measured = "no false flag %" if sweep == "clean" else "FDP / power"
    headings = ["data", "n", "bad", "d", "draws", *(f"{name}: {measured}" for name in DETECTORS)]
    rows = []
    for row in _rows(values, sweep):
        cells = [row["data"], str(row["machines"]), str(row["bad"]), f"{row['dim']:,}", str(row["draws"])]
        for name in DETECTORS:
            found = row["detectors"][name]
            power = "-" if found["power"] is None else f"{found['power']:.2f}"
            cells.append(f"{100 * found['whole']:.0f}" if sweep == "clean" else f"{found['fdp']:.2f} / {power}")
        rows.append(cells)
    return headings, rows


_CAUSE_COLUMNS = {
    "filter outside": "outside of the filter's centre",
    "filter inside": "inside of it",
    "subset outside": "outside of a blind subset",
    "subset inside": "inside of it",
    "all inside": "centre of all honest",
}


def _cause_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """As printed / predicted / cross-fitted, in each group of honest machines."""
    headings = ["d", *(f"{words}: as printed (predicted), cross-fit" for words in _CAUSE_COLUMNS.values())]
    cells = []
    for row in rows:
        line = [f"{row['dim']:,}"]
        for key in _CAUSE_COLUMNS:
            parts = [row.get(f"{key}{end}") for end in ("", ", predicted", ", cross-fit")]
            line.append("-" if None in parts else _moments(*parts))
        cells.append(line)
    return headings, cells


def _moments(printed: Any, said: Any, fitted: Any) -> str:
    return f"{printed['mean']:.2f} ({said['mean']:.2f}), {fitted['mean']:.2f} ± {fitted['error']:.2f}"
