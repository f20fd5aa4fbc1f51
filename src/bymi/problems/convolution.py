"""Convolutions of many models at once, written as matrix products.

The usual batched form, one grouped convolution with a group a model, runs as one small kernel a group on today's GPUs. A
product [models, out, in k k] x [models, in k k, batch positions] is one large kernel instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode


class ConvolutionsAsProducts(TorchFunctionMode):
    """Inside this block conv2d is a matrix product. What it does not cover (groups, dilation, named padding) stays as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nnf.conv2d or func is torch.conv2d:
            return _conv2d(func, *args, **kwargs)
        return func(*args, **kwargs)


def _conv2d(
    original: Callable[..., Any],
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if inputs.ndim != 4 or groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        result: Tensor = original(inputs, weight, bias, stride, padding, dilation, groups)
        return result
    product: Tensor = _Product.apply(inputs, weight, _pair(stride), _pair(padding))[0]  # type: ignore[no-untyped-call]
    return product if bias is None else product + bias[:, None, None]


class _Product(torch.autograd.Function):
    """conv2d without bias, and the patches it multiplied with. Torch's own backward of `unfold` cannot be batched."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        outputs, channels, height, width = weight.shape
        padded = nnf.pad(inputs, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else inputs
        # [n, c, H', W', kh, kw] as a view, then one copy into the order of the product: torch.nn.functional.unfold
        # would launch a kernel a sample.
        windows = padded.unfold(2, height, stride[0]).unfold(3, width, stride[1])
        count, _, rows, columns = windows.shape[:4]
        patches = windows.permute(1, 4, 5, 0, 2, 3).reshape(channels * height * width, count * rows * columns)
        product = weight.reshape(outputs, -1) @ patches
        return product.reshape(outputs, count, rows, columns).transpose(0, 1), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.size, ctx.stride, ctx.padding = inputs[0].shape, inputs[2], inputs[3]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weight, patches = ctx.saved_tensors
        outputs, channels, height, width = weight.shape
        count, (rows, columns) = ctx.size[0], gradients[0].shape[2:]
        towards = gradients[0].transpose(0, 1).reshape(outputs, count * rows * columns)
        by_weight = (towards @ patches.mT).reshape(weight.shape) if ctx.needs_input_grad[1] else None
        by_inputs = None
        if ctx.needs_input_grad[0]:
            spread = weight.reshape(outputs, -1).mT @ towards
            spread = spread.reshape(channels * height * width, count, rows * columns).transpose(0, 1)
            by_inputs = nnf.fold(spread, ctx.size[2:], (height, width), padding=ctx.padding, stride=ctx.stride)
        return by_inputs, by_weight, None, None


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second
