"""Convolutions of many models at once, by Triton kernels where available, else as matrix products.

The usual batched form, one grouped convolution with one group per model, runs as one small kernel per group on today's GPUs. A
product [models, out, in k k] x [models, in k k, batch positions] is one large kernel instead, but has to write the patches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode

from bymi.problems import triton_convolution as kernels
from bymi.problems.triton_convolution import Pair

_IGNORED = -100  # the default of torch


class ConvolutionsOfMany(TorchFunctionMode):
    """Context in which conv2d and max_pool2d suit many models; groups, dilation and named padding fall back to torch.

    So does cross_entropy with labels: torch's own, batched, first imports sympy, for a second or two.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nnf.conv2d or func is torch.conv2d:
            return _conv2d(func, *args, **kwargs)
        if func is nnf.max_pool2d or func is torch.max_pool2d:
            return _max_pool2d(func, *args, **kwargs)
        if func is nnf.cross_entropy and _plain_cross_entropy(*args, **kwargs):
            return _cross_entropy(*args)
        return func(*args, **kwargs)


def _plain_cross_entropy(outputs: Tensor, labels: Tensor | None = None, **settings: Any) -> bool:
    """Whether this is the mean over samples [s, c] with labels [s], all settings as torch has them."""
    usual = {"ignore_index": _IGNORED, "reduction": "mean", "label_smoothing": 0.0}
    plain = all(value == usual.get(name) for name, value in settings.items())
    return plain and outputs.ndim == 2 and labels is not None and labels.ndim == 1


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of outputs [s, c]; samples with the label -100 do not count, as in torch."""
    counted = labels != _IGNORED
    chosen = nnf.log_softmax(outputs, 1).gather(1, torch.where(counted, labels, 0)[:, None]).squeeze(1)
    return -(chosen * counted).sum() / counted.sum()


def _conv2d(
    original: Callable[..., Any],
    input: Tensor,  # noqa: A002 - torch's own name, which callers may use
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    inputs = input
    if inputs.ndim != 4 or groups != 1 or isinstance(padding, str) or as_pair(dilation) != (1, 1):
        result: Tensor = original(inputs, weight, bias, stride, padding, dilation, groups)
        return result
    if (
        kernels.available(inputs, len(weight))
        and as_pair(stride) == (1, 1)
        and all(p < k for p, k in zip(as_pair(padding), weight.shape[-2:], strict=True))
    ):
        offsets = torch.zeros_like(weight[:, 0, 0, 0]) if bias is None else bias
        fast: Tensor = KernelConvolution.apply(inputs, weight, offsets, as_pair(padding), 1)  # type: ignore[no-untyped-call]
        return fast
    product: Tensor = _Product.apply(inputs, weight, as_pair(stride), as_pair(padding))[0]  # type: ignore[no-untyped-call]
    return product if bias is None else product + bias[:, None, None]


def _max_pool2d(
    original: Callable[..., Any],
    input: Tensor,  # noqa: A002 - torch's own name, which callers may use
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    usual = as_pair(kernel_size) == (2, 2) == as_pair(stride or kernel_size) and as_pair(padding) == (0, 0)
    if not (usual and as_pair(dilation) == (1, 1) and kernels.available(input)) or ceil_mode or return_indices:
        more = {"return_indices": True} if return_indices else {}
        return original(input, kernel_size, stride, padding, dilation, ceil_mode, **more)
    return KernelMaxPool.apply(input)[0]  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """conv2d without bias, and the patches it multiplied with, for any number of leading dimensions that both inputs share.

    Inputs [*, n, c, h, w], weight [*, o, c, kh, kw]. Torch's backward of `unfold` cannot be batched, so this one has its own
    backward, and its own rules for vmap: inputs that all models share are cut into patches once.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        channels, height, width = weight.shape[-3:]
        padded = nnf.pad(inputs, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else inputs
        # [*, n, c, H', W', kh, kw] as a view, then one copy into the order of the product: torch.nn.functional.unfold would
        # launch a kernel per sample.
        windows = padded.unfold(-2, height, stride[0]).unfold(-2, width, stride[1])
        count, _, rows, columns = windows.shape[-6:-2]
        ordered = windows.movedim((-5, -2, -1), (-6, -5, -4))
        patches = ordered.reshape(*inputs.shape[:-4], channels * height * width, count * rows * columns)
        product = weight.flatten(-3) @ patches
        return product.unflatten(-1, (count, rows, columns)).transpose(-4, -3), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.size, ctx.stride, ctx.padding = inputs[0].shape[-4:], inputs[2], inputs[3]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weight, patches = ctx.saved_tensors
        towards = gradients[0].transpose(-4, -3).flatten(-3)  # [*, o, n H' W']
        by_weight = by_inputs = None
        if ctx.needs_input_grad[1]:
            by_weight = (towards @ patches.mT).reshape(weight.shape)
        if ctx.needs_input_grad[0]:
            rows, columns = gradients[0].shape[-2:]
            patches_gradient = (weight.flatten(-3).mT @ towards).unflatten(-1, (ctx.size[0], rows, columns))
            patches_gradient = patches_gradient.unflatten(-4, weight.shape[-3:])  # [*, c, kh, kw, n, H', W']
            by_inputs = _sum_patches(patches_gradient, ctx.size, ctx.stride, ctx.padding)
        return by_inputs, by_weight, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Any:
        if dims[0] is None:  # one set of inputs, many models: more output channels
            many = weight.movedim(dims[1] or 0, -5)
            product, patches = _Product.apply(inputs, many.flatten(-5, -4), stride, padding)  # type: ignore[no-untyped-call]
            return (product.unflatten(-3, many.shape[-5:-3]).movedim(-4, 0), patches), (0, None)
        inputs = inputs.movedim(dims[0], 0)
        weight = weight.expand(len(inputs), *weight.shape) if dims[1] is None else weight.movedim(dims[1], 0)
        return _Product.apply(inputs, weight, stride, padding), (0, 0)  # type: ignore[no-untyped-call]


def _sum_patches(spread: Tensor, size: torch.Size, stride: Pair, padding: Pair) -> Tensor:
    """Images [*, n, c, h, w] of a given size, summed from patches [*, c, kh, kw, n, H', W']."""
    count, channels, high, wide = size
    height, width, _, rows, columns = spread.shape[-5:]
    lead = spread.shape[:-6]
    total = spread.new_zeros(*lead, channels, count, high + 2 * padding[0], wide + 2 * padding[1])
    for i in range(height):
        down = slice(i, i + (rows - 1) * stride[0] + 1, stride[0])
        for j in range(width):
            right = slice(j, j + (columns - 1) * stride[1] + 1, stride[1])
            total[..., down, right] += spread[..., i, j, :, :, :]
    inside = total[..., padding[0] : padding[0] + high, padding[1] : padding[1] + wide]
    return inside.transpose(-4, -3)


class KernelConvolution(torch.autograd.Function):
    """conv2d of stride 1 by Triton kernels: inputs [*, n, c, h, w], weight [*, o, c, kh, kw], bias [*, o].

    Leading dimensions are those of models; all three share them. With `groups` the output channels are those of several models
    on the same inputs: [*, groups, n, o / groups, h', w'].

    Kernels need tensors with memory: gradients are by torch.autograd around vmap, not by torch.func.grad.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Pair, groups: int) -> Tensor:
        made = kernels.forward(flat(inputs), flat(weight), bias.reshape(-1, bias.shape[-1]), padding, groups)
        return made.reshape(*inputs.shape[:-4], *made.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.padding, ctx.groups = inputs[3], inputs[4]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, weight = ctx.saved_tensors
        gradient = gradients[0] if ctx.groups == 1 else gradients[0].movedim(-5, -4).flatten(-4, -3)
        by_inputs = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_inputs = kernels.by_inputs(flat(gradient), flat(weight), ctx.padding).reshape(inputs.shape)
        if ctx.needs_input_grad[1]:
            kernel = weight.shape[-2], weight.shape[-1]
            by_weight = kernels.by_weight(flat(gradient), flat(inputs), kernel, ctx.padding).reshape(weight.shape)
        if ctx.needs_input_grad[2]:
            by_bias = gradient.sum((-4, -2, -1))
        return by_inputs, by_weight, by_bias, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> Any:
        return batch_models(KernelConvolution, info, dims, inputs, weight, bias, *settings), 0


def batch_models(
    function: Any, info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor, *settings: Any
) -> Tensor:
    """A convolution of many models under one more vmap, whose dimension becomes the first; the last setting is `groups`."""
    *how, groups = settings
    if dims[0] is None and groups == 1:  # one set of inputs, many models: more output channels
        many, offsets = _in_front(info, dims[1:], weight, bias)
        many, offsets = many.movedim(0, -5).flatten(-5, -4), offsets.movedim(0, -2).flatten(-2, -1)
        made: Tensor = function.apply(inputs, many, offsets, *how, info.batch_size)
        return made.movedim(-5, 0) if info.batch_size > 1 else made[None]
    each: Tensor = function.apply(*_in_front(info, dims, inputs, weight, bias), *settings)
    return each


class KernelMaxPool(torch.autograd.Function):
    """2 x 2 max pooling of planes [..., h, w] by Triton kernels, and the index of each value in its square."""

    @staticmethod
    def forward(images: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.pool(images)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.size = tuple(inputs[0].shape[-2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return kernels.unpool(gradients[0], ctx.saved_tensors[0], ctx.size)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], images: Tensor) -> Any:
        return KernelMaxPool.apply(images.movedim(dims[0] or 0, 0)), (0, 0)  # type: ignore[no-untyped-call]


def as_pair(value: Any) -> Pair:
    """A setting of a layer for both directions, from one number or two."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values[0], values[-1]


def flat(values: Tensor) -> Tensor:
    """All leading dimensions as one."""
    return values.reshape(-1, *values.shape[-4:])


def _in_front(info: Any, dims: tuple[int | None, ...], *values: Tensor) -> list[Tensor]:
    """Each value with its batch dimension first; a value without one is expanded."""
    return [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=False)
    ]
