"""One line of advice after a run on a network in which nodes have few neighbours."""

from __future__ import annotations

from pathlib import Path

FEW = 8
"""Neighbours below which a node can hardly tell who is Byzantine."""


def few_neighbours(folders: list[Path]) -> str | None:
    """Advice if an honest node of a run with a detection has fewer than FEW neighbours, else None."""
    from bymi.commands.printing import own_command
    from bymi.core.errors import BymiError
    from bymi.runs import run_folder as store
    from bymi.runs.metrics import PER_NODE

    for folder in folders:
        try:
            if not (folder / store.VERDICT).exists() or not (folder / PER_NODE).exists():
                continue
            nodes, spec = store.read_json(folder / PER_NODE), store.read_json(folder / store.SPEC)
        except BymiError:
            continue
        bad = set(nodes["byzantine"] or ())
        least = min(len(listed) for node, listed in enumerate(nodes["neighbours"]) if node not in bad)
        if least < FEW:
            level = spec["detection"]["fdr_level"]
            asked = f"--nodes {len(nodes['neighbours'])} --degree {max(1, least)} --ratio {spec['byzantine_ratio']:g}"
            said = f"Some honest nodes have only {least} neighbours, few to tell who is Byzantine."
            return f"{said} What to expect: {own_command()} plan {asked} --fdr-level {level:g}"
    return None
