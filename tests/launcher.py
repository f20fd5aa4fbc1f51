"""A stand-in for torchrun in tests: reads once what takes long to read, then starts ranks in an instant.

`python -m tests.launcher JOBS`, a JSON list: each job is {"size", "words"}, one command line on so many ranks, or {"size",
"sheets", "out"}, many runs one after the other in one group, and a file of what each rank sent; "dies": [rank, name] has one
killed when it sends something of that name. A job starts when the one before has ended. Prints a line of JSON for each job that
starts and for each rank that ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401
import torch.distributed  # noqa: F401
from torch import Tensor

import bymi.cli
import bymi.experiment
import bymi.report.figures
from bymi.engine.group import Group
from bymi.engine.host import Host
from bymi.engine.launch import ranks
from bymi.runs import read_sheets
from bymi.runs.ranks import run_apart, run_together


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
        if job.get("dies", [None])[0] == rank:
            _die_at(job["dies"][1])
        if "sheets" in job:
            with ranks() as group:
                assert group is not None
                spread = run_apart if job.get("apart") else run_together
                spread(read_sheets(Path(job["sheets"])), job["out"], group, host=Host(device="cpu"))
                sent = {name: asdict(entry) for name, entry in group.traffic.items()}
                (Path(job["out"]) / f"traffic-{rank}.json").write_text(json.dumps(sent))
            raise SystemExit(0)
        words = job["words"]
        sys.argv = ["bymi", *(words[rank] if isinstance(words[0], list) else words)]
        bymi.cli.main()
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_at(name: str) -> None:
    """Have this rank killed when it is about to send something of this name."""
    swap = Group.swap

    def dying(self: Group, rows: Tensor, counts: Sequence[int], coming: Sequence[int], what: str) -> Tensor:
        if what == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return swap(self, rows, counts, coming, what)

    Group.swap = dying  # type: ignore[method-assign]


def main() -> None:
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
