"""The Triton kernels as functions that torch.func can differentiate and batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bymi.problems import triton_kernels as kernels

Pair = tuple[int, int]


class Convolution(torch.autograd.Function):
    """conv2d of stride 1: inputs [*, n, c, h, w], weight [*, o, c, kh, kw], bias [*, o], leading dimensions shared.

    With `groups` the channels are those of several models on the same inputs: [*, groups, n, o / groups, h', w'].
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Pair, groups: int) -> Tensor:
        made = kernels.forward(_flat(inputs), _flat(weight), bias.reshape(-1, bias.shape[-1]), padding, groups)
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
            by_inputs = _ByInputs.apply(gradient, weight, ctx.padding)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            by_weight = _ByWeight.apply(gradient, inputs, tuple(weight.shape[-2:]), ctx.padding)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2]:
            by_bias = gradient.sum((-4, -2, -1))
        return by_inputs, by_weight, by_bias, None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor, padding: Pair, groups: int
    ) -> Any:
        if dims[0] is None and groups == 1:  # one set of inputs, many models: more output channels
            many, offsets = _in_front(info, dims[1:], weight, bias)
            many, offsets = many.movedim(0, -5).flatten(-5, -4), offsets.movedim(0, -2).flatten(-2, -1)
            made = Convolution.apply(inputs, many, offsets, padding, info.batch_size)  # type: ignore[no-untyped-call]
            return (made.movedim(-5, 0) if info.batch_size > 1 else made[None]), 0
        return Convolution.apply(*_in_front(info, dims, inputs, weight, bias), padding, groups), 0  # type: ignore[no-untyped-call]


class MaxPool(torch.autograd.Function):
    """2 x 2 max pooling with stride 2 of planes [..., h, w], and the index of each value in its square."""

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
        return _Unpool.apply(gradients[0], ctx.saved_tensors[0], ctx.size)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], images: Tensor) -> Any:
        return MaxPool.apply(images.movedim(dims[0] or 0, 0)), (0, 0)  # type: ignore[no-untyped-call]


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, at: Tensor, size: Pair) -> Tensor:
        return kernels.unpool(gradient, at, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], gradient: Tensor, at: Tensor, size: Pair) -> Any:
        return _Unpool.apply(*_in_front(info, dims, gradient, at), size), 0  # type: ignore[no-untyped-call]


class _ByInputs(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, weight: Tensor, padding: Pair) -> Tensor:
        made = kernels.by_inputs(_flat(gradient), _flat(weight), padding)
        return made.reshape(*gradient.shape[:-4], *made.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], gradient: Tensor, weight: Tensor, padding: Pair) -> Any:
        return _ByInputs.apply(*_in_front(info, dims, gradient, weight), padding), 0  # type: ignore[no-untyped-call]


class _ByWeight(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, inputs: Tensor, kernel: Pair, padding: Pair) -> Tensor:
        made = kernels.by_weight(_flat(gradient), _flat(inputs), kernel, padding)
        return made.reshape(*gradient.shape[:-4], *made.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], gradient: Tensor, inputs: Tensor, kernel: Pair, padding: Pair) -> Any:
        return _ByWeight.apply(*_in_front(info, dims, gradient, inputs), kernel, padding), 0  # type: ignore[no-untyped-call]


def _flat(values: Tensor) -> Tensor:
    """All leading dimensions as one."""
    return values.reshape(-1, *values.shape[-4:])


def _in_front(info: Any, dims: tuple[int | None, ...], *values: Tensor) -> list[Tensor]:
    """Each value with its batch dimension first; a value without one is expanded."""
    return [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=False)
    ]
