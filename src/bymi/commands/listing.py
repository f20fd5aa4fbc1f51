"""`bymi list`: what specs can name."""

from __future__ import annotations

from typing import Annotated

import typer

from bymi.commands.console_lines import console, print_line
from bymi.core.errors import InputError, did_you_mean

KINDS = {
    "keys": "key",
    "recipes": "recipe",
    "graphs": "graph",
    "weights": "weights",
    "rules": "warm_up.rule",
    "wrappers": "wrapper",
    "attacks": "attack",
    "data": "data",
    "partitions": "data.partition",
    "centres": "detection.centre",
    "scales": "detection.scale",
    "thresholds": "detection.threshold",
    "optimisers": "optimisation.method",
    "studies": "study",
    "exit-codes": "exit code",
}
"""Words for the tables of `bymi list`."""


def _complete(text: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(text)]


def list_parts(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(KINDS)}. Default: all.", autocompletion=_complete)
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=2, max=2000, help="With topologies: the number of nodes.")] = 16,
) -> None:
    """List keys, recipes, graphs, rules, attacks, data, detection parts and studies, with parameters, and exit codes.

    `bymi list topologies --nodes 64` draws every topology: degree, spectral gap, diameter.
    """
    from bymi.experiment.list_named_parts import catalogue, rule_note, topology_rows
    from bymi.paper.find_study import study_rows
    from bymi.report.tables import print_words

    if kind == "topologies":
        print_words(console(), *topology_rows(nodes))
        print_line("redraw_every=10 draws a random one again: redraw_graphs=4 draws take turns, ten rounds each.")
        return
    tables = {**catalogue(), "study": study_rows()}
    for heading in tables if kind is None else [heading_of(kind, list(tables))]:
        print_words(console(), [heading, "parameters", "what it is"], tables[heading])
        if heading == "warm_up.rule":
            print_line(rule_note())


def heading_of(kind: str, headings: list[str]) -> str:
    """The heading of a table, from a word in singular or plural."""
    word = kind.lower().replace("_", "-")
    names = {**KINDS, **{plural.removesuffix("s"): heading for plural, heading in KINDS.items()}, "study": "study"}
    names.update({heading: heading for heading in headings})
    if word in names and names[word] in headings:
        return names[word]
    raise InputError(f"KIND: got {kind!r}{did_you_mean(word, KINDS)}; allowed: {', '.join(KINDS)}")
