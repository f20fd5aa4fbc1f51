"""Execution settings: device, threads, gradient backend, checkpoints. They change results by rounding only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from bymi.core.errors import InputError, require
from bymi.core.named_parts import bounded, check_fields
from bymi.problems.gradient_backends import Path as GradientPath

Device = Literal["auto", "cpu", "cuda"]

KeepModels = Literal["mean", "all", "none"]


@dataclass(frozen=True)
class Host:
    """Execution settings of a run.

    `device`: "auto" is a GPU if there is one and the model gains from it. `threads`: nodes computed in parallel on a CPU.
    `gradients`: gradient backend (see bymi.problems.gradient_backends). `data`: folder of the data sets. `checkpoint_every`:
    rounds between two checkpoints; None: about every 30 seconds; 0: never. `keep_models`: trained models stored in the run
    folder: mean over the core and one honest node's ("mean"), also each node's ("all"), or "none". `again`: run from the first
    round even if there is a complete folder or a checkpoint; the old folder is replaced at the end. `track`: names of observers
    (see bymi.runs.observers) that each run is reported to.
    """

    device: str = "auto"
    gradients: GradientPath = "auto"
    threads: int | None = bounded(None, ge=1)
    data: Path | None = None
    checkpoint_every: int | None = bounded(None, ge=0)
    keep_models: KeepModels = "mean"
    again: bool = False
    track: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.data, str):
            object.__setattr__(self, "data", Path(self.data))
        check_fields(self)
        numbered = re.fullmatch(r"cuda:\d{1,3}", self.device) is not None
        require(
            numbered or self.device in get_args(Device), "device", self.device, f"{', '.join(get_args(Device))}, cuda:NUMBER"
        )
        names = isinstance(self.track, tuple) and all(isinstance(name, str) for name in self.track)
        require(names, "track", self.track, "a tuple of names")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"device: got {self.device!r}, but torch sees no CUDA device here; allowed: cpu, auto")
        if numbered and int(self.device[5:]) >= torch.cuda.device_count():
            raise InputError(f"device: got {self.device!r}, allowed: cuda:0 to cuda:{torch.cuda.device_count() - 1}")

    def place(self, *, gains: bool) -> torch.device:
        """The device for a problem; `gains`: whether it is faster on an accelerator."""
        if self.device == "auto":
            return torch.device("cuda" if gains and torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def threads_beside(self, others: int) -> int:
        """Threads per run when `others` runs share this machine."""
        return self.threads or max(1, (os.cpu_count() or 1) // max(1, others))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one torch thread, then restore the previous number.

    The order of sums depends on the number of threads, so a run that must give the same bits alone and beside others fixes it;
    at these sizes one thread is also the fastest.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
