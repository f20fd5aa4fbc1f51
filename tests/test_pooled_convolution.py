"""Convolution, pooling and ReLU as one layer: which models it is for, and that losses stay what they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.problems import ModuleProblem, Shards, lenet, pooled_convolution
from bymi.problems import triton_pooled_convolution as kernels
from bymi.problems.gradient_backends import Batched
from bymi.problems.pooled_convolution import PooledConvolution, fuse

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def conv(**settings: Any) -> nn.Conv2d:
    return nn.Conv2d(2, 4, 3, **settings)


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def replaced(layer: nn.Module) -> nn.Module:
    inner = layer.forward
    layer.forward = lambda inputs: 2 * inner(inputs)  # type: ignore[method-assign]
    return layer


class Own(nn.Conv2d):
    """May compute something else."""


FUSED: dict[str, tuple[nn.Sequential, list[str]]] = {
    "pool": (nn.Sequential(conv(), nn.MaxPool2d(2)), ["PooledConvolution", "Identity"]),
    "pool, ReLU": (nn.Sequential(conv(), nn.MaxPool2d(2), nn.ReLU()), ["PooledConvolution ReLU", "Identity", "Identity"]),
    "ReLU, pool": (nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2)), ["PooledConvolution ReLU", "Identity", "Identity"]),
    "tanh, pool": (nn.Sequential(conv(), nn.Tanh(), nn.MaxPool2d(2)), ["PooledConvolution", "Identity", "Tanh"]),
    "pool, GELU": (nn.Sequential(conv(), nn.MaxPool2d(2), nn.GELU()), ["PooledConvolution", "Identity", "GELU"]),
    "no bias": (nn.Sequential(conv(bias=False, padding=(1, 0)), nn.MaxPool2d((2, 2), [2])), ["PooledConvolution", "Identity"]),
    "second": (nn.Sequential(nn.ReLU(), conv(), nn.MaxPool2d(2)), ["ReLU", "PooledConvolution", "Identity"]),
}
OTHERS: dict[str, nn.Module] = {
    "no pool": nn.Sequential(conv(), nn.ReLU()),
    "alone": nn.Sequential(conv()),
    "not increasing": nn.Sequential(conv(), nn.GELU(), nn.MaxPool2d(2)),
    "something between": nn.Sequential(conv(), nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2)),
    "stride": nn.Sequential(conv(stride=2), nn.MaxPool2d(2)),
    "dilation": nn.Sequential(conv(dilation=2), nn.MaxPool2d(2)),
    "groups": nn.Sequential(conv(groups=2), nn.MaxPool2d(2)),
    "named padding": nn.Sequential(conv(padding="same"), nn.MaxPool2d(2)),
    "mirrored padding": nn.Sequential(conv(padding=1, padding_mode="reflect"), nn.MaxPool2d(2)),
    "larger pool": nn.Sequential(conv(), nn.MaxPool2d(3)),
    "overlapping pool": nn.Sequential(conv(), nn.MaxPool2d(2, stride=1)),
    "padded pool": nn.Sequential(conv(), nn.MaxPool2d(2, padding=1)),
    "dilated pool": nn.Sequential(conv(), nn.MaxPool2d(2, dilation=2)),
    "rounded up": nn.Sequential(conv(), nn.MaxPool2d(2, ceil_mode=True)),
    "average": nn.Sequential(conv(), nn.AvgPool2d(2)),
    "subclass": nn.Sequential(Own(2, 4, 3), nn.MaxPool2d(2)),
    "hook at the convolution": nn.Sequential(hooked(conv()), nn.MaxPool2d(2)),
    "hook at the pool": nn.Sequential(conv(), hooked(nn.MaxPool2d(2))),
    "hook between": nn.Sequential(conv(), hooked(nn.ReLU()), nn.MaxPool2d(2)),
    "forward of the convolution replaced": nn.Sequential(replaced(conv()), nn.MaxPool2d(2)),
    "forward of the pool replaced": nn.Sequential(conv(), replaced(nn.MaxPool2d(2))),
    "forward of the chain replaced": replaced(nn.Sequential(conv(), nn.MaxPool2d(2))),
    "not a chain": nn.ModuleList([conv(), nn.MaxPool2d(2)]),
}


def described(model: nn.Module) -> list[str]:
    return [f"{type(layer).__name__}{' ReLU' if getattr(layer, 'relu', False) else ''}" for layer in model.children()]


def images(count: int = 3) -> Tensor:
    """Odd sides: the last row belongs to no square."""
    return torch.randn(count, 2, 9, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FUSED)
def test_a_convolution_and_the_pooling_behind_it_become_one_layer(name: str) -> None:
    model, expected = FUSED[name]
    fused = fuse(model)
    assert described(fused) == expected
    assert all(own is other for own, other in zip(model.parameters(), fused.parameters(), strict=True))
    assert [name for name, _ in fused.named_parameters()] == [name for name, _ in model.named_parameters()]
    torch.testing.assert_close(fused(images()), model(images()))
    assert not any(isinstance(layer, PooledConvolution) for layer in model), "the model itself must stay as it is"


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_stay_as_they_are(name: str) -> None:
    assert not any(isinstance(layer, PooledConvolution) for layer in fuse(OTHERS[name]).modules())


def test_chains_inside_a_chain() -> None:
    model = nn.Sequential(nn.Sequential(conv(), nn.MaxPool2d(2)), nn.Sequential(hooked(nn.ReLU())), nn.Flatten())
    fused = fuse(model)
    assert described(fused[0]) == ["PooledConvolution", "Identity"]  # type: ignore[index]
    assert [name for name, _ in fused.named_parameters()] == ["0.0.weight", "0.0.bias"]
    torch.testing.assert_close(fused(images()), model(images()))
    whole = hooked(nn.Sequential(conv(), nn.MaxPool2d(2)))
    assert fuse(whole) is whole


def test_a_hook_behind_the_layer_stays() -> None:
    model = nn.Sequential(conv(), nn.MaxPool2d(2), hooked(nn.ReLU()))
    assert described(fuse(model)) == ["PooledConvolution", "Identity", "ReLU"]
    torch.testing.assert_close(fuse(model)(images()), model(images()))


def plain_forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Any, relu: bool, groups: int = 1) -> Tensor:
    """What the kernel computes, model by model, with torch's own layers."""
    assert inputs.ndim == weight.ndim == 5
    assert bias.shape == weight.shape[:2]
    cases = zip(inputs, weight, bias, strict=True)
    made = torch.stack([nnf.max_pool2d(nnf.conv2d(*case, padding=padding), 2) for case in cases])
    made = made.relu() if relu else made
    return made if groups == 1 else made.unflatten(2, (groups, -1)).transpose(1, 2)


