"""The Triton convolutions as functions that torch.func can differentiate and batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bymi.problems import kernels

Pair = tuple[int, int]


class Convolution(torch.autograd.Function):
    """conv2d of stride 1 without bias: inputs [*, n, c, h, w], weight [*, o, c, kh, kw], leading dimensions shared."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, padding: Pair) -> Tensor:
        made = kernels.forward(_flat(inputs), _flat(weight), padding)
        return made.reshape(*inputs.shape[:-4], *made.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.padding = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, weight = ctx.saved_tensors
        by_inputs = by_weight = None
        if ctx.needs_input_grad[0]:
            by_inputs = _ByInputs.apply(gradients[0], weight, ctx.padding)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            by_weight = _ByWeight.apply(gradients[0], inputs, tuple(weight.shape[-2:]), ctx.padding)  # type: ignore[no-untyped-call]
        return by_inputs, by_weight, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, padding: Pair) -> Any:
        if dims[0] is None:  # one set of inputs, many models: more output channels
            many = weight.movedim(dims[1] or 0, -5)
            made = Convolution.apply(inputs, many.flatten(-5, -4), padding)  # type: ignore[no-untyped-call]
            return made.unflatten(-3, many.shape[-5:-3]).movedim(-4, 0), 0
        return Convolution.apply(*_in_front(info, dims, inputs, weight), padding), 0  # type: ignore[no-untyped-call]


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
    """The batch dimension of each value first; a value without one is repeated."""
    return [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=False)
    ]
