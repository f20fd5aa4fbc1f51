"""Runs specs, one or many, here or over the cores; skips what is complete."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bymi.engine import simulate
from bymi.engine.simulate import one_thread
from bymi.errors import BymiError, require
from bymi.experiment import store
from bymi.experiment.metrics import Recorder
from bymi.experiment.scene import build_scene
from bymi.experiment.spec import Spec

Progress = Callable[[int, int], None]
"""(number of the spec in the list, steps done since the last call)"""

_TELL_EVERY = 0.1  # seconds between two words on progress
_queue: Any = None  # of a worker process only: where it reports its progress


def run(spec: Spec, out: str | Path = "runs", tell: Callable[[int], None] | None = None) -> dict[str, Any]:
    """One run of a spec with one method: its summary. A complete folder is read, not run again.

    `tell` is called with the number of steps done since its last call.
    """
    require(len(spec.methods) == 1, "method", spec.methods, "one method a run; use spec.expand() and run_all for several")
    out = Path(out)
    folder = store.folder_of(out, spec)
    if not store.is_complete(folder):
        store.prepare(out)
        with one_thread(), store.writing(out, spec) as scratch:
            _execute(spec, scratch, tell or (lambda steps: None))
    summary: dict[str, Any] = store.read_json(folder / store.SUMMARY)
    return summary


def steps_to_do(specs: Sequence[Spec], out: str | Path) -> int:
    """Rounds that are left to run: those of all specs without a complete folder."""
    return sum(spec.steps for spec in specs if not store.is_complete(store.folder_of(Path(out), spec)))


def run_all(
    specs: Sequence[Spec], out: str | Path, *, jobs: int | None = None, progress: Progress | None = None
) -> list[dict[str, Any] | BymiError]:
    """Summaries of many specs, in order; `jobs` processes with one thread each (default: one a core).

    A spec that cannot be run leaves its error in its place. The numbers do not depend on `jobs`.
    """
    out = Path(out)
    store.prepare(out)
    tell = progress or (lambda index, steps: None)
    todo = [index for index, spec in enumerate(specs) if not store.is_complete(store.folder_of(out, spec))]
    jobs = min(len(todo), jobs or os.cpu_count() or 1)
    if jobs > 1:
        made = dict(
            zip(todo, _spread([specs[index] for index in todo], out, jobs, lambda at, n: tell(todo[at], n)), strict=True)
        )
    else:
        made = {index: _attempt(specs[index], out, partial(tell, index)) for index in todo}
    return [made[index] if index in made else _attempt(spec, out, partial(tell, index)) for index, spec in enumerate(specs)]


def _spread(specs: Sequence[Spec], out: Path, jobs: int, tell: Progress) -> list[dict[str, Any] | BymiError]:
    """Run specs in `jobs` processes and pass on their progress."""
    # Spawned, not forked: a forked child of a process with torch threads may hang.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(queue,))
    try:
        futures = [pool.submit(_work, index, spec.model_dump_json(), out) for index, spec in enumerate(specs)]
        waiting: set[Future[Any]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=_TELL_EVERY, return_when=FIRST_COMPLETED)
            while not queue.empty():
                tell(*queue.get())
        results = [future.result() for future in futures]
        while not queue.empty():
            tell(*queue.get())
        return results
    except BaseException:
        workers = list((pool._processes or {}).values())
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        store.prepare(out)  # takes away what they left half done
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(queue: Any) -> None:
    global _queue
    _queue = queue
    torch.set_num_threads(1)


def _work(index: int, spec: str, out: Path) -> dict[str, Any] | BymiError:
    return _attempt(Spec.model_validate_json(spec), out, lambda steps: _queue.put((index, steps)))


def _attempt(spec: Spec, out: Path, tell: Callable[[int], None]) -> dict[str, Any] | BymiError:
    try:
        return run(spec, out, tell)
    except BymiError as problem:
        return problem


def _execute(spec: Spec, folder: Path, tell: Callable[[int], None]) -> None:
    scene = build_scene(spec)
    recorder = Recorder(scene.problem, scene.graph, scene.byzantine, steps=spec.steps, every=spec.record_every)
    start = told = time.perf_counter()
    done = 0
    with (folder / store.METRICS).open("w") as metrics:
        for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
            row = recorder.see(snapshot)
            if row is not None:
                metrics.write(json.dumps(row, allow_nan=False) + "\n")
                if recorder.diverged:
                    break
            now = time.perf_counter()
            if now - told > _TELL_EVERY:
                tell(snapshot.step - done)
                done, told = snapshot.step, now
    summary = {
        "method": spec.label,
        "seed": spec.seed,
        "digest": spec.digest,
        **recorder.summary(time.perf_counter() - start),
    }
    if recorder.verdict is not None:
        verdict = store.verdict_to_json(recorder.verdict, scene.byzantine, scene.graph.hears)
        store.write_json(folder / store.VERDICT, verdict, indent=None)
    store.write_json(folder / store.SUMMARY, summary)
    tell(spec.steps - done)
