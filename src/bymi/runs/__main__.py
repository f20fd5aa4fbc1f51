"""`python -m bymi.runs SPECS --out DIR`: run a file of resolved specs where only torch, numpy and networkx are installed.

`bymi reproduce STUDY --export SPECS` writes such a file; `bymi reproduce` finds the run folders that this makes. Under
torchrun the nodes of each run are sharded over all ranks; with --apart each run is whole on one rank.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bymi.core.errors import BymiError
from bymi.core.exit_on_ctrl_c import INTERRUPTED, SENTENCE
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.join_process_group import ranks
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.runs import read_resolved_specs, run_all
from bymi.runs.observers import RunStatus
from bymi.runs.run_setup import check_resolved_spec

_SAY_EVERY = 10.0  # seconds between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bymi.runs", description="Run a file of resolved specs.")
    parser.add_argument("specs", type=Path, help="file written by `bymi reproduce --export`")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the run folders")
    parser.add_argument("--jobs", type=int, default=None, help="processes at a time")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=None, help="start no run after so many seconds")
    parser.add_argument("--checkpoint-every", type=int, default=None, help="rounds; default: about every 30 s; 0: never")
    parser.add_argument("--keep-models", default="mean", help="trained models in each folder: mean, all or none")
    parser.add_argument("--again", action="store_true", help="run from the first round even what is complete")
    parser.add_argument("--apart", action="store_true", help="under torchrun: each run whole on one rank")
    parser.add_argument("--timeout", type=float, default=None, help="under torchrun: seconds until a silent rank is lost")
    parser.add_argument("--allow-imports", action="store_true", help="import parts named module:Name: this runs their code")
    given = parser.parse_args()
    keep_memory()
    try:
        specs = read_resolved_specs(given.specs)
        for number, spec in enumerate(specs, start=1):
            check_resolved_spec(spec, f"{given.specs}, spec {number}", imports=given.allow_imports)
        host = Host(
            device=given.device,
            data=given.data,
            checkpoint_every=given.checkpoint_every,
            keep_models=given.keep_models,
            again=given.again,
        )
    except BymiError as problem:
        print(f"bymi: {problem}", file=sys.stderr)
        return problem.exit_code
    start = time.time()
    done, said = 0, start

    def progress(index: int, status: RunStatus) -> None:
        nonlocal done, said
        done += status.rounds
        if time.time() - said > _SAY_EVERY:
            said = time.time()
            print(f"{done} rounds in {said - start:.0f} s", flush=True)

    until = None if given.seconds is None else start + given.seconds
    try:
        with ranks(given.timeout, device=given.device) as group:
            spread = {"jobs": given.jobs} if group is None else {"group": group, "apart": given.apart}
            results = run_all(specs, given.out, watch=progress, host=host, until=until, **spread)
    except BymiError as problem:
        if not problem.said:
            sys.stderr.write(f"bymi: {problem}\n")  # in one write: other ranks may write there, too
        return problem.exit_code
    if group is not None and group.rank:
        return 0
    failed = [result for result in results if isinstance(result, BymiError)]
    left = sum(result is None for result in results)
    print(f"{len(results) - left - len(failed)} of {len(results)} runs are there, {left} left, {len(failed)} failed")
    if failed:
        print(f"bymi: {failed[0]}", file=sys.stderr)
    return failed[0].exit_code if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write(SENTENCE)
        sys.exit(INTERRUPTED)
