"""Runs one or many resolved specs, in this process or in several; skips those that are complete."""

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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch

import bymi
from bymi.core.errors import BymiError, OutOfMemoryError, system_refusal
from bymi.distributed.allocator import keep_memory, let_go
from bymi.distributed.host import Host, one_thread
from bymi.distributed.parent_watchdog import die_with_parent
from bymi.problems import LinearProblem, ModuleProblem
from bymi.runs import detection_log
from bymi.runs import memory_estimate as footprint
from bymi.runs import run_folder as store
from bymi.runs.checkpoints import Checkpointer
from bymi.runs.metrics import Recorder
from bymi.runs.observers import Observer, Observers, RunStatus, make_observers, status_of
from bymi.runs.progress import ProgressLog
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import RunSetup
from bymi.runs.simulate import Engine, EngineMaker, OneProcess, alone
from bymi.runs.tasks import TASKS
from bymi.runs.trained_models import collect, nodes_to_keep, write_models
from bymi.training.optimisers import DRSGD

Progress = Callable[[int, int], None]
"""Called with (index of the spec in the list, steps done since the last call)."""

Watch = Callable[[int, RunStatus], None]
"""Called with (index of the spec in the list, where its run stands)."""

Result = dict[str, Any] | BymiError | None
"""A summary, an error, or None for a run that was not started in time."""

_ON_ONE_GPU = 4  # runs that share one GPU: more gain little and take memory
_ROOM = 2  # factor on the estimated memory per concurrent run
_TELL_EVERY = 0.1  # seconds between two progress reports
_LONG = 1.0  # seconds per round from which on free memory is returned: in shorter rounds that would be noticeable
_queue: Any = None  # of a worker process only: where it reports its progress


