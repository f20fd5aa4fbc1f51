"""Keys and normal numbers of streams on a GPU (random_streams.cu), which torch makes by some twenty launches."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bymi.core.cuda_graphs import on_device
from bymi.core.cuda_kernels import Launch, compiled

_SOURCE = Path(__file__).with_name("random_streams.cu")
_THREADS = 256  # as in the source
_MOST = (1 << 31) - 1


def keys_of_nodes(nodes: Tensor, start: int, step: int | None) -> Tensor | None:
    """Keys [B] of nodes [B] and perhaps a step; None where the kernel cannot be used: on a CPU, or without the compiler."""
    kernel = _kernel("keys_of_nodes", nodes.device) if nodes.is_cuda and 0 < nodes.numel() <= _MOST else None
    if kernel is None:
        return None
    output = torch.empty_like(nodes, memory_format=torch.contiguous_format)
    words = ctypes.c_longlong(start), ctypes.c_longlong(0 if step is None else int(step))
    with on_device(nodes.device):
        kernel(-(-len(nodes) // _THREADS), nodes.contiguous(), output, *words, int(step is not None), len(nodes))
    return output


def normals(keys: Tensor, count: int) -> Tensor | None:
    """Standard normal float64 [B, count] for keys [B]; None as above."""
    half = (count + 1) // 2
    kernel = _kernel("normals", keys.device) if keys.is_cuda and 0 < keys.numel() * count <= _MOST else None
    if kernel is None:
        return None
    output = torch.empty(len(keys), count, dtype=torch.float64, device=keys.device)
    with on_device(keys.device):
        kernel(-(-len(keys) * half // _THREADS), keys.contiguous(), output, len(keys), count, half)
    return output


@cache
def _kernel(name: str, device: torch.device) -> Launch | None:
    return compiled(_SOURCE, name, device, _THREADS, 0)
