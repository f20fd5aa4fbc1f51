# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""A Triton kernel for convolution, 2 x 2 max pooling and ReLU of many models in one pass: stride 1, float32, no gradients.

A program computes all four positions of some pooling squares and stores their maximum, so that the outputs of the convolution
are never written. Sums over taps are products of matrices, whose patches are never written either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nnf

from bymi.problems.triton_convolution import Pair

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch
    triton = None

_MOST_TAPS = 512  # taps of a kernel: the loop over them is unrolled
_TAPS, _POSITIONS, _MOST_CHANNELS = 32, 128, 64  # size of the products of a program; four positions are one square


def available(inputs: Tensor, weight: Tensor) -> bool:
    """Whether the kernel supports these inputs and the weight [o, c, kh, kw]."""
    return triton is not None and inputs.is_cuda and inputs.dtype == torch.float32 and weight[0].numel() <= _MOST_TAPS


if triton is not None:

    @triton.jit
    def _larger(one, other):
        """The maximum of two, NaN if one of them is, as in torch."""
        return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def _forward(
        x_ptr,
        w_ptr,
        b_ptr,
        y_ptr,
        count,
        outputs,
        group,
        C: tl.constexpr,  # noqa: N803 - sizes of the problem, as Triton's own code writes them
        H: tl.constexpr,  # noqa: N803
        W: tl.constexpr,  # noqa: N803
        KH: tl.constexpr,  # noqa: N803
        KW: tl.constexpr,  # noqa: N803
        CHANNELS: tl.constexpr,  # noqa: N803
        TAPS: tl.constexpr,  # noqa: N803
        POSITIONS: tl.constexpr,  # noqa: N803
        RELU: tl.constexpr,  # noqa: N803
    ):
        """y[m, g, n, o, s] = b[m, (g, o)] + maximum over the positions p of square s of z[m, g, n, o, p], or 0 if that is less.

        z[m, g, n, o, p] = sum over c, i, j of w[m, (g, o), (c, i, j)] x[m, n, c, p + (i, j)].
        """
        PH: tl.constexpr = (H - KH + 1) // 2  # noqa: N806
        PW: tl.constexpr = (W - KW + 1) // 2  # noqa: N806
        SQUARES: tl.constexpr = POSITIONS // 4  # noqa: N806
        model = tl.program_id(1).to(tl.int64)
        position = tl.arange(0, POSITIONS)
        square = tl.program_id(0) * SQUARES + position // 4
        inside = square < count * (PH * PW)
        down = (square // PW) % PH * 2 + position // 2 % 2
        right = square % PW * 2 + position % 2
        x = x_ptr + model * count * (C * H * W) + square // (PH * PW) * (C * H * W) + down * W + right
        o = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
        known = o < outputs
        w = w_ptr + model * outputs * (C * KH * KW) + o * (C * KH * KW)
        total = tl.zeros((POSITIONS, CHANNELS), dtype=tl.float32)
        for start in tl.static_range(0, C * KH * KW, TAPS):
            tap = start + tl.arange(0, TAPS)
            real = tap < C * KH * KW
            away = tap // (KH * KW) * (H * W) + (tap // KW) % KH * W + tap % KW
            seen = tl.load(x[:, None] + away[None, :], mask=inside[:, None] & real[None, :], other=0.0)
            weight = tl.load(w[None, :] + tap[:, None], mask=real[:, None] & known[None, :], other=0.0)
            # Three tensor-core products give full float32.
            total += tl.dot(seen, weight, input_precision="tf32x3")
        best = tl.reduce(tl.reshape(total, (SQUARES, 4, CHANNELS)), 1, _larger)
        best += tl.load(b_ptr + model * outputs + o, mask=known, other=0.0)[None, :]
        if RELU:
            best = tl.where(best <= 0.0, 0.0, best)  # NaN stays
        square = tl.program_id(0) * SQUARES + tl.arange(0, SQUARES)
        y = y_ptr + model * count * outputs * (PH * PW)
        y += square // (PH * PW) * (group * (PH * PW)) + square % (PH * PW)
        place = ((o // group) * (count * group) + o % group).to(tl.int64) * (PH * PW)
        tl.store(y[:, None] + place[None, :], best, mask=(square < count * (PH * PW))[:, None] & known[None, :])


def forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: Pair, relu: bool, groups: int = 1) -> Tensor:
    """Pooled outputs [M, n, o, h', w'] of inputs [M, n, c, h, w], weights [M, o, c, kh, kw] and biases [M, o].

    With `groups`, o counts the channels of several models that share their inputs: outputs [M, groups, n, o / groups, h', w'].
    """
    x = nnf.pad(inputs, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else inputs
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    models, count, channels, high, wide = x.shape
    outputs, _, height, width = weight.shape[1:]
    y = x.new_empty(models, groups, count, outputs // groups, (high - height + 1) // 2, (wide - width + 1) // 2)
    block = min(_MOST_CHANNELS, max(16, 1 << (outputs - 1).bit_length()))
    grid = (-(-4 * count * y.shape[4] * y.shape[5] // _POSITIONS), models, -(-outputs // block))
    sizes = (channels, high, wide, height, width)
    tiles = {"CHANNELS": block, "TAPS": _TAPS, "POSITIONS": _POSITIONS}
    _forward[grid](x, weight, bias, y, count, outputs, outputs // groups, *sizes, **tiles, RELU=relu)
    return y if groups > 1 else y.squeeze(1)
