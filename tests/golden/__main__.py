"""`make golden`: compute all golden runs, store them, and print what changed."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from tests.golden import checkpoints, stored
from tests.golden.record import Record, join, play
from tests.golden.specs import spec_digests
from tests.golden.streams import draw_others, first_draws, listening
from tests.golden.table import CHECKPOINTS, RUNS

Entry = TypeVar("Entry")


def changes(
    kind: str, before: Mapping[str, Entry], after: Mapping[str, Entry], differ: Callable[[Entry, Entry], str | None]
) -> list[str]:
    """A line for each entry that was added, removed or changed; `differ` says in words how, None for not at all."""
    lines = [f"{kind} added: {name}" for name in after if name not in before]
    lines += [f"{kind} removed: {name}" for name in before if name not in after]
    for name, entry in after.items():
        what = differ(before[name], entry) if name in before else None
        lines += [f"{kind} changed: {name}: {what}"] if what is not None else []
    return lines


def compute() -> tuple[dict[str, Record], set[str]]:
    """The records of all runs, and the names of all random streams."""
    found, names = {}, set[str]()
    with listening(names):
        for number, (name, run) in enumerate(RUNS.items(), 1):
            found[name] = join([play(run)])
            if number % 100 == 0:
                print(f"{number} of {len(RUNS)} runs", file=sys.stderr)
        draw_others()
    return found, names


def renew_checkpoints(found: Mapping[str, Record]) -> list[str]:
    """Write a checkpoint again only if the stored one does not resume to the rounds found: old ones are worth keeping."""
    lines = []
    for name, step in CHECKPOINTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            try:
                why = None if checkpoints.fits(checkpoints.resume(name, Path(scratch)), found[name]) else "gave other numbers"
            except (ValueError, OSError) as problem:
                why = f"could not be used ({problem})"
        if why is not None:
            checkpoints.save(name, step)
            lines.append(f"checkpoint written again: {name}: the one before {why}")
    return lines


def main() -> None:
    torch.set_num_threads(1)
    start = time.monotonic()
    environment, before = stored.read_runs() if stored.RUNS.exists() else ({}, {})
    found, names = compute()
    runs = changes("run", before, found, stored.difference)
    stored.write_runs(found)

    lines, old = list[str](), stored.read_names() if stored.NAMES.exists() else {}
    named = {**spec_digests(), "random streams": first_draws(names)}
    for kind, entries in named.items():
        lines += changes(kind, old.get(kind, {}), entries, lambda one, two: None if one == two else f"{one} -> {two}")
    stored.write(stored.NAMES, named)
    lines += renew_checkpoints(found)
    moved = stored.elsewhere(environment)
    lines += [f"environment: before {moved}"] if moved is not None else []

    print("\n".join([*runs, *lines]) or "nothing changed")
    print(f"{len(found)} runs in {time.monotonic() - start:.0f} s: {len(runs)} differ from those stored before")
    if runs:
        print("Numbers that changed need a line under *Numerics* in CHANGELOG.md that says why.")


if __name__ == "__main__":
    main()
