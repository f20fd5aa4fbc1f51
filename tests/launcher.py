"""A stand-in for torchrun in tests: reads once what takes long to read, then starts ranks in an instant.

`python -m tests.launcher JOBS`, a JSON list: each job is {"size", "words"}, one command line of bymi, or of the "program"
bymi.runs, on so many ranks, or {"size", "specs", "out"}, many runs one after the other in one group with a checkpoint "every"
so many rounds, and a file of what each rank sent, or {"size", "golden", "out"}, golden runs by name, and a file of what each
rank saw of them. "breaks": [what, rank, name, time] does something to one rank when it sends something of that name, or is
about to store a "checkpoint", for the nth time: "killed", "stopped" by SIGTERM, or, when it stores, its disk is "full" from
then on. "patience": seconds for which the others wait for a word from one that is lost. "said": a file for what is written to
stderr. "lists": graphs are lists of neighbours, however small. "set": limits of the library. "largest": beside what each rank
sent, how many entries the largest tensor has that it ever made. A job starts when the one before has ended. Prints a line of
JSON for each job that starts and for each rank that ends.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401
import torch.distributed  # noqa: F401
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import bymi.cli
import bymi.experiment
import bymi.report.figures
import bymi.runs.__main__
from bymi.core.errors import BymiError
from bymi.distributed import collectives
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host, one_thread
from bymi.distributed.join_process_group import ranks
from bymi.runs import read_resolved_specs, run_all
from bymi.runs import safetensors_file as tensorfile
from tests.golden.forms import LISTS, set_limits
from tests.golden.record import play
from tests.golden.table import RUNS


class Largest(TorchDispatchMode):
    """How many entries the largest tensor has that any operation gives."""

    entries = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch would import its compiler, in seconds, to skip it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, Tensor):
                # Views that repeat rows take no memory.
                self.entries = max(self.entries, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return output


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(job: dict[str, Any], rank: int, port: int) -> int:
    """One rank, as a copy of this process: nothing has been computed in it yet, so no threads are left behind."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        size = str(job["size"])
        os.environ.update(RANK=str(rank), WORLD_SIZE=size, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=size)
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **job.get("env", {})})
        if "said" in job:
            os.dup2(os.open(job["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        collectives._PATIENCE = job.get("patience", collectives._PATIENCE)
        if job.get("breaks", [None, None])[1] == rank:
            _break(*job["breaks"])
        set_limits({**(LISTS if job.get("lists") else {}), **job.get("set", {})})
        if "specs" in job:
            with ranks() as group, Largest() if job.get("largest") else nullcontext() as seen:
                assert group is not None
                run_all(
                    read_resolved_specs(Path(job["specs"])),
                    job["out"],
                    group=group,
                    apart=job.get("apart", False),
                    host=Host(device="cpu", checkpoint_every=job.get("every")),
                )
                sent = {name: asdict(entry) for name, entry in group.traffic.items()}
                (Path(job["out"]) / f"traffic-{rank}.json").write_text(json.dumps(sent))
                if seen is not None:
                    (Path(job["out"]) / f"largest-{rank}.json").write_text(json.dumps(seen.entries))
            raise SystemExit(0)
        if "golden" in job:
            with one_thread(), ranks() as group:
                seen_of = {name: asdict(play(RUNS[name], group)) for name in job["golden"]}
            (Path(job["out"]) / f"golden-{job['size']}-{rank}.json").write_text(json.dumps(seen_of))
            raise SystemExit(0)
        words = job["words"]
        sys.argv = ["bymi", *(words[rank] if isinstance(words[0], list) else words)]
        raise SystemExit({"bymi": bymi.cli.main, "bymi.runs": bymi.runs.__main__.main}[job.get("program", "bymi")]())
    except SystemExit as left:
        code = int(left.code or 0)
    except BymiError as problem:
        sys.stderr.write(f"bymi: {problem}\n")
        code = problem.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _break(what: str, rank: int, name: str, time: int) -> None:
    """Have something happen to this rank when it does something of this name for the nth time."""
    times, swap, write = count(1), Group.swap, tensorfile.write

    def strike() -> None:
        if next(times) < time:
            return
        if what == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.SIGKILL if what == "killed" else signal.SIGTERM)

    def sending(self: Group, rows: Tensor, counts: Sequence[int], coming: Sequence[int], topic: str) -> Tensor:
        if topic == name:
            strike()
        return swap(self, rows, counts, coming, topic)

    def writing(*words: Any) -> int:
        strike()
        return write(*words)

    if name == "checkpoint":
        tensorfile.write = writing
    else:
        Group.swap = sending  # type: ignore[method-assign]


def main() -> None:
    gc.freeze()  # ranks need not look through all that was read
    for number, job in enumerate(json.loads(sys.argv[1])):
        port = job.get("port") or free_port()
        ranks = {start(job, rank, port): rank for rank in range(job["size"])}
        print(json.dumps({"job": number, "started": list(ranks)}), flush=True)
        while ranks:
            process, status = os.wait()
            ended = {"job": number, "rank": ranks.pop(process), "code": os.waitstatus_to_exitcode(status)}
            print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
