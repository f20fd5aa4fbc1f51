"""Memory of a run over ranks: `BYMI_DATA=... python benchmarks/memory.py` prints a table and writes results/memory.json.

Each row is a short run, in one process and over 2 and 4 ranks of one thread each, with the peak of memory of the rank that has
most. A run of eight nodes shows what a rank takes before it has anything: the interpreter, torch, the transport. What a rank
has beyond that falls with the number of ranks as far as it is data, models and update histories of its own nodes, and its
strips of what is heard. Lists of the whole graph, and buffers of one turn of a detection or one pass over images, do not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.join_process_group import ranks
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.experiment import load
from bymi.report.tables import print_words
from bymi.runs import run, run_all
from bymi.runs.run_folder import environment

Row = dict[str, Any]
LISTS = ["graph=regular:degree=20"]
LINEAR = [*LISTS, "nodes=10000", "data.dim=100", "steps=20", "warm_up.steps=5", "watch.every=off", "method=drsgd-bymi"]
LENET = ["mnist", "watch.every=off", "steps=6", "warm_up.steps=3"]
NOTHING = "nothing yet"
CASES: dict[str, list[str]] = {
    NOTHING: ["nodes=8", "graph=complete", "data.samples=8", "steps=2", "method=dsgd"],
    "linear, 10,000 nodes": [*LINEAR, "attack=sign-flip"],
    "linear, 10,000 nodes, data under attack": [*LINEAR, "attack=parameter"],
    "linear, 6,000 nodes, d = 3,000, two detections": [
        *LISTS,
        *("method=drsgd-bymi", "nodes=6000", "data.dim=3000", "data.samples=4", "detection.sample=2", "attack=sign-flip"),
        *("steps=4", "warm_up.steps=1", "watch.every=2", "warm_up.batch=2", "optimisation.batch=2"),
    ],
    "LeNet, 100 nodes": LENET,
    "LeNet, 1,000 nodes in a ring, BALANCE alone": [
        *("mnist", "method=rule", "steps=4", "warm_up.steps=2", "graph=ring", "nodes=1000"),
        *("data.samples=60", "data.identification=20"),
    ],
    "LeNet, 1,000 nodes that hear 20 each": [
        *LENET,
        *LISTS,
        "nodes=1000",
        "data.samples=60",
        "data.identification=20",
        "detection.sample=4",
    ],
}
SIZES = (1, 2, 4)
FALLS = {2: 0.75, 4: 0.5}
"""The share of what one process has beyond nothing that a rank of so many may have, of the runs in BOUND."""
BOUND = (
    "linear, 10,000 nodes",
    "linear, 10,000 nodes, data under attack",
    "linear, 6,000 nodes, d = 3,000, two detections",
    "LeNet, 1,000 nodes that hear 20 each",
)


def measure(words: list[str], note: str) -> None:
    """This process's part of one run; leaves a note with its peak."""
    recipe, keys = (words[0], words[1:]) if "=" not in words[0] else (None, words)
    spec = load(recipe, keys)
    with tempfile.TemporaryDirectory() as out, ranks() as group:
        if group is None:
            keep_memory()  # as on ranks, and as the command line does
            run(spec.resolved, out, host=Host(device="cpu", threads=1))
        else:
            run_all([spec.resolved], out, group=group, host=Host(device="cpu", threads=1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Path(f"{note}-{os.environ.get('RANK', '0')}").write_text(json.dumps(peak))


def peaks(words: list[str], size: int) -> list[float]:
    """Megabytes of each rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)] if size > 1 else [sys.executable]
    with tempfile.TemporaryDirectory() as place:
        note = Path(place) / "peak"
        command = [*launcher, __file__, "--one", str(note), *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [json.loads(path.read_text()) for path in sorted(Path(place).iterdir())]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", help="some rows, by a part of their name")
    options = parser.parse_args()
    if options.one:
        measure(options.one[1:], options.one[0])
        return
    console, rows = Console(width=130), []
    for name, words in CASES.items():
        if options.only and name != NOTHING and not any(part in name for part in options.only):
            continue
        found: Row = {"what": name, "command": " ".join(words), "ranks": {}}
        for size in SIZES:
            found["ranks"][str(size)] = peaks(words, size)
            console.print(f"{name}, {size}: {max(found['ranks'][str(size)]):.0f} MB", highlight=False)
        rows.append(found)
    nothing = {size: max(rows[0]["ranks"][str(size)]) for size in SIZES}
    table, missed = [], []
    for row in rows:
        most = {size: max(row["ranks"][str(size)]) for size in SIZES}
        beyond = {size: most[size] - nothing[size] for size in SIZES}
        shares = {size: beyond[size] / beyond[1] if row["what"] != NOTHING else None for size in SIZES[1:]}
        row["beyond"], row["shares"] = beyond, shares
        cells = [f"{most[size]:.0f}" for size in SIZES]
        table.append((row["what"], *cells, *("" if share is None else f"{share:.2f}" for share in shares.values())))
        if row["what"] in BOUND:
            missed += [f"{row['what']}, {size} ranks: {shares[size]:.2f}" for size in FALLS if shares[size] > FALLS[size]]
    heads = ("run", "one process, MB", "2 ranks", "4 ranks", "share beyond nothing, 2", "4")
    print_words(console, heads, table)
    if not options.only:
        path = Path(__file__).parent / "results" / "memory.json"
        path.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")
    if missed:
        sys.exit("more than a rank may have: " + "; ".join(missed))


if __name__ == "__main__":
    main()
