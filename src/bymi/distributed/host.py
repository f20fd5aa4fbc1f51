"""Where and how a run happens. Every gradient is the same on all hosts, to rounding; so this is no part of a spec."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from bymi.core.errors import InputError, require
from bymi.core.named_parts import check_fields
from bymi.problems.gradient_backends import Path as GradientPath

Device = Literal["auto", "cpu", "cuda"]

KeepModels = Literal["mean", "all", "none"]


@dataclass(frozen=True)
class Host:
    """`device` "auto": a GPU for models that gain from one, if there is one. `threads`: nodes computed at a time on a CPU.

    `gradients`: how those of all nodes are computed (see bymi.problems.gradient_backends). `data`: folder of the data sets.
    `checkpoint_every`: rounds between two checkpoints; None: about every 30 seconds; 0: never. `keep_models`: which trained
    models a run folder keeps: the mean over the core and one honest node's ("mean"), each node's too ("all"), or "none".
    `again`: run from the first round even if there is a complete folder or a checkpoint; the old folder is replaced at the end.
    """

    device: str = "auto"
    gradients: GradientPath = "auto"
    threads: int | None = None
    data: Path | None = None
    checkpoint_every: int | None = None
    keep_models: KeepModels = "mean"
    again: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.data, str):
            object.__setattr__(self, "data", Path(self.data))
        check_fields(self)
        require(self.device in get_args(Device), "device", self.device, ", ".join(get_args(Device)))
        ways = get_args(GradientPath)
        require(self.gradients in ways, "gradients", self.gradients, ", ".join(ways))
        require(self.threads is None or self.threads >= 1, "threads", self.threads, "1 or more, or None")
        every = self.checkpoint_every
        require(every is None or every >= 0, "checkpoint_every", every, "0 or more")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device: got 'cuda', but torch sees no CUDA device here; allowed: cpu, auto")

    def place(self, *, gains: bool) -> torch.device:
        """The device for a problem that gains from an accelerator, or does not."""
        if self.device == "auto":
            return torch.device("cuda" if gains and torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def threads_beside(self, others: int) -> int:
        """Threads of one of `others` runs at a time."""
        return self.threads or max(1, (os.cpu_count() or 1) // max(1, others))


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block, then as many as before.

    Sums come out in an order that depends on the number of threads, so a run that is to give the same bits alone and beside
    others fixes it; at these sizes one thread is also the fastest.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
