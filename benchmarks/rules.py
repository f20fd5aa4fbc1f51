"""Rules at scale: `python benchmarks/rules.py` prints a table and writes benchmarks/results/rules-cpu.json.

One round of each rule for 150 nodes, each hearing about half of the others, with vectors of 61,706 coordinates (LeNet) in
float32: processor seconds and wall-clock seconds, and the peak of memory above that before. On a machine that does other work
wall-clock seconds say little; the load is in the JSON. Beside it, where there is one, the literal transcription of
tests/reference for one node times 150, and ByzFL's aggregator for one neighbourhood times 150, both on the same numbers and in
processor seconds. UBAR is with its losses: 7,400 of LeNet on 32 samples.

`--device cuda` measures rules alone, in wall-clock seconds after a warm-up, and of one call the number of times that the host
waits for the device, the number of launches and of kernels (a CUDA graph is one launch of many), and the seconds in which the
device was busy: where these are few, launching takes the time. `--check` compares with the same rule on the CPU. It needs
torch, numpy and networkx only.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import sys
import time
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bymi import RULES, LocalNetwork, ModuleProblem, Round, Shards  # noqa: E402
from bymi.aggregation import Rule, WeightedRule  # noqa: E402
from bymi.core.topic import PARAMETERS  # noqa: E402
from bymi.core.topology import ErdosRenyi  # noqa: E402
from bymi.problems.lenet import lenet  # noqa: E402
from bymi.runs.run_folder import environment  # noqa: E402

NODES, DIM, BATCH = 150, 61_706, 32
WARM_UP = 4  # calls on a GPU: the first loads kernels, the second records graphs
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset")
SKIPPED = {
    "mda": "looks at all subsets",
    "byrdie": "refuses more than 1,000 coordinates",
    "bravo-saga": "as drsa",
    "bravo-lsvrg": "as drsa",
}
LIMITS = {"cpu": {"ubar": 3.0, "weights": 0.5, "coordinates": 8.0}, "cuda": {"ubar": 0.015, "weights": 0.003}}
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


def spent(work: Callable[[], object], device: str, repeat: int) -> tuple[float, float]:
    """Processor and wall-clock seconds of one call, the least of a few; on a GPU after a warm-up."""
    for _ in range(WARM_UP if device == "cuda" else 0):
        work()
    times = []
    for _ in range(repeat):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.process_time(), time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return min(used for used, _ in times), min(passed for _, passed in times)


def waits(work: Callable[[], object]) -> int:
    """How often the host waits for the GPU in one call."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(one.message) for one in caught)


def kind(name: str) -> str:
    """Which limit applies."""
    rule = RULES[name.rpartition("+")[2]]
    return "ubar" if name == "ubar" else "weights" if issubclass(rule, WeightedRule) else "coordinates"


