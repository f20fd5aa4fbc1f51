"""Runs under torchrun: each run sharded over all ranks, or whole runs distributed over ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import bymi
from bymi.core.errors import BymiError, InputError, error_of
from bymi.distributed.execution_settings import Host
from bymi.distributed.join_process_group import same_everywhere
from bymi.distributed.process_group import Group
from bymi.runs import run_folder as store
from bymi.runs.parallel_runs import Progress, Result, run_all
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.simulate import lay_out
from bymi.runs.single_run import follow, run


def run_together(
    specs: Sequence[ResolvedSpec], out: str | Path, group: Group, *, progress: Progress | None = None, host: Host | None = None
) -> list[Result]:
    """Run specs one after the other, the nodes of each sharded over all ranks; rank 0 returns the results. Collective."""
    out, tell = Path(out), progress or (lambda index, steps: None)
    host = _host(host, group)
    _check(specs, group)
    for spec in specs:
        _enough_nodes(spec, group)
    results = [_run(spec, out, partial(tell, index), host, group) for index, spec in enumerate(specs)]
    return results if group.rank == 0 else []


def _run(spec: ResolvedSpec, out: Path, tell: Callable[[int], None], host: Host, group: Group) -> Result:
    """One run over all ranks. Rank 0 decides whether it is complete already: the others may not see its folders."""
    if host.again:
        shutil.rmtree(store.checkpoints_of(out, spec), ignore_errors=True)
    if group.all_agree(not host.again and (group.rank > 0 or store.is_complete(store.folder_of(out, spec)))):
        return run(spec, out, None, host) if group.rank == 0 else None
    plot, result = partial(lay_out, group=group), None
    if group.rank == 0:
        result = run(spec, out, tell, host, plot)
    else:
        follow(spec, host, store.checkpoints_of(out, spec), plot)
    group.moment = "at the end of a run"
    group.all_agree(True)  # no checkpoint is removed before the summary is written
    shutil.rmtree(store.checkpoints_of(out, spec), ignore_errors=True)
    return result


def run_apart(
    specs: Sequence[ResolvedSpec], out: str | Path, group: Group, *, progress: Progress | None = None, host: Host | None = None
) -> list[Result]:
    """Run specs side by side, each whole on one rank, which writes its folder to a shared file system. Collective."""
    host = _host(host, group)
    _check(specs, group)
    tell = progress or (lambda index, steps: None)
    failed = {}
    while (index := group.take("next run")) < len(specs):
        group.moment = f"in run {index + 1} of {len(specs)}"
        # A free rank takes the next run: some take longer than others.
        (result,) = run_all([specs[index]], out, jobs=1, progress=_as_run(index, tell), host=host)
        if isinstance(result, BymiError):
            failed[str(index)] = [result.exit_code, str(result)]
    group.say("all runs")
    group.wait("all runs", range(group.size))
    errors = {int(index): why for words in group.tell(failed) for index, why in words.items()}
    if group.rank:
        return []
    host = replace(host, again=False)  # all runs are complete now: read them
    return [error_of(*errors[index]) if index in errors else run(spec, out, None, host) for index, spec in enumerate(specs)]


def _as_run(index: int, tell: Progress) -> Progress:
    return lambda only, steps: tell(index, steps)


def _host(host: Host | None, group: Group) -> Host:
    host = host or Host()
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", str(group.size)))
    return replace(host, threads=host.threads_beside(beside))


def _enough_nodes(spec: ResolvedSpec, group: Group) -> None:
    if spec["nodes"] < group.size:
        raise InputError(f"nodes: got {spec['nodes']} for {group.size} ranks, allowed: a node or more for each rank")


def _check(specs: Sequence[ResolvedSpec], group: Group) -> None:
    digests = ", ".join(spec.digest for spec in specs)
    same_everywhere(group, {"bymi": bymi.__version__, "torch": torch.__version__, "spec": digests})
