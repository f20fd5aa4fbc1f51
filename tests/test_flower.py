"""The Flower strategy against the released flwr, on messages made by hand: who is kept, what the mean is, hostile replies."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="Flower is an extra: make test-extras")

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from bymi.flower import ByMI


def reply(node: int, records: dict[str, Any]) -> Any:
    """What the strategy reads of a Message, which Flower makes inside a run only."""
    content, metadata = RecordDict(records), SimpleNamespace(src_node_id=node)
    return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False)


def state(row: Tensor) -> ArrayRecord:
    return ArrayRecord({"weight": row[:6].reshape(2, 3).float(), "bias": row[6:].float()})


def replies(halves: Tensor, weights: list[int]) -> list[Any]:
    return [
        reply(node, {"first": state(one), "second": state(two), "metrics": MetricRecord({"num-examples": weight})})
        for node, (one, two, weight) in enumerate(zip(*halves, weights, strict=True))
    ]


@pytest.fixture
def halves() -> Tensor:
    values = torch.randn(2, 14, 8, generator=torch.Generator().manual_seed(3))
    values[:, :2] += 8.0
    return values


def test_flagged_clients_are_left_out_of_a_weighted_mean(halves: Tensor) -> None:
    weights = list(range(1, 15))
    strategy = ByMI()
    model, _ = strategy.aggregate_train(1, replies(halves, weights))
    assert strategy.verdicts[1].flagged.nonzero().flatten().tolist() == [0, 1]
    share = torch.tensor(weights[2:], dtype=torch.float64)
    expected = (share / share.sum()) @ halves.double().mean(0)[2:]
    found = model.to_torch_state_dict()
    torch.testing.assert_close(torch.cat([found["weight"].flatten(), found["bias"]]).double(), expected, rtol=1e-5, atol=1e-6)


def test_hostile_replies_are_left_out_and_nobody_else_is_harmed(halves: Tensor) -> None:
    good = replies(halves, [1] * 14)
    strategy = ByMI()
    wanted, _ = strategy.aggregate_train(1, good)
    metrics = MetricRecord({"num-examples": 1})
    nan = reply(20, {"first": state(halves[0, 5] * float("nan")), "second": state(halves[1, 5]), "metrics": metrics})
    hostile = [
        reply(21, {"metrics": metrics}),
        reply(22, {"first": state(halves[0, 5]), "metrics": metrics}),
        reply(
            23, {"first": ArrayRecord({"w": torch.zeros(3)}), "second": ArrayRecord({"w": torch.zeros(3)}), "metrics": metrics}
        ),
        reply(24, {"first": state(halves[0, 5]), "second": state(halves[1, 5]), "metrics": MetricRecord({"num-examples": -5})}),
        reply(25, {"first": state(halves[0, 5]), "second": state(halves[1, 5])}),
    ]
    found, _ = strategy.aggregate_train(2, [*hostile, *good, nan])
    assert strategy.verdicts[2].flagged.nonzero().flatten().tolist() == [0, 1, 14]
    for name, values in wanted.to_torch_state_dict().items():
        torch.testing.assert_close(found.to_torch_state_dict()[name], values)


def test_too_few_replies_give_no_model(halves: Tensor) -> None:
    assert ByMI().aggregate_train(1, replies(halves, [1] * 14)[:2]) == (None, None)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Flower's simulation needs ray")
def test_the_example_runs_in_flowers_simulation() -> None:
    script = Path(__file__).parents[1] / "examples" / "flower_app.py"
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=True)
    assert "flagged per round: {1: 2, 2: 2, 3: 2} weights: [[1.0, 1.0, 1.0, 1.0, 1.0]]" in ended.stdout
