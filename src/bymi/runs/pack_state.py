"""A State as named tensors and plain values, and back, checked against the run that is to continue from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bymi.attacks import SimulatedAdversary
from bymi.core.network import LocalNetwork
from bymi.core.topic import PARAMETERS
from bymi.detection import Suspensions, UpdateHistory
from bymi.problems import Problem
from bymi.runs.safetensors_file import UnusableError
from bymi.training.plan import Plan
from bymi.training.state import KEPT, KeptStates, State

Axis = Literal["node", "column"]
_COUNTS = ("left", "strikes", "recent")  # of suspensions; files of 0.16.0 and before have the first two
_BLOCKS = 10**9  # largest size of a dimension of the memory

TensorShapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape by name."""

AXES: dict[str, tuple[Axis, ...]] = {
    "theta": ("node",),
    "flagged": ("node",),
    "tracker": ("node",),
    "kept.theta": ("node",),
    "kept.mean_claim": ("node",),
    "anchor": ("node",),
    "record.left": ("node",),
    "record.strikes": ("node",),
    "record.recent": ("node",),
    "history.messages": ("column",),
    "history.own": ("node",),
    "history.times": ("column",),
    "history.refused": ("node", "column"),
}
"""What the leading dimensions of each tensor count: nodes, or columns of the inboxes; further dimensions are stored whole.

On list graphs "history.refused" is counted along the neighbour lists. Tensors "memory.NAME" of an optimiser are by node.
"""

FORMER_NAMES = {f"state.trail.{key}": f"state.history.{key}" for key in ("messages", "own", "times", "refused")}
"""Names in the files of 0.11.0 and before, and today's."""


@dataclass(frozen=True, eq=False)
class StateShape:
    """The shapes that a run expects of its states, however its `size` nodes and `columns` of inboxes are sharded.

    `arcs`: columns of the arc mask; fewer than nodes on list graphs.
    """

    plan: Plan
    size: int
    arcs: int
    dim: int
    dtype: torch.dtype
    columns: int

    @staticmethod
    def of(problem: Problem, network: LocalNetwork | SimulatedAdversary, plan: Plan) -> StateShape:
        """The shapes of a run in one process."""
        start = problem.initial(network.nodes[:1])
        columns = network.columns(PARAMETERS) if isinstance(network, SimulatedAdversary) else network.size
        return StateShape(plan, network.size, network.arcs.shape[1], start.shape[1], start.dtype, columns)


