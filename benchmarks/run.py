"""The benchmarks of the core in one run: `make bench` prints a table and writes benchmarks/results/core.json.

A timing says something as a ratio within one run on one machine. So each rule is timed beside the plain per-node Python of
tests/reference, on the same inputs, after checking that both give the same vectors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from bymi import BALANCE, IOS, Detector, ErdosRenyi, Inbox, LocalNetwork, Round
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, PARAMETERS, SECOND_HALF
from bymi.detection import identify_neighbours
from bymi.experiment import load, run
from bymi.report.tables import print_words
from bymi.runs.run_folder import environment

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.reference import rules as plain  # noqa: E402 - the repository is not a package

LENET = 61_706
Row = dict[str, Any]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time of a call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def default_run(dim: int, samples: int, limit: float) -> Row:
    """Processor time of one default DRSGD-ByMI run on one core: scene, all phases, metrics and files."""
    spec = load(None, ["method=drsgd-bymi", f"data.dim={dim}", f"data.samples={samples}"])
    with tempfile.TemporaryDirectory() as out:
        start = time.process_time()
        run(spec, out)
        used = time.process_time() - start
    return {"what": f"default run, d = {dim}, one core", "seconds": used, "limit": limit}


def one_round(nodes: int, dim: int) -> Inbox:
    """A round of `nodes` float64 vectors near consensus with a fifth of them off, on an Erdos-Renyi graph."""
    vectors = stream(0, "start").normal(dim) + 0.05 * stream(0, "spread", node=torch.arange(nodes)).normal(dim)
    vectors[: nodes // 5] += 0.5
    (inbox,) = LocalNetwork(ErdosRenyi(0.5).draw(nodes)).exchange(0, {PARAMETERS: vectors})
    return inbox


def fresh(inbox: Inbox) -> Inbox:
    """The same inbox without the products it has remembered."""
    return replace(inbox)


def rule_against_loop(name: str, rule: IOS | BALANCE, loop: Callable[[plain.Node], Any], sample: int = 10) -> Row:
    """One round of 150 nodes at LeNet's size; the loop is timed on `sample` receivers and scaled up to all."""
    torch.set_num_threads(2)
    inbox = one_round(150, LENET)
    moment = Round(10, 100)
    batched = seconds(lambda: rule(fresh(inbox), moment), repeats=3)
    vectors = inbox.messages.numpy()
    nodes = []
    for receiver in range(0, 150, 150 // sample):
        heard = inbox.heard[receiver].nonzero().flatten().tolist()
        weights = inbox.weight[receiver, heard].tolist()
        own_weight = float(inbox.self_weight[receiver])
        nodes.append(plain.Node(vectors[receiver], [vectors[j] for j in heard], weights, own_weight, lambda x: 0.0, 10, 100))
    start = time.perf_counter()
    expected = [loop(node) for node in nodes]
    per_node = (time.perf_counter() - start) / len(nodes)
    got = rule(inbox, moment)[:: 150 // sample].numpy()
    difference = max(float(np.abs(row - want).max()) for row, want in zip(got, expected, strict=True))
    assert difference < 1e-9, f"{name} differs from the plain implementation by {difference}"
    return {
        "what": f"{name}, one round, 150 nodes, d = {LENET}, 2 cores",
        "seconds": batched,
        "loop_seconds": 150 * per_node,
        "times_faster": 150 * per_node / batched,
        "at_least": 10,
        "largest_difference": difference,
    }


def detection() -> Row:
    """Detection for 150 nodes at LeNet's size in a process of its own, to see its peak of memory."""
    output = subprocess.run([sys.executable, __file__, "--detection"], capture_output=True, text=True, check=True).stdout
    row: Row = json.loads(output.splitlines()[-1])
    return row


def detection_here() -> Row:
    torch.set_num_threads(1)  # as runs do: many small eigenproblems gain nothing from threads and suffer when cores are busy
    nodes = torch.arange(150)
    network = LocalNetwork(ErdosRenyi(0.5).draw(150))
    halves = []
    for name in ("first", "second"):
        half = torch.empty(150, LENET)
        for node in range(150):
            half[node] = stream(0, name, node=node).normal(LENET).to(half)
        half[nodes % 5 == 0] += 0.3
        halves.append(half)
    small = {topic: half[:, :50].contiguous() for topic, half in zip((FIRST_HALF, SECOND_HALF), halves, strict=True)}
    identify_neighbours(*network.exchange(0, small), Detector())  # loads the libraries before memory is measured
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    start = time.perf_counter()
    verdict = identify_neighbours(*network.exchange(0, {FIRST_HALF: halves[0], SECOND_HALF: halves[1]}), Detector())
    used = time.perf_counter() - start
    peak = memory("VmHWM")
    bad = nodes % 5 == 0
    assert bool((verdict.flagged | ~network.graph.hears | ~bad)[~bad].all()), "the planted nodes must be found"
    return {
        "what": f"detection (filtering, Omega = I), 150 nodes, d = {LENET}, float32, one core",
        "seconds": used,
        "limit": 5.0,
        "extra_megabytes": peak - before,
        "limit_megabytes": 1000,
    }


def memory(key: str) -> float:
    """Resident memory of this process in megabytes: now (VmRSS) or at its peak (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def scaling(name: str, rule: IOS | BALANCE) -> list[Row]:
    """Time of a round for m = 50, 150, 450 at d = 20,000: at most in proportion to m^2 d."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for nodes in (50, 150, 450):
        inbox = one_round(nodes, 20_000)
        used = seconds(lambda inbox=inbox: rule(fresh(inbox), Round(10, 100)), repeats=3)  # type: ignore[misc]
        row: Row = {"what": f"{name}, one round, m = {nodes}, d = 20000, one core", "seconds": used}
        if rows:
            row["times_of_m_before"] = used / rows[-1]["seconds"]
            row["at_most"] = 9
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--detection", action="store_true", help="only the detection, as JSON (used by this script)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "core.json")
    given = parser.parse_args()
    if given.detection:
        print(json.dumps(detection_here()))
        return
    ios, balance = IOS(), BALANCE(gamma=0.1)
    jobs: list[Callable[[], Row | list[Row]]] = [
        lambda: default_run(30, 100, 5.0),
        lambda: default_run(80, 200, 12.0),
        lambda: rule_against_loop("IOS", ios, lambda node: plain.ios(node, share=ios.share)),
        lambda: rule_against_loop(
            "BALANCE", balance, lambda node: plain.balance(node, gamma=0.1, kappa=1.0, self_weight=0.5, absolute=0.0)
        ),
        detection,
        lambda: scaling("IOS", ios),
        lambda: scaling("BALANCE", balance),
    ]
    console = Console(stderr=True)
    rows: list[Row] = []
    for number, job in enumerate(jobs, start=1):
        with console.status(f"benchmark {number} of {len(jobs)}"):
            made = job()
        rows += made if isinstance(made, list) else [made]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")
    table = [[row["what"], f"{row['seconds']:.3f}", remark(row)] for row in rows]
    print_words(Console(width=150), ["what", "seconds", "remark"], table)
    missed = [row["what"] for row in rows if misses(row)]
    if missed:
        sys.exit(f"limits missed: {'; '.join(missed)}")


def misses(row: Row) -> bool:
    """Whether a row is beyond one of its limits."""
    return (
        row["seconds"] > row.get("limit", row["seconds"])
        or row.get("times_faster", 0) < row.get("at_least", 0)
        or row.get("extra_megabytes", 0) > row.get("limit_megabytes", 0)
        or row.get("times_of_m_before", 0) > row.get("at_most", 0)
    )


def remark(row: Row) -> str:
    """What a row is to be compared with."""
    parts = []
    if "limit" in row:
        parts.append(f"limit {row['limit']:g} s")
    if "times_faster" in row:
        parts.append(f"{row['times_faster']:.0f} times faster than the loop ({row['loop_seconds']:.1f} s)")
    if "extra_megabytes" in row:
        parts.append(f"{row['extra_megabytes']:.0f} MB above the gradients, limit {row['limit_megabytes']}")
    if "times_of_m_before" in row:
        parts.append(f"{row['times_of_m_before']:.1f} times the time of a third of the nodes, at most {row['at_most']}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
