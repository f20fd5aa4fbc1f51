"""Trackers: what a run reports to TensorBoard, Weights & Biases (offline) and MLflow (a local store). See make test-extras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import FINISHES, bymi

WORDS = ("run", *FINISHES, "method=drsgd-bymi", "record_every=20", "--jobs", 1, "--quiet")
LEAN = "not installed here: make test-extras"


def run_folder(out: Path) -> Path:
    (summary,) = out.glob("balance-*/summary.json")
    return summary.parent


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder(out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_the_rows_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=LEAN)
    assert bymi(*WORDS, "--track", "tensorboard", "--out", tmp_path).code == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard" / run_folder(tmp_path).name))
    events.Reload()
    gaps = {event.step: event.value for event in events.Scalars("gap")}
    for row in rows_of(tmp_path):
        assert gaps[row["step"]] == pytest.approx(row["gap"], rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason=LEAN)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert bymi(*WORDS, "--track", "wandb", "--out", tmp_path).code == 0
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (record,) = folder.glob("run-*.wandb")
    content = record.read_bytes()
    assert b"gap" in content
    assert run_folder(tmp_path).name.encode() in content


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_rows_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason=LEAN)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # restored after the test, as what the tracker sets is
    assert bymi(*WORDS, "--track", "mlflow", "--out", tmp_path).code == 0
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("bymi").experiment_id])
    assert run.info.run_name == run_folder(tmp_path).name
    assert (run.data.params["nodes"], run.data.tags["outcome"]) == ("40", "finished")
    gaps = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "gap")}
    assert gaps == {row["step"]: row["gap"] for row in rows_of(tmp_path)}


def test_an_own_observer_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tracker.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom bymi.runs.observers import Observer\n\n\n"
        "@dataclass(frozen=True)\nclass Lines(Observer):\n    def measured(self, row):\n"
        "        with open('told.txt', 'a', encoding='utf-8') as file:\n            file.write(f\"{row['step']}\\n\")\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bymi(*WORDS, "--track", "own_tracker:Lines", "--out", tmp_path / "runs").code == 0
    told = (tmp_path / "told.txt").read_text(encoding="utf-8").split()
    assert told == [str(row["step"]) for row in rows_of(tmp_path / "runs")]
