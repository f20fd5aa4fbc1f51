# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Triton kernels for convolutions of many models at once (stride 1, float32, any kernel size and padding), and 2 x 2 pooling.

Patches are never materialised: each program iterates over the taps of the kernel and accumulates. Triton comes with torch's
CUDA builds; without it the matrix products of `vmap_convolution` are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import torch
from torch import Tensor
from torch.nn import functional as nnf

from bymi.core.cuda_graphs import on_device

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch
    triton = None

Pair = tuple[int, int]

_SUMS = 8192  # accumulators per program of the forward kernel: 64 registers of each of its 128 threads
_MOST_OUTPUTS = 128  # channels whose weight gradient fits a program
_SPLITS = 8  # programs that share the sum over pixels of one model's weight gradient
_PLANES, _SIDE = 16, 28  # pooled to start Triton: of the size of LeNet's, so that this kernel is of use


def available(inputs: Tensor, outputs: int = 1) -> bool:
    """Whether the kernels support these inputs, for so many output channels."""
    return triton is not None and inputs.is_cuda and inputs.dtype == torch.float32 and outputs <= _MOST_OUTPUTS


@contextmanager
def starting(device: torch.device) -> Iterator[None]:
    """Inside, a thread starts on a GPU what the first gradients need: Triton and torch's libraries take most of a second."""
    thread = Thread(target=_start, args=(device,), daemon=True)
    if triton is not None and device.type == "cuda":
        thread.start()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()


def _start(device: torch.device) -> None:
    with suppress(Exception), on_device(device):  # what is wrong shows where one of them is used
        images = torch.zeros(_PLANES, 1, _SIDE, _SIDE, device=device)
        pool(images)
        nnf.conv2d(images, images[:1, :, :5, :5])
        images[0, 0] @ images[0, 0]


