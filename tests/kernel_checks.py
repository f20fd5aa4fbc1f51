"""Checks of the Triton kernels against torch's convolution in float64, on any device that can run them.

`python -m tests.kernel_checks` with TRITON_INTERPRET=1 set runs them on a CPU; tests/test_kernels.py does so, and calls them
directly where there is CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as nnf
from torch.nn import grad as nn_grad

from bymi.problems import fused, kernels

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
        expected = each(lambda x, w, padding=padding: nnf.conv2d(x, w, padding=padding), inputs, weight)
        close(kernels.forward(inputs, weight, padding), expected)
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


PADDING = (1, 2)


def by_kernels(inputs: Tensor, weight: Tensor) -> Tensor:
    return fused.Convolution.apply(inputs, weight, PADDING)


def by_torch(inputs: Tensor, weight: Tensor) -> Tensor:
    return nnf.conv2d(inputs, weight, padding=PADDING)


def loss(weight: Tensor, inputs: Tensor, convolve: Callable[[Tensor, Tensor], Tensor] = by_kernels) -> Tensor:
    """Uneven and not linear, so that every entry of the derivative depends on all that went in."""
    output = convolve(inputs, weight)
    uneven = torch.linspace(-1, 2, output.numel(), dtype=output.dtype, device=output.device)
    return (output.tanh() * uneven.view(output.shape)).sum()


def plain(weight: Tensor, inputs: Tensor) -> Tensor:
    return loss(weight.double().cpu(), inputs.double().cpu(), by_torch)


def plain_gradients(weight: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """By weight and by inputs, with torch's own convolution and autograd."""
    both = weight.double().cpu().requires_grad_(), inputs.double().cpu().requires_grad_()
    by_weight, by_inputs = torch.autograd.grad(plain(*both), both)
    return by_weight, by_inputs


def expect(found: Any, pairs: list[tuple[Tensor, Tensor]]) -> None:
    for place, values in enumerate(found):
        close(values, torch.stack([plain_gradients(*pair)[place] for pair in pairs]))


def functions_can_be_batched(device: str) -> None:
    """All nestings of vmap and grad that a problem may ask for."""
    inputs, weights = draw(4, 2, 2, 5, 4, seed=0, device=device), draw(4, 3, 2, 3, 2, seed=1, device=device)
    pairs = list(zip(weights, inputs, strict=True))
    both = grad(loss, argnums=(0, 1))
    close(by_kernels(inputs[0], weights[0]), by_torch(inputs[0].double().cpu(), weights[0].double().cpu()))
    expect([value[None] for value in both(weights[0], inputs[0])], pairs[:1])
    # Each model on its own inputs, wherever the dimension of the models stands.
    expect(vmap(both)(weights, inputs), pairs)
    expect(vmap(both, in_dims=(3, 2))(weights.movedim(0, 3), inputs.movedim(0, 2)), pairs)
    # All models on the same inputs, and one model on all.
    expect(vmap(both, in_dims=(0, None))(weights, inputs[0]), [(weight, inputs[0]) for weight in weights])
    expect(vmap(both, in_dims=(2, None))(weights.movedim(0, 2), inputs[0]), [(weight, inputs[0]) for weight in weights])
    expect(vmap(both, in_dims=(None, 0))(weights[0], inputs), [(weights[0], x) for x in inputs])
    # grad outside, vmap inside.
    expect(grad(lambda *values: vmap(loss)(*values).sum(), argnums=(0, 1))(weights, inputs), pairs)
    shared = grad(lambda x: vmap(loss, in_dims=(0, None))(weights, x).sum())(inputs[0])
    close(shared, sum(plain_gradients(weight, inputs[0])[1] for weight in weights))  # type: ignore[arg-type]
    nested(device, inputs, weights)


def nested(device: str, inputs: Tensor, weights: Tensor) -> None:
    grid = torch.stack([torch.stack([plain(weight, x) for weight in weights]) for x in inputs])
    close(vmap(vmap(loss, in_dims=(0, None)), in_dims=(None, 0))(weights, inputs), grid)
    close(vmap(vmap(loss, in_dims=(None, 0)), in_dims=(0, None))(weights, inputs), grid.T)
    # Some models for each set of inputs: how the losses of a neighbourhood are found.
    many = draw(4, 5, 3, 2, 3, 2, seed=3, device=device)
    found = vmap(vmap(loss, in_dims=(0, None)))(many, inputs)
    close(found, torch.stack([torch.stack([plain(w, x) for w in row]) for row, x in zip(many, inputs, strict=True)]))
    slopes = vmap(vmap(grad(loss), in_dims=(0, None)))(many, inputs)
    close(slopes[3, 4], plain_gradients(many[3, 4], inputs[3])[0])
    close(slopes[0, 2], plain_gradients(many[0, 2], inputs[0])[0])
    # The images of a model one by one.
    images = vmap(vmap(lambda weight, image: loss(weight, image[None]), in_dims=(None, 0)))(weights, inputs)
    close(images[2, 1], plain(weights[2], inputs[2, 1:2]))


def main() -> int:
    kernels_are_conv2d("cpu")
    functions_can_be_batched("cpu")
    print("the kernels agree with torch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