def pack(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by the names in AXES, and plain values."""
    tensors = {key: getattr(state, key) for key in ("theta", "flagged", "tracker", "anchor")}
    words: dict[str, Any] = {key: getattr(state, key) for key in ("step", "phase", "judged", "settled", "stopped")}
    words["entries"] = state.tracker is not None and state.tracker.ndim == 1  # one tracker entry per node, in place of a row
    tensors.update({f"memory.{name}": vectors for name, vectors in state.memory.items()})
    if state.record is not None:
        tensors.update({f"record.{key}": getattr(state.record, key) for key in _COUNTS})
        words["remembered"] = True
    if state.kept is not None and state.kept.theta.shape[1]:
        tensors.update({"kept.theta": state.kept.theta, "kept.mean_claim": state.kept.mean_claim})
    if state.history is not None:
        history = state.history
        words.update(rounds=history.rounds, steps=list(history.steps), weights=list(history.weights))
        tensors.update({f"history.{key}": getattr(history, key) for key in ("messages", "own", "times", "refused")})
    if state.memory and state.phase == "warm-up":
        words["memory"] = {name: list(tensor.shape[1:-1]) for name, tensor in state.memory.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}, words


def expected(frame: StateShape, words: Mapping[str, Any], nodes: int, columns: int) -> TensorShapes:
    """Type and shape of all tensors of a state with these words; raises UnusableError if no state of this run has them."""
    plan, phase = frame.plan, words.get("phase")
    step, judged = words.get("step"), words.get("judged")
    last = plan.steps if plan.detector is None else plan.warm_up_steps
    if phase == "warm-up":
        fits = _is_count(step, 1, last) and judged is None
    elif phase == "detection":
        fits = step in plan.detections and judged == step
    else:
        fits = phase == "optimisation" and _is_count(step, last + 1, plan.steps) and judged in plan.detections and judged < step
    if not fits or not all(isinstance(words.get(key), bool) for key in ("settled", "stopped", "entries")):
        raise UnusableError(f"round {step!r} in phase {phase!r} is none of this run")

    parts: TensorShapes = {"theta": (frame.dtype, (nodes, frame.dim))}
    if phase == "warm-up":
        parts.update(_memory(frame, words, nodes))
    if judged is not None:
        parts["flagged"] = (torch.bool, (nodes, frame.arcs))
    method = plan.optimisation.method
    if phase == "optimisation" and method.tracked and not plan.doubly_stochastic:
        parts["tracker"] = (torch.float64, (nodes,) if words["entries"] else (nodes, frame.size))
    if phase == "optimisation":
        parts.update({f"memory.{name}": parts["theta"] for name in method.memory})
    if plan.stop is not None and (plan.detector is None or judged is not None):
        parts["anchor"] = parts["theta"]
    if plan.watch is not None:
        kept = 0 if judged is None else min(KEPT, plan.detections.index(judged) + 1)
        if kept:
            parts["kept.theta"] = (frame.dtype, (nodes, kept, frame.dim))
            parts["kept.mean_claim"] = (torch.float64, (nodes, kept))
        counts = _COUNTS if words.get("remembered") is True else _COUNTS[:2]
        parts.update({f"record.{key}": (torch.int64, (nodes, frame.arcs)) for key in counts})
        rounds, kinds = words.get("rounds"), len(plan.watch.rates)
        sums = [words.get(key) for key in ("steps", "weights")]
        if not _is_count(rounds, 0, plan.steps) or not all(_are_sums(values, kinds if rounds else 0) for values in sums):
            raise UnusableError(f"an update history over {rounds!r} rounds with sums of {sums!r}")
        if rounds:
            parts["history.messages"] = (torch.float64, (columns, kinds, frame.dim))
            parts["history.own"] = (torch.float64, (nodes, kinds, frame.dim))
            parts["history.times"] = (torch.float64, (columns, kinds))
            parts["history.refused"] = (torch.int32, (nodes, columns if frame.arcs == frame.size else frame.arcs))
    return parts


def unpack(tensors: Mapping[str, Tensor], words: Mapping[str, Any], frame: StateShape, device: torch.device) -> State:
    """The state with the parts that `expected` lists."""
    for name in (*(f"record.{key}" for key in _COUNTS), "history.times", "history.refused"):
        if name in tensors and bool((tensors[name] < 0).any()):
            raise UnusableError(f"{name} has counts below zero")
    parts = {name: tensor.to(device) for name, tensor in tensors.items()}
    record = history = kept = None
    if frame.plan.watch is not None:
        left, strikes = parts["record.left"], parts["record.strikes"]
        recent = parts.get("record.recent", torch.zeros_like(left))
        record = Suspensions(left, strikes, recent, frame.plan.watch.longest)
        sums = {key: parts.get(f"history.{key}") for key in ("messages", "own", "times", "refused")}
        weights = {key: tuple(words[key]) for key in ("steps", "weights")}
        history = UpdateHistory(frame.plan.watch.rates, words["rounds"], **weights, **sums)  # type: ignore[arg-type]
        kept = KeptStates.blank(parts["theta"])
        if "kept.theta" in parts:
            kept = KeptStates(parts["kept.theta"], parts["kept.mean_claim"])
    return State(
        words["step"],
        words["phase"],
        parts["theta"],
        words["judged"],
        parts.get("flagged"),
        parts.get("tracker"),
        words["settled"],
        record,
        history,
        kept,
        parts.get("anchor"),
        words["stopped"],
        {name.removeprefix("memory."): part for name, part in parts.items() if name.startswith("memory.")},
    )


def _memory(frame: StateShape, words: Mapping[str, Any], nodes: int) -> TensorShapes:
    """Tensors that gradient estimates of the warm-up remember, [B, ..., D]; `words` has the sizes in between."""
    sizes = words.get("memory", {})
    names = frame.plan.warm_up.rule.local_gradient.names
    fits = isinstance(sizes, dict) and set(sizes) == set(names) and all(isinstance(size, list) for size in sizes.values())
    if not fits or not all(_is_count(count, 1, _BLOCKS) for size in sizes.values() for count in size):
        raise UnusableError(f"a memory of {sizes!r}")
    return {f"memory.{name}": (frame.dtype, (nodes, *size, frame.dim)) for name, size in sizes.items()}


def _are_sums(values: object, count: int) -> bool:
    """Whether these are so many finite numbers, none below zero."""
    return type(values) is list and len(values) == count and all(type(x) is float and 0 <= x < math.inf for x in values)


def _is_count(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high