if triton is not None:

    @triton.jit
    def _forward(
        x_ptr,
        w_ptr,
        b_ptr,
        y_ptr,
        count,
        outputs,
        slots,
        group,
        C: tl.constexpr,  # noqa: N803 - sizes of the problem, as Triton's own code writes them
        H: tl.constexpr,  # noqa: N803
        W: tl.constexpr,  # noqa: N803
        KH: tl.constexpr,  # noqa: N803
        KW: tl.constexpr,  # noqa: N803
        CHANNELS: tl.constexpr,  # noqa: N803
        POSITIONS: tl.constexpr,  # noqa: N803
    ):
        """y[m, g, n, o, p] = b[m, (g, o)] + sum over c, i, j of w[m, (c, i, j), (g, o)] x[m, n, c, p + (i, j)]."""
        OH: tl.constexpr = H - KH + 1  # noqa: N806
        OW: tl.constexpr = W - KW + 1  # noqa: N806
        model = tl.program_id(1).to(tl.int64)
        q = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
        o = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
        inside = q < count * OH * OW
        sample = q // (OH * OW)
        x = x_ptr + model * count * (C * H * W) + sample * (C * H * W) + ((q // OW) % OH) * W + q % OW
        w = w_ptr + model * slots * (C * KH * KW) + o
        known = o < outputs
        bias = tl.load(b_ptr + model * outputs + o, mask=known, other=0.0)
        total = tl.zeros((CHANNELS, POSITIONS), dtype=tl.float32) + bias[:, None]
        for c in range(C):
            for i in range(KH):  # unrolled it would take seconds longer to compile, and little less to run
                for j in tl.static_range(KW):
                    seen = tl.load(x + c * (H * W) + i * W + j, mask=inside, other=0.0)
                    weight = tl.load(w + ((c * KH + i) * KW + j) * slots)
                    total += weight[:, None] * seen[None, :]
        y = y_ptr + model * count * outputs * (OH * OW) + (sample * group * (OH * OW) + q % (OH * OW))[None, :]
        place = ((o // group) * (count * group) + o % group).to(tl.int64) * (OH * OW)
        tl.store(y + place[:, None], total, mask=inside[None, :] & known[:, None])

    @triton.jit
    def _by_weight(
        g_ptr,
        x_ptr,
        d_ptr,
        count,
        models,
        OUTPUTS: tl.constexpr,  # noqa: N803
        C: tl.constexpr,  # noqa: N803
        H: tl.constexpr,  # noqa: N803
        W: tl.constexpr,  # noqa: N803
        KH: tl.constexpr,  # noqa: N803
        KW: tl.constexpr,  # noqa: N803
        CHANNELS: tl.constexpr,  # noqa: N803
        TAPS: tl.constexpr,  # noqa: N803
        POSITIONS: tl.constexpr,  # noqa: N803
        SPLITS: tl.constexpr,  # noqa: N803
    ):
        """d[s, m, o, (c, i, j)] = part s of the sum over n, p of g[m, n, o, p] x[m, n, c, p + (i, j)]."""
        OH: tl.constexpr = H - KH + 1  # noqa: N806
        OW: tl.constexpr = W - KW + 1  # noqa: N806
        split = tl.program_id(0)
        model = tl.program_id(1).to(tl.int64)
        o = tl.arange(0, CHANNELS)
        tap = tl.program_id(2) * TAPS + tl.arange(0, TAPS)
        real = tap < C * KH * KW
        away = (tap // (KH * KW)) * (H * W) + ((tap // KW) % KH) * W + tap % KW
        positions = count * (OH * OW)
        x = x_ptr + model * count * (C * H * W)
        g = g_ptr + model * count * (OUTPUTS * OH * OW)
        total = tl.zeros((CHANNELS, TAPS), dtype=tl.float32)
        for start in range(split * POSITIONS, positions, SPLITS * POSITIONS):
            q = start + tl.arange(0, POSITIONS)
            inside = q < positions
            sample = q // (OH * OW)
            place = sample * (C * H * W) + ((q // OW) % OH) * W + q % OW
            seen = tl.load(x + place[:, None] + away[None, :], mask=inside[:, None] & real[None, :], other=0.0)
            at = sample * (OUTPUTS * OH * OW) + q % (OH * OW)
            known = inside[None, :] & (o < OUTPUTS)[:, None]
            gradient = tl.load(g + at[None, :] + o[:, None] * (OH * OW), mask=known, other=0.0)
            # Three tensor-core products give full float32.
            total += tl.dot(gradient, seen, input_precision="tf32x3")
        d = d_ptr + (split * models + model) * (OUTPUTS * C * KH * KW) + o[:, None] * (C * KH * KW) + tap[None, :]
        tl.store(d, total, mask=(o < OUTPUTS)[:, None] & real[None, :])

    @triton.jit
    def _pool(x_ptr, y_ptr, at_ptr, size, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
        """Maximum of each 2 x 2 square of planes [h, w] and its index in the square; the first of equal values, as in torch."""
        PH: tl.constexpr = H // 2  # noqa: N806
        PW: tl.constexpr = W // 2  # noqa: N806
        q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = q < size
        corner = x_ptr + (q // (PH * PW)) * (H * W) + ((q // PW) % PH) * (2 * W) + (q % PW) * 2
        best = tl.load(corner, mask=inside, other=0.0)
        at = tl.zeros((BLOCK,), dtype=tl.int8)
        for k in tl.static_range(1, 4):
            other = tl.load(corner + (k // 2) * W + k % 2, mask=inside, other=0.0)
            better = (other > best) | (other != other)
            best = tl.where(better, other, best)
            at = tl.where(better, k, at).to(tl.int8)
        tl.store(y_ptr + q, best, mask=inside)
        tl.store(at_ptr + q, at, mask=inside)

    @triton.jit
    def _unpool(g_ptr, at_ptr, d_ptr, size, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
        """Puts each gradient where its value came from, zero at the other three positions."""
        PH: tl.constexpr = H // 2  # noqa: N806
        PW: tl.constexpr = W // 2  # noqa: N806
        q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = q < size
        corner = d_ptr + (q // (PH * PW)) * (H * W) + ((q // PW) % PH) * (2 * W) + (q % PW) * 2
        gradient = tl.load(g_ptr + q, mask=inside, other=0.0)
        at = tl.load(at_ptr + q, mask=inside, other=0)
        for k in tl.static_range(4):
            tl.store(corner + (k // 2) * W + k % 2, tl.where(at == k, gradient, 0.0), mask=inside)


def pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """2 x 2 max pooling of planes [..., h, w]: values and their indices in the squares [..., h // 2, w // 2]."""
    x = images.contiguous()
    high, wide = x.shape[-2:]
    y = x.new_empty(*x.shape[:-2], high // 2, wide // 2)
    at = torch.empty_like(y, dtype=torch.int8)
    _pool[(-(-y.numel() // 1024),)](x, y, at, y.numel(), high, wide, BLOCK=1024)
    return y, at


def unpool(gradient: Tensor, at: Tensor, size: Pair) -> Tensor:
    """The gradient by the images [..., h, w] of `pool` from that by its values."""
    gradient, at = gradient.contiguous(), at.contiguous()
    whole = size[0] % 2 == 0 and size[1] % 2 == 0
    make = gradient.new_empty if whole else gradient.new_zeros  # an odd last row or column belongs to no square
    d = make(*gradient.shape[:-2], *size)
    _unpool[(-(-gradient.numel() // 1024),)](gradient, at, d, gradient.numel(), *size, BLOCK=1024)
    return d


def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, groups: int = 1) -> Tensor:
    """Outputs [M, n, o, h', w'] of inputs [M, n, c, h, w], weights [M, o, c, kh, kw] and biases [M, o].

    With `groups`, o counts the channels of several models that share their inputs: outputs [M, groups, n, o / groups, h', w'].
    """
    x = _pad(inputs, padding)
    models, count, channels, high, wide = x.shape
    outputs, _, height, width = weight.shape[1:]
    block = min(16, _power(outputs))
    slots = -(-outputs // block) * block
    # Taps first and channels padded, so that a program reads those of one tap in one load.
    taps = nnf.pad(weight.flatten(2).transpose(1, 2), (0, slots - outputs)).contiguous()
    bias = x.new_zeros(models, outputs) if bias is None else bias.contiguous()
    y = x.new_empty(models, groups, count, outputs // groups, high - height + 1, wide - width + 1)
    positions = _SUMS // block
    grid = (-(-count * y.shape[4] * y.shape[5] // positions), models, slots // block)
    sizes = (channels, high, wide, height, width)
    _forward[grid](x, taps, bias, y, count, outputs, slots, outputs // groups, *sizes, CHANNELS=block, POSITIONS=positions)
    return y if groups > 1 else y.squeeze(1)


def by_inputs(gradient: Tensor, weight: Tensor, padding: Pair) -> Tensor:
    """Gradient by inputs [M, n, c, h, w] from that by outputs [M, n, o, h', w']: a convolution with the mirrored kernel."""
    height, width = weight.shape[3:]
    return forward(gradient, weight.transpose(1, 2).flip(3, 4), None, (height - 1 - padding[0], width - 1 - padding[1]))


def by_weight(gradient: Tensor, inputs: Tensor, kernel: Pair, padding: Pair) -> Tensor:
    """Gradient by weights [M, o, c, kh, kw] from that by outputs [M, n, o, h', w'] and the inputs [M, n, c, h, w]."""
    gradient, x = gradient.contiguous(), _pad(inputs, padding)
    models, count, outputs = gradient.shape[:3]
    channels, high, wide = x.shape[2:]
    taps = channels * kernel[0] * kernel[1]
    d = gradient.new_empty(_SPLITS, models, outputs, channels, *kernel)
    block = min(64, max(16, _power(taps)))
    grid = (_SPLITS, models, -(-taps // block))
    sizes = (outputs, channels, high, wide, *kernel)
    rows = max(16, _power(outputs))
    _by_weight[grid](gradient, x, d, count, models, *sizes, CHANNELS=rows, TAPS=block, POSITIONS=64, SPLITS=_SPLITS)
    return d.sum(0)


def _pad(images: Tensor, padding: Pair) -> Tensor:
    """Images padded with zeros; a negative padding crops."""
    return (nnf.pad(images, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else images).contiguous()


def _power(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
