"""Runs many resolved specs and skips those that are complete: in this process, in several at a time, or under torchrun.

Under torchrun each run is sharded over all ranks, or whole runs are distributed over them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bymi
from bymi.core.errors import BymiError, InputError, OutOfMemoryError, RankLostError, error_of, require
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.join_process_group import same_everywhere
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.distributed.parent_watchdog import die_with_parent
from bymi.runs import memory_estimate as footprint
from bymi.runs import run_folder as store
from bymi.runs.observers import RunStatus
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.single_run import follow, run
from bymi.runs.tasks import TASKS

Watch = Callable[[int, RunStatus], None]
"""Called with (index of the spec in the list, where its run stands)."""

Result = dict[str, Any] | BymiError | None
"""A summary, an error, or None for a run that was not started in time."""

_ON_ONE_GPU = 4  # runs that share one GPU: more gain little and take memory
_ROOM = 2  # factor on the estimated memory per concurrent run
_TELL_EVERY = 0.1  # seconds between two looks at the workers
_queue: Any = None  # of a worker process only: where it reports its progress


def run_all(
    specs: Sequence[ResolvedSpec],
    out: str | Path,
    *,
    jobs: int | None = None,
    watch: Watch | None = None,
    host: Host | None = None,
    group: Group | None = None,
    apart: bool = False,
    until: float | None = None,
) -> list[Result]:
    """Summaries of many specs, in order, computed by `jobs` processes at a time (default: one per core).

    A spec that cannot be run has its error in its place. No run is started after the time `until` (as time.time()). The results
    do not depend on `jobs`. `watch` is told where each run stands, a few times per second. With the `group` of ranks that this
    process belongs to, each run is sharded over them or, with `apart`, is whole on one of them; only rank 0 has summaries then.
    """
    out, host, watch = Path(out), host or Host(), watch or (lambda index, status: None)
    if group is not None:
        require(jobs is None, "--jobs", jobs, "without torchrun, whose --nproc-per-node says how many processes there are")
        return (_run_apart if apart else _run_together)(specs, out, group, watch, host)
    todo = [i for i, spec in enumerate(specs) if host.again or not store.is_complete(store.folder_of(out, spec))]
    if todo:  # complete folders can be read where nothing can be written
        store.prepare(out)
    results: dict[int, Result] = {index: problem for index in todo if (problem := _too_large(specs[index], host)) is not None}
    todo = [index for index in todo if index not in results]
    jobs = min(len(todo), jobs or _usual_jobs([specs[index] for index in todo], host))
    host = replace(host, threads=host.threads_beside(jobs))
    if jobs > 1:
        work = partial(_work, out=out, host=host, until=until)
        chosen = [specs[index] for index in todo]
        outcomes = _run_in_processes(chosen, out, jobs, work, lambda at, status: watch(todo[at], status))
        results.update(zip(todo, outcomes, strict=True))
    else:
        results.update((index, _attempt(specs[index], out, partial(watch, index), host, until)) for index in todo)
    return [
        results[index] if index in results else store.read_json(store.folder_of(out, spec) / store.SUMMARY)
        for index, spec in enumerate(specs)
    ]


def _too_large(spec: ResolvedSpec, host: Host) -> BymiError | None:
    """The error of a run that does not fit into memory, before a process is started for it; else None."""
    try:
        footprint.check(spec, host)
    except BymiError as problem:
        return problem
    return None


def _usual_jobs(specs: Sequence[ResolvedSpec], host: Host) -> int:
    """One run per core, or a few that share a GPU; no more than fit into memory, with room to spare."""
    on_gpu = any(host.place(gains=TASKS[spec["data"]["name"]].gains).type == "cuda" for spec in specs)
    cores = os.cpu_count() or 1
    memory, largest = footprint.available(), max((sum(footprint.needs(spec).values()) for spec in specs), default=0)
    fitting = cores if memory is None else max(1, memory // max(1, _ROOM * largest))
    return min(_ON_ONE_GPU * gpus_of(host) if on_gpu else cores, cores, fitting)


def gpus_of(host: Host) -> int:
    """GPUs that runs may be dealt out to: all that torch sees, or the one that `host.device` names."""
    return max(1, torch.cuda.device_count()) if host.device in ("auto", "cuda") else 1


def dealt(host: Host, spec: ResolvedSpec, index: int) -> Host:
    """The settings of run number `index` among several: runs on GPUs take them in turn."""
    if gpus_of(host) == 1 or host.place(gains=TASKS[spec["data"]["name"]].gains).type != "cuda":
        return host
    return replace(host, device=f"cuda:{index % gpus_of(host)}")


def _run_in_processes(
    specs: Sequence[ResolvedSpec],
    out: Path,
    jobs: int,
    work: Callable[[int, dict[str, Any]], Result],
    watch: Watch,
) -> list[Result]:
    """Run specs in `jobs` processes and report their progress."""
    # Spawned, not forked: a forked child of a process with torch threads may hang.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_init_worker, initargs=(queue,))
    before = None
    if threading.current_thread() is threading.main_thread():  # SIGTERM as an interrupt, so that workers end, too
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _block_interrupts():
            futures = [pool.submit(work, index, spec.values) for index, spec in enumerate(specs)]
        waiting: set[Future[Any]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=_TELL_EVERY, return_when=FIRST_COMPLETED)
            _tell(queue, watch)
        results = [_result_of(future) for future in futures]
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False)
        for worker in workers:  # a result can be here before the progress that the same worker reported
            while worker.is_alive():
                worker.join(_TELL_EVERY)
                _tell(queue, watch)
        _tell(queue, watch)
        return results
    except BaseException:
        workers = list((pool._processes or {}).values())
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        with suppress(BymiError):
            store.prepare(out)  # removes their scratch folders
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _tell(queue: Any, watch: Watch) -> None:
    """Report the progress that is in the queue."""
    while not queue.empty():
        watch(*queue.get())


def _result_of(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        return OutOfMemoryError("a process that made runs was killed, as happens when memory runs out; try fewer --jobs")


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT. Processes started in here inherit that: the terminal signals all of them, before they are ready for it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _init_worker(queue: Any) -> None:
    global _queue
    _queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals all processes: the parent ends this worker
    die_with_parent(lambda: None, 1)
    torch.set_num_threads(1)
    keep_memory()


def _work(index: int, values: dict[str, Any], *, out: Path, host: Host, until: float | None) -> Result:
    spec = ResolvedSpec(values)
    return _attempt(spec, out, lambda status: _queue.put((index, status)), dealt(host, spec, index), until)


def _attempt(spec: ResolvedSpec, out: Path, watch: Callable[[RunStatus], None], host: Host, until: float | None) -> Result:
    if until is not None and time.time() > until:
        return None
    try:
        return run(spec, out, watch, host)
    except RankLostError:  # of this whole process, not of one run
        raise
    except BymiError as problem:
        return problem


def _run_together(specs: Sequence[ResolvedSpec], out: Path, group: Group, watch: Watch, host: Host) -> list[Result]:
    """Run specs one after the other, the nodes of each sharded over all ranks; rank 0 returns the results. Collective."""
    host = _beside_ranks(specs, host, group)
    for spec in specs:
        if spec["nodes"] < group.size:
            raise InputError(f"nodes: got {spec['nodes']} for {group.size} ranks, allowed: a node or more for each rank")
    results = [_run_on_all(spec, out, partial(watch, index), host, group) for index, spec in enumerate(specs)]
    return results if group.rank == 0 else []


def _run_on_all(spec: ResolvedSpec, out: Path, watch: Callable[[RunStatus], None], host: Host, group: Group) -> Result:
    """One run over all ranks. Rank 0 decides whether it is complete already: the others may not see its folders."""
    checkpoints, result = store.checkpoints_of(out, spec), None
    if host.again:
        shutil.rmtree(checkpoints, ignore_errors=True)
    if group.all_agree(not host.again and (group.rank > 0 or store.is_complete(store.folder_of(out, spec)))):
        return run(spec, out, None, host) if group.rank == 0 else None
    if group.rank == 0:
        result = run(spec, out, watch, host, group=group)
    else:
        follow(spec, host, checkpoints, group)
    group.moment = "at the end of a run"
    group.all_agree(True)  # no checkpoint is removed before the summary is written
    shutil.rmtree(checkpoints, ignore_errors=True)
    return result


def _run_apart(specs: Sequence[ResolvedSpec], out: Path, group: Group, watch: Watch, host: Host) -> list[Result]:
    """Run specs side by side, each whole on one rank, which writes its folder to a shared file system. Collective."""
    host = _beside_ranks(specs, host, group)
    failed = {}
    while (index := group.take("next run")) < len(specs):
        group.moment = f"in run {index + 1} of {len(specs)}"
        # A free rank takes the next run: some take longer than others.
        (result,) = run_all([specs[index]], out, jobs=1, watch=_as_run(index, watch), host=host)
        if isinstance(result, BymiError):
            failed[str(index)] = [result.exit_code, str(result)]
    group.say("all runs")
    group.wait("all runs", range(group.size))
    errors = {int(index): why for words in group.tell(failed) for index, why in words.items()}
    if group.rank:
        return []
    host = replace(host, again=False)  # all runs are complete now: read them
    return [error_of(*errors[index]) if index in errors else run(spec, out, None, host) for index, spec in enumerate(specs)]


def _as_run(index: int, watch: Watch) -> Watch:
    return lambda only, status: watch(index, status)


def _beside_ranks(specs: Sequence[ResolvedSpec], host: Host, group: Group) -> Host:
    """Settings of one of several ranks of this machine, which must all have the same versions and specs. Collective."""
    digests = ", ".join(spec.digest for spec in specs)
    same_everywhere(group, {"bymi": bymi.__version__, "torch": torch.__version__, "spec": digests})
    return replace(host, threads=host.threads_beside(int(os.environ.get("LOCAL_WORLD_SIZE", str(group.size)))))
