"""How long a run will take, from a shortened form of it."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch

from bymi.core.errors import BymiError
from bymi.distributed.device_and_thread_settings import Host, one_thread
from bymi.problems import LinearProblem
from bymi.runs.metrics import Recorder
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.simulate import engine_of

_ROUNDS = 12  # of each phase that are timed


def estimate_seconds(spec: ResolvedSpec, host: Host | None = None) -> float | None:
    """Seconds of a run on an idle core, to within a factor of about two; None if its shortened form cannot be run.

    Rounds of each phase, one detection and one measurement of the models are timed and multiplied.
    """
    short = ResolvedSpec(_shortened(spec.values))
    try:
        start = time.perf_counter()
        engine = engine_of(short, host or Host())
        setting_up = time.perf_counter() - start
        setup, plan = engine.setup, engine.setup.plan
        recorder = Recorder(setup.evaluator, setup.graph, setup.byzantine, steps=short["steps"], every=1)
        taken: dict[str, list[float]] = {}
        measuring: list[float] = []
        with one_thread(), torch.inference_mode(isinstance(setup.problem, LinearProblem)):
            before = time.perf_counter()
            for gathered in engine.rounds(None, lambda step, phase: False):
                now = time.perf_counter()
                taken.setdefault(gathered.snapshot.phase, []).append(now - before)
                recorder.see(gathered.snapshot, gathered.models)
                before = time.perf_counter()
                measuring.append(before - now)
    except (BymiError, RuntimeError, ValueError):
        return None
    middle = {phase: sorted(seconds)[len(seconds) // 2] for phase, seconds in taken.items()}
    warm_up = spec.warm_up_steps if plan.detector is not None else spec["steps"]
    detections = 0 if plan.detector is None else _detections(spec)
    rows = spec["steps"] / spec["record_every"] + detections
    return float(
        setting_up
        + warm_up * middle.get("warm-up", 0.0)
        + (spec["steps"] - warm_up) * middle.get("optimisation", 0.0)
        + detections * middle.get("detection", 0.0)
        + rows * sorted(measuring)[len(measuring) // 2]
    )


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    short = copy.deepcopy(values)
    short["steps"] = 2 * _ROUNDS
    short["record_every"] = 1
    short["stop"] = None
    short["warm_up"]["steps"] = _ROUNDS
    short["detection"]["every"] = None
    if short["watch"] is not None:
        short["watch"]["every"] = None
    return short


def _detections(spec: ResolvedSpec) -> int:
    """Detections of a run, within one or two."""
    every = spec["detection"]["every"] if spec["watch"] is None else spec["watch"]["every"]
    return 1 if every is None else 2 + math.ceil((spec["steps"] - spec.warm_up_steps) / every)