class Calls:
    """Stands for the kernel and keeps the shapes that it got."""

    def __init__(self) -> None:
        self.shapes: list[tuple[list[int], list[int]]] = []

    def __call__(self, inputs: Tensor, weight: Tensor, *more: Any) -> Tensor:
        self.shapes.append((list(inputs.shape), list(weight.shape)))
        return plain_forward(inputs, weight, *more)


def small_net() -> nn.Sequential:
    """Not LeNet: another order of layers, no bias, odd sides."""
    first = nn.Sequential(nn.Conv2d(2, 3, 2, padding=1, bias=False), nn.Tanh(), nn.MaxPool2d(2))
    return nn.Sequential(first, nn.Conv2d(3, 5, (3, 2)), nn.MaxPool2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(10, 4))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {"lenet": (lenet(), (1, 28, 28)), "small": (small_net(), (2, 9, 10))}


def losses(name: str, device: str = "cpu", *, products: bool) -> Tensor:
    """Losses of five models on the samples of three nodes, not all wanted; the last model is beyond all numbers."""
    torch.manual_seed(0)
    model, shape = MODELS[name]
    shards = Shards(torch.randn(3, 6, *shape).to(device), torch.randint(4, (3, 6)).to(device))
    problem = ModuleProblem(model, nnf.cross_entropy, shards, gradients="batched" if products else "loop")
    if products:
        problem._ways = [Batched(problem._models, products=True)]
    vectors = problem._start + 0.1 * torch.randn(5, problem.dim).to(device)
    vectors[4] = torch.nan
    wanted = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1], [0, 1, 1, 1, 1]]).bool().to(device)
    nodes, chosen = torch.arange(3, device=device), torch.tensor([[0, 1, 5], [2, 2, 3], [4, 1, 0]], device=device)
    return problem.losses(vectors, nodes, chosen, wanted).cpu()


@pytest.mark.parametrize("name", MODELS)
def test_losses_by_the_kernel_are_those_of_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(kernels, "forward", calls)
    monkeypatch.setattr(kernels, "available", lambda inputs, weight: True)
    found, expected = losses(name, products=True), losses(name, products=False)
    assert len(calls.shapes) == 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if name == "lenet":  # first layer: inputs of a node once, for all its four models; then each model has its own
        assert calls.shapes == [([3, 3, 1, 28, 28], [3, 24, 1, 5, 5]), ([12, 3, 6, 14, 14], [12, 16, 6, 5, 5])]


@pytest.mark.parametrize("name", MODELS)
def test_losses_without_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", None)
    torch.testing.assert_close(losses(name, products=True), losses(name, products=False), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_gradients_do_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_convolution.PooledConvolution, "forward", None)
    model, shape = MODELS["small"]
    problem = ModuleProblem(model, nnf.cross_entropy, Shards(torch.randn(2, 3, *shape), torch.randint(4, (2, 3))))
    nodes, chosen = torch.arange(2), torch.arange(3).expand(2, -1)
    inputs = problem._pick(nodes, chosen)
    found = Batched(problem._models, products=True)(problem.initial(nodes), *inputs)
    torch.testing.assert_close(found, problem.gradient(problem.initial(nodes), nodes, chosen), rtol=1e-4, atol=1e-5)


class OnCuda:
    """What `available` looks at."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


def test_the_kernel_is_for_single_precision_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", object())
    weight, large = torch.zeros(16, 6, 5, 5), torch.zeros(16, 64, 3, 3)
    assert kernels.available(OnCuda(torch.float32), weight) is True  # type: ignore[arg-type]
    assert kernels.available(OnCuda(torch.float64), weight) is False  # type: ignore[arg-type]
    assert kernels.available(OnCuda(torch.float32), large) is False, "too many taps for one program"  # type: ignore[arg-type]
    assert kernels.available(torch.zeros(1), weight) is False
    monkeypatch.setattr(kernels, "triton", None)
    assert kernels.available(OnCuda(torch.float32), weight) is False  # type: ignore[arg-type]


@ON_CUDA
@pytest.mark.parametrize("name", MODELS)
def test_losses_on_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    used, forward = [], kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda *values: used.append(1) or forward(*values))  # type: ignore[func-returns-value]
    found, expected = losses(name, "cuda", products=True), losses(name, products=False)
    assert len(used) == 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
