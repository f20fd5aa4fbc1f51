"""Checks of the Triton kernels against torch's convolution in float64, on any device that can run them.

`python -m tests.kernel_checks` with TRITON_INTERPRET=1 set runs them on a CPU; tests/test_triton_kernels.py does so, and calls
them directly where there is CUDA.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as nnf
from torch.nn import grad as nn_grad

from bymi.problems import triton_convolution as kernels
from bymi.problems import triton_pooled_convolution as pooled_kernel
from bymi.problems.pooled_convolution import KernelPooledConvolution
from bymi.problems.vmap_convolution import KernelConvolution, KernelMaxPool

# models, samples, channels, height, width, outputs, kernel, padding
CASES: list[tuple[int, int, int, int, int, int, tuple[int, int], tuple[int, int]]] = [
    (1, 1, 1, 1, 1, 1, (1, 1), (0, 0)),
    (2, 3, 2, 5, 4, 3, (3, 2), (0, 0)),  # neither side a power of two
    (3, 2, 1, 7, 7, 6, (5, 5), (2, 2)),  # LeNet's first layer, small
    (2, 2, 3, 4, 5, 17, (2, 2), (1, 0)),  # more output channels than one program takes
    (2, 2, 9, 4, 4, 2, (3, 3), (0, 1)),  # more taps than one program takes
    (2, 3, 2, 3, 3, 2, (1, 1), (1, 2)),  # padding beyond the kernel: its gradient cuts
    (1, 20, 1, 12, 12, 2, (3, 3), (1, 1)),  # more pixels than a program of the weight gradient takes in one go
    (1, 9, 1, 31, 32, 1, (2, 1), (0, 0)),  # more pixels than a program of the forward kernel takes
]


def draw(*shape: int, seed: int, device: str) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def close(found: Tensor, expected: Tensor) -> None:
    """Float32 to rounding: sums of a thousand numbers of size one."""
    torch.testing.assert_close(found.double().cpu(), expected.double().cpu(), rtol=1e-4, atol=1e-4)


def each(work: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Model by model, in float64."""
    return torch.stack([work(*row) for row in zip(*(value.double().cpu() for value in values), strict=True)])


