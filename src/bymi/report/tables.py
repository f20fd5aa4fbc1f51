"""Summaries as tables, for the terminal and as Markdown; what columns and reasons of flags mean, in one line each."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bymi.runs.metrics import DONE, ENDING_CODES
from bymi.runs.run_folder import SUMMARY_KEYS

COLUMNS: tuple[tuple[str, str], ...] = (
    ("method", "method"),
    ("flagged", "flagged"),
    ("FDP %", "fdp"),
    ("P_a %", "pa"),
    ("gap", "gap"),
    ("loss", "loss"),
    ("Acc (all) %", "acc_all"),
    ("Acc (normal) %", "acc_normal"),
    ("Acc (scc) %", "acc_scc"),
    ("honest edges lost %", "honest_edge_loss"),
    ("core", "core_size"),
    ("Byz. in core", "core_byzantine"),
    ("outcome", "outcome"),
    ("seconds", "seconds"),
)
"""Heading and summary key of each column. A run has a gap, accuracies or a loss; empty columns are left out.

Runs on real data have `flagged` in place of what needs to know who is Byzantine.
"""

MEANINGS: dict[str, tuple[str, str]] = {
    "fdp": ("FDP", "share of honest nodes among the flagged"),
    "pa": ("P_a", "sure detection, the share of honest nodes that flagged all of their Byzantine neighbours"),
    "gap": ("gap", "excess risk of the averaged model over the honest optimum"),
    "loss": ("loss", "mean loss of the averaged model over the samples of honest nodes, on real data of the core's nodes"),
    "acc_all": ("Acc (all)", "test accuracy of the mean model of all nodes, Byzantine ones included"),
    "acc_normal": ("Acc (normal)", "test accuracy of the mean model of the honest nodes"),
    "acc_scc": ("Acc (scc)", "test accuracy of the mean model of the core"),
    "honest_edge_loss": ("honest edges lost", "share of edges between honest nodes that were cut"),
    "flagged": ("flagged", "nodes that most of their neighbours flagged at the last detection"),
    "core_size": ("core", "nodes in the largest strongly connected component after pruning"),
}
"""Name and meaning by key of summary.json."""

REASONS: dict[str, str] = {
    "score": "its two half gradients lie off the centre in the same direction, beyond the threshold",
    "not heard": "no usable answer, so it cannot be judged",
    "absurd": "its gradients are many times longer than those of others",
    "duplicate": "its gradients repeat those of others",
    "inconsistent": "its two halves differ too much, or too little, for two samples of its data",
    "too good": "its gradients are closer to the centre than a sample can be",
    "extreme score": "a score of three times the bound or more",
    "direction": "its gradients, or those of a group with it, are shifted along one direction",
    "fuse": "its parameters were far out, or missing, in too many rounds",
    "drift": "its parameters were far from those of others for long",
    "deed": "its updates do not follow from the gradients that it claimed",
    "suspended": "flagged by an earlier detection, whose flag still lasts",
    "alike": "the noise in its halves resembles that of others",
    "far": "its gradients are farther off than data of another distribution explain",
    "joint update": "its updates, or those of a group with it, are shifted along one direction",
}
"""What each reason of a flag says about a neighbour."""

UNITS: dict[str, str] = {
    **dict.fromkeys(("kept", "score", "extreme score", "far"), "x usual score"),
    **dict.fromkeys(("inconsistent", "too good", "alike", "direction"), "spreads"),
    **dict.fromkeys(("drift", "deed", "joint update"), "spreads"),
    "absurd": "x usual length",
    "fuse": "of the rounds",
}
"""Unit of the statistic of each test with a bound; "kept": of the score of a neighbour that no test flagged."""

_WORTH = {"gap", "loss", "acc_all", "acc_normal", "acc_scc"}
_NO_MEASURES = {"method", "seed", "digest", "theory", "loss", "grad_norm_weighted", "flagged", *SUMMARY_KEYS}
_SHARES = {"fdp", "pa", "honest_edge_loss", "acc_all", "acc_normal", "acc_scc"}
_TRUTHS = {"fdp", "pa", "honest_edge_loss", "core_byzantine"}  # columns that need to know who is Byzantine
_LEGIBLE = 20  # characters below which a column of words is not worth folding
_MANY = 0.2  # share of lost edges between honest nodes that deserves a warning


def cell(key: str, value: Any) -> str:
    """A value for display; a dash for what does not apply."""
    if value is None:
        return "-"
    if key in _SHARES:
        return f"{100 * value:.1f}"
    if key in ("gap", "loss"):
        return f"{value:.1e}"
    if key == "seconds":
        return f"{value:.1f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def meanings(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Names and meanings of these keys, without those that explain themselves."""
    return [MEANINGS[key] for key in keys if key in MEANINGS]


def own_measures(keys: Iterable[str]) -> list[str]:
    """Those of these keys of summaries that an own evaluation has measured (`evaluate` of bymi.train)."""
    return [key for key in dict.fromkeys(keys) if key not in _NO_MEASURES]


def is_real(summary: dict[str, Any]) -> bool:
    """Whether a run with a detection was on real data, where nobody knows who is Byzantine."""
    return summary.get("detections") is not None and summary.get("fdp") is None


