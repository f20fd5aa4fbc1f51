"""Runs one resolved spec into its run folder: from its newest checkpoint, with metrics and observers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bymi
from bymi.core.errors import system_refusal
from bymi.core.graph import Graph
from bymi.core.network import LocalNetwork
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host, one_thread
from bymi.distributed.keep_freed_memory import let_go
from bymi.problems import LinearProblem, ModuleProblem
from bymi.runs import run_folder as store
from bymi.runs.checkpoints import Checkpointer, Saved
from bymi.runs.metrics import Recorder
from bymi.runs.observers import Observer, Observers, RunStatus
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import Given, RunSetup
from bymi.runs.simulate import Engine, OneProcess, engine_of
from bymi.runs.trained_models import Trained, collect, write_models
from bymi.training.decentralised_optimisers import DRSGD
from bymi.training.phases import apply_verdict
from bymi.training.state import State

MEASURES = ("gap", "acc_scc", "acc_normal", "loss")
"""Keys of a row of metrics.jsonl of which the first that it has describes the quality of the models."""

_TELL_EVERY = 0.1  # seconds between two progress reports
_LONG = 1.0  # seconds per round from which on free memory is returned: in shorter rounds that would be noticeable


def run(
    spec: ResolvedSpec,
    out: str | Path = "runs",
    watch: Callable[[RunStatus], None] | None = None,
    host: Host | None = None,
    *,
    group: Group | None = None,
    given: Given | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """The summary of one run. A complete folder is read, not run again; an interrupted run continues from its checkpoint.

    With `host.again` the run starts from its first round, and replaces a complete folder when it has ended. `watch` is told
    where the run stands, a few times per second. With a `group` of ranks, this is rank 0 and the others `follow`. `given`:
    objects in place of parts of the spec. `observers` are told what the run does, beside those that `host.track` names.
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
        watching = Observers(observers, host.track)
        watching.tell(lambda observer: observer.started(spec, folder))
        with one_thread(), _on_gpu(host), _refusals_of(spec), store.writing(out, spec, again=host.again) as scratch:
            engine = engine_of(spec, host, group, given)
            with (scratch / store.METRICS).open("wb") as rows:
                recorder, trained = _walk(engine, spec, host, checkpoint_folder, rows.write, watch, watching)
            _write(scratch, spec, engine, recorder, trained)
        shutil.rmtree(checkpoint_folder, ignore_errors=True)
        watching.tell(lambda observer: observer.ended(store.read_json(folder / store.SUMMARY)))
    summary: dict[str, Any] = store.read_json(folder / store.SUMMARY)
    return summary


def follow(spec: ResolvedSpec, host: Host, checkpoint_folder: Path, group: Group) -> None:
    """Compute this rank's part of a run without writing a folder; all ranks measure together. Collective."""
    with one_thread(), _refusals_of(spec):
        _walk(engine_of(spec, host, group), spec, host, checkpoint_folder, lambda rows: None)


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