def kernels_are_conv2d(device: str) -> None:
    for models, count, channels, high, wide, outputs, kernel, padding in CASES:
        inputs = draw(models, count, channels, high, wide, seed=0, device=device)
        weight = draw(models, outputs, channels, *kernel, seed=1, device=device)
        bias = draw(models, outputs, seed=3, device=device)
        expected = each(lambda x, w, padding=padding: nnf.conv2d(x, w, padding=padding), inputs, weight)
        close(kernels.forward(inputs, weight, None, padding), expected)
        with_bias = expected + bias.double().cpu()[:, None, :, None, None]
        close(kernels.forward(inputs, weight, bias, padding), with_bias)
        if outputs % 3 == 0:  # three models that share their inputs, one after the other
            grouped = with_bias.unflatten(2, (3, outputs // 3)).transpose(1, 2)
            close(kernels.forward(inputs, weight, bias, padding, 3), grouped)
        towards = draw(*expected.shape, seed=2, device=device)
        check_gradients(inputs, weight, towards, padding)
        # As other layers leave them: not contiguous, or the same for all pixels.
        check_gradients(turned(inputs), turned(weight), turned(towards), padding)
        check_gradients(inputs, weight, towards[..., :1, :1].expand(towards.shape), padding)


def turned(values: Tensor) -> Tensor:
    """The same values in another order in memory."""
    return values.transpose(-1, -3).contiguous().transpose(-1, -3)


def check_gradients(inputs: Tensor, weight: Tensor, towards: Tensor, padding: tuple[int, int]) -> None:
    kernel = (weight.shape[3], weight.shape[4])
    close(
        kernels.by_inputs(towards, weight, padding),
        each(lambda g, w: nn_grad.conv2d_input(inputs.shape[1:], w, g, padding=padding), towards, weight),
    )
    close(
        kernels.by_weight(towards, inputs, kernel, padding),
        each(lambda g, x: nn_grad.conv2d_weight(x, weight.shape[1:], g, padding=padding), towards, inputs),
    )


PADDING = (1, 1)


def by_kernels(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return KernelConvolution.apply(inputs, weight, bias, PADDING, 1)


def by_torch(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return nnf.conv2d(inputs, weight, bias, padding=PADDING)


def loss(weight: Tensor, bias: Tensor, inputs: Tensor, convolve: Callable[..., Tensor] = by_kernels) -> Tensor:
    """Uneven and not linear, so that every entry of the derivative depends on all that went in."""
    return uneven(convolve(inputs, weight, bias).tanh())


def uneven(values: Tensor) -> Tensor:
    """A sum in which every value counts differently."""
    return (values * torch.linspace(-1, 2, values.numel(), dtype=values.dtype, device=values.device).view(values.shape)).sum()


def gradients(work: Callable[..., Tensor], *values: Tensor) -> tuple[Tensor, ...]:
    """By each of the values, by autograd around vmap, which is how a problem computes the gradients of many models."""
    given = [value.clone().requires_grad_() for value in values]
    return torch.autograd.grad(work(*given), given)


def plain(*values: Tensor) -> Tensor:
    return loss(*(value.double().cpu() for value in values), by_torch)


def plain_gradients(*values: Tensor) -> tuple[Tensor, ...]:
    """By weight, by bias and by inputs, with torch's own convolution and autograd."""
    given = [value.double().cpu().requires_grad_() for value in values]
    return torch.autograd.grad(plain(*given), given)


def expect(in_dims: tuple[int | None, ...], *values: Tensor) -> None:
    """Check gradients of many models by weights, biases and inputs, computed as a problem does: from the sum of all losses.

    What models share, with None in `in_dims`, has the sum of their gradients.
    """
    found = gradients(lambda *given: vmap(loss, in_dims=in_dims)(*given).sum(), *values)
    pairs = list(zip(values, in_dims, strict=True))
    models = next(value.shape[dim] for value, dim in pairs if dim is not None)
    cases = [[value if dim is None else value.select(dim, model) for value, dim in pairs] for model in range(models)]
    expected = [torch.stack(each) for each in zip(*(plain_gradients(*case) for case in cases), strict=True)]
    for value, each, dim in zip(found, expected, in_dims, strict=True):
        close(value, each.sum(0) if dim is None else each.movedim(0, dim))


def convolutions_can_be_batched(device: str) -> None:
    """All nestings of vmap that a problem may ask for."""
    inputs, weights = draw(4, 2, 2, 5, 4, seed=0, device=device), draw(4, 3, 2, 3, 2, seed=1, device=device)
    biases = draw(4, 3, seed=2, device=device)
    close(loss(weights[0], biases[0], inputs[0]), plain(weights[0], biases[0], inputs[0]))
    alone = gradients(loss, weights[0], biases[0], inputs[0])
    for value, expected in zip(alone, plain_gradients(weights[0], biases[0], inputs[0]), strict=True):
        close(value, expected)
    # Each model on its own inputs, wherever the dimension of the models stands.
    expect((0, 0, 0), weights, biases, inputs)
    expect((3, 1, 2), weights.movedim(0, 3), biases.mT, inputs.movedim(0, 2))
    # Models that share their inputs; that share their bias; one model on all inputs.
    expect((0, 0, None), weights, biases, inputs[0])
    expect((2, 0, None), weights.movedim(0, 2), biases, inputs[0])
    expect((0, None, None), weights, biases[0], inputs[0])
    expect((None, 0, None), weights[0], biases, inputs[0])
    expect((None, None, 0), weights[0], biases[0], inputs)
    nested(device, inputs, weights, biases)


def nested(device: str, inputs: Tensor, weights: Tensor, biases: Tensor) -> None:
    pairs = list(zip(weights, biases, strict=True))
    grid = torch.stack([torch.stack([plain(*pair, x) for pair in pairs]) for x in inputs])
    close(vmap(vmap(loss, in_dims=(0, 0, None)), in_dims=(None, None, 0))(weights, biases, inputs), grid)
    close(vmap(vmap(loss, in_dims=(None, None, 0)), in_dims=(0, 0, None))(weights, biases, inputs), grid.T)
    # Some models for each set of inputs: how the losses of a neighbourhood are found.
    many, offsets = draw(4, 5, 3, 2, 3, 2, seed=3, device=device), draw(4, 5, 3, seed=4, device=device)
    rows = [list(zip(*row, strict=True)) for row in zip(many, offsets, strict=True)]
    expected = torch.stack([torch.stack([plain(*pair, x) for pair in row]) for row, x in zip(rows, inputs, strict=True)])
    close(vmap(vmap(loss, in_dims=(0, 0, None)))(many, offsets, inputs), expected)
    slopes = gradients(lambda *both: vmap(vmap(loss, in_dims=(0, 0, None)))(*both, inputs).sum(), many, offsets)
    for i, j in ((3, 4), (0, 2)):
        by_weight, by_bias, _ = plain_gradients(many[i, j], offsets[i, j], inputs[i])
        close(slopes[0][i, j], by_weight)
        close(slopes[1][i, j], by_bias)
    # All models of several groups on the same inputs.
    found = vmap(vmap(loss, in_dims=(0, 0, None)), in_dims=(0, 0, None))(many, offsets, inputs[0])
    close(found[2, 3], plain(many[2, 3], offsets[2, 3], inputs[0]))
    close(found[3, 0], plain(many[3, 0], offsets[3, 0], inputs[0]))
    # The images of a model one by one.
    each_image = vmap(vmap(lambda w, b, image: loss(w, b, image[None]), in_dims=(None, None, 0)))
    close(each_image(weights, biases, inputs)[2, 1], plain(weights[2], biases[2], inputs[2, 1:2]))


def one_model_has_the_inputs_to_itself(device: str) -> None:
    """As many models on the same inputs, but the number is one."""
    inputs, weight = draw(3, 2, 2, 5, 4, seed=0, device=device), draw(3, 1, 3, 2, 3, 2, seed=1, device=device)
    bias = draw(3, 1, 3, seed=2, device=device)
    expect((0, 0, None), weight[0], bias[0], inputs[0])
    found = vmap(vmap(loss, in_dims=(0, 0, None)))(weight, bias, inputs)
    close(found, torch.stack([plain(*case) for case in zip(weight[:, 0], bias[:, 0], inputs, strict=True)])[:, None])


def pool_by_kernels(images: Tensor) -> Tensor:
    return KernelMaxPool.apply(images)[0]


def pooled_loss(images: Tensor, pool: Callable[[Tensor], Tensor] = pool_by_kernels) -> Tensor:
    return uneven(pool(images).sin())


def by_pooling(images: Tensor) -> Tensor:
    """The gradient with torch's own pooling."""
    given = images.double().cpu().requires_grad_()
    (found,) = torch.autograd.grad(pooled_loss(given, lambda x: nnf.max_pool2d(x, 2)), given)
    return found


def pooling_is_max_pool2d(device: str) -> None:
    """Whole and odd sides, few squares and more than one program takes, ties, and values that are no numbers."""
    for shape in ((1, 1, 2, 2), (2, 3, 4, 6), (2, 3, 5, 7), (3, 1, 2, 3), (2, 5, 24, 26)):
        images = draw(*shape, seed=0, device=device)
        for some in (images, images.round(), turned(images)):
            close(pool_by_kernels(some), nnf.max_pool2d(some.double().cpu(), 2))
            close(gradients(pooled_loss, some)[0], by_pooling(some))
    wild = torch.tensor([[[[torch.nan, 1.0, -torch.inf, -torch.inf], [2.0, 3.0, -torch.inf, torch.inf]]]], device=device)
    assert torch.equal(pool_by_kernels(wild).cpu().nan_to_num(7.0, posinf=9.0), torch.tensor([[[[7.0, 9.0]]]]))


def pooling_can_be_batched(device: str) -> None:
    images = draw(4, 3, 2, 6, 5, seed=0, device=device)
    expected = torch.stack([by_pooling(some) for some in images])
    close(gradients(lambda every: vmap(pooled_loss)(every).sum(), images)[0], expected)
    (moved,) = gradients(lambda every: vmap(pooled_loss, in_dims=3)(every).sum(), images.movedim(0, 3))
    close(moved.movedim(3, 0), expected)
    (single,) = gradients(lambda every: vmap(vmap(lambda image: pooled_loss(image[None])))(every).sum(), images)
    close(single[2, 1], by_pooling(images[2, 1:2])[0])


def pooled_by_torch(
    inputs: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int] = PADDING, relu: bool = True
) -> Tensor:
    """One model, in float64."""
    inputs, weight, bias = (value.double().cpu() for value in (inputs, weight, bias))
    pooled = nnf.max_pool2d(nnf.conv2d(inputs, weight, bias, padding=padding), 2)
    return pooled.relu() if relu else pooled


def the_pooled_kernel_is_torchs_layers(device: str) -> None:
    """With and without ReLU, several models on the same inputs, any order in memory, for sizes that leave a square."""
    for models, count, channels, high, wide, outputs, kernel, padding in CASES[:-1]:
        if high + 2 * padding[0] <= kernel[0] or wide + 2 * padding[1] <= kernel[1]:
            continue
        inputs = draw(models, count, channels, high, wide, seed=0, device=device)
        weight, bias = (
            draw(models, outputs, channels, *kernel, seed=1, device=device),
            draw(models, outputs, seed=3, device=device),
        )
        for relu in (True, False):
            cases = zip(inputs, weight, bias, strict=True)
            expected = torch.stack([pooled_by_torch(*case, padding, relu) for case in cases])
            close(pooled_kernel.forward(inputs, weight, bias, padding, relu), expected)
            close(pooled_kernel.forward(turned(inputs), turned(weight), bias.mT.contiguous().mT, padding, relu), expected)
            if outputs % 3 == 0:
                grouped = expected.unflatten(2, (3, outputs // 3)).transpose(1, 2)
                close(pooled_kernel.forward(inputs, weight, bias, padding, relu, 3), grouped)


def the_pooled_kernel_keeps_what_is_no_number(device: str) -> None:
    """NaN and infinite pixels and weights reach the squares that they reach in torch, and leave others as they were."""
    for value in (torch.nan, torch.inf, -torch.inf):
        inputs, weight = draw(2, 2, 2, 9, 8, seed=0, device=device), draw(2, 3, 2, 3, 2, seed=1, device=device)
        bias = draw(2, 3, seed=2, device=device)
        inputs[0, 0, 1, 4, 3] = value
        weight[1, 2, 0, 1, 1] = value
        for relu in (True, False):
            found = pooled_kernel.forward(inputs, weight, bias, (1, 0), relu)
            cases = zip(inputs, weight, bias, strict=True)
            expected = torch.stack([pooled_by_torch(*case, (1, 0), relu) for case in cases])
            torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def the_pooled_kernel_has_single_precision(device: str) -> None:
    """Its error is below that of float32 sums: 256 products of numbers that tensor cores would round to three digits."""
    inputs, weight = draw(4, 8, 16, 13, 13, seed=0, device=device), draw(4, 16, 16, 4, 4, seed=1, device=device)
    bias = draw(4, 16, seed=2, device=device)
    expected = torch.stack([pooled_by_torch(*case, (0, 0), False) for case in zip(inputs, weight, bias, strict=True)])
    found = pooled_kernel.forward(inputs, weight, bias, (0, 0), False).double().cpu()
    assert float((found - expected).abs().max()) < 1e-6 * float(expected.abs().max())


def by_pooled_kernel(weight: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    return KernelPooledConvolution.apply(inputs, weight, bias, PADDING, True, 1)


def pooled_convolutions_can_be_batched(device: str) -> None:
    """Many models on the inputs of each of several receivers, and the other nestings of vmap."""
    inputs, weights = draw(4, 2, 2, 5, 4, seed=0, device=device), draw(4, 5, 3, 2, 3, 2, seed=1, device=device)
    biases = draw(4, 5, 3, seed=2, device=device)
    pairs = [list(zip(*row, strict=True)) for row in zip(weights, biases, strict=True)]
    expected = torch.stack(
        [torch.stack([pooled_by_torch(x, *pair) for pair in row]) for row, x in zip(pairs, inputs, strict=True)]
    )
    rows = vmap(by_pooled_kernel, in_dims=(0, 0, None))
    close(vmap(rows)(weights, biases, inputs), expected)
    close(vmap(rows, in_dims=(2, 1, 3))(weights.movedim(0, 2), biases.movedim(0, 1), inputs.movedim(0, 3)), expected)
    close(vmap(by_pooled_kernel)(weights[:, 1], biases[:, 1], inputs), expected[:, 1])
    close(rows(weights[2], biases[2], inputs[2]), expected[2])
    close(rows(weights[2, :1], biases[2, :1], inputs[2]), expected[2, :1])
    close(by_pooled_kernel(weights[3, 4], biases[3, 4], inputs[3]), expected[3, 4])
    everything = vmap(rows, in_dims=(0, 0, None))(weights, biases, inputs[1])
    close(everything[1], expected[1])
    close(everything[3, 2], pooled_by_torch(inputs[1], weights[3, 2], biases[3, 2]))


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        kernels_are_conv2d,
        convolutions_can_be_batched,
        one_model_has_the_inputs_to_itself,
        pooling_is_max_pool2d,
        pooling_can_be_batched,
        the_pooled_kernel_is_torchs_layers,
        the_pooled_kernel_keeps_what_is_no_number,
        the_pooled_kernel_has_single_precision,
        pooled_convolutions_can_be_batched,
    )
}


def main() -> int:
    """One line a check: its name, and what is wrong if anything is."""
    for name, check in CHECKS.items():
        try:
            check("cpu")
            print(name)
        except Exception as problem:  # the others are run all the same
            traceback.print_exc()
            print(name, type(problem).__name__, str(problem).replace("\n", " "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
