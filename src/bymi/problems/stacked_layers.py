"""Gradients of several nodes in one pass, for models that are a chain of known layers.

For a small mini-batch a CPU spends half of the time on the way to its kernels, where threads also wait for each other. Layers
without parameters take the samples of several rows as one batch. Layers with parameters keep rows with different parameters
apart; at a common point, as when many nodes answer one query, only the gradients of the parameters are taken row by row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.problems.gradient_backends import Loop, Loss, Models
from bymi.problems.vmap_convolution import as_pair

_FEW = 8  # output channels from which on a plain convolution fills most of a core's vector units


def halves(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether the layer is a 2 x 2 max pooling that covers all pixels."""
    if type(layer) is not nn.MaxPool2d or inputs.shape[-1] % 2 or inputs.shape[-2] % 2:
        return False
    usual = as_pair(layer.kernel_size) == (2, 2) == as_pair(layer.stride) and as_pair(layer.padding) == (0, 0)
    return usual and as_pair(layer.dilation) == (1, 1)


def joins(layer: nn.Module, following: nn.Module, inputs: Tensor) -> bool:
    """Whether `layer` is a convolution of few channels whose output the `following` layer max-pools 2 x 2."""
    if type(layer) is not nn.Conv2d or layer.out_channels >= _FEW or layer.groups > 1 or inputs.ndim != 4:
        return False
    (down, right), (high, wide) = as_pair(layer.padding), layer.kernel_size
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


_SAMPLES = 256  # in one pass, about: with far fewer Python's overhead shows, with many more few threads have work
_SPLIT = 4  # the number of passes is a multiple of this, so that 2 or 4 threads get equal shares
_FORWARD = 256  # samples in one pass without gradients: what they need fits a CPU's cache
_AT_ONE_POINT = 2  # factor on samples per pass at a common point, since other threads read answers meanwhile
_PLAIN = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Identity, nn.AvgPool2d)


class Stacked:
    """Gradients of a chain of known layers, several rows in one pass; the threads of a loop share the passes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is such a chain. Exact types only: a subclass of a layer may compute something else."""
        return type(model) is nn.Sequential and all(Stacked.fits(layer) or _known(layer) for layer in model)

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        output = theta.new_empty(theta.shape)  # contiguous, even where the rows of theta are one expanded row
        parts = _passes(theta, inputs.shape[1])
        left = iter(parts)  # threads take what is left, so that a delayed one delays no other

        def work(models: Models, _: range) -> None:
            for part, common in left:
                gradients = _gradients(models, theta[part], inputs[part], targets[part], common=common)
                places = models.layout.split(output[part])
                for place, value in zip(places.values(), gradients, strict=True):
                    place.copy_(value)

        self._loop.spread(work, len(parts))
        return output


