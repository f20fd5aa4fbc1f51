"""The rows of several nodes in one pass, for models that are a chain of layers whose gradients are known here.

A CPU spends half of the time of a small mini-batch on the way to its kernels, and threads wait for each other there. What has
no parameters sees the samples of several rows as one batch. Layers with parameters keep the rows apart where these differ; at
a common point, as when many nodes answer one question, only the gradients of the parameters are taken row by row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.problems.gradients import Loop, Models

_SAMPLES = 256  # in one pass: far fewer, and Python shows; many more, and they leave a CPU's cache
_SPLIT = 4  # the number of passes is a multiple of this, so that 2 or 4 threads get equal shares
_PLAIN = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Identity, nn.AvgPool2d)


class Stacked:
    """Gradients of a chain of known layers, several rows in one pass; passes are spread over the threads of a loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is such a chain. Exact types only: who derives from a layer may change what it does."""
        return type(model) is nn.Sequential and all(Stacked.fits(layer) or _known(layer) for layer in model)

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        output = theta.new_empty(theta.shape)  # rows of their own, even where those of theta are one and the same
        parts = _passes(theta, inputs.shape[1])
        left = iter(parts)  # threads take what is left: one that is held up holds nobody up

        def work(models: Models, _: range) -> None:
            for part, common in left:
                found = _gradients(models, theta[part], inputs[part], targets[part], common=common)
                places = models.layout.split(output[part])
                for place, value in zip(places.values(), found, strict=True):
                    place.copy_(value)

        self._loop.spread(work, len(parts))
        return output


def _known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Flatten:
        return layer.start_dim > 0
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return type(layer) is nn.Linear or (type(layer) in _PLAIN and not getattr(layer, "inplace", False))


def _passes(theta: Tensor, samples: int) -> list[tuple[slice, bool]]:
    """The rows of each pass, and whether they are at one point. By the rows alone: threads change no bit."""
    changes = range(1, len(theta) if theta.stride(0) else 1)  # none where all rows are one and the same
    edges = [0, *(row for row in changes if not torch.equal(theta[row], theta[row - 1])), len(theta)]
    common = 2 * (len(edges) - 1) <= len(theta)  # else most rows have a point of their own
    found = []
    for first, last in pairwise(edges if common else [0, len(theta)]):
        count = -(-(last - first) * samples // _SAMPLES)
        count = min(last - first, _SPLIT * -(-count // _SPLIT))
        bounds = [first + (last - first) * at // count for at in range(count + 1)] if count else []
        found += [(slice(*pair), common) for pair in pairwise(bounds)]
    return found


def _gradients(models: Models, theta: Tensor, inputs: Tensor, targets: Tensor, *, common: bool) -> tuple[Tensor, ...]:
    """Of the loss of each row by each parameter, [r, *shape] each, in the order of the layout."""
    points = theta[:1].expand_as(theta) if common else theta
    values = {name: value.detach().requires_grad_() for name, value in models.layout.split(points).items()}
    parameters = {id(own): values[name] for name, own in models.model.named_parameters()}
    outputs = _through(models.model, inputs.flatten(0, 1), parameters, common=common).unflatten(0, inputs.shape[:2])
    losses = [models.loss(*pair) for pair in zip(outputs, targets, strict=True)]
    return torch.autograd.grad(losses, list(values.values()), materialize_grads=True)


def _through(layer: nn.Module, inputs: Tensor, parameters: dict[int, Tensor], *, common: bool) -> Tensor:
    """A layer with the parameters [r, *shape] of each row instead of its own, on the samples of all rows [r s, ...]."""
    if isinstance(layer, nn.Sequential):
        for part in layer:
            inputs = _through(part, inputs, parameters, common=common)
        return inputs
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        weight, bias = parameters[id(layer.weight)], None if layer.bias is None else parameters[id(layer.bias)]
        if isinstance(layer, nn.Linear):
            return _Linear.apply(inputs, weight, bias, common)  # type: ignore[no-any-return, no-untyped-call]
        how = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return _Convolution.apply(inputs, weight, bias, how, common)  # type: ignore[no-any-return, no-untyped-call]
    if isinstance(layer, nn.MaxPool2d) and _halves(layer, inputs):
        return _MaxPool.apply(inputs)  # type: ignore[no-any-return, no-untyped-call]
    result: Tensor = layer(inputs)
    return result


class _Linear(torch.autograd.Function):
    """Inputs [r s, ..., i], weight [r, o, i], bias [r, o] or None."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, common: bool) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.common, ctx.biased = common, bias is not None
        if common:
            return nnf.linear(inputs, weight[0], None if bias is None else bias[0])
        rows = _by_row(inputs, len(weight))
        said = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return said.view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, weight = ctx.saved_tensors
        towards = _by_row(gradients[0], len(weight))
        by_inputs = None
        if ctx.needs_input_grad[0]:
            by_inputs = (gradients[0] @ weight[0] if ctx.common else torch.bmm(towards, weight)).view(inputs.shape)
        by_weight = torch.bmm(towards.mT, _by_row(inputs, len(weight)))
        return by_inputs, by_weight, towards.sum(1) if ctx.biased else None, None


