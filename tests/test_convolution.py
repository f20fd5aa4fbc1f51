"""Convolutions written as matrix products equal torch's own, alone and under every nesting of vmap and grad in use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as nnf
from torch.utils._python_dispatch import TorchDispatchMode

from bymi.problems import vmap_convolution
from bymi.problems.vmap_convolution import ConvolutionsOfMany

KERNELS = [(1, 1), (3, 3), (5, 2), (2, 4)]
STRIDES: list[Any] = [1, 2, (3, 2)]
PADDINGS: list[Any] = [0, 1, (2, 0)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_products(*args: Any, **settings: Any) -> Tensor:
    with ConvolutionsOfMany():
        return nnf.conv2d(*args, **settings)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=1e-11)


class Kernels(TorchDispatchMode):
    """Whether torch's own convolution ran inside the block."""

    convolved = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch would import its compiler, in seconds, to skip it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.convolved |= "convolution" in func.__name__
        return func(*args, **(kwargs or {}))


def value_and_gradients(convolve: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> list[Tensor]:
    """The convolution and the derivatives of an uneven sum of it by everything that went in."""
    given = [value.clone().requires_grad_() for value in (inputs, weight, bias) if value is not None]
    output = convolve(*given, **settings)
    weights = draw(*output.shape, seed=9)
    return [output.detach(), *torch.autograd.grad((weights * output).sum(), given)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_is_conv2d(kernel: tuple[int, int], stride: Any, padding: Any, with_bias: bool) -> None:
    """7 x 8 pixels: with some strides the last windows do not reach the edge."""
    inputs, weight = draw(3, 2, 7, 8), draw(4, 2, *kernel, seed=1)
    bias = draw(4, seed=2) if with_bias else None
    ours = value_and_gradients(by_products, inputs, weight, bias, stride=stride, padding=padding)
    theirs = value_and_gradients(nnf.conv2d, inputs, weight, bias, stride=stride, padding=padding)
    for left, right in zip(ours, theirs, strict=True):
        close(left, right)


@given(st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_it_is_conv2d_for_any_sizes(data: st.DataObject) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel, stride, padding, count = pair(1, 4), pair(1, 4), pair(0, 3), pair(1, 3)
    more = pair(0, 4)
    sides = [max(1, size - 2 * pad) + extra for size, pad, extra in zip(kernel, padding, more, strict=True)]
    inputs, weight = draw(count[0], count[1], *sides), draw(3, count[1], *kernel, seed=1)
    ours = value_and_gradients(by_products, inputs, weight, None, stride=stride, padding=padding)
    theirs = value_and_gradients(nnf.conv2d, inputs, weight, None, stride=stride, padding=padding)
    for left, right in zip(ours, theirs, strict=True):
        close(left, right)


def test_one_patch_by_hand() -> None:
    """A 2 x 2 image and a 2 x 2 kernel without padding: one number, and each is the other's derivative."""
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    kernel = torch.tensor([[[[10.0, 20.0], [30.0, 40.0]]]])
    assert by_products(image, kernel).tolist() == [[[[300.0]]]]
    by_image, by_kernel = grad(lambda *both: by_products(*both).sum(), argnums=(0, 1))(image, kernel)
    assert torch.equal(by_image, kernel)
    assert torch.equal(by_kernel, image)


COVERED: list[dict[str, Any]] = [{}, {"stride": 2}, {"padding": (1, 0)}, {"stride": [1, 2], "padding": 2}]
NOT_COVERED: list[dict[str, Any]] = [{"groups": 2}, {"dilation": 2}, {"dilation": (1, 2)}, {"padding": "same"}]


@pytest.mark.parametrize("settings", [*COVERED, *NOT_COVERED], ids=str)
def test_what_is_not_covered_stays_torchs_own(settings: dict[str, Any]) -> None:
    inputs, weight = draw(2, 4, 9, 9), draw(6, 4 // settings.get("groups", 1), 3, 3, seed=1)
    with Kernels() as kernels:
        ours = by_products(inputs, weight, draw(6, seed=2), **settings)
    assert kernels.convolved == (settings in NOT_COVERED)
    close(ours, nnf.conv2d(inputs, weight, draw(6, seed=2), **settings))


def test_an_image_without_a_batch_stays_torchs_own() -> None:
    image, weight = draw(2, 7, 7), draw(3, 2, 3, 3, seed=1)
    with Kernels() as kernels:
        assert torch.equal(by_products(image, weight), nnf.conv2d(image, weight))
    assert kernels.convolved


def test_layers_use_it_inside_the_block_only() -> None:
    layer = torch.nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect").double()
    inputs = draw(2, 2, 6, 6)
    with Kernels() as kernels, ConvolutionsOfMany():
        inside = layer(inputs)
    assert not kernels.convolved
    with Kernels() as kernels:
        outside = layer(inputs)
    assert kernels.convolved
    close(inside, outside)


def test_other_calls_pass_through() -> None:
    images, weight = draw(1, 2, 6, 6), draw(3, 6, 2)
    pooled, line = nnf.max_pool2d(images, 2), nnf.conv1d(images[0], weight)
    with ConvolutionsOfMany():
        assert torch.equal(nnf.max_pool2d(images, 2), pooled)
        assert torch.equal(nnf.conv1d(images[0], weight), line)


MODELS, WEIGHTS = draw(5, 3, 2, 6, 7), draw(5, 4, 2, 3, 2, seed=1)  # five models, three images each
HOW: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2)}


def loss(weight: Tensor, inputs: Tensor, convolve: Any = by_products) -> Tensor:
    """Uneven and not linear, so that every entry of the derivative depends on all that went in."""
    output = convolve(inputs, weight, **HOW)
    return (output.tanh() * torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view(output.shape)).sum()


def plain(weight: Tensor, inputs: Tensor) -> Tensor:
    return loss(weight, inputs, nnf.conv2d)


def gradients_of(weight: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """By weight and by inputs, with torch's own convolution and autograd."""
    both = weight.clone().requires_grad_(), inputs.clone().requires_grad_()
    by_weight, by_inputs = torch.autograd.grad(plain(*both), both)
    return by_weight, by_inputs


def expect(found: tuple[Tensor, ...], pairs: list[tuple[Tensor, Tensor]]) -> None:
    for place, values in enumerate(found):
        close(values, torch.stack([gradients_of(*pair)[place] for pair in pairs]))


def test_gradients_of_many_models() -> None:
    pairs = list(zip(WEIGHTS, MODELS, strict=True))
    expect(vmap(grad(loss, argnums=(0, 1)))(WEIGHTS, MODELS), pairs)
    # Wherever the dimension of the models stands.
    moved = WEIGHTS.movedim(0, 3), MODELS.movedim(0, 2)
    expect(vmap(grad(loss, argnums=(0, 1)), in_dims=(3, 2))(*moved), pairs)


def test_gradients_of_many_models_on_the_same_inputs() -> None:
    pairs = [(weight, MODELS[0]) for weight in WEIGHTS]
    expect(vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None))(WEIGHTS, MODELS[0]), pairs)
    expect(vmap(grad(loss, argnums=(0, 1)), in_dims=(2, None))(WEIGHTS.movedim(0, 2), MODELS[0]), pairs)


def test_gradients_of_one_model_on_many_inputs() -> None:
    pairs = [(WEIGHTS[0], inputs) for inputs in MODELS]
    expect(vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0))(WEIGHTS[0], MODELS), pairs)


