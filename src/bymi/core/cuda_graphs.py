"""Programs of many small kernels as CUDA graphs, which start with one launch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from bymi.core.errors import first_line
from bymi.core.performance_thresholds import LIMITS

T = TypeVar("T", Tensor, tuple[Tensor, ...])

_KEPT = 16  # programs remembered, by shapes
_programs: dict[Hashable, Callable[..., Any] | None] = {}  # None: called once


def captured(program: Callable[..., T], *values: Tensor, **constants: Hashable) -> T:
    """`program(*values, **constants)`; on a GPU as a CUDA graph from the second call with tensors of the same shapes on.

    The program must be a pure function that looks at no number on the host. To record it takes three calls and a garbage
    collection, and keeps the memory of one call: large inputs, where launches matter little, and shapes that come once are not
    recorded.
    """
    if not _recordable(values):
        return program(*values, **constants)
    owner = getattr(program, "__self__", None)  # equal rules share a recording
    form: list[Hashable] = [(value.shape, value.dtype, value.device) for value in values]
    key: Hashable = (owner, getattr(program, "__func__", program), *constants.items(), *form)
    if key not in _programs:
        while len(_programs) >= _KEPT:
            _programs.pop(next(iter(_programs)))
        _programs[key] = None
        return program(*values, **constants)
    ready = _programs.pop(key)
    if ready is None:
        ready = _recorded(partial(program, **constants), values)
    _programs[key] = ready  # at the end: the first ones are forgotten first
    result: T = ready(*values)
    return result


def _recordable(values: tuple[Tensor, ...]) -> bool:
    return values[0].device.type == "cuda" and sum(value.numel() for value in values) <= LIMITS.captured


def _recorded(program: Callable[..., Any], values: tuple[Tensor, ...]) -> Callable[..., Any]:
    """A replay of the program, or itself if it cannot be captured."""
    try:
        return Recording(program, values).replay
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        warnings.warn(f"not captured, so slower: {program} ({first_line(problem)})", stacklevel=3)
        return program


class Recording:
    """One captured program with its static inputs and outputs, in memory of its own or in a `pool` that recordings share."""

    def __init__(self, program: Callable[..., Any], example: tuple[Tensor, ...], pool: Any = None) -> None:
        self._inputs = tuple(value.clone(memory_format=torch.contiguous_format) for value in example)
        self._device = example[0].device
        with on_device(self._device):
            # Libraries initialise on their first call, which a graph cannot capture: warm up on a side stream.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                program(*self._inputs)
                program(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            # The outer context restores the stream even where the capture fails.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(self._graph, pool=pool):
                self._output = program(*self._inputs)

    def replay(self, *values: Tensor) -> Any:
        """What the program computes from values of the recorded shapes."""
        with on_device(self._device):
            for place, value in zip(self._inputs, values, strict=True):
                place.copy_(value)
            self._graph.replay()
            output = self._output
            return output.clone() if isinstance(output, Tensor) else tuple(part.clone() for part in output)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which `device` is the current GPU; graphs and kernels go there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