def traced(work: Callable[[], object]) -> torch.profiler.profile:
    """A trace of one call."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as made:
        work()
        torch.cuda.synchronize()
    return made


def launched(trace: torch.profiler.profile) -> dict[str, float]:
    """Launches by the host, kernels and copies on the device, and the seconds that these took."""
    events = trace.events() or []
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return {
        "launches": sum(event.name.startswith(LAUNCHES) for event in events),
        "kernels": len(on_device),
        "device_seconds": sum(event.time_range.elapsed_us() for event in on_device) / 1e6,
    }


class Setting:
    """A graph, vectors and the losses of models on a device; the numbers are the same on all."""

    def __init__(self, device: str) -> None:
        drawn, random = ErdosRenyi(0.5).draw(NODES, seed=0), torch.Generator().manual_seed(0)
        self.graph = drawn.to(device) if device == "cuda" else drawn
        self.network = LocalNetwork(self.graph)  # once, as in a run
        vectors = torch.randn(1, DIM, generator=random) + 0.1 * torch.randn(NODES, DIM, generator=random)
        images = torch.randn(NODES, BATCH, 1, 28, 28, generator=random).to(device)
        labels = torch.randint(10, (NODES, BATCH), generator=random).to(device)
        self.vectors = vectors.to(device)
        self.problem = ModuleProblem(lenet(), torch.nn.functional.cross_entropy, Shards(images, labels))
        self.nodes, self.chosen = torch.arange(NODES, device=device), torch.arange(BATCH, device=device).expand(NODES, -1)

    def losses(self, tried: torch.Tensor, wanted: torch.Tensor, receivers: torch.Tensor | None = None) -> torch.Tensor:
        return self.problem.losses(tried, self.nodes, self.chosen, wanted)

    def output(self, rule: Rule) -> torch.Tensor:
        """One round."""
        (inbox,) = self.network.exchange(0, {PARAMETERS: self.vectors})
        return rule(inbox, Round(1, 10, self.losses, nodes=self.nodes))


def measure(names: list[str], device: str, repeat: int, profiled: list[str], check: bool) -> list[dict[str, Any]]:
    """One row per rule."""
    setting = Setting(device)
    beside = Setting("cpu") if check else None
    peer, rows = byzfl() if device == "cpu" else None, []
    heard = setting.vectors[setting.graph.hears[0]]
    hood = torch.cat([setting.vectors[:1], heard]).double().cpu().numpy()
    for name in names:
        rule, before = RULES[name](), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work = partial(setting.output, rule)
        used, passed = spent(work, device, repeat)
        row: dict[str, Any] = {"rule": name, "kind": kind(name), "processor_seconds": used, "seconds": passed}
        if device == "cuda":
            trace = traced(work)
            row |= {"waits": waits(work), **launched(trace)}
            if beside is not None:
                row["difference"] = float((work().cpu() - beside.output(rule)).abs().max())
        else:
            row["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if device == "cuda" and name in profiled:
            table = trace.key_averages().table(sort_by="cuda_time_total", row_limit=15, max_name_column_width=60)
            print(name, table, flush=True)
        if device == "cpu" and name in LITERAL:
            row["times_literal"] = NODES * spent(lambda name=name: literal(name, hood), "cpu", 1)[0] / used  # type: ignore[misc]
        if peer is not None and name in BYZFL:
            aggregator = BYZFL[name](peer, int(np.ceil(0.35 * (len(hood) - 1))))
            vectors_of_one = hood.astype(np.float32)
            one = spent(lambda a=aggregator, v=vectors_of_one: a(v.copy()), "cpu", 1)[0]  # type: ignore[misc]
            row["times_byzfl"] = NODES * one / used
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


def page_rows(results: Path = ROOT / "benchmarks" / "results") -> list[list[str]]:
    """Rows of the table in docs/benchmarks.md, from the stored JSON of a CPU and, where it is there, of a GPU."""
    stored = {
        device: {row["rule"]: row for row in json.loads(path.read_text())["rows"]}
        for device in ("cpu", "cuda")
        if (path := results / f"rules-{device}.json").exists()
    }
    rows = []
    for name, row in stored["cpu"].items():
        ratios = [f"{row[key]:.{1 if row[key] < 10 else 0}f}" if key in row else "" for key in ("times_literal", "times_byzfl")]
        there = stored.get("cuda", {}).get(name)
        milliseconds = "" if there is None else f"{1000 * there['seconds']:.1f}"
        rows.append([name, f"{row['processor_seconds']:.2f}", f"{row['seconds']:.2f}", *ratios, milliseconds])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    usual = [*(name for name in RULES if name not in SKIPPED), *CHAINS]
    parser.add_argument("--only", dest="rules", metavar="RULE", nargs="*", default=usual)
    parser.add_argument("--repeat", type=int, default=None, help="timed calls of which the fastest counts: 2, on a GPU 10")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", nargs="*", default=[], help="rules whose kernels to show (cuda)")
    parser.add_argument("--check", action="store_true", help="largest difference from the same rule on the CPU (cuda)")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--page", action="store_true", help="measure nothing: print the table of docs/benchmarks.md")
    given = parser.parse_args()
    if given.page:
        print("\n".join(f"| {' | '.join(row)} |" for row in page_rows()))
        return
    torch.set_num_threads(given.threads)
    before = os.getloadavg()[0]
    repeat = given.repeat or (10 if given.device == "cuda" else 2)
    rows = measure(given.rules, given.device, repeat, given.profile, given.check)
    data = {
        "command": "python benchmarks/rules.py",
        "device": given.device,
        "threads": given.threads,
        "load": {"before": before, "after": os.getloadavg()[0], "cores": os.cpu_count()},
        "limits": LIMITS[given.device],
        "environment": environment(),
        "rows": rows,
    }
    place = given.out or ROOT / "benchmarks" / "results" / f"rules-{given.device}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(data, indent=1) + "\n")
    counts = ("waits", "launches", "kernels", "device_seconds", "difference") if given.device == "cuda" else ("megabytes",)
    columns = ("processor_seconds", "seconds", *counts, "times_literal", "times_byzfl")
    print(" " * 18 + "".join(f"{name:>19}" for name in columns))
    for row in rows:
        limit = LIMITS[given.device].get(row["kind"], float("inf"))
        late = f"  above {limit} s" if row["seconds"] > limit else ""
        print(f"{row['rule']:<18}" + "".join(f"{row[name]:>19.4g}" if name in row else " " * 19 for name in columns) + late)


if __name__ == "__main__":
    main()