def _walk(
    engine: Engine,
    spec: ResolvedSpec,
    host: Host,
    checkpoint_folder: Path,
    write: Callable[[bytearray], object],
    watch: Callable[[RunStatus], None] | None = None,
    observers: Observers | None = None,
) -> tuple[Recorder, Trained | None]:
    """Run all rounds, from the newest checkpoint if there is one; returns what was measured and the models. Collective.

    `write` gets the rows of metrics.jsonl as they are measured.
    """
    setup, observers = engine.setup, observers or Observers(())

    def report(status: RunStatus) -> None:
        observers.tell(methodcaller("advanced", status))
        if watch is not None:
            watch(status)

    def blank() -> Recorder:
        size = {"steps": spec["steps"], "every": spec["record_every"], "ground_truth": setup.ground_truth}
        return Recorder(setup.evaluator, setup.graph, setup.byzantine, **size)

    how_often, where = host.checkpoint_every, (engine.shape, engine.places, engine.group)
    checkpointer = Checkpointer(checkpoint_folder, spec.digest, how_often, *where)
    # A closed form needs no derivatives: without autograd's records a round takes a tenth less time. Inference mode belongs to
    # a thread, and the shards of one process are threads.
    bare = isinstance(setup.problem, LinearProblem) and isinstance(engine, OneProcess)
    with torch.inference_mode(bare), checkpointer:
        recorder, states = checkpointer.newest(lambda saved: _resumed(saved, setup, blank())) or (blank(), None)
        done, trained, final = 0, None, None if states is None else engine.models(states)
        write(recorder.rows)
        written, reported = len(recorder.rows), time.perf_counter()
        before = reported
        for gathered in engine.rounds(states, checkpointer.wants):
            snapshot = gathered.snapshot
            if snapshot.verdict is not None:
                recorder.detecting += time.perf_counter() - before
            row = recorder.see(snapshot, gathered.models)
            last = snapshot.step == spec["steps"] or snapshot.stopped or recorder.diverged
            final = gathered.models if last else None
            if row is not None:
                write(recorder.rows[written:])
                written = len(recorder.rows)
                observers.tell(methodcaller("measured", row))
                if recorder.diverged:
                    break
            if gathered.is_kept():
                checkpointer.turn(gathered.states, recorder.keep)
            now = time.perf_counter()
            if now - reported > _TELL_EVERY:
                report(_status(spec, recorder, snapshot.step, snapshot.phase, rounds=snapshot.step - done))
                done, reported = snapshot.step, now
            del gathered, snapshot  # frees the messages of this round before those of the next arrive
            if now - before > _LONG:
                let_go()
            before = time.perf_counter()
        if final is not None and host.keep_models != "none":
            writes = engine.group.rank == 0
            trained = collect(final, recorder.members, setup.byzantine, host.keep_models, writes=writes)
    step, phase = recorder.last.get("step", spec["steps"]), recorder.last.get("phase", "")
    report(_status(spec, recorder, step, phase, rounds=spec["steps"] - done, done=True))
    return recorder, trained


def _resumed(saved: Saved, setup: RunSetup, recorder: Recorder) -> tuple[Recorder, Sequence[State]]:
    """What to continue from: a stored round, or a ValueError. The states may be those of some nodes only."""
    judged = saved.states[0].judged

    def prune(flagged: Tensor) -> Graph:
        assert judged is not None
        network = apply_verdict(LocalNetwork(setup.graph), setup.plan, flagged, setup.adversary, step=judged)
        assert isinstance(network, LocalNetwork)
        return network.graph

    recorder.take_up(saved.tensors, saved.words, None if judged is None else prune)
    return recorder, saved.states


def _status(spec: ResolvedSpec, recorder: Recorder, step: int, phase: str, *, rounds: int, done: bool = False) -> RunStatus:
    """Where a run stands, from its last row of metrics."""
    last = recorder.last
    measure = next((key for key in MEASURES if last.get(key) is not None), None)
    value, unheard = None if measure is None else last[measure], last.get("unheard", 0)
    words = spec.label, spec["seed"], step, spec["steps"], phase
    return RunStatus(*words, measure, value, recorder.flagged_nodes, unheard, done, rounds)


def _write(folder: Path, spec: ResolvedSpec, engine: Engine, recorder: Recorder, trained: Trained | None) -> None:
    """Write the files of a run that has ended."""
    setup, how = engine.setup, engine.setup.plan.optimisation
    batch = setup.problem.samples if how.batch == "all" else how.batch
    measured = recorder.summary(batch if how.method == DRSGD() else None)  # the theorem is about its own optimiser
    summary = {"method": spec.label, "seed": spec["seed"], "digest": spec.digest, **measured}
    if trained is not None:
        words = {"version": bymi.__version__, "digest": spec.digest, "mean_of": int(recorder.members.sum())}
        summary.update(write_models(folder, trained, setup.problem, words))
    for name, content in recorder.records().items():
        (folder / name).write_bytes(content)
    backend = setup.problem.way if isinstance(setup.problem, ModuleProblem) else "closed form"
    where = {"device": setup.byzantine.device.type, "gradients": backend, "ranks": engine.group.size}
    store.write_json(folder / store.ENVIRONMENT, {**store.environment(), **where})
    store.write_json(folder / store.SUMMARY, summary)
