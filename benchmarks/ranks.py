"""What ranks are worth, and a model of the time of one iteration beside what was measured.

`python benchmarks/ranks.py` prints tables and writes benchmarks/results/ranks.json; with `--whole` it also times the recipe
`mnist` from start to end, in one process of one thread and on two ranks (about ten minutes). Needs MNIST (`--data`, BYMI_DATA).

The one process has one core to itself and no other thread. The model has seven constants, measured several times between the
rounds of each row, by its own processes: a gradient, products in both precisions, passes over memory, the time of a round that
has nothing to do, latency and bandwidth of an exchange. All processes measure at a time: they share caches, memory and, four
of them, cores; the slowest counts, and of several looks the median. No constant is fitted to the rows that it is compared with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from bymi.core.linalg import norms
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.join_process_group import ranks
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.experiment import load
from bymi.report.tables import print_words
from bymi.runs import run_all
from bymi.runs.run_folder import environment
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import engine_of

Row = dict[str, Any]
OUT = Path(__file__).parent / "results" / "ranks.json"
ROUNDS = 20
LOOK_EVERY = 4
"""Rounds between two looks at the constants; a round right after one finds its caches cold, and does not count."""
CASES: dict[str, tuple[str, int, int]] = {  # recipe, nodes, coordinates
    "LeNet, BALANCE, m = 100": ("mnist", 100, 61706),
    "LeNet, BALANCE, m = 150": ("mnist", 150, 61706),
    "linear, BALANCE, m = 400, d = 2000": ("linear", 400, 2000),
}
TIMES, SHARE, ERROR = 1.5, 0.2, 0.25
_STRETCH = 0.05


def keys_of(recipe: str, nodes: int, dim: int) -> tuple[str | None, list[str]]:
    shape = [f"nodes={nodes}", f"steps={ROUNDS}", f"record_every={ROUNDS}", "warm_up.steps=2", "method=rule", "attack=ipm"]
    if recipe == "linear":
        return None, [*shape, f"data.dim={dim}", "data.samples=40", "warm_up.rule=balance", "warm_up.batch=20"]
    return recipe, shape


# One case on some ranks: the part of one process.


def walk(case: str) -> Row | None:
    """The time of a round, its median over all that count, and what each look at the constants found; on rank 0 a row."""
    recipe, keys = keys_of(*CASES[case])
    resolved, host = load(recipe, keys).resolved, Host(device="cpu", threads=1)
    torch.set_num_threads(1)
    with ranks(120, device="cpu") as group:
        look = Look(group)
        course = engine_of(resolved, host, group)
        rounds, looks, before = [], [], None
        for moment in course.rounds(None, lambda step, phase: False):
            now = _mark(course.group)
            # Without the first ones, in which memory is taken, and the last one, which is recorded.
            if before is not None and 2 < moment.snapshot.step < ROUNDS:
                rounds.append([later - earlier for earlier, later in zip(before, now, strict=True)])
            before = now
            if moment.snapshot.step % LOOK_EVERY == 2:
                looks.append(look())
                before = None
            del moment
    if group is not None and group.rank:
        return None
    middle = [median(column) for column in zip(*rounds, strict=True)]
    return {**dict(zip(("seconds", "exchange_seconds", "calls", "bytes"), middle, strict=True)), "looks": looks}


def _mark(group: Group) -> tuple[float, float, float, float]:
    """The time, and what was spent, called and sent in exchanges so far."""
    entries = list(group.traffic.values())
    spent = sum(entry.seconds for entry in entries)
    return time.perf_counter(), spent, sum(entry.calls for entry in entries), sum(entry.bytes for entry in entries)


# The constants of the model.


@dataclass(frozen=True)
class Machine:
    """What one of several ranks does while all of them do the same."""

    gradient: dict[str, float]  # seconds a node, by recipe
    products: float  # float64 operations a second
    products_32: float
    passes: float  # bytes a second that are read and converted
    rest: float  # seconds of a round whatever its size
    latency: float | None = None  # seconds a call
    bandwidth: float | None = None  # bytes a second out of one rank


def usual(work: Callable[[], object], group: Group | None, repeats: int = 7) -> float:
    """The time of a call in the slowest process, the median of some stretches of 50 ms or more: long enough to take turns."""
    work()
    start = time.perf_counter()
    work()
    times, count = [], math.ceil(_STRETCH / _slowest(time.perf_counter() - start, group))
    for _ in range(repeats):
        if group is not None:
            group.all_agree(True)
        start = time.perf_counter()
        for _ in range(count):
            work()
        times.append((time.perf_counter() - start) / count)
    return _slowest(median(times), group)


def _slowest(seconds: float, group: Group | None) -> float:
    return seconds if group is None else max(float(words["seconds"]) for words in group.tell({"seconds": seconds}))


class Look:
    """Measures the constants of a Machine."""

    def __init__(self, group: Group | None) -> None:
        self._group, self._gradients = group, {}
        for recipe, nodes, dim in (("mnist", 50, 61706), ("linear", 150, 2000)):
            name, keys = keys_of(recipe, nodes, dim)
            scene = set_up_run(load(name, keys).resolved, Host(device="cpu", threads=1))
            batch = scene.plan.warm_up.batch
            everybody, chosen = torch.arange(nodes), torch.randint(0, scene.problem.samples, (nodes, batch))
            # At points of their own: at a common one several are worked out together.
            theta = scene.problem.initial(everybody)
            theta = theta + 1e-3 * torch.randn(theta.shape, dtype=theta.dtype)
            self._gradients[recipe] = partial(scene.problem.gradient, theta, everybody, chosen), nodes
        self._tiny = load(None, ["nodes=8", "graph=complete", *keys_of("linear", 8, 4)[1][1:], "data.dim=4"]).resolved

    def __call__(self) -> Row:
        group = self._group
        rows, wide = torch.randn(100, 1024, dtype=torch.float64), torch.randn(100, 61706)
        weights = torch.rand(50, 100)
        rounds = engine_of(self._tiny, Host(device="cpu", threads=1)).rounds(None, lambda step, phase: False)
        marks = [time.perf_counter() for _ in rounds]
        row = {
            "gradient": {recipe: usual(work, group) / nodes for recipe, (work, nodes) in self._gradients.items()},
            "products": 2 * 100 * 100 * 1024 / usual(lambda: rows @ rows.T, group),
            "products_32": 2 * 50 * 100 * 61706 / usual(lambda: weights @ wide, group),
            "passes": wide.nbytes / usual(lambda: norms(wide), group),
            "rest": _slowest(median(later - earlier for earlier, later in pairwise(marks)), group),
        }
        return row if group is None else {**row, **wire(group)}


def usual_look(looks: list[Row]) -> Machine:
    """The median of each constant."""
    gradient = {recipe: median(look["gradient"][recipe] for look in looks) for recipe in looks[0]["gradient"]}
    return Machine(gradient, **{key: median(look[key] for look in looks) for key in looks[0] if key != "gradient"})


def wire(group: Group) -> Row:
    """Latency and bandwidth between ranks. Calls come between work, after which ranks that share a core wait for each other."""
    rows = torch.randn(200, 1024, dtype=torch.float64)
    alone = usual(lambda: rows @ rows.T, group)
    found = []
    for size in (64, 3_000_000):
        send = partial(group.swap, torch.zeros(group.size * size), [size] * group.size, [size] * group.size, "probe")
        found.append(usual(lambda send=send: (rows @ rows.T, send()), group) - alone)  # type: ignore[misc]
    return {"latency": found[0], "bandwidth": 4 * 3_000_000 * (group.size - 1) / (found[1] - found[0])}


def predicted(machine: Machine, recipe: str, nodes: int, dim: int, size: int, calls: float, sent: float) -> float:
    """Seconds of one iteration of BALANCE under IPM on `size` ranks, in which each makes so many calls and sends so many bytes.

    Each rank has B = m / P nodes and hears all m. Distances are float64 products of B and m rows, mixing the same in the
    precision of the model. Passes over memory, counted in the code: over rows that are heard lengths, conversion and, on two
    ranks, what came, and lengths about the origin in float64; over rows that are held the step, the Byzantine nodes and what
    they keep, and on ranks what is sent and told. With two ranks rows travel; with more slices, there and back, and what is
    heard is a slice of all.
    """
    here, bytes_ = nodes / size, 4 if recipe == "mnist" else 8
    products = 2 * here * nodes * dim
    mixing = machine.products_32 if recipe == "mnist" else machine.products
    rows = 2 * nodes + 8 * nodes if size == 1 else 5 * nodes + 9 * here if size == 2 else 5 * here + 12 * here
    passes = rows * dim * bytes_ / machine.passes
    compute = here * machine.gradient[recipe] + products / machine.products + products / mixing + passes + machine.rest
    if machine.latency is None or machine.bandwidth is None:  # nobody to talk to
        return compute
    return compute + sent / machine.bandwidth + calls * machine.latency


# What many machines would take.

MACHINES, HERE, GIGABYTES, NETWORK, AWAY, DEGREE = 100, 16, 64, 1.25e9, 1e-4, 20  # cores and memory of each; 10 Gbit/s, 0.1 ms
FEW = 128  # coordinates of rows that travel


SIZES = [(recipe, nodes, dim) for recipe, dim in (("linear", 100), ("mnist", 61706)) for nodes in (10**5, 10**6)]


def projected(machine: Machine, recipe: str, nodes: int, dim: int, samples: int) -> Row:
    """One iteration of BALANCE on a random regular graph over lists, a rank a core, with the cores measured here.

    Bytes of a machine. Long rows stay: strips go there and back, with distances and weights of all arcs; a rank has six times
    its own rows at a time (models, gradients, what is sent, strips, what came back, what Byzantine nodes keep), and update
    histories of its own nodes in float64, as seen and as they were. Short ones travel: a rank hears
    m (1 - 1/P) (1 - (1 - 1/P)^20) rows of others. It has the lists of the whole graph, 60 bytes per arc, with strips once
    more in the order of shards and with the weights of a round, 101 bytes; and the data of its own nodes.
    """
    size, bytes_ = MACHINES * HERE, 4 if recipe == "mnist" else 8
    here, arcs = nodes / size, DEGREE * nodes
    heard = nodes * (1 - 1 / size) * (1 - (1 - 1 / size) ** DEGREE)
    compute = here * machine.gradient[recipe] + 3 * DEGREE * here * dim * bytes_ / machine.passes + machine.rest
    if dim > FEW:
        sent, calls, lists = 2 * here * dim * bytes_ + 16 * arcs, 8, 101 * arcs
        rows, history = 6 * here * dim * bytes_, 16 * here * dim
    else:
        sent, calls, lists = heard * dim * bytes_, 4, 60 * arcs
        rows, history = (heard + 2 * here) * dim * bytes_, 8 * (heard + here) * dim
    exchange = HERE * sent / NETWORK + calls * AWAY
    data = here * samples * (8 * (dim + 1) if recipe == "linear" else 4 * 784)
    parts = {"lists": lists, "data": data, "rows": rows, "history": history}
    return {
        "what": f"{'LeNet' if recipe == 'mnist' else 'linear'}, d = {dim:,}",
        "nodes": nodes,
        "compute_seconds": compute,
        "exchange_seconds": exchange,
        **{f"{name}_gigabytes": HERE * part / 1e9 for name, part in parts.items()},
    }


# All of it.


def apart(size: int, *words: str) -> Row:
    """This file in processes of its own; what the first one says."""
    starter = ["-m", "torch.distributed.run", "--nproc-per-node", str(size)] if size > 1 else []
    command = [sys.executable, *starter, __file__, *words]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        sys.exit(done.stderr)
    row: Row = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return row


def iterations() -> list[Row]:
    """Each row with constants of its own minute and processes: this kind of machine is faster in one than in the next."""
    rows = []
    for case, (recipe, nodes, dim) in CASES.items():
        for size in (1, 2, 4):
            row = apart(size, "--case", case)
            looks = row.pop("looks")
            model = predicted(usual_look(looks), recipe, nodes, dim, size, row["calls"], row["bytes"])
            row = {"what": case, "ranks": size, **row, "model_seconds": model, "error": model / row["seconds"] - 1}
            row["exchange_share"] = row["exchange_seconds"] / row["seconds"]
            rows.append({**row, "machine": asdict(usual_look(looks)), "looks": looks})
            print(json.dumps(row), file=sys.stderr)
    return rows


def run_recipe() -> Row | None:
    """The recipe mnist from start to end, on all ranks or in this process, with one thread each."""
    specs, host = [load("mnist", []).resolved], Host(device="cpu", threads=1, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as out, ranks(600, device="cpu") as group:
        found = run_all(specs, out, jobs=1 if group is None else None, host=host, group=group)
    return {key: found[0][key] for key in ("seconds", "detection_seconds", "acc_scc")} if found else None


def whole() -> list[Row]:
    rows = [{"ranks": size, **apart(size, "--recipe")} for size in (1, 2)]
    return [{**row, "times_faster": rows[0]["seconds"] / row["seconds"]} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--recipe", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help="also the recipe mnist from start to end")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    given = parser.parse_args()
    if given.data is not None:
        os.environ["BYMI_DATA"] = str(given.data)
    parts = {"case": lambda: walk(given.case), "recipe": run_recipe}
    for name, part in parts.items():
        if getattr(given, name):
            keep_memory()
            if "RANK" not in os.environ:
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            row = part()
            if row is not None and os.environ.get("RANK", "0") == "0":
                print(json.dumps(row), flush=True)
            return
    rows = iterations()
    made = {
        "environment": environment(),
        "iterations": rows,
        "whole": whole() if given.whole else _before(),
        "projected": [projected(Machine(**rows[1]["machine"]), recipe, nodes, dim, 100) for recipe, nodes, dim in SIZES],
    }
    OUT.write_text(json.dumps(made, indent=2) + "\n")
    show(made)


def _before() -> list[Row]:
    """What the last run that was asked for it found from start to end."""
    found: list[Row] = json.loads(OUT.read_text())["whole"] if OUT.exists() else []
    return found


def show(made: Row) -> None:
    console = Console()
    lines = [
        [
            *(row["what"], str(row["ranks"]), f"{1000 * row['seconds']:.1f}", f"{1000 * row['model_seconds']:.1f}"),
            *(f"{100 * row['error']:+.0f} %", f"{100 * row['exchange_share']:.0f} %"),
        ]
        for row in made["iterations"]
    ]
    print_words(console, ["one iteration", "ranks", "ms", "model ms", "error", "exchange"], lines)
    columns = (
        "compute_seconds",
        "exchange_seconds",
        "lists_gigabytes",
        "data_gigabytes",
        "rows_gigabytes",
        "history_gigabytes",
    )
    lines = [[row["what"], f"{row['nodes']:,}", *(f"{row[key]:.2g}" for key in columns)] for row in made["projected"]]
    title = f"{MACHINES} machines of {HERE} cores and {GIGABYTES} GB, 10 Gbit/s, degree {DEGREE}: an iteration, GB a machine"
    headings = ["model", "nodes", "compute s", "exchange s", "lists", "data", "rows", "history"]
    print_words(console, headings, lines, title)
    for row in made["whole"]:
        console.print(f"bymi run mnist, {row['ranks']} process(es) of one thread: {row['seconds']:.0f} s")
    missed = [row for row in made["iterations"] if abs(row["error"]) > ERROR]
    two = [row for row in made["iterations"] if row["what"].endswith("m = 150") and row["ranks"] == 2]
    missed += [row for row in two if row["exchange_share"] > SHARE]
    missed += [row for row in made["whole"] if row["ranks"] == 2 and row["times_faster"] < TIMES]
    if missed:
        sys.exit(f"limits missed: {json.dumps(missed)}")


if __name__ == "__main__":
    main()
