"""Programs of many small kernels as CUDA graphs, which start with one launch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from bymi.core.errors import first_line
from bymi.core.performance_thresholds import LIMITS

T = TypeVar("T", Tensor, tuple[Tensor, ...])

_KEPT = 32  # programs remembered, by shapes
_ROOM = 0.25  # share of a GPU's memory that is free for a recording
_programs: dict[Hashable, Callable[..., Any] | None] = {}  # None: called once


def captured(program: Callable[..., T], /, *values: Tensor, **constants: Hashable) -> T:
    """`program(*values, **constants)`; on a GPU as a CUDA graph from the second call with tensors of the same shapes on.

    The program must be a pure function that looks at no number on the host. To record it takes two calls, and keeps the memory
    of one: large inputs, where launches matter little, and shapes that come once are not recorded.
    """
    return captured_up_to(LIMITS.captured, program, *values, **constants)


def captured_up_to(most: int, program: Callable[..., T], /, *values: Tensor, **constants: Hashable) -> T:
    """`captured` for values of at most so many numbers."""
    if not _recordable(values, most):
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


def _recordable(values: tuple[Tensor, ...], most: int) -> bool:
    if values[0].device.type != "cuda" or sum(value.numel() for value in values) > most:
        return False
    return not torch.cuda.is_current_stream_capturing()  # a part of a program that is being recorded


def _recorded(program: Callable[..., Any], values: tuple[Tensor, ...]) -> Callable[..., Any]:
    """A replay of the program, or itself if it cannot be captured."""
    try:
        return Recording(program, values).replay
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        warnings.warn(f"not captured, so slower: {program} ({first_line(problem)})", stacklevel=3)
        return program


def _static(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Contiguous copies to overwrite before each replay. Recordings outlive the mode in which they are made: only in inference
    mode may a tensor that was made in it be overwritten."""
    with torch.inference_mode(False), torch.no_grad():
        return tuple(value.clone(memory_format=torch.contiguous_format) for value in values)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all recordings: torch keeps freed memory per stream."""
    return torch.cuda.Stream(device)


class Recording:
    """One captured program with its static inputs and outputs, in memory of its own or in a `pool` that recordings share."""

    def __init__(self, program: Callable[..., Any], example: tuple[Tensor, ...], pool: Any = None) -> None:
        self._inputs = _static(example)
        self._device = example[0].device
        self._graph = torch.cuda.CUDAGraph()
        with on_device(self._device):
            side = _side_stream(self._device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                program(*self._inputs)  # libraries initialise on their first call, which a graph cannot capture
                torch.cuda.synchronize()
                free, total = torch.cuda.mem_get_info()
                if free < _ROOM * total:  # memory that torch keeps is of no use to a graph
                    torch.cuda.empty_cache()
                # Not by torch.cuda.graph, which always gives that memory back: it would be asked for again at once.
                self._graph.capture_begin(*(() if pool is None else (pool,)))
                try:
                    self._output = program(*self._inputs)
                finally:
                    self._graph.capture_end()
            torch.cuda.current_stream().wait_stream(side)

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
    current = device.type != "cuda" or device.index == torch.cuda.current_device()  # a tenth of the time to change it
    return nullcontext() if current else torch.cuda.device(device)