def run(
    spec: ResolvedSpec,
    out: str | Path = "runs",
    tell: Callable[[int], None] | None = None,
    host: Host | None = None,
    plot: EngineMaker = alone,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """The summary of one run. A complete folder is read, not run again; an interrupted run continues from its checkpoint.

    With `host.again` the run starts from its first round, and replaces a complete folder when it has ended. `tell` is called
    with the number of steps done since its last call. `plot` builds the engine; default: all nodes in this process.
    `observers` are told what the run does, beside those that `host.track` names.
    """
    out = Path(out)
    folder = store.folder_of(out, spec)
    host = host or Host()
    if host.again or not store.is_complete(folder):
        store.prepare(out)
        host = replace(host, threads=host.threads_beside(1))
        checkpoint_folder = store.checkpoints_of(out, spec)
        if host.again:
            shutil.rmtree(checkpoint_folder, ignore_errors=True)
        watching = Observers([*observers, *make_observers(host.track)])
        watching.tell(lambda observer: observer.started(spec, folder))
        with one_thread(), _on_gpu(host), _refusals_of(spec), store.writing(out, spec, again=host.again) as scratch:
            _execute(spec, scratch, tell or (lambda steps: None), host, checkpoint_folder, plot, watching)
        shutil.rmtree(checkpoint_folder, ignore_errors=True)
        watching.tell(lambda observer: observer.ended(store.read_json(folder / store.SUMMARY)))
    summary: dict[str, Any] = store.read_json(folder / store.SUMMARY)
    return summary


def _on_gpu(host: Host) -> AbstractContextManager[object]:
    """Makes the GPU that `host.device` numbers the current one: kernels are launched there."""
    return torch.cuda.device(host.device) if host.device.startswith("cuda:") else nullcontext()


@contextmanager
def _refusals_of(spec: ResolvedSpec) -> Iterator[None]:
    """Turn a full disk, a vanished folder or too little memory into errors of one line that name the run."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as problem:
        refused = system_refusal(problem, f"{spec.label}, seed {spec['seed']}")
        if refused is None:
            raise
        raise refused from None


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


def _theory(recorder: Recorder, setup: RunSetup) -> dict[str, Any] | None:
    """What the theorem says about a run of its own optimiser; None for others."""
    how = setup.plan.optimisation
    batch = setup.problem.samples if how.batch == "all" else how.batch
    return recorder.theory(batch) if how.method == DRSGD() else None


@dataclass(frozen=True)
class _Watcher(Observer):
    """Passes the status of a run on."""

    watch: Callable[[RunStatus], None]

    def advanced(self, status: RunStatus) -> None:
        self.watch(status)


def _execute(
    spec: ResolvedSpec,
    folder: Path,
    tell: Callable[[int], None],
    host: Host,
    checkpoint_folder: Path,
    plot: EngineMaker,
    observers: Observers,
) -> None:
    engine = plot(spec, host)
    with (folder / store.METRICS).open("wb") as metrics:
        log = _walk(engine, spec, host, checkpoint_folder, tell, metrics.write, observers)
    setup, recorder = engine.scene, log.recorder
    summary = {
        "method": spec.label,
        "seed": spec["seed"],
        "digest": spec.digest,
        **recorder.summary(log.seconds, log.detecting),
        "theory": _theory(recorder, setup),
    }
    if log.trained is not None:
        words = {"version": bymi.__version__, "digest": spec.digest, "mean_of": int(recorder.members.sum())}
        summary.update(write_models(folder, log.trained, setup.problem, words))
    if recorder.verdict is not None:
        verdict = store.verdict_to_json(recorder.verdict, setup.byzantine, setup.graph)
        store.write_json(folder / store.VERDICT, verdict, indent=None)
    if log.detections:
        (folder / detection_log.DETECTIONS).write_bytes(log.detections)
    if (per_node := recorder.per_node()) is not None:
        store.write_json(folder / detection_log.PER_NODE, per_node, indent=None)
    store.write_json(folder / store.ENVIRONMENT, {**store.environment(), **_where(setup), "ranks": engine.group.size})
    store.write_json(folder / store.SUMMARY, summary)


def follow(spec: ResolvedSpec, host: Host, kept: Path, plot: EngineMaker) -> None:
    """Compute this rank's part of a run without writing a folder; all ranks measure together. Collective."""
    with one_thread(), _refusals_of(spec):
        _walk(plot(spec, host), spec, host, kept, lambda steps: None, lambda line: None)


def _walk(
    engine: Engine,
    spec: ResolvedSpec,
    host: Host,
    checkpoint_folder: Path,
    tell: Callable[[int], None],
    write: Callable[[bytes | bytearray], object],
    observers: Observers | None = None,
) -> ProgressLog:
    """Run all rounds, from the newest checkpoint if there is one. Collective."""
    setup, size = engine.scene, {"steps": spec["steps"], "every": spec["record_every"]}
    blank = partial(Recorder, setup.evaluator, setup.graph, setup.byzantine, **size)
    how_often, where = host.checkpoint_every, (engine.shape, engine.places, engine.group)
    checkpointer = Checkpointer(checkpoint_folder, spec.digest, how_often, *where)
    # A closed form needs no derivatives: without autograd's records a round takes a tenth less time. Inference mode belongs to
    # a thread, and the shards of one process are threads.
    bare = isinstance(setup.problem, LinearProblem) and isinstance(engine, OneProcess)
    with torch.inference_mode(bare), checkpointer:
        log = checkpointer.newest(lambda saved: ProgressLog.take_up(saved, setup, blank)) or ProgressLog(blank())
        write(log.rows)
        done, final = 0, None if log.states is None else engine.models(log.states)
        reported = before = time.perf_counter()
        for gathered in engine.rounds(log.states, checkpointer.wants):
            snapshot = gathered.snapshot
            if snapshot.verdict is not None:
                log.detecting += time.perf_counter() - before
            row = log.recorder.see(snapshot, gathered.models)
            if snapshot.verdict is not None:
                log.detections += log.recorder.detection_line(snapshot.step)
            last = snapshot.step == spec["steps"] or snapshot.stopped or log.recorder.diverged
            final = gathered.models if last else None
            if row is not None:
                write(log.add(row))
                if observers:
                    observers.tell(methodcaller("measured", row))
                if log.recorder.diverged:
                    break
            if gathered.is_kept():
                checkpointer.turn(gathered.states, log)
            now = time.perf_counter()
            if now - reported > _TELL_EVERY:
                if observers:
                    status = status_of(spec, snapshot.step, snapshot.phase, log.recorder.last, log.recorder.flagged_nodes)
                    observers.tell(methodcaller("advanced", status))
                tell(snapshot.step - done)
                done, reported = snapshot.step, now
            del gathered, snapshot  # frees the messages of this round before those of the next arrive
            if now - before > _LONG:
                let_go()
            before = time.perf_counter()
        if final is not None and host.keep_models != "none":
            members = log.recorder.members
            nodes = nodes_to_keep(members, setup.byzantine, host.keep_models)
            log.trained = collect(final, members, nodes if engine.group.rank == 0 else nodes[:0])  # rank 0 writes them
    if observers:
        row = log.recorder.last
        step, phase = row.get("step", spec["steps"]), row.get("phase", "")
        observers.tell(methodcaller("advanced", status_of(spec, step, phase, row, log.recorder.flagged_nodes, done=True)))
    tell(spec["steps"] - done)
    return log


def _where(setup: RunSetup) -> dict[str, Any]:
    """Device and gradient backend of a run, for environment.json."""
    backend = setup.problem.way if isinstance(setup.problem, ModuleProblem) else "closed form"
    return {"device": setup.byzantine.device.type, "gradients": backend}