def test_a_derivative_of_everything_at_once() -> None:
    """grad outside, vmap inside: the total over models, by what they share and by what each has of its own."""
    by_weight, by_inputs = grad(lambda *both: vmap(loss)(*both).sum(), argnums=(0, 1))(WEIGHTS, MODELS)
    expect((by_weight, by_inputs), list(zip(WEIGHTS, MODELS, strict=True)))
    shared = grad(lambda inputs: vmap(loss, in_dims=(0, None))(WEIGHTS, inputs).sum())(MODELS[0])
    close(shared, sum(gradients_of(weight, MODELS[0])[1] for weight in WEIGHTS))  # type: ignore[arg-type]
    shared = grad(lambda weight: vmap(loss, in_dims=(None, 0))(weight, MODELS).sum())(WEIGHTS[0])
    close(shared, sum(gradients_of(WEIGHTS[0], inputs)[0] for inputs in MODELS))  # type: ignore[arg-type]


MANY = draw(5, 6, 4, 2, 3, 2, seed=3)  # six models for each of five sets of inputs


def test_models_of_a_row_share_their_inputs() -> None:
    """The inner vmap over models, the outer one over inputs: how losses of many models are found."""
    found = vmap(vmap(loss, in_dims=(0, None)))(MANY, MODELS)
    close(
        found,
        torch.stack([torch.stack([plain(weight, inputs) for weight in row]) for row, inputs in zip(MANY, MODELS, strict=True)]),
    )
    found = vmap(vmap(loss, in_dims=(0, None)), in_dims=(None, 0))(WEIGHTS, MODELS)
    close(found, torch.stack([torch.stack([plain(weight, inputs) for weight in WEIGHTS]) for inputs in MODELS]))
    slopes = vmap(vmap(grad(loss), in_dims=(0, None)))(MANY, MODELS)
    close(slopes[4, 5], gradients_of(MANY[4, 5], MODELS[4])[0])
    close(slopes[0, 3], gradients_of(MANY[0, 3], MODELS[0])[0])


