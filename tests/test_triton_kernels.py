"""The Triton kernels: without Triton nobody misses them, in its interpreter they are torch's own, and they can be batched."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.nn import grad as nn_grad

from bymi.problems import (
    ModuleProblem,
    Shards,
    lenet,
)
from bymi.problems import (
    triton_convolution as kernels,
)
from bymi.problems import (
    triton_pooled_convolution as pooled_kernel,
)
from bymi.problems import (
    vmap_convolution as convolution,
)
from bymi.problems.vmap_convolution import ConvolutionsOfMany
from tests import kernel_checks
from tests.test_pooled_convolution import OnCuda
from tests.test_pooled_convolution import plain_forward as plain_pooled

ROOT = Path(__file__).parents[1]
ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def loaded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as an installation without Triton reads it."""
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it fails
    spec = importlib.util.spec_from_file_location("kernels_without_triton", kernels.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Without Triton


def test_without_triton_nothing_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = loaded(monkeypatch)
    assert bare.triton is None
    assert not hasattr(bare, "_forward")
    for values in (torch.zeros(1), OnCuda(torch.float32)):
        assert bare.available(values) is False


def test_with_triton_it_takes_single_precision_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", object())
    assert kernels.available(OnCuda(torch.float32)) is True  # type: ignore[arg-type]
    assert kernels.available(OnCuda(torch.float64)) is False  # type: ignore[arg-type]
    assert kernels.available(OnCuda(torch.bfloat16)) is False  # type: ignore[arg-type]
    assert kernels.available(OnCuda(torch.float32), 512) is False, "too many channels for one program"  # type: ignore[arg-type]
    assert kernels.available(torch.zeros(1)) is False


class Counted:
    """Stands for a torch.autograd.Function and counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def apply(self, *values: Any) -> Any:
        self.calls += 1
        return self.function.apply(*values)


def counting(monkeypatch: pytest.MonkeyPatch) -> tuple[Counted, Counted]:
    """Products, kernels: how often each is asked."""
    products, fast = Counted(convolution._Product), Counted(convolution.KernelConvolution)
    monkeypatch.setattr(convolution, "_Product", products)
    monkeypatch.setattr(convolution, "KernelConvolution", fast)
    return products, fast


def test_without_triton_everything_goes_through_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LeNet of all nodes at once: its two convolutions, for gradients and for losses."""
    monkeypatch.setattr(kernels, "triton", None)
    products, fast = counting(monkeypatch)
    problem, theta, nodes, chosen = two_lenets()
    found = problem.gradient(theta, nodes, chosen)
    problem.losses(theta, nodes, chosen, torch.ones(2, 2, dtype=torch.bool))
    assert fast.calls == 0
    assert products.calls >= 4
    torch.testing.assert_close(found, by_loop(theta, nodes, chosen), rtol=1e-4, atol=1e-6)


def images() -> Shards:
    inputs = torch.randn(2, 3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return Shards(inputs, torch.tensor([[0, 1, 2], [3, 4, 5]]))


def two_lenets() -> tuple[ModuleProblem, Tensor, Tensor, Tensor]:
    """Two models on three images each, gradients by the convolutions of this room."""
    problem = ModuleProblem(lenet(), nnf.cross_entropy, images(), gradients="batched")
    problem._batched = type(problem._batched)(problem._models, products=True)
    problem._ways = [problem._batched]
    nodes = torch.arange(2)
    noise = torch.randn(2, problem.dim, generator=torch.Generator().manual_seed(1))
    return problem, problem.initial(nodes) + 0.01 * noise, nodes, torch.arange(3).expand(2, -1)


def by_loop(theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
    return ModuleProblem(lenet(), nnf.cross_entropy, images(), gradients="loop").gradient(theta, nodes, chosen)


# The functions around the kernels, with torch's convolution in place of the kernels


def one_by_one(work: Any, *values: Tensor) -> Tensor:
    assert all(value.ndim == 5 for value in values)
    assert len({len(value) for value in values}) == 1, "the kernels want as many models in each"
    return torch.stack([work(*row) for row in zip(*values, strict=True)])


def plain_forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Any, groups: int) -> Tensor:
    assert bias.shape == weight.shape[:2]
    made = one_by_one(lambda x, w: nnf.conv2d(x, w, padding=padding), inputs, weight) + bias[:, None, :, None, None]
    return made if groups == 1 else made.unflatten(2, (groups, -1)).transpose(1, 2)


def plain_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    planes = images.reshape(-1, *images.shape[-2:])
    values, places = nnf.max_pool2d(planes, 2, return_indices=True)
    wide = images.shape[-1]
    at = 2 * (places // wide % 2) + places % wide % 2
    size = (*images.shape[:-2], *values.shape[-2:])
    return values.reshape(size), at.to(torch.int8).reshape(size)


def plain_unpool(gradient: Tensor, at: Tensor, size: Any) -> Tensor:
    found = gradient.new_zeros(*gradient.shape[:-2], *size)
    high, wide = gradient.shape[-2:]
    for place in range(4):
        found[..., place // 2 : 2 * high : 2, place % 2 : 2 * wide : 2] = torch.where(at == place, gradient, 0.0)
    return found


def plain_by_inputs(gradient: Tensor, weight: Tensor, padding: Any) -> Tensor:
    sides = [gradient.shape[3 + at] + weight.shape[3 + at] - 1 - 2 * padding[at] for at in (0, 1)]
    size = (gradient.shape[1], weight.shape[2], *sides)
    return one_by_one(lambda g, w: nn_grad.conv2d_input(size, w, g, padding=padding), gradient, weight)


def plain_by_weight(gradient: Tensor, inputs: Tensor, kernel: Any, padding: Any) -> Tensor:
    size = (gradient.shape[2], inputs.shape[2], *kernel)
    return one_by_one(lambda g, x: nn_grad.conv2d_weight(x, size, g, padding=padding), gradient, inputs)


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "forward", plain_forward)
    monkeypatch.setattr(kernels, "by_inputs", plain_by_inputs)
    monkeypatch.setattr(kernels, "by_weight", plain_by_weight)
    monkeypatch.setattr(kernels, "pool", plain_pool)
    monkeypatch.setattr(kernels, "unpool", plain_unpool)
    monkeypatch.setattr(pooled_kernel, "forward", plain_pooled)
    monkeypatch.setattr(kernels, "available", lambda inputs, outputs=1: inputs.dtype == torch.float32)


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("check", [name for name in kernel_checks.CHECKS if "kernel" not in name])
def test_the_functions_around_the_kernels(check: str) -> None:
    kernel_checks.CHECKS[check]("cpu")


@pytest.mark.usefixtures("plain_kernels")
def test_inputs_that_models_share_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five models on one set of inputs are one model with five times the output channels."""
    seen: list[tuple[torch.Size, torch.Size]] = []

    def forward(inputs: Tensor, weight: Tensor, *more: Any) -> Tensor:
        seen.append((inputs.shape, weight.shape))
        return plain_forward(inputs, weight, *more)

    monkeypatch.setattr(kernels, "forward", forward)
    weights, biases, inputs = torch.randn(5, 4, 2, 3, 3), torch.randn(5, 4), torch.randn(6, 2, 7, 7)
    made = torch.func.vmap(kernel_checks.by_kernels, in_dims=(None, 0, 0))(inputs, weights, biases)
    assert seen == [((1, 6, 2, 7, 7), (1, 20, 2, 3, 3))]
    torch.testing.assert_close(
        made, torch.stack([kernel_checks.by_torch(inputs, *pair) for pair in zip(weights, biases, strict=True)])
    )


@pytest.mark.usefixtures("plain_kernels")
def test_only_what_is_asked_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*values: Any) -> Tensor:
        raise AssertionError("nobody asked for this derivative")

    weight, bias, inputs = torch.randn(4, 2, 3, 3), torch.randn(4), torch.randn(6, 2, 7, 7)
    monkeypatch.setattr(kernels, "by_inputs", never)
    (found,) = kernel_checks.gradients(lambda weight: kernel_checks.loss(weight, bias, inputs), weight)
    assert found.shape == weight.shape
    monkeypatch.setattr(kernels, "by_inputs", plain_by_inputs)
    monkeypatch.setattr(kernels, "by_weight", never)
    (found,) = kernel_checks.gradients(lambda inputs: kernel_checks.loss(weight, bias, inputs), inputs)
    assert found.shape == inputs.shape
    (found,) = kernel_checks.gradients(lambda bias: kernel_checks.loss(weight, bias, inputs), bias)
    assert found.shape == bias.shape


@pytest.mark.usefixtures("plain_kernels")
def test_stride_one_goes_to_the_kernels_and_the_rest_to_products(monkeypatch: pytest.MonkeyPatch) -> None:
    products, fast = counting(monkeypatch)
    inputs, weight, bias = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    asked = []
    # Padding beyond the kernel would have to cut gradients; it is left to products.
    for how in ({}, {"padding": (1, 2)}, {"stride": 2}, {"dilation": 2}, {"stride": (1,), "padding": [1]}, {"padding": (3, 0)}):
        with ConvolutionsOfMany():
            made = nnf.conv2d(inputs, weight, bias, **how)  # type: ignore[arg-type]
        torch.testing.assert_close(made, nnf.conv2d(inputs, weight, bias, **how), rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
        asked.append((fast.calls, products.calls))
    assert asked == [(1, 0), (2, 0), (2, 1), (2, 1), (3, 1), (3, 2)]
    with ConvolutionsOfMany():
        assert nnf.conv2d(inputs.double(), weight.double()).dtype == torch.float64
        torch.testing.assert_close(nnf.conv2d(inputs, weight), torch.conv2d(inputs, weight), rtol=1e-4, atol=1e-5)
    assert (fast.calls, products.calls) == (5, 3)


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"kernel_size": 2}, 1),
        ({"kernel_size": (2, 2), "stride": [2]}, 1),
        ({"kernel_size": 3}, 0),
        ({"kernel_size": 2, "stride": 1}, 0),
        ({"kernel_size": 2, "padding": 1}, 0),
        ({"kernel_size": 2, "dilation": 2}, 0),
        ({"kernel_size": 2, "ceil_mode": True}, 0),
        ({"kernel_size": 2, "return_indices": True}, 0),
    ],
    ids=str,
)
def test_the_usual_pooling_goes_to_the_kernels(how: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Counted(convolution.KernelMaxPool)
    monkeypatch.setattr(convolution, "KernelMaxPool", pools)
    images = torch.randn(2, 3, 7, 9)
    with ConvolutionsOfMany():
        made = nnf.max_pool2d(images, **how)
        layer = torch.nn.MaxPool2d(**how)(images)
    torch.testing.assert_close(made, nnf.max_pool2d(images, **how))
    torch.testing.assert_close(layer, nnf.max_pool2d(images, **how))
    assert pools.calls == 2 * expected


def test_pooling_without_the_kernels_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", None)
    images = torch.randn(2, 3, 7, 9)
    with ConvolutionsOfMany():
        assert torch.equal(nnf.max_pool2d(images, 2), torch.max_pool2d(images, 2))
        values, places = nnf.max_pool2d(images, 2, return_indices=True)
    assert torch.equal(values, nnf.max_pool2d(images, 2))
    assert torch.equal(places, nnf.max_pool2d(images, 2, return_indices=True)[1])


@pytest.mark.usefixtures("plain_kernels")
def test_a_problem_gets_the_same_gradients_through_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    products, fast = counting(monkeypatch)
    problem, theta, nodes, chosen = two_lenets()
    found = problem.gradient(theta, nodes, chosen)
    assert (fast.calls >= 2, products.calls) == (True, 0)
    torch.testing.assert_close(found, by_loop(theta, nodes, chosen), rtol=1e-4, atol=1e-6)


# The kernels themselves


@pytest.fixture(scope="module")
def interpreted() -> subprocess.CompletedProcess[str]:
    """All checks in Triton's interpreter, which wants a process of its own: the variable is read on import."""
    pytest.importorskip("triton")
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-m", "tests.kernel_checks"]
    return subprocess.run(words, cwd=ROOT, env=settings, text=True, capture_output=True, timeout=300)


@pytest.mark.parametrize("check", kernel_checks.CHECKS)
def test_the_kernels_in_tritons_interpreter(check: str, interpreted: subprocess.CompletedProcess[str]) -> None:
    assert interpreted.returncode == 0, interpreted.stderr
    assert check in interpreted.stdout.splitlines(), interpreted.stdout + interpreted.stderr


@ON_CUDA
@pytest.mark.parametrize("check", kernel_checks.CHECKS)
def test_the_kernels_on_cuda(check: str) -> None:
    pytest.importorskip("triton")
    kernel_checks.CHECKS[check]("cuda")


@ON_CUDA
def test_a_problem_on_cuda_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    products, fast = counting(monkeypatch)
    shards = Shards(*(part.to("cuda") for part in images()))
    problem = ModuleProblem(lenet(), nnf.cross_entropy, shards, gradients="batched")
    nodes, chosen = torch.arange(2, device="cuda"), torch.arange(3, device="cuda").expand(2, -1)
    theta = problem.initial(nodes)
    found = problem.gradient(theta, nodes, chosen)
    assert (fast.calls >= 2, products.calls) == (True, 0)
    expected = by_loop(theta.cpu(), nodes.cpu(), chosen.cpu())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-5)