def losses_of(models: Models, vector: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Losses [k] of one model [D], a chain of known layers, on the samples of k nodes [k, s, ...], without gradients."""
    values = models.layout.split(vector)
    parameters = {id(own): values[name] for name, own in models.model.named_parameters()}
    samples = inputs.flatten(0, 1)
    outputs = torch.cat([_forward(models.model, part, parameters) for part in samples.split(_FORWARD)])
    outputs = outputs.unflatten(0, inputs.shape[:2])
    if models.loss is nnf.cross_entropy and outputs.ndim == 3 and targets.ndim == 2 and bool((targets >= 0).all()):
        each = nnf.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(1)
    return torch.stack([models.loss(*pair) for pair in zip(outputs, targets, strict=True)])


def _forward(model: nn.Module, inputs: Tensor, parameters: dict[int, Tensor]) -> Tensor:
    """Outputs of the layers on samples [s, ...] at one point. Pooling is by maxima of slices: torch's kernel is slower."""
    layers = _chain(model)
    while layers:
        layer, *layers = layers
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            weight, bias = parameters[id(layer.weight)], None if layer.bias is None else parameters[id(layer.bias)]
            if isinstance(layer, nn.Linear):
                inputs = nnf.linear(inputs, weight, bias)
            elif layers and joins(layer, layers[0], inputs):
                layers = layers[1:]
                four = nnf.conv2d(inputs, four_places(weight[None])[0], None, 2, layer.padding, layer.dilation, layer.groups)
                one, two, three, last = four.chunk(4, 1)
                inputs = torch.maximum(torch.maximum(one, two), torch.maximum(three, last))
                inputs = inputs if bias is None else inputs.add_(bias[:, None, None])
            else:
                inputs = nnf.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        elif halves(layer, inputs):
            wide = torch.maximum(inputs[..., 0::2, :], inputs[..., 1::2, :])
            inputs = torch.maximum(wide[..., 0::2], wide[..., 1::2])
        else:
            inputs = layer(inputs)
    return inputs


def _known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Flatten:
        return layer.start_dim > 0
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return type(layer) is nn.Linear or (type(layer) in _PLAIN and not getattr(layer, "inplace", False))


def _passes(theta: Tensor, samples: int) -> list[tuple[slice, bool]]:
    """The rows of each pass, and whether they are at one point. Independent of the number of threads, as the bits must be."""
    changes = range(1, len(theta) if theta.stride(0) else 1)  # none where all rows are one expanded row
    edges = [0, *(row for row in changes if not torch.equal(theta[row], theta[row - 1])), len(theta)]
    common = 2 * (len(edges) - 1) <= len(theta)  # else most rows have a point of their own
    size, split = (_SAMPLES * _AT_ONE_POINT, _SPLIT // _AT_ONE_POINT) if common else (_SAMPLES, _SPLIT)
    passes = []
    for first, last in pairwise(edges if common else [0, len(theta)]):
        count = min(last - first, split * max(1, round((last - first) * samples / (split * size))))
        bounds = [first + (last - first) * part // count for part in range(count + 1)] if count else []
        passes += [(slice(*pair), common) for pair in pairwise(bounds)]
    return passes


def _gradients(models: Models, theta: Tensor, inputs: Tensor, targets: Tensor, *, common: bool) -> tuple[Tensor, ...]:
    """Gradients of each row's loss by each parameter, [r, *shape] each, in the order of the layout."""
    points = theta[:1].expand_as(theta) if common else theta
    values = {name: value.detach().requires_grad_() for name, value in models.layout.split(points).items()}
    parameters = {id(own): values[name] for name, own in models.model.named_parameters()}
    outputs = _through(models.model, inputs.flatten(0, 1), parameters, common=common).unflatten(0, inputs.shape[:2])
    return torch.autograd.grad(_losses(models.loss, outputs, targets), list(values.values()), materialize_grads=True)


def _losses(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Losses whose sum has the gradients of all rows [r, s, ...]; a single one where the loss function is known."""
    if loss is nnf.cross_entropy and outputs.ndim == 3 and targets.ndim == 2 and bool((targets >= 0).all()):
        return [nnf.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum") / outputs.shape[1]]
    return [loss(*pair) for pair in zip(outputs, targets, strict=True)]


def _through(model: nn.Module, inputs: Tensor, parameters: dict[int, Tensor], *, common: bool) -> Tensor:
    """Outputs of the layers on the samples of all rows [r s, ...], with the parameters [r, *shape] of each row."""
    layers = _chain(model)
    while layers:
        layer, *layers = layers
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            weight, bias = parameters[id(layer.weight)], None if layer.bias is None else parameters[id(layer.bias)]
            if isinstance(layer, nn.Linear):
                inputs = _Linear.apply(inputs, weight, bias, common)  # type: ignore[no-untyped-call]
                continue
            how = (layer.stride, layer.padding, layer.dilation, layer.groups)
            joined = bool(layers) and joins(layer, layers[0], inputs)
            if joined:
                how, weight, bias = ((2, 2), *how[1:]), four_places(weight), None if bias is None else bias.repeat(1, 4)
            inputs = _Convolution.apply(inputs, weight, bias, how, common)  # type: ignore[no-untyped-call]
            if joined:
                inputs, layers = LargestOfFour.apply(inputs), layers[1:]  # type: ignore[no-untyped-call]
        elif halves(layer, inputs):
            inputs = MaxPool.apply(inputs)  # type: ignore[no-untyped-call]
        else:
            inputs = layer(inputs)
    return inputs


def _chain(layer: nn.Module) -> list[nn.Module]:
    """The layers of a chain, nested chains flattened."""
    return [part for inner in layer for part in _chain(inner)] if isinstance(layer, nn.Sequential) else [layer]


class _Linear(torch.autograd.Function):
    """Linear layer: inputs [r s, ..., i], weight [r, o, i], bias [r, o] or None."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, common: bool) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.common, ctx.biased = common, bias is not None
        if common:
            return nnf.linear(inputs, weight[0], None if bias is None else bias[0])
        rows = _by_row(inputs, len(weight))
        outputs = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return outputs.view(*inputs.shape[:-1], -1)

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
        rest = (None, stride, padding, dilation, False, [0, 0], groups)
        back, needed = torch.ops.aten.convolution_backward, ctx.needs_input_grad[0]
        at_once = back(gradients[0], inputs, weight[0], *rest, [True, False, False])[0] if needed and ctx.common else None
        each = [needed and not ctx.common, True, False]
        rows = zip(gradients[0].chunk(len(weight)), inputs.chunk(len(weight)), weight, strict=True)
        by_inputs, by_weight, _ = zip(*(back(*row, *rest, each) for row in rows), strict=True)
        first = torch.cat(by_inputs) if each[0] else at_once
        # All biases in one sum: that of convolution_backward is slow.
        by_bias = gradients[0].unflatten(0, (len(weight), -1)).sum((1, 3, 4)) if ctx.biased else None
        return first, torch.stack(by_weight), by_bias, None, None
