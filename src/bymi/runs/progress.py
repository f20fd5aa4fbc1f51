"""Progress of a run beside its state: rows measured so far, and time taken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bymi.core.graph import Graph
from bymi.core.network import LocalNetwork
from bymi.runs.checkpoints import Saved
from bymi.runs.metrics import Recorder
from bymi.runs.run_setup import RunSetup
from bymi.runs.trained_models import Trained
from bymi.training.phases import apply_verdict
from bymi.training.state import State


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
