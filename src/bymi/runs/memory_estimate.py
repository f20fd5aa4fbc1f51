"""Memory: what a run needs, from its resolved spec before any data are made, and what this process can allocate."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import torch

from bymi.core.errors import OutOfMemoryError
from bymi.core.list_graph import lists_pay
from bymi.core.named_parts import build_part
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.device_and_thread_settings import Host
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.tasks import TASKS, Images, Linear

_LENET = 61_706  # parameters
_PIXELS, _IMAGES, _TESTED = 28 * 28, 60_000, 10_000  # of MNIST and Fashion-MNIST; the other data sets are smaller


def needs(spec: ResolvedSpec, ranks: int = 1) -> dict[str, int]:
    """Lower bounds in bytes for the parts of a run, for a process that holds one of `ranks` equal parts of the nodes.

    Measured peaks are one to two times the sum; detection in the hardened profile may take more.
    """
    task = build_part(TASKS, spec["data"])
    nodes = spec["nodes"]
    held = math.ceil(nodes / ranks)
    if isinstance(task, Linear):
        drawn = held if nodes < LIMITS.many_nodes else min(held, LIMITS.block_of_nodes)
        # The rows, and temporaries of a normal draw of them.
        data = 8 * task.samples * (held * (task.dim + 1) + 3 * drawn * task.dim)
        numbers, sample, samples = task.dim, task.dim + 1, task.samples
    elif isinstance(task, Images):
        images = _IMAGES if task.samples is None else min(_IMAGES, nodes * task.samples)
        data = _PIXELS * (4 * (math.ceil(images / ranks) + _TESTED) + images)  # as float32 and, all of them, as bytes
        numbers, sample, samples = _LENET, _PIXELS, math.ceil(images / nodes)
    else:
        return {}
    size = task.dtype.itemsize
    kept = size * sample if nodes < LIMITS.many_nodes and isinstance(task, Linear) else 0
    rounds = {"warm_up": spec.warm_up_steps, "optimisation": spec["steps"] - spec.warm_up_steps}
    if spec.method != "drsgd-bymi" and spec["alone"] is not None:
        rounds = {"alone": spec["steps"]}
    sizes = {phase: samples if spec[phase]["batch"] == "all" else spec[phase]["batch"] for phase in rounds}
    picked = max(sizes[phase] * (2 * 8 * min(LIMITS.drawn_rounds, count) + kept) for phase, count in rounds.items())
    return {
        "graph": _graph(spec),
        "data": data,
        "models": 4 * held * numbers * size,  # parameters, gradients, messages, averages
        "mini-batches": held * picked,
    }


def _graph(spec: ResolvedSpec) -> int:
    """Matrices [M, M] plus the edges that networkx holds while the graph is drawn, or neighbour lists."""
    graph, nodes = spec["graph"], int(spec["nodes"])
    hubs = dict.fromkeys(("complete", "star", "two-castle", "octopus", "dumbbell", "two-cliques", "directed"), nodes - 1)
    usual = {"erdos-renyi": graph.get("p", 0) * nodes, **hubs}
    degree = float(usual.get(graph["name"], graph.get("degree", 2)))
    longest = 1.5 * degree if graph["name"] == "erdos-renyi" else degree
    if lists_pay(nodes, math.ceil(longest)):
        return math.ceil(100 * nodes * degree)
    return 20 * nodes**2 + math.ceil(100 * nodes * degree)


def check(spec: ResolvedSpec, host: Host, ranks: int = 1) -> None:
    """Raise OutOfMemoryError, in one line, if a run takes more memory than this machine has."""
    limit = available()
    if limit is None:
        return
    if host.place(gains=TASKS[spec["data"]["name"]].gains).type == "cuda":
        limit += torch.cuda.mem_get_info()[0]
    parts = needs(spec, ranks)
    total = sum(parts.values())
    if total > limit:
        words = ", ".join(f"{name} {in_bytes(count)}" for name, count in sorted(parts.items(), key=lambda part: -part[1]))
        raise OutOfMemoryError(
            f"{spec.label}, seed {spec['seed']}: it needs about {in_bytes(total)} of memory ({words}) and {in_bytes(limit)} "
            "are available; try fewer nodes or arcs, samples or dimensions, or a smaller batch"
        )


def in_bytes(count: int) -> str:
    """A number of bytes for display, such as 2.5 GB."""
    power = min(5, max(0, (len(str(count)) - 1) // 3))
    return f"{count / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def available() -> int | None:
    """Bytes of memory that this process can allocate; None where the system does not say.

    The kernel's MemAvailable, or the limit of the process's control group (a container, a job) if that is less.
    """
    known = [_memory_info(), *_group_limits()]
    return min((count for count in known if count is not None), default=None)


def _memory_info() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        pass
    try:  # total memory, where the kernel does not report what is available
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _group_limits() -> list[int | None]:
    """Limits of the control groups of this process, versions 1 and 2; "max" and unreadable files are skipped."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits: list[int | None] = []
    for line in groups:
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):
            root, file = Path("/sys/fs/cgroup", kinds), "memory.max" if kinds == "" else "memory.limit_in_bytes"
            # In a container the name may be the host's, and the container's own group is the root.
            for place in (root / name.lstrip("/") / file, root / file):
                with suppress(OSError, ValueError):
                    limits.append(int(place.read_text(encoding="ascii")))
    return limits
