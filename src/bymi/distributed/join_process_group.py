"""Joining and leaving the process group of a torchrun launch."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from bymi.core.errors import BymiError, InputError, RankLostError
from bymi.distributed.collectives import Group
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.distributed.parent_watchdog import die_with_parent

TIMEOUT = 60.0
"""Default seconds after which a rank that others wait for counts as lost."""

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HERE = ("localhost", "127.", "::1")


def launched() -> bool:
    """Whether this process was started by torchrun (or a launcher with the same variables)."""
    return all(name in os.environ for name in _LAUNCHED)


@contextmanager
def ranks(timeout: float | None = None, *, device: str = "auto") -> Iterator[Group | None]:
    """The process group, or None for a process that was started alone. Ranks leave together or with an error."""
    if not launched():
        yield None
        return
    group = Group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    gone = "the launcher is gone; start the same command again"
    die_with_parent(lambda: f"bymi: rank {group.rank} stopped {group.moment}: {gone}", RankLostError.exit_code)
    keep_memory()
    _rendezvous(group, timeout or TIMEOUT, device)

    def stopped(number: int, frame: Any) -> None:
        group.stop()

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        yield group
        # Ranks leave together: one that exits early may take the store with it, and looks lost to the others.
        group.moment = "at the end"
        group.all_agree(True)
    except BymiError as problem:
        if not isinstance(problem, RankLostError):
            problem.said = not group.leave()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    dist.destroy_process_group()


def same_everywhere(group: Group, facts: Mapping[str, str]) -> None:
    """Raise InputError on every rank unless all ranks have the same facts (versions, specs). Collective."""
    by_rank = group.tell(dict(facts))
    for name, own in by_rank[0].items():
        other = next((rank for rank, words in enumerate(by_rank) if words.get(name) != own), None)
        if other is not None:
            raise InputError(
                f"{name}: rank {other} has {by_rank[other].get(name)!r} and rank 0 has {own!r}; "
                "start every rank with the same command and the same versions"
            )


def _rendezvous(group: Group, timeout: float, device: str) -> None:
    rank, size = group.rank, group.size
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        _use_loopback()
    elif rank == 0 and not os.environ["MASTER_ADDR"].startswith(_HERE):
        print(
            f"bymi: listening at {os.environ['MASTER_ADDR']} without passwords or encryption: "
            "this is for machines of one owner on a private network",
            file=sys.stderr,
        )
    backend, wait = _backend(device), timedelta(seconds=timeout)
    try:
        store, _, _ = next(rendezvous("env://", timeout=wait))
        # After a restart the store still has addresses of the previous attempt's processes; the prefix hides them.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        group.store = PrefixStore(f"bymi attempt {attempt}", store)
        dist.init_process_group(backend, store=group.store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as problem:
        raise _rendezvous_error(str(problem), rank, size) from None


def _rendezvous_error(problem: str, rank: int, size: int) -> InputError:
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    first = problem.splitlines()[0] if problem else ""
    if "EADDRINUSE" in problem or "address already in use" in problem.lower():
        return InputError(f"port: {place} is in use by another program; choose another --master-port or --rdzv-endpoint")
    return InputError(
        f"rank {rank} of {size} cannot meet the others at {place} ({first}); are all started, and can it be reached?"
    )


def _backend(device: str) -> str:
    """ "gloo" for CPU tensors, with NCCL for GPU tensors where there are GPUs."""
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    local_ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if local_ranks > gpus:
        raise InputError(f"--nproc-per-node: got {local_ranks} ranks for {gpus} GPUs, allowed: one rank a GPU, or --device cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"


def _use_loopback() -> None:
    """Listen on the loopback interface only: all ranks are on this machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
