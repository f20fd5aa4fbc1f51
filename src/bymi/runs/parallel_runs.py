"""Runs many resolved specs, in this process or in several at a time; skips those that are complete."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bymi.core.errors import BymiError, OutOfMemoryError
from bymi.distributed.execution_settings import Host
from bymi.distributed.glibc_memory import keep_memory
from bymi.distributed.parent_watchdog import die_with_parent
from bymi.runs import memory_estimate as footprint
from bymi.runs import run_folder as store
from bymi.runs.observers import Observer, RunStatus
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.single_run import run
from bymi.runs.tasks import TASKS

Progress = Callable[[int, int], None]
"""Called with (index of the spec in the list, steps done since the last call)."""

Watch = Callable[[int, RunStatus], None]
"""Called with (index of the spec in the list, where its run stands)."""

Result = dict[str, Any] | BymiError | None
"""A summary, an error, or None for a run that was not started in time."""

_ON_ONE_GPU = 4  # runs that share one GPU: more gain little and take memory
_ROOM = 2  # factor on the estimated memory per concurrent run
_TELL_EVERY = 0.1  # seconds between two looks at the workers
_queue: Any = None  # of a worker process only: where it reports its progress


def steps_to_do(specs: Sequence[ResolvedSpec], out: str | Path, *, again: bool = False) -> int:
    """Rounds left to run: those of all specs without a complete folder, or of all of them with `again`."""
    return sum(spec["steps"] for spec in specs if again or not store.is_complete(store.folder_of(Path(out), spec)))


def run_all(
    specs: Sequence[ResolvedSpec],
    out: str | Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    host: Host | None = None,
    until: float | None = None,
    watch: Watch | None = None,
) -> list[Result]:
    """Summaries of many specs, in order, computed by `jobs` processes at a time (default: one per core).

    A spec that cannot be run has its error in its place. No run is started after the time `until` (as time.time()). The results
    do not depend on `jobs`. `watch` is told where each run stands, a few times per second.
    """
    out = Path(out)
    watch = watch or (lambda index, status: None)
    tell = progress or (lambda index, steps: None)
    host = host or Host()
    todo = [i for i, spec in enumerate(specs) if host.again or not store.is_complete(store.folder_of(out, spec))]
    if todo:  # complete folders can be read where nothing can be written
        store.prepare(out)
    results: dict[int, Result] = {index: problem for index in todo if (problem := _too_large(specs[index], host)) is not None}
    todo = [index for index in todo if index not in results]
    jobs = min(len(todo), jobs or _usual_jobs([specs[index] for index in todo], host))
    host = replace(host, threads=host.threads_beside(jobs))
    if jobs > 1:
        work = partial(_work, out=out, host=host, until=until)
        outcomes = _run_in_processes(
            [specs[index] for index in todo],
            out,
            jobs,
            work,
            lambda at, news: tell(todo[at], news) if isinstance(news, int) else watch(todo[at], news),
        )
        results.update(zip(todo, outcomes, strict=True))
    else:
        results.update(
            (index, _attempt(specs[index], out, partial(tell, index), host, until, partial(watch, index))) for index in todo
        )
    return [
        results[index] if index in results else _attempt(spec, out, partial(tell, index), host, None)
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
    tell: Callable[[int, int | RunStatus], None],
) -> list[Result]:
    """Run specs in `jobs` processes and report their progress."""
    # Spawned, not forked: a forked child of a process with torch threads may hang.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_init_worker, initargs=(queue,))
    before = _stop_on_terminate()
    try:
        with _block_interrupts():
            futures = [pool.submit(work, index, spec.values) for index, spec in enumerate(specs)]
        waiting: set[Future[Any]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=_TELL_EVERY, return_when=FIRST_COMPLETED)
            while not queue.empty():
                tell(*queue.get())
        results = [_result_of(future) for future in futures]
        while not queue.empty():
            tell(*queue.get())
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


def _result_of(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        return OutOfMemoryError("a process that made runs was killed, as happens when memory runs out; try fewer --jobs")


def _stop_on_terminate() -> Any:
    """Treat SIGTERM as an interrupt, so that workers end, too; returns the old handler, None outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, signal.default_int_handler)


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
    def put(news: int | RunStatus) -> None:
        _queue.put((index, news))

    spec = ResolvedSpec(values)
    return _attempt(spec, out, put, dealt(host, spec, index), until, put)


def _attempt(
    spec: ResolvedSpec,
    out: Path,
    tell: Callable[[int], None],
    host: Host,
    until: float | None,
    watch: Callable[[RunStatus], None] | None = None,
) -> Result:
    if until is not None and time.time() > until:
        return None
    try:
        return run(spec, out, tell, host, observers=[] if watch is None else [_Watcher(watch)])
    except BymiError as problem:
        return problem


@dataclass(frozen=True)
class _Watcher(Observer):
    """Passes the status of a run on."""

    watch: Callable[[RunStatus], None]

    def advanced(self, status: RunStatus) -> None:
        self.watch(status)