def columns(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The columns of a table of these runs."""
    filled = {key for key in _WORTH if any(summary.get(key) is not None for summary in summaries)} or {"gap"}
    shown = [(heading, key) for heading, key in COLUMNS if key not in _WORTH or key in filled]
    numbers = (key for summary in summaries for key, value in summary.items() if isinstance(value, (int, float)))
    own = [(key, key) for key in own_measures(numbers)]
    place = next(at for at, (_, key) in enumerate(shown) if key == "honest_edge_loss")
    left_out = (
        _TRUTHS if any(map(is_real, summaries)) and all(summary.get("fdp") is None for summary in summaries) else {"flagged"}
    )
    return [(heading, key) for heading, key in [*shown[:place], *own, *shown[place:]] if key not in left_out]


def cells(summary: dict[str, Any], shown: Sequence[tuple[str, str]] | None = None) -> list[str]:
    """One row of the table."""
    return [cell(key, summary.get(key)) for _, key in shown or columns([summary])]


def print_runs(console: Console, summaries: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table of runs, what its columns mean, and remarks."""
    shown = columns(summaries)
    print_numbers(console, [heading for heading, _ in shown], [cells(summary, shown) for summary in summaries], title)
    lines = [f"{name}: {meaning}" for name, meaning in meanings(key for _, key in shown if key.startswith("acc"))]
    for line in [*lines, *(line for summary in summaries for line in remarks(summary))]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def terminal_table(summaries: Sequence[dict[str, Any]], title: str) -> Table:
    """A table of runs, 80 columns wide for usual names."""
    shown = columns(summaries)
    return narrow_table([heading for heading, _ in shown], [cells(summary, shown) for summary in summaries], title)


def print_numbers(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table of numbers, of which headings may fold and values never do; a block per row where it does not fit."""
    table = narrow_table(headings, rows, title or None)
    fits = sum((column.width or 0) + 1 for column in table.columns) + 1 <= console.width
    _print_fitting(console, table if fits else None, headings, rows, title)


def print_words(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table in which cells with blanks fold and others do not; a block per row where such columns get narrow."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    needed = 0
    for heading, *values in zip(headings, *rows, strict=True):
        folds = any(" " in value for value in values)
        table.add_column(heading, no_wrap=not folds, overflow="fold")
        longest = max(map(len, [heading, *values]))
        needed += 3 + (min(_LEGIBLE, longest) if folds else longest)
    for row in rows:
        table.add_row(*[escape(value) for value in row])  # brackets in cells are no markup
    _print_fitting(console, table if needed <= console.width else None, headings, rows, title)


def _print_fitting(
    console: Console, table: Table | None, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str
) -> None:
    """Print a table, or a block of lines per row if there is none that fits."""
    if table is not None:
        console.print(table)
        return
    text = "\n".join([*textwrap.wrap(title, console.width), stacked(headings, rows, console.width)])
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """A block of lines per row, none wider than `width`: its first cell, then the others that are not empty, with headings.

    A sentence has lines of its own.
    """
    lines = []
    for first, *values in rows:
        lines += ["", first]
        pairs = [(heading, value) for heading, value in zip(headings[1:], values, strict=True) if value not in ("", "-")]
        lines += pairs_in_lines([pair for pair in pairs if not pair[1].endswith(".")], width)
        for _, sentence in pairs:
            if sentence.endswith("."):
                lines += textwrap.wrap(sentence, width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def pairs_in_lines(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Headings with their values, as many to a line as fit in `width`."""
    lines: list[str] = []
    for heading, value in pairs:
        pair = f"{heading} {value}"
        if lines and len(lines[-1]) + 3 + len(pair) <= width:
            lines[-1] += f"   {pair}"
        else:
            lines += textwrap.wrap(pair, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return lines


def narrow_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """A table whose headings fold at blanks where they are wider than the values below, which never fold."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for index, heading in enumerate(headings):
        width = max(len(word) for word in [*heading.split(), *[row[index] for row in rows]])
        table.add_column(heading, justify="left" if index == 0 else "right", width=width)
    for row in rows:
        table.add_row(*row)
    return table


def remarks(summary: dict[str, Any]) -> list[str]:
    """Notes on what the table has no column for: a bad ending, refused messages, safeguards that acted."""
    method, unheard = summary["method"], summary["unheard"]
    lines = []
    if summary["outcome"] != "finished":
        lines.append(f"{method}: {summary['outcome']}, {summary['sentence']}")
    elif summary["sentence"] not in ("", DONE):
        lines.append(f"{method}: {summary['sentence']}")
    if (summary["honest_edge_loss"] or 0.0) > _MANY:
        lost = f"{summary['honest_edge_loss']:.1%} of the edges between honest nodes were cut"
        lines.append(f"WARNING: {method}: {lost}, more than {_MANY:.0%}: they were taken for attackers")
    if summary["acc_scc"] is not None:
        who = f"the {summary['core_size']} nodes in the core, {summary['core_byzantine']} of them Byzantine"
        lines.append(f"{method}: Acc (scc) is of the mean model of {who}")
    if unheard["messages"]:
        lines.append(f"{method}: {unheard['messages']} messages of {len(unheard['senders'])} senders were not heard")
    if summary["capped"]:
        lines.append(f"{method}: the cap shortened {summary['capped']:.1%} of the local steps of honest nodes")
    if summary["floored"]:
        lines.append(f"{method}: the floor raised the tracker in {summary['floored']:.1%} of them")
    return lines


def endings(runs: Iterable[dict[str, Any]]) -> str:
    """Counts of bad endings, the worst first: "3 diverged, 2 fragmented"; empty if all runs finished.

    A run with Byzantine nodes in its core counts as infiltrated, also where an older version recorded it as finished.
    """
    counts = Counter(
        "infiltrated" if run["outcome"] == "finished" and run.get("core_byzantine") else run["outcome"] for run in runs
    )
    return ", ".join(f"{counts[ending]} {ending}" for ending in ENDING_CODES if ending != "finished" and counts[ending])


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Headings and rows as a Markdown table."""
    lines = [list(headings), ["---"] * len(headings), *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
