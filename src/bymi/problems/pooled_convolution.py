"""Convolution, 2 x 2 max pooling and ReLU as one layer, for losses of many models at once, which need no gradients."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.problems import triton_pooled_convolution as kernels
from bymi.problems.triton_convolution import Pair
from bymi.problems.vmap_convolution import as_pair, batch_models, flat

Kind = TypeVar("Kind", bound=nn.Module)

_INCREASING: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
)  # the maximum of such a function is the function of the maximum


def fuse(model: nn.Module) -> nn.Module:
    """The model with each convolution that pooling follows as one `PooledConvolution`; parameters keep their names.

    In a Sequential, and in those inside it. Pooling may come before or after an activation, and a ReLU joins the layer. Exact
    types without hooks or a `forward` of their own only: others may compute something else.
    """
    if not _is(model, nn.Sequential):
        return model
    layers = [fuse(layer) for layer in model]
    for at, layer in enumerate(layers[:-1]):
        if not _convolves(layer):
            continue
        if _is(layers[at + 1], *_INCREASING) and at + 2 < len(layers) and _halves(layers[at + 2]):
            layers[at + 1 : at + 3] = layers[at + 2], layers[at + 1]
        if _halves(layers[at + 1]):
            relu = at + 2 < len(layers) and _is(layers[at + 2], nn.ReLU)
            layers[at], layers[at + 1] = PooledConvolution(layer, relu=relu), nn.Identity()
            if relu:
                layers[at + 2] = nn.Identity()
    return nn.Sequential(OrderedDict(zip(model._modules, layers, strict=True)))


def _convolves(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether the layer is a convolution of stride 1, with zeros around the image."""
    if not _is(layer, nn.Conv2d) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    return layer.stride == (1, 1) == layer.dilation and layer.groups == 1


def _halves(layer: nn.Module) -> bool:
    """Whether the layer is the usual 2 x 2 max pooling."""
    if not _is(layer, nn.MaxPool2d) or layer.ceil_mode or layer.return_indices:
        return False
    usual = as_pair(layer.kernel_size) == (2, 2) == as_pair(layer.stride) and as_pair(layer.padding) == (0, 0)
    return usual and as_pair(layer.dilation) == (1, 1)


def _is(layer: nn.Module, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Whether the layer is of exactly one of these types, and as torch computes it."""
    return type(layer) in kinds and not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))


class PooledConvolution(nn.Module):
    """A convolution, 2 x 2 max pooling and, with `relu`, the positive part; by one Triton kernel where available."""

    def __init__(self, convolution: nn.Conv2d, *, relu: bool) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.padding, self.relu = as_pair(convolution.padding), relu

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.ndim == 4 and kernels.available(inputs, self.weight):
            bias = torch.zeros_like(self.weight[:, 0, 0, 0]) if self.bias is None else self.bias
            fast: Tensor = KernelPooledConvolution.apply(inputs, self.weight, bias, self.padding, self.relu, 1)  # type: ignore[no-untyped-call]
            return fast
        outputs = nnf.max_pool2d(nnf.conv2d(inputs, self.weight, self.bias, padding=self.padding), 2)
        return outputs.relu() if self.relu else outputs


class KernelPooledConvolution(torch.autograd.Function):
    """The Triton kernel for inputs [*, n, c, h, w], weight [*, o, c, kh, kw], bias [*, o]; it has no gradient.

    Leading dimensions and `groups` are as in `vmap_convolution.KernelConvolution`.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Pair, relu: bool, groups: int) -> Tensor:
        made = kernels.forward(flat(inputs), flat(weight), bias.reshape(-1, bias.shape[-1]), padding, relu, groups)
        return made.reshape(*inputs.shape[:-4], *made.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> Any:
        return batch_models(KernelPooledConvolution, info, dims, inputs, weight, bias, *settings), 0
