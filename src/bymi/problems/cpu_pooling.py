"""The largest of 2 x 2 on a CPU: of any layer, or of a convolution with few channels in one go with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_FEW = 8  # channels from which on a convolution fills most of a core's vectors


def halves(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether the layer takes the largest of 2 x 2 and leaves none out."""
    if type(layer) is not nn.MaxPool2d or inputs.shape[-1] % 2 or inputs.shape[-2] % 2:
        return False
    usual = _pair(layer.kernel_size) == (2, 2) == _pair(layer.stride) and _pair(layer.padding) == (0, 0)
    return usual and _pair(layer.dilation) == (1, 1)


def joins(layer: nn.Module, following: nn.Module, inputs: Tensor) -> bool:
    """Whether a layer is a convolution of few channels, and the `following` one halves what it makes of the inputs."""
    if type(layer) is not nn.Conv2d or layer.out_channels >= _FEW or layer.groups > 1 or inputs.ndim != 4:
        return False
    (down, right), (high, wide) = _pair(layer.padding), layer.kernel_size
    made = inputs[..., :1, :1].expand(-1, -1, inputs.shape[2] + 2 * down + 1 - high, inputs.shape[3] + 2 * right + 1 - wide)
    return layer.stride == (1, 1) == layer.dilation and halves(following, made)


def four_places(weight: Tensor) -> Tensor:
    """Kernels [r, o, c, h, w] at the four places of a window of 2 x 2, as channels: [r, 4 o, c, h + 1, w + 1].

    A convolution with these, two pixels at a time, says at once what the usual one says at all four places, and four times as
    many channels fill the vectors of a core.
    """
    return torch.cat([nnf.pad(weight, (right, 1 - right, down, 1 - down)) for down in (0, 1) for right in (0, 1)], 1)


class LargestOfFour(torch.autograd.Function):
    """Of channels [n, 4 o, h, w], those of four places in order, the largest [n, o, h, w]; of equal ones the first."""

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
        _share(gradients[0] - below, to_two, one, two)
        _share(below, to_four, three, four)
        return output


class MaxPool(torch.autograd.Function):
    """The largest of 2 x 2 pixels, of equal ones the first as in torch, whose own looks at one number after the other."""

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
        _share(gradients[0], to_below, rows[..., 0::2, :], rows[..., 1::2, :])
        output = gradients[0].new_empty(*front, 2 * high, 2 * wide)
        _share(rows, to_right, output[..., 0::2], output[..., 1::2])
        return output


def _exceeds(one: Tensor, other: Tensor) -> Tensor:
    """1.0 where one is larger than the other, else 0.0: to multiply with numbers is faster than with truths."""
    return torch.gt(one, other, out=torch.empty(one.shape, dtype=one.dtype, device=one.device))


def _share(towards: Tensor, second: Tensor, ones: Tensor, others: Tensor) -> None:
    """What goes to the first and to the second of each two. By products: several times as fast as `where`."""
    torch.mul(towards, second, out=others)
    torch.sub(towards, others, out=ones)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
