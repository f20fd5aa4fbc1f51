"""Runs one resolved spec into its run folder: from its newest checkpoint, with metrics and observers."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bymi
from bymi.core.errors import system_refusal
from bymi.core.graph import Graph
from bymi.core.network import LocalNetwork
from bymi.detection import REASONS, Verdict
from bymi.distributed.execution_settings import Host, one_thread
from bymi.distributed.glibc_memory import let_go
from bymi.problems import LinearProblem, ModuleProblem
from bymi.runs import run_folder as store
from bymi.runs.checkpoints import Checkpointer, Saved
from bymi.runs.metrics import DETECTIONS, PER_NODE, Recorder
from bymi.runs.observers import Observer, Observers, RunStatus, make_observers
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import RunSetup
from bymi.runs.simulate import Engine, EngineMaker, OneProcess, alone
from bymi.runs.trained_models import Trained, collect, nodes_to_keep, write_models
from bymi.training.optimisers import DRSGD
from bymi.training.phases import apply_verdict
from bymi.training.state import State

MEASURES = ("gap", "acc_scc", "acc_normal", "loss")
"""Keys of a row of metrics.jsonl of which the first that it has describes the quality of the models."""

_TELL_EVERY = 0.1  # seconds between two progress reports
_LONG = 1.0  # seconds per round from which on free memory is returned: in shorter rounds that would be noticeable


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


def _theory(recorder: Recorder, setup: RunSetup) -> dict[str, Any] | None:
    """What the theorem says about a run of its own optimiser; None for others."""
    how = setup.plan.optimisation
    batch = setup.problem.samples if how.batch == "all" else how.batch
    return recorder.theory(batch) if how.method == DRSGD() else None


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
        verdict = verdict_to_json(recorder.verdict, setup.byzantine if setup.ground_truth else None, setup.graph)
        store.write_json(folder / store.VERDICT, verdict, indent=None)
    if log.detections:
        (folder / DETECTIONS).write_bytes(log.detections)
    if (per_node := recorder.per_node()) is not None:
        store.write_json(folder / PER_NODE, per_node, indent=None)
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
    setup = engine.scene
    size = {"steps": spec["steps"], "every": spec["record_every"], "ground_truth": setup.ground_truth}
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
                    status = _status_of(spec, snapshot.step, snapshot.phase, log.recorder.last, log.recorder.flagged_nodes)
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
        observers.tell(methodcaller("advanced", _status_of(spec, step, phase, row, log.recorder.flagged_nodes, done=True)))
    tell(spec["steps"] - done)
    return log


def _where(setup: RunSetup) -> dict[str, Any]:
    """Device and gradient backend of a run, for environment.json."""
    backend = setup.problem.way if isinstance(setup.problem, ModuleProblem) else "closed form"
    return {"device": setup.byzantine.device.type, "gradients": backend}


# Progress of a run beside its state: rows measured so far, and time taken.


class ProgressLog:
    """A recorder, the rows that it gave for metrics.jsonl, and the clock."""

    def __init__(
        self,
        recorder: Recorder,
        states: Sequence[State] | None = None,
        rows: bytes = b"",
        seconds: float = 0.0,
        detecting: float = 0.0,
        detections: bytes = b"",
    ) -> None:
        self.recorder, self.states, self.detecting = recorder, states, detecting
        self.trained: Trained | None = None  # set when the run has ended
        self.rows, self.detections = bytearray(rows), bytearray(detections)
        self._start = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def add(self, row: dict[str, Any]) -> bytes:
        """Append a row; returns its line of JSON."""
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self.rows += line
        return line

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it as tensors and plain values, for a checkpoint."""
        tensors, words = self.recorder.keep()
        tensors = {**tensors, "rows": _as_tensor(self.rows), "detections": _as_tensor(self.detections)}
        return tensors, {"recorder": words, "seconds": self.seconds, "detecting": self.detecting}

    @staticmethod
    def take_up(saved: Saved, scene: RunSetup, recorder: Callable[[], Recorder]) -> ProgressLog:
        """Continue from a stored round, or raise ValueError. The states may be those of some nodes only."""
        words, rows = saved.words, saved.tensors.get("rows")
        times = [words.get("seconds"), words.get("detecting")]
        if not isinstance(words.get("recorder"), dict) or not all(isinstance(seconds, (int, float)) for seconds in times):
            raise ValueError("what was measured is missing")
        if rows is None or rows.dtype != torch.uint8 or not all(isinstance(row, dict) for row in _rows(rows)):
            raise ValueError("the rows of metrics.jsonl are missing")
        detections = saved.tensors.get("detections", rows[:0])
        if detections.dtype != torch.uint8 or not all(isinstance(line, dict) for line in _rows(detections)):
            raise ValueError("the lines of detections.jsonl are damaged")
        resumed, judged = recorder(), saved.states[0].judged

        def prune(flagged: Tensor) -> Graph:
            assert judged is not None
            network = apply_verdict(LocalNetwork(scene.graph), scene.plan, flagged, scene.adversary, step=judged)
            assert isinstance(network, LocalNetwork)
            return network.graph

        resumed.take_up(saved.tensors, words["recorder"], None if judged is None else prune)
        lines = {"rows": rows.numpy().tobytes(), "detections": detections.numpy().tobytes()}
        return ProgressLog(resumed, saved.states, **lines, seconds=words["seconds"], detecting=words["detecting"])


