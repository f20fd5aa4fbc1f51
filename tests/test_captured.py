"""Programs as CUDA graphs: `captured` calls a program as it is on a CPU, and on a GPU replays what it recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bymi import RULES, LocalNetwork, Round
from bymi.aggregation import Krum, MultiKrum
from bymi.core import cuda_graphs as module
from bymi.core.cuda_graphs import captured
from bymi.core.neighbourhoods import Neighbourhoods
from bymi.core.topic import PARAMETERS
from bymi.core.topology import ErdosRenyi

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def powers(values: Tensor, factor: int = 2) -> tuple[Tensor, Tensor]:
    return values * factor, values**factor


def test_a_program_on_the_cpu_is_called() -> None:
    values = torch.arange(4.0)
    for _ in range(3):
        first, second = captured(powers, values, factor=3)
        assert torch.equal(first, 3 * values)
        assert torch.equal(second, values**3)


class Stubborn:
    """A recording that fails, as where a program looks at a number."""

    def __init__(self, program: object, example: tuple[Tensor, ...]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")


class Counted:
    """A recording that calls the program, and says what was recorded."""

    made: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, program: Callable[..., Any], example: tuple[Tensor, ...]) -> None:
        self.replay = program
        self.made.append(tuple(example[0].shape))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes recorded, as if the CPU were a GPU."""
    monkeypatch.setattr(module, "_programs", {})
    monkeypatch.setattr(module, "_recordable", lambda values, most: True)
    monkeypatch.setattr(module, "Recording", Counted)
    monkeypatch.setattr(Counted, "made", [])
    return Counted.made


def test_a_program_is_recorded_when_a_shape_comes_again(recorded: list[tuple[int, ...]]) -> None:
    for size in (3, 4, 3, 3, 5, 4, 3):
        assert torch.equal(captured(powers, torch.ones(size))[0], torch.full((size,), 2.0))
    assert recorded == [(3,), (4,)]
    captured(powers, torch.ones(3), factor=3)
    captured(powers, torch.ones(3).double())
    assert recorded == [(3,), (4,)], "other constants, another type"


def test_equal_rules_share_a_recording_and_others_do_not(recorded: list[tuple[int, ...]]) -> None:
    points = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram, valid = points @ points.mT, torch.ones(2, 6, dtype=torch.bool)
    hood = Neighbourhoods(slice(None), valid, None, gram)
    first, second = Krum(f=1).weights_in(hood), Krum(f=1).weights_in(hood)
    assert torch.equal(first, second)
    assert len(recorded) == 1
    MultiKrum(f=1).weights_in(hood)
    assert torch.equal(Krum(f=2).weights_in(hood), Krum(f=2).weights(gram, valid))
    assert len(recorded) == 1


def test_recordings_that_are_used_stay_and_others_go(recorded: list[tuple[int, ...]]) -> None:
    for size in range(2, 100):
        captured(powers, torch.ones(1))
        captured(powers, torch.ones(size))
    assert recorded == [(1,)]
    assert len(module._programs) == module._KEPT


def test_a_program_that_cannot_be_captured_is_called_with_a_warning(
    recorded: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Recording", Stubborn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            assert captured(powers, torch.ones(7), factor=5)[0].tolist() == [5.0] * 7
    assert len(caught) == 1


def test_inputs_of_a_recording_can_be_overwritten_in_any_mode() -> None:
    """Rounds of linear runs are in inference mode; a later run in the same process may replay what they recorded."""
    with torch.inference_mode():
        values = torch.arange(6.0).view(2, 3)
        copies = module._static((values, values.T))
    for copy, value in zip(copies, (values, values.T), strict=True):
        assert not copy.is_inference()
        assert not copy.requires_grad
        assert copy.is_contiguous()
        assert torch.equal(copy, value)
        assert copy.data_ptr() != value.data_ptr()
        copy.copy_(torch.zeros_like(value))
    with torch.inference_mode():
        copies[0].copy_(values)
    (copy,) = module._static((torch.ones(2, requires_grad=True),))
    assert not copy.requires_grad


@on_a_gpu
def test_a_replay_in_another_mode_than_the_recording() -> None:
    with torch.inference_mode():
        for _ in range(2):
            captured(powers, torch.ones(11, device="cuda"))
    assert captured(powers, torch.full((11,), 3.0, device="cuda"))[1].tolist() == [9.0] * 11


@on_a_gpu
def test_a_replay_computes_from_new_numbers_and_overwrites_no_result() -> None:
    found = [captured(powers, torch.full((3,), float(turn), device="cuda"), factor=2) for turn in range(5)]
    for turn, (first, second) in enumerate(found):
        assert first.tolist() == [2.0 * turn] * 3
        assert second.tolist() == [float(turn) ** 2] * 3


@on_a_gpu
@pytest.mark.parametrize(
    "name", ["ios", "faba", "krum", "geometric-median", "filtering", "caf", "centered-clipping", "nnm+krum", "bucketing+krum"]
)
def test_a_recorded_rule_decides_as_on_the_cpu(name: str) -> None:
    """Three rounds with other vectors: the first as it is, the second recorded, the third replayed."""
    rule, graph = RULES[name](), ErdosRenyi(0.6).draw(40, seed=1)
    for seed in range(3):
        vectors = torch.randn(40, 300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        vectors[3] += 30
        outputs = []
        for device in ("cpu", "cuda"):
            (inbox,) = LocalNetwork(graph.to(device)).exchange(0, {PARAMETERS: vectors.to(device)})
            outputs.append(rule(inbox, Round(1, 10)).cpu())
        torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)


def _most_of(values: Tensor, most: int, program: int) -> Tensor:
    return values[:most] * program


def test_constants_may_have_any_name(recorded: list[tuple[int, ...]]) -> None:
    for _ in range(3):
        assert torch.equal(captured(_most_of, torch.ones(5), most=2, program=3), torch.full((2,), 3.0))
    assert recorded == [(5,)]
