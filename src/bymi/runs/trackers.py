"""Observers that write to TensorBoard, Weights & Biases and MLflow. Their packages are imported when a run starts."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bymi.core.errors import InputError
from bymi.runs.observers import Observer
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.results_table import flatten


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


BY_NAME: dict[str, type[Observer]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""Trackers by the name of their extra."""
