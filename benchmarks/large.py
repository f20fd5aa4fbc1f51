"""Large graphs in one process: `python benchmarks/large.py` prints a table and writes benchmarks/results/large.json.

Each row is a run of the linear model (d = 100) on a random regular graph of degree 20 in a process of its own, one thread, with
wall-clock and processor time, its peak of memory and processor time a node and round. First the whole method, published and
hardened, 100 rounds and one detection; then each warm-up rule alone for a few rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bymi.experiment import load
from bymi.report.tables import print_words
from bymi.runs import run
from bymi.runs.run_folder import environment, read_rows

Row = dict[str, Any]
SHAPE = ["graph=regular:degree=20", "data.dim=100", "data.samples=100", "attack=sign-flip", "record_every=10"]
SMALL, LARGE = 1000, 10_000
SECONDS, GIGABYTES, GROWTH = 120.0, 4.0, 1.5


def measure(nodes: int, keys: list[str], steps: int) -> Row:
    """One run here: data, rounds, detection, files."""
    spec = load(None, [f"nodes={nodes}", f"steps={steps}", *SHAPE, *keys])
    with tempfile.TemporaryDirectory() as out:
        start, used = time.perf_counter(), time.process_time()
        summary = run(spec.resolved, out)
        wall, used = time.perf_counter() - start, time.process_time() - used
        (folder,) = Path(out).iterdir()
        rows = read_rows(folder / "metrics.jsonl")
        written = sum(path.stat().st_size for path in folder.iterdir())
    # Where others use the machine, too, a process gets a part of the time: its share of the wall clock is taken for all parts.
    rounds = (summary["seconds"] - (summary["detection_seconds"] or 0.0)) * used / wall
    return {
        "nodes": nodes,
        "seconds": wall,
        "processor_seconds": used,
        "scene_seconds": wall - summary["seconds"],
        "detection_seconds": summary["detection_seconds"],
        "microseconds_a_node_and_round": 1e6 * rounds / (nodes * steps),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "folder_megabytes": written / 1e6,
        "outcome": summary["outcome"],
        "found": summary["found"],
        "gap": rows[-1]["gap"],
    }


def apart(nodes: int, keys: list[str], steps: int) -> Row:
    """The same in a process of its own, to see its peak of memory."""
    command = [sys.executable, __file__, "--one", str(nodes), str(steps), *keys]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row: Row = json.loads(output.splitlines()[-1])
    return row


def compare(what: str, keys: list[str], steps: int, repeats: int, *, limits: bool = False) -> list[Row]:
    """The run with few and with many nodes in turn; of `repeats`, the one with the least time a node and round."""
    found: dict[int, list[Row]] = {SMALL: [], LARGE: []}
    for _ in range(repeats):
        for nodes, rows in found.items():
            rows.append(apart(nodes, keys, steps))
    best = [min(rows, key=lambda row: float(row["microseconds_a_node_and_round"])) for rows in found.values()]
    small, large = ({"what": f"{what}, {steps} rounds", **row} for row in best)
    large["times_of_small"] = large["microseconds_a_node_and_round"] / small["microseconds_a_node_and_round"]
    if limits:
        large.update(limit_seconds=SECONDS, limit_gigabytes=GIGABYTES, at_most=GROWTH)
    return [small, large]


def failed(row: Row) -> bool:
    """Whether a row misses what it has to hold."""
    return "limit_seconds" in row and (
        row["seconds"] > row["limit_seconds"]
        or row["peak_megabytes"] > 1024 * row["limit_gigabytes"]
        or row["times_of_small"] > row["at_most"]
    )


def remark(row: Row) -> str:
    parts = [f"{row['times_of_small']:.2f} times the time a node"] if "times_of_small" in row else []
    if "limit_seconds" in row:
        parts.append(f"limits {row['limit_seconds']:g} s, {row['limit_gigabytes']:g} GB, {row['at_most']:g} times")
    return ", ".join(parts)


def cells(row: Row) -> list[str]:
    figures = (
        "seconds",
        "processor_seconds",
        "scene_seconds",
        "detection_seconds",
        "microseconds_a_node_and_round",
        "peak_megabytes",
    )
    return [row["what"], f"{row['nodes']:,}", *(f"{row[key] or 0:.0f}" for key in figures), remark(row)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=1, help="of each run; the quickest counts")
    parser.add_argument("--quick", action="store_true", help="the whole method only")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "large.json")
    given = parser.parse_args()
    if given.one:
        nodes, steps, *keys = given.one
        print(json.dumps(measure(int(nodes), keys, int(steps))))
        return
    whole = ["method=drsgd-bymi"]
    rows = compare("the method as published", [*whole, "profile=paper"], 100, given.repeats, limits=True)
    rows += compare("hardened", [*whole, "profile=hardened", "watch.every=off"], 100, given.repeats, limits=True)
    if not given.quick:
        for rule in ("average", "balance", "ios", "ubar", "mean", "median", "trimmed-mean", "geometric-median", "filtering"):
            rows += compare(rule, ["method=rule", f"warm_up.rule={rule}", "data.samples=20"], 4, given.repeats)
    given.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")
    console = Console(width=150)
    headings = ["run", "nodes", "s", "processor s", "of s: data", "detection", "us a node and round", "peak MB", ""]
    print_words(console, headings, [cells(row) for row in rows])
    if any(map(failed, rows)):
        sys.exit("a limit is not kept")


if __name__ == "__main__":
    main()
