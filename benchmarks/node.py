"""Cost of real nodes over mutual TLS on loopback: `python benchmarks/node.py` prints a table and writes results/node.json.

Eight nodes with LeNet-sized messages, full mesh, in two processes: CPU time per message, both ends, and time per round without
gradients. One neighbour that stalls: deadlines that it costs. Messages of 17 MB, in pieces: memory. `--demo` adds
`bymi net demo`, with one Byzantine node and none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import torch
from rich.console import Console

from bymi.core.graph import Graph
from bymi.core.topic import PARAMETERS
from bymi.netdemo.demo import free_ports, prepare, run_demo
from bymi.node.event_loop_thread import LoopThread
from bymi.node.grpc_transport import NetworkConfig
from bymi.node.identity import certificate_der, read_identity, write_identity
from bymi.node.peer_network import PeerNetwork
from bymi.node.roster import Limits, Member
from bymi.node.round_session import Session
from bymi.report.tables import print_words
from bymi.runs.run_folder import environment

NODES, PROCESSES, ROUNDS, WARM = 8, 2, 30, 3
DIM = 61_706  # parameters of LeNet: 247 kB in float32
LARGE = 1 << 22  # parameters: 17 MB in float32
RESULTS = Path(__file__).parent / "results" / "node.json"


def sessions(folder: Path, held: list[int], loop: LoopThread, limits: Limits, dim: int = DIM) -> list[Session]:
    """Sessions of some nodes, listening and connected."""
    ports = json.loads((folder / "ports.json").read_text())
    identities = [read_identity(folder / str(number)) for number in range(len(ports))]
    members = [
        Member(str(number), f"127.0.0.1:{port}", certificate_der(identities[number].certificate, ""))
        for number, port in enumerate(ports)
    ]
    graph = Graph.from_hears(~torch.eye(len(ports), dtype=torch.bool))
    made = []
    for number in held:
        config = NetworkConfig(number, identities[number], members, graph, "0" * 64, limits, dim, torch.float32)
        session = Session(config, loop, lambda *_, **__: None)
        session.start(members[number].endpoint)
        made.append(session)
    for session in made:
        session.connect()
    return made


def exchange_rounds(network: PeerNetwork, rounds: int, times: list[float], dim: int = DIM) -> None:
    """Time of each round of one node: its parameters to all others, theirs to it."""
    own = torch.full((1, dim), float(network.nodes), dtype=torch.float32)
    for step in range(rounds):
        start = time.perf_counter()
        (inbox,) = network.exchange(step, {PARAMETERS: own})
        assert bool(inbox.heard.sum() >= inbox.heard.shape[1] - 1)
        times.append(time.perf_counter() - start)


def work(folder: Path, held: list[int]) -> dict[str, Any]:
    """Run some of the nodes in this process."""
    torch.set_num_threads(1)
    loop = LoopThread()
    made = sessions(folder, held, loop, Limits(deadline=60.0, start_wait=60.0))
    networks, times = [PeerNetwork.of(session) for session in made], [list[float]() for _ in made]
    warm: list[list[float]] = [[] for _ in made]
    _side_by_side([lambda i=i: exchange_rounds(networks[i], WARM, warm[i]) for i in range(len(made))])
    before = time.process_time()

    def timed(i: int) -> None:
        own = torch.full((1, DIM), float(i), dtype=torch.float32)
        for step in range(WARM, WARM + ROUNDS):
            start = time.perf_counter()
            networks[i].exchange(step, {PARAMETERS: own})
            times[i].append(time.perf_counter() - start)

    _side_by_side([lambda i=i: timed(i) for i in range(len(made))])
    used = time.process_time() - before
    _side_by_side([lambda i=i: networks[i].all_agree(True) for i in range(len(made))])  # nobody leaves before all have ended
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for session in made:
        session.close()
    return {"cpu": used, "rounds": [value for row in times for value in row], "peak_mb": peak}


def _side_by_side(jobs: list[Any]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mesh(folder: Path) -> dict[str, Any]:
    """CPU per message and time per round of the full mesh."""
    _prepare(folder, NODES)
    per = NODES // PROCESSES
    commands = [
        [sys.executable, __file__, "--worker", str(folder), *map(str, range(first, first + per))]
        for first in range(0, NODES, per)
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    messages = NODES * (NODES - 1) * ROUNDS
    rounds = [value for one in found for value in one["rounds"]]
    return {
        "nodes": NODES,
        "parameters": DIM,
        "cpu_ms_per_message": 1e3 * sum(one["cpu"] for one in found) / messages,
        "round_ms_median": 1e3 * statistics.median(rounds),
        "round_ms_90": 1e3 * statistics.quantiles(rounds, n=10)[-1],
        "peak_mb_per_process": max(one["peak_mb"] for one in found),
    }


def staller(folder: Path) -> dict[str, Any]:
    """Time of 12 rounds of three nodes beside one that accepts connections and says nothing, in deadlines."""
    _prepare(folder, 4)
    loop, deadline = LoopThread(), 2.0
    made = sessions(folder, [0, 1, 2, 3], loop, Limits(deadline=deadline, start_wait=5.0))
    networks = [PeerNetwork.of(session) for session in made]
    times: list[list[float]] = [[] for _ in made]
    _side_by_side([lambda i=i: exchange_rounds(networks[i], WARM, times[i]) for i in range(4)])
    quiet = statistics.median(value for row in times for value in row)
    times = [[] for _ in made]

    def go_on(i: int) -> None:
        own = torch.zeros(1, DIM, dtype=torch.float32)
        for step in range(WARM, WARM + 12):
            start = time.perf_counter()
            networks[i].exchange(step, {PARAMETERS: own})
            times[i].append(time.perf_counter() - start)

    _side_by_side([lambda i=i: go_on(i) for i in range(3)])  # the last one takes no further part
    peers = [session.peers[3] for session in made[:3]]
    for session in made:
        session.close()
    return {
        "deadline_s": deadline,
        "deadlines_lost": max((sum(row) - len(row) * quiet) / deadline for row in times[:3]),
        "suspicions": max(peer.counts["suspicions"] for peer in peers),
        "slow_rounds": max(sum(value > deadline / 2 for value in row) for row in times[:3]),
    }


def large(folder: Path) -> dict[str, Any]:
    """Peak memory of three rounds of four nodes in one process, above what it had before, per message that a node receives.

    A node needs one copy of each message, one in the inbox, and one that may be reused: the last round's are held meanwhile.
    """
    command = [sys.executable, __file__, "--large", str(folder)]
    _prepare(folder, 4)
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]))


def work_large(folder: Path) -> dict[str, Any]:
    """The process of `large`."""
    torch.set_num_threads(1)
    made = sessions(folder, [0, 1, 2, 3], LoopThread(), Limits(deadline=60.0, start_wait=60.0), LARGE)
    networks = [PeerNetwork.of(session) for session in made]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times: list[list[float]] = [[] for _ in made]
    start = time.process_time()
    _side_by_side([lambda i=i: exchange_rounds(networks[i], 3, times[i], LARGE) for i in range(4)])
    used = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for session in made:
        session.close()
    message_mb, received = 4 * LARGE / 2**20, 4 * 3
    return {
        "parameters": LARGE,
        "message_mb": message_mb,
        "peak_mb_above_start": (peak - before) / 1024,
        "messages_held_per_message_received": (peak - before) / 1024 / message_mb / received,
        "cpu_ms_per_message": 1e3 * used / (3 * received),
    }


def demo(byzantine: int) -> list[dict[str, Any]]:
    """`bymi net demo --nodes 6 --byzantine ...`, seeds 0, 1, 2."""
    rows = []
    for seed in range(3):
        with tempfile.TemporaryDirectory() as scratch:
            found = run_demo(prepare(Path(scratch), nodes=6, byzantine=byzantine, steps=60, seed=seed))
        rows.append({"seed": seed, **{key: found[key] for key in ("seconds", "found_by_all", "accuracy")}})
    return rows


def _prepare(folder: Path, count: int) -> None:
    for number in range(count):
        write_identity(folder / str(number))
    (folder / "ports.json").write_text(json.dumps(free_ports(count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="also run bymi net demo, six times")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--large", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.large:
        print(json.dumps(work_large(Path(given.large))))
        return
    if given.worker:
        print(json.dumps(work(Path(given.worker[0]), [int(number) for number in given.worker[1:]])))
        return
    results: dict[str, Any] = {"environment": environment()}
    for name, measure in (("mesh", mesh), ("staller", staller), ("large", large)):
        with tempfile.TemporaryDirectory() as scratch:
            results[name] = measure(Path(scratch))
    if given.demo:
        results["demo"] = {"one Byzantine node": demo(1), "no Byzantine node": demo(0)}
    elif RESULTS.exists() and "demo" in (old := json.loads(RESULTS.read_text())):
        results["demo"] = old["demo"]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    rows = [
        [part, key, f"{value:.4g}" if isinstance(value, float) else str(value)]
        for part in ("mesh", "staller", "large")
        for key, value in results[part].items()
    ]
    print_words(Console(), ["part", "measure", "value"], rows)


if __name__ == "__main__":
    main()