def _by_row(values: Tensor, rows: int) -> Tensor:
    """[r s, ..., i] as [r, s ..., i]."""
    return values.reshape(rows, -1, values.shape[-1])


class _Convolution(torch.autograd.Function):
    """Inputs [r s, c, h, w], weight [r, o, c, kh, kw], bias [r, o] or None; `how`: stride, padding, dilation, groups."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Any, common: bool) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.how, ctx.common, ctx.biased = how, common, bias is not None
        if common:
            return nnf.conv2d(inputs, weight[0], None if bias is None else bias[0], *how)
        biases = [None] * len(weight) if bias is None else list(bias)
        return torch.cat([nnf.conv2d(*row, *how) for row in zip(inputs.chunk(len(weight)), weight, biases, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        sizes = [weight.shape[1]] if ctx.biased else None
        rest = (sizes, stride, padding, dilation, False, [0, 0], groups)
        back, needed = torch.ops.aten.convolution_backward, ctx.needs_input_grad[0]
        at_once = back(gradients[0], inputs, weight[0], *rest, [True, False, False])[0] if needed and ctx.common else None
        each = [needed and not ctx.common, True, ctx.biased]
        rows = zip(gradients[0].chunk(len(weight)), inputs.chunk(len(weight)), weight, strict=True)
        by_inputs, by_weight, by_bias = zip(*(back(*row, *rest, each) for row in rows), strict=True)
        first = torch.cat(by_inputs) if each[0] else at_once
        return first, torch.stack(by_weight), torch.stack(by_bias) if ctx.biased else None, None, None


def _halves(layer: nn.MaxPool2d, inputs: Tensor) -> bool:
    """Whether the layer takes the largest of 2 x 2 and leaves none out."""
    usual = _pair(layer.kernel_size) == (2, 2) == _pair(layer.stride) and _pair(layer.padding) == (0, 0)
    return usual and _pair(layer.dilation) == (1, 1) and inputs.shape[-1] % 2 == 0 == inputs.shape[-2] % 2


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


class _MaxPool(torch.autograd.Function):
    """The largest of 2 x 2, of equal ones the first as in torch, whose own looks at one number after the other."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        left, right = inputs[..., 0::2], inputs[..., 1::2]
        wide = torch.maximum(left, right)
        above, below = wide[..., 0::2, :], wide[..., 1::2, :]
        ctx.save_for_backward(right > left, below > above)
        return torch.maximum(above, below)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        to_right, to_below = ctx.saved_tensors
        wide = _share(gradients[0], to_below, dim=-2)
        return _share(wide, to_right, dim=-1)


def _share(towards: Tensor, second: Tensor, *, dim: int) -> Tensor:
    """What goes to the first and the second of each two along a dimension."""
    shape = list(towards.shape)
    shape[dim] *= 2
    output = towards.new_empty(shape)
    ones, others = (output[..., at::2] if dim == -1 else output[..., at::2, :] for at in (0, 1))
    torch.mul(towards, second, out=others)  # several times as fast as `where`
    torch.sub(towards, others, out=ones)
    return output
