"""Rules at scale: `python benchmarks/rules.py` prints a table and writes benchmarks/results/rules.json.

One round of each rule for 150 nodes, each hearing about half of the others, with vectors of 61,706 coordinates (LeNet) in
float32, on one thread, in processor seconds, with the peak of memory above that before. Beside it, where there is one, the
literal transcription of tests/reference for one node times 150, and ByzFL's aggregator for one neighbourhood times 150, both on
the same numbers. UBAR is with its losses: 7,400 of LeNet on 32 samples. `--device cuda` measures rules alone, in wall-clock
seconds after a warm-up.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from bymi import RULES, LocalNetwork, ModuleProblem, Round, Shards
from bymi.core.topic import PARAMETERS
from bymi.core.topology import ErdosRenyi
from bymi.problems.models import lenet
from bymi.report.tables import plain_table
from bymi.runs.run_folder import environment

NODES, DIM, BATCH = 150, 61_706, 32
SKIPPED = {
    "mda": "looks at all subsets",
    "byrdie": "refuses more than 1,000 coordinates",
    "bravo-saga": "as drsa",
    "bravo-lsvrg": "as drsa",
}
CHAINS = ("nnm+krum", "bucketing+krum", "nnm+trimmed-mean")
LITERAL = (
    "average",
    "ios",
    "balance",
    "mean",
    "median",
    "trimmed-mean",
    "scclip",
    "rtc",
    "drsa",
    "bridge-t",
    "faba",
    "monna",
    "meamed",
    "krum",
    "multi-krum",
    "centered-clipping",
    "cge",
)
BYZFL: dict[str, Callable[[Any, int], Any]] = {
    "mean": lambda peer, f: peer.Average(),
    "median": lambda peer, f: peer.Median(),
    "trimmed-mean": lambda peer, f: peer.TrMean(f),
    "krum": lambda peer, f: peer.Krum(f),
    "multi-krum": lambda peer, f: peer.MultiKrum(f),
    "monna": lambda peer, f: peer.MoNNA(f),
    "meamed": lambda peer, f: peer.Meamed(f),
    "centered-clipping": lambda peer, f: peer.CenteredClipping(),
    "caf": lambda peer, f: peer.CAF(f),
}


def byzfl() -> Any:
    """ByzFL's aggregators without the rest of its package, which needs torchvision; None if it is not installed."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")


def spent(work: Callable[[], object], device: str, repeat: int) -> float:
    """Seconds of one call: processor time on a CPU, wall-clock time on a GPU, the least of a few."""
    if device == "cuda":
        work()
    times = []
    for _ in range(repeat):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter() if device == "cuda" else time.process_time()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() if device == "cuda" else time.process_time()) - start)
    return min(times)


def measure(names: list[str], device: str, repeat: int) -> list[dict[str, Any]]:
    graph = ErdosRenyi(0.5).draw(NODES, seed=0)
    random = torch.Generator().manual_seed(0)
    vectors = (torch.randn(1, DIM, generator=random) + 0.1 * torch.randn(NODES, DIM, generator=random)).to(device)
    if device == "cuda":
        graph = graph.to(device)
    images = torch.randn(NODES, BATCH, 1, 28, 28, generator=random)
    problem = ModuleProblem(
        lenet(),
        torch.nn.functional.cross_entropy,
        Shards(images.to(device), torch.randint(10, (NODES, BATCH), generator=random).to(device)),
    )
    nodes, chosen = torch.arange(NODES, device=device), torch.arange(BATCH, device=device).expand(NODES, -1)

    def losses(tried: torch.Tensor, wanted: torch.Tensor, receivers: torch.Tensor | None = None) -> torch.Tensor:
        return problem.losses(tried, nodes, chosen, wanted)

    peer, rows = byzfl() if device == "cpu" else None, []
    hears = graph.hears[0].cpu()
    hood = torch.cat([vectors[:1], vectors[hears.to(device)]]).double().cpu().numpy()
    for name in names:
        rule, before = RULES[name](), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def work(rule: Any = rule) -> object:
            (inbox,) = LocalNetwork(graph).exchange(0, {PARAMETERS: vectors})
            return rule(inbox, Round(1, 10, losses, nodes=nodes))

        row: dict[str, Any] = {"rule": name, "seconds": spent(work, device, repeat)}
        row["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if device == "cpu" and name in LITERAL:
            row["times_literal"] = NODES * spent(lambda name=name: literal(name, hood), "cpu", 1) / row["seconds"]  # type: ignore[misc]
        if peer is not None and name in BYZFL:
            aggregator = BYZFL[name](peer, int(np.ceil(0.35 * (len(hood) - 1))))
            vectors_of_one = hood.astype(np.float32)
            row["times_byzfl"] = NODES * spent(lambda a=aggregator, v=vectors_of_one: a(v.copy()), "cpu", 1) / row["seconds"]  # type: ignore[misc]
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def literal(name: str, hood: np.ndarray) -> object:
    """The transcription for one node."""
    from dataclasses import asdict

    from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
    from tests.reference.rules import Node

    share = 1 / len(hood)
    node = Node(hood[0], list(hood[1:]), [share] * (len(hood) - 1), share, lambda vector: 0.0, 1, 10)
    return ALL_TRANSCRIPTIONS[name](node, **asdict(RULES[name]()))  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rules", nargs="*", default=[*(name for name in RULES if name not in SKIPPED), *CHAINS])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(given.rules, given.device, given.repeat)
    data = {"command": "python benchmarks/rules.py", "device": given.device, "environment": environment(), "rows": rows}
    place = given.out / ("rules.json" if given.device == "cpu" else "rules-cuda.json")
    place.write_text(json.dumps(data, indent=1) + "\n")
    shown = [
        [
            row["rule"],
            f"{1000 * row['seconds']:.1f}",
            f"{row['megabytes']:.0f}",
            *(f"{row[key]:.0f}" if key in row else "" for key in ("times_literal", "times_byzfl")),
        ]
        for row in rows
    ]
    Console().print(plain_table(["rule", "milliseconds", "MB", "times the literal code", "times ByzFL"], shown))


if __name__ == "__main__":
    main()
