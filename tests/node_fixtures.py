"""Folders of real nodes for the tests: keys, a roster, own data in files, small linear models."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as nnf

from bymi.netdemo import demo
from bymi.node.roster import Limits
from bymi.node.round_session import Session
from bymi.node.run_node import NodeRun
from tests.forked import fork
from tests.peer_networks import loop_thread

INPUTS, SAMPLES = 5, 40
PACED = "tests.node_fixtures:paced_loss"
MODEL = f"linear:inputs={INPUTS},outputs=1"
SPEC = (
    *("data.identification=20", "graph=complete", "byzantine_ratio=0", "method=drsgd-bymi", "warm_up.batch=8"),
    *("optimisation.batch=8", "optimisation.step_size=0.3", "optimisation.max_local_step=0.3"),
)


def write_nodes(
    folder: Path, count: int, *words: str, limits: Limits | None = None, wrong: int | None = None, **settings: Any
) -> list[Path]:
    """Node files of a network in which all have samples of one linear model; the targets of node `wrong` are reversed."""
    given = {"model": MODEL, "held_out": "data.npz", "loss": "squared", **settings}
    limits = limits or Limits(deadline=20.0, start_wait=30.0)
    folders = demo.write_nodes(folder, count, [*SPEC, *words], given, samples=SAMPLES, limits=limits)
    truth = np.arange(1.0, INPUTS + 1.0)
    for number, one in enumerate(folders):
        draws = np.random.default_rng(number)
        inputs = draws.normal(size=(SAMPLES, INPUTS))
        targets = inputs @ truth + 0.1 * draws.normal(size=SAMPLES)
        targets = -9 * targets if number == wrong else targets
        np.savez(one / "data.npz", inputs=inputs, targets=targets[:, None])
    return [one / "node.toml" for one in folders]


def paced_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error that takes 10 ms without work: rounds as slow as those of real models, so that others can catch up."""
    time.sleep(0.01)
    return nnf.mse_loss(outputs, targets)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Running:
    """A node that runs in a thread of this process."""

    def __init__(self, path: Path) -> None:
        self.run = NodeRun(path, loop=loop_thread())
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.run.run()
        except BaseException as problem:  # raised again in `end`
            self.problem = problem

    def end(self, seconds: float = 60.0) -> NodeRun:
        """The run, once it has ended."""
        self._thread.join(seconds)
        if self.problem is not None:
            raise self.problem
        assert not self._thread.is_alive(), f"{self.run.name} has not ended: {self.run.progress}"
        return self.run


Setup = Callable[[Path], Callable[[NodeRun], None] | None]


def in_process(path: Path, setup: Setup | None = None) -> BaseProcess:
    """A node in a process of its own, which may be killed. `setup` is called in it before the run; what it returns, after."""
    return fork(_run_process, path, setup, daemon=True)


def _run_process(path: Path, setup: Setup | None) -> None:
    after = None if setup is None else setup(path)
    run = NodeRun(path)
    run.run()
    if after is not None:
        after(run)


@dataclass(frozen=True)
class HoldInDetection:
    """A setup: the node commits in a detection, writes a file, and goes no further."""

    file: Path

    def __call__(self, _: Path) -> None:
        async def stay(*_: object) -> None:
            self.file.touch()
            await asyncio.sleep(3600)

        setattr(Session, "_open", stay)  # noqa: B010


def entries(path: Path) -> list[dict[str, Any]]:
    """Lines of a log of a node, given its node file and the log's name."""
    return [json.loads(line) for line in path.read_text().splitlines()]
