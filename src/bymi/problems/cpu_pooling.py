"""2 x 2 max pooling on a CPU: after any layer, or in one pass with a convolution of few channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_FEW = 8  # output channels from which on a plain convolution fills most of a core's vector units


def halves(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether the layer is a 2 x 2 max pooling that covers all pixels."""
    if type(layer) is not nn.MaxPool2d or inputs.shape[-1] % 2 or inputs.shape[-2] % 2:
        return False
    usual = _pair(layer.kernel_size) == (2, 2) == _pair(layer.stride) and _pair(layer.padding) == (0, 0)
    return usual and _pair(layer.dilation) == (1, 1)


def joins(layer: nn.Module, following: nn.Module, inputs: Tensor) -> bool:
    """Whether `layer` is a convolution of few channels whose output the `following` layer max-pools 2 x 2."""
    if type(layer) is not nn.Conv2d or layer.out_channels >= _FEW or layer.groups > 1 or inputs.ndim != 4:
        return False
    (down, right), (high, wide) = _pair(layer.padding), layer.kernel_size
    output = inputs[..., :1, :1].expand(-1, -1, inputs.shape[2] + 2 * down + 1 - high, inputs.shape[3] + 2 * right + 1 - wide)
    return layer.stride == (1, 1) == layer.dilation and halves(following, output)


def four_places(weight: Tensor) -> Tensor:
    """Kernels [r, o, c, h, w] shifted to the four positions of a 2 x 2 window, as channels [r, 4 o, c, h + 1, w + 1].

    A convolution with these at stride 2 computes the plain convolution at all four positions at once, and four times as many
    channels fill the vector units of a core.
    """
    return torch.cat([nnf.pad(weight, (right, 1 - right, down, 1 - down)) for down in (0, 1) for right in (0, 1)], 1)


class LargestOfFour(torch.autograd.Function):
    """Maximum [n, o, h, w] over the four positions in channels [n, 4 o, h, w]; the first of equal values."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        one, two, three, four = inputs.chunk(4, 1)
        above, below = torch.maximum(one, two), torch.maximum(three, four)
        ctx.save_for_backward(_exceeds(two, one), _exceeds(four, three), _exceeds(below, above))
        return torch.maximum(above, below)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        to_two, to_four, to_below = ctx.saved_tensors
        count, channels, high, wide = gradients[0].shape
        output = gradients[0].new_empty(count, 4 * channels, high, wide)
        one, two, three, four = output.chunk(4, 1)
        below = gradients[0] * to_below
        _split_gradient(gradients[0] - below, to_two, one, two)
        _split_gradient(below, to_four, three, four)
        return output


class MaxPool(torch.autograd.Function):
    """2 x 2 max pooling, the first of equal values as in torch, whose own kernel is not vectorised."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        left, right = inputs[..., 0::2], inputs[..., 1::2]
        wide = torch.maximum(left, right)
        above, below = wide[..., 0::2, :], wide[..., 1::2, :]
        ctx.save_for_backward(_exceeds(right, left), _exceeds(below, above))
        return torch.maximum(above, below)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        to_right, to_below = ctx.saved_tensors
        *front, high, wide = gradients[0].shape
        rows = gradients[0].new_empty(*front, 2 * high, wide)
        _split_gradient(gradients[0], to_below, rows[..., 0::2, :], rows[..., 1::2, :])
        output = gradients[0].new_empty(*front, 2 * high, 2 * wide)
        _split_gradient(rows, to_right, output[..., 0::2], output[..., 1::2])
        return output


def _exceeds(one: Tensor, other: Tensor) -> Tensor:
    """1.0 where one is larger than the other, else 0.0: multiplying by floats is faster than by bools."""
    return torch.gt(one, other, out=torch.empty(one.shape, dtype=one.dtype, device=one.device))


def _split_gradient(towards: Tensor, second: Tensor, ones: Tensor, others: Tensor) -> None:
    """Split a gradient between the first and the second of each two. By products: several times as fast as `where`."""
    torch.mul(towards, second, out=others)
    torch.sub(towards, others, out=ones)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