def _as_tensor(lines: bytearray) -> Tensor:
    return torch.from_numpy(np.array(lines, dtype=np.uint8))


def _rows(stored: Tensor) -> list[Any]:
    return [json.loads(line) for line in stored.numpy().tobytes().splitlines()]


def _status_of(
    spec: ResolvedSpec, step: int, phase: str, last: dict[str, Any], flagged: int | None, *, done: bool = False
) -> RunStatus:
    """The status from the last row of metrics."""
    measure = next((key for key in MEASURES if last.get(key) is not None), None)
    value = None if measure is None else last[measure]
    return RunStatus(
        spec.label, spec["seed"], step, spec["steps"], phase, measure, value, flagged, last.get("unheard", 0), done
    )


def verdict_to_json(verdict: Verdict, byzantine: Tensor | None, graph: Graph) -> dict[str, Any]:
    """Verdicts as JSON values, one entry per receiver: who was flagged and why; `byzantine` [M]: the truth, if known."""
    receivers = []
    arcs, flags, limits = graph.hears.cpu(), verdict.flagged.cpu(), verdict.threshold.tolist()
    graph = graph.to("cpu")
    all_scores, reasons = verdict.scores.cpu(), verdict.reason.cpu()
    hardened, statistics, bounds = bool(verdict.statistic.numel()), verdict.statistic.cpu(), verdict.bound.cpu()
    for node, limit in enumerate(limits):
        places = arcs[node].nonzero().flatten()
        neighbours = graph.nodes_at(torch.full_like(places, node), places)
        scores = all_scores[node, places].tolist()
        entry = {
            "node": node,
            "threshold": limit if math.isfinite(limit) else None,
            "neighbours": neighbours.tolist(),
            "scores": [_plain(score) for score in scores],
            "flagged": neighbours[flags[node, places]].tolist(),
            "reasons": [REASONS[code] for code in reasons[node, places].tolist()],
        }
        if hardened:
            entry["statistics"] = [_plain(value) for value in statistics[node, places].tolist()]
            entry["bounds"] = [_plain(value) for value in bounds[node, places].tolist()]
            entry["filtered_weight"], entry["guard_acted"] = (
                float(verdict.filtered_weight[node]),
                bool(verdict.guard_acted[node]),
            )
            entry["pull"] = _plain(float(verdict.pull[node]))
            entry["mixing"] = "rule" if bool(verdict.by_rule[node]) else "average"
        receivers.append(entry)
    return {"byzantine": None if byzantine is None else byzantine.nonzero().flatten().tolist(), "receivers": receivers}


def _plain(value: float) -> float | None:
    """A JSON number, or None (null)."""
    return value if math.isfinite(value) else None
