"""Checkpoints of one node: one file per round, written whole or not at all, of which two are kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bymi.detection import Suspensions, UpdateHistory
from bymi.problems import Problem
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.pack_state import StateShape, expected, pack, unpack
from bymi.runs.safetensors_file import TensorFile, UnusableError
from bymi.training.plan import Plan
from bymi.training.state import KeptStates, State

_FILE = re.compile(r"round-(\d{8,})(-judged)?\.safetensors")
_KEPT = 2


def save(folder: Path, run_id: str, state: State) -> None:
    """Write a checkpoint beside the earlier ones, and remove all but the newest two. Raises OSError."""
    tensors, words = pack(state)
    folder.mkdir(parents=True, exist_ok=True)
    judged = "-judged" if state.phase == "detection" else ""
    tensorfile.write(folder / f"round-{state.step:08d}{judged}.safetensors", tensors, {"run": run_id, "state": words})
    for path in (*_stored(folder)[_KEPT:], *folder.glob(".round-*.tmp")):  # the latter by a process that was killed
        path.unlink(missing_ok=True)


def newest(folder: Path, run_id: str, frame: StateShape, say: Callable[[str], None]) -> State | None:
    """The newest state that can be used, or None; `say` is told why others cannot."""
    for path in _stored(folder):
        try:
            return _read(path, run_id, frame)
        except (ValueError, OSError, LookupError) as problem:
            say(f"{path.name} not used ({problem})")
    return None


def _stored(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted((path for path in folder.glob("round-*") if _FILE.fullmatch(path.name)), reverse=True)


def _read(path: Path, run_id: str, frame: StateShape) -> State:
    file = TensorFile(path)
    words = file.words.get("state")
    if file.words.get("run") != run_id:
        raise UnusableError("of another run")
    if not isinstance(words, dict):
        raise UnusableError("says nothing of its round")
    parts = expected(frame, words, 1, frame.columns)
    found = {name: (file.dtype(name), file.shape(name)) for name in file.names}
    if found != parts:
        raise UnusableError(f"has {', '.join(sorted(found.keys() ^ parts.keys())) or 'tensors of other shapes'}")
    return unpack({name: file.read(name) for name in file.names}, words, frame, torch.device("cpu"))


def state_at(state: State | None, step: int, problem: Problem, node: int, plan: Plan, size: int) -> State:
    """A state from which a node that was away continues at round `step`: its own parameters, without what it has missed.

    A detection in the meantime is not made up for: flags of earlier ones stay, and the update history starts again. The tracker
    starts at its value in a network in which all nodes mix alike.
    """
    nobody = torch.zeros(1, size, dtype=torch.bool)
    before = State(0, "warm-up", problem.initial(torch.tensor([node]))) if state is None else state
    if plan.detector is None or step < plan.warm_up_steps:
        after = State(step, "warm-up", before.theta)
    else:
        judged = max(moment for moment in plan.detections if moment <= step)
        flagged, tracker = nobody if before.flagged is None else before.flagged, before.tracker
        if plan.detector.pruning != "mutual" and tracker is None:
            tracker = torch.full((1, size), 1 / size, dtype=torch.float64)
        after = State(step, "detection" if judged == step else "optimisation", before.theta, judged, flagged, tracker)
    if plan.watch is None:
        return after
    record = Suspensions.blank(nobody, plan.watch.longest) if before.record is None else before.record
    kept, unknown = KeptStates.blank(after.theta), torch.full((1,), torch.inf, dtype=torch.float64)
    for moment in plan.detections:
        if after.judged is not None and moment <= after.judged:  # what was missed is no better than what it holds
            kept = kept.add(after.theta, unknown)
    return replace(after, record=record, history=UpdateHistory(plan.watch.rates), kept=kept)