def test_the_images_of_a_model_share_its_weights() -> None:
    """The inner vmap over samples, the outer one over models that have their own."""
    found = vmap(vmap(lambda weight, image: loss(weight, image[None]), in_dims=(None, 0)))(WEIGHTS, MODELS)
    close(found[2, 1], plain(WEIGHTS[2], MODELS[2, 1:2]))
    assert found.shape == (5, 3)


def test_arguments_stay_as_they_were() -> None:
    before = WEIGHTS.clone(), MODELS.clone()
    vmap(grad(loss, argnums=(0, 1)))(WEIGHTS, MODELS)
    assert torch.equal(WEIGHTS, before[0])
    assert torch.equal(MODELS, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_dtype_is_that_of_the_inputs(dtype: torch.dtype) -> None:
    assert by_products(MODELS[0].to(dtype), WEIGHTS[0].to(dtype), **HOW).dtype == dtype


def test_arguments_by_name() -> None:
    inputs, weight, bias = MODELS[0], WEIGHTS[0], draw(4, seed=2)
    with ConvolutionsOfMany():
        ours = nnf.conv2d(input=inputs, weight=weight, bias=bias, **HOW)
    close(ours, nnf.conv2d(inputs, weight, bias, **HOW))


def test_one_number_for_both_directions() -> None:
    settings: Any = {"stride": (2,), "padding": [1]}
    close(by_products(MODELS[0], WEIGHTS[0], **settings), nnf.conv2d(MODELS[0], WEIGHTS[0], **settings))


def test_inputs_of_all_models_are_shared() -> None:
    """The inner vmap over inputs, the outer one over models: the other way round than above."""
    found = vmap(vmap(loss, in_dims=(None, 0)), in_dims=(0, None))(WEIGHTS, MODELS)
    close(found, torch.stack([torch.stack([plain(weight, inputs) for inputs in MODELS]) for weight in WEIGHTS]))


def test_cross_entropy_of_many_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients are torch's own, with samples that do not count, and soft labels go to torch."""
    ours, calls = vmap_convolution._cross_entropy, []
    monkeypatch.setattr(vmap_convolution, "_cross_entropy", lambda *args: calls.append(1) or ours(*args))
    outputs, labels = draw(3, 6, 4), torch.tensor([0, 3, -100, 2, 1, 0]).expand(3, 6)

    def by_gathering(values: Tensor, targets: Tensor) -> Tensor:
        with ConvolutionsOfMany():
            return nnf.cross_entropy(values, targets)

    for function in (lambda f: vmap(f), lambda f: vmap(grad(f))):
        close(function(by_gathering)(outputs, labels), function(nnf.cross_entropy)(outputs, labels))
    assert len(calls) == 2
    soft = torch.softmax(draw(3, 6, 4, seed=1), 2)
    close(vmap(by_gathering)(outputs, soft), vmap(nnf.cross_entropy)(outputs, soft))
    assert len(calls) == 2
