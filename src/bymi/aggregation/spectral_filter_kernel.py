"""The whole loop of a spectral filter in one CUDA kernel (spectral_filter.cu), a block of threads per set of points."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bymi.core.cuda_graphs import on_device
from bymi.core.cuda_kernels import Launch, compiled

_SOURCE = Path(__file__).with_name("spectral_filter.cu")
_MOST = 128  # points per set
_THREADS, _WARPS, _STEPS = 256, 8, 32  # as in the source


def filtered(gram: Tensor, valid: Tensor, goal: Tensor, *, caf: bool = False, median: bool = False) -> Tensor | None:
    """Weights [b, n] that sum to one, from inner products [b, n, n], validity [b, n] and the weight to reach [b].

    None where the kernel cannot be used: on a CPU, in another precision, for no sets, for more than 128 points, or without the
    compiler.
    """
    count = gram.shape[1]
    usable = gram.is_cuda and gram.dtype == goal.dtype == torch.float64 and valid.dtype == torch.bool
    usable = usable and len(gram) > 0 and count <= _MOST  # a grid of no blocks is an error
    kernel = _kernel(gram.device, **macros(count, caf=caf, median=median)) if usable else None
    if kernel is None:
        return None
    output = torch.empty(gram.shape[:2], dtype=torch.float64, device=gram.device)
    with on_device(gram.device):
        kernel(len(gram), gram.contiguous(), valid.contiguous(), goal.contiguous(), output, count)
    return output


def macros(count: int, *, caf: bool, median: bool) -> dict[str, int]:
    """What the source is compiled with for sets of `count` points."""
    return {"TILE": 2 * -(-count // 32), "CAF": int(caf), "MEDIAN": int(median)}


def shared_memory(tile: int) -> int:
    """Bytes of shared memory per block, for the value of the macro TILE: what `block_in` lays out."""
    places = 16 * tile
    return 8 * (places * (places + 4 + 2 + _WARPS) + 6 * _STEPS)


@cache
def _kernel(device: torch.device, **macros: int) -> Launch | None:
    return compiled(_SOURCE, "spectral_filter", device, _THREADS, shared_memory(macros["TILE"]), **macros)
