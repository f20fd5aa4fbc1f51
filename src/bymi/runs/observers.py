"""Observers: objects that are told what a run does while it runs. They get plain values and cannot change the run."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bymi.core.errors import BymiError, InputError
from bymi.core.named_parts import Table
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.results_table import flatten

_log = logging.getLogger("bymi")


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands. The numbers are those of its last recorded round and its last detection."""

    label: str
    seed: int
    step: int
    steps: int
    phase: str
    measure: str | None = None
    value: float | None = None
    flagged: int | None = None
    """Nodes flagged by most of the honest nodes that receive from them; None before a detection."""
    unheard: int = 0
    """Messages that honest nodes expected and could not use."""
    done: bool = False
    """Whether the run has ended."""
    rounds: int = 0
    """Rounds since the last status, all that were left at the end."""


@dataclass(frozen=True)
class Observer:
    """Base of observers: override what is of interest. An exception switches the observer off, with a warning.

    Name one in a spec's command as `--track module:Name`, or pass an instance to `bymi.runs.run`.
    """

    def started(self, spec: ResolvedSpec, folder: Path) -> None:
        """A run begins or resumes; `folder` is where its run folder will be."""

    def advanced(self, status: RunStatus) -> None:
        """Rounds were computed; called a few times per second."""

    def measured(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl was recorded."""

    def ended(self, summary: dict[str, Any]) -> None:
        """The run has ended with this summary."""


class Observers:
    """Several observers as one; one that raises is reported once and left out from then on."""

    def __init__(self, observers: Sequence[Observer], names: Iterable[str] = ()) -> None:
        """`names` of further observers; a missing package is an InputError that names the extra to install."""
        self._observers = [*observers, *map(_named, names)]

    def tell(self, what: Callable[[Observer], None]) -> None:
        """Call `what` with every observer."""
        for observer in list(self._observers):
            try:
                what(observer)
            except BymiError:
                raise
            except Exception as problem:  # a tracker's server may be away: the run matters more
                self._observers.remove(observer)
                _log.warning("bymi: %s stopped: %s", type(observer).__name__, " ".join(str(problem).split()))


# Observers that write to TensorBoard, Weights & Biases and MLflow. Their packages are imported when a run starts.


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"--track {extra}: {name} is not installed: pip install 'bymi[{extra}]'") from None


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, (int, float)) and key != "step"}


@dataclass(frozen=True)
class _Tracker(Observer):
    """Base of trackers: what they keep between calls."""

    state: dict[str, Any] = field(default_factory=dict, init=False, repr=False)


@dataclass(frozen=True)
class TensorBoard(_Tracker):
    """Scalars in `tensorboard/RUN` beside the run folders: `tensorboard --logdir runs/tensorboard`."""

    def started(self, spec: ResolvedSpec, folder: Path) -> None:
        _package("tensorboard", "tensorboard")
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.state["writer"] = writer(str(folder.parent / "tensorboard" / folder.name))
        self.state["writer"].add_text("spec", "\n".join(f"    {key} = {value}" for key, value in flatten(spec.values).items()))

    def measured(self, row: dict[str, Any]) -> None:
        for key, value in _numbers(row).items():
            self.state["writer"].add_scalar(key, value, row["step"])

    def ended(self, summary: dict[str, Any]) -> None:
        self.state["writer"].add_text("outcome", f"{summary['outcome']}: {summary['sentence']}")
        self.state["writer"].close()


@dataclass(frozen=True)
class WandB(_Tracker):
    """A run of the project `bymi` in `wandb` beside the run folders; offline with WANDB_MODE=offline."""

    def started(self, spec: ResolvedSpec, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        names = {"project": "bymi", "name": folder.name, "group": spec.label}
        self.state["run"] = _package("wandb", "wandb").init(**names, dir=str(folder.parent), config=flatten(spec.values))

    def measured(self, row: dict[str, Any]) -> None:
        self.state["run"].log({**_numbers(row), "round": row["step"]})

    def ended(self, summary: dict[str, Any]) -> None:
        self.state["run"].summary.update({**_numbers(summary), "outcome": summary["outcome"]})
        self.state["run"].finish()


@dataclass(frozen=True)
class MLflow(_Tracker):
    """A run of the experiment `bymi`: at MLFLOW_TRACKING_URI, else in `mlruns` beside the run folders."""

    def started(self, spec: ResolvedSpec, folder: Path) -> None:
        mlflow = _package("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:  # MLflow 3 asks for this before it writes files instead of a database
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder.parent.resolve() / "mlruns").as_uri()
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("bymi")
        number = client.create_experiment("bymi") if experiment is None else experiment.experiment_id
        self.state["client"] = client
        self.state["run"] = client.create_run(number, run_name=folder.name).info.run_id
        for key, value in flatten(spec.values).items():
            client.log_param(self.state["run"], key, value)

    def measured(self, row: dict[str, Any]) -> None:
        for key, value in _numbers(row).items():
            self.state["client"].log_metric(self.state["run"], key, value, step=row["step"])

    def ended(self, summary: dict[str, Any]) -> None:
        self.state["client"].set_tag(self.state["run"], "outcome", summary["outcome"])
        self.state["client"].set_terminated(self.state["run"])


TRACKERS: Table[Observer] = Table(Observer, {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}, "bymi.observers")
"""Observers by name: those above by the name of their extra, entry points, and module:Name."""


def _named(name: str) -> Observer:
    try:
        return TRACKERS[name]()
    except KeyError:
        raise InputError(f"--track: got {name!r}, allowed: {', '.join(TRACKERS)}, or module:Name") from None
    except InputError as problem:
        raise InputError(f"--track: {problem}") from None
