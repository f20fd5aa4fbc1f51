"""Ways to compute the gradients of many models, each on its own mini-batch. All give the same numbers, to rounding.

`loop`: one model after the other, spread over threads: the fastest on a CPU. `batched`: all at once through torch.func.
`captured`: the batched program recorded as a CUDA graph and replayed, without the time to launch it: the fastest on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bymi.problems.convolution import ConvolutionsAsProducts
from bymi.problems.layout import Layout

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [s, ...], targets [s, ...]) -> mean loss, a scalar."""

Path = Literal["auto", "loop", "batched", "captured"]

_SAMPLES = 8192  # samples in one batched program: bounds its memory
_RECORDINGS = 4  # CUDA graphs kept, one a shape


class Gradients(Protocol):
    """Gradient of each row of theta [B, D] on its row of inputs [B, s, ...] and targets [B, s, ...], as [B, D]."""

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor: ...


class Models:
    """A module and a loss as functions of parameter vectors."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss, self.layout = model, loss, Layout.of(model)

    def value(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of one model, given by its named parameters."""
        return self.loss(functional_call(self.model, values, (inputs,)), targets)

    def value_by_products(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        with ConvolutionsAsProducts():
            return self.value(values, inputs, targets)

    def outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """What one model [D] says of inputs [s, ...]."""
        result: Tensor = functional_call(self.model, self.layout.split(theta), (inputs,))
        return result


class Loop:
    """One model after the other; rows are spread over `threads`, each with its own copy of the module."""

    def __init__(self, models: Models, threads: int) -> None:
        # functional_call writes the parameters into the module for a moment: a module belongs to one thread.
        self._workers = [Models(copy.deepcopy(models.model), models.loss) for _ in range(threads)]
        # Always through the pool, so that each row is computed with one torch thread and the same bits, whatever `threads` is.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gradients", initializer=_one_thread)

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        output = torch.empty_like(theta)

        def work(models: Models, rows: range) -> None:
            for row in rows:
                values = {name: value.requires_grad_() for name, value in models.layout.split(theta[row].detach()).items()}
                loss = models.value(values, inputs[row], targets[row])
                found = torch.autograd.grad(loss, list(values.values()), materialize_grads=True)
                output[row] = models.layout.join(dict(zip(values, found, strict=True)))

        self.spread(work, len(theta))
        return output

    def spread(self, work: Callable[[Models, range], None], rows: int) -> None:
        """Call `work(models, rows)` on every thread with its part of the rows, and wait."""
        count = len(self._workers)
        parts = [range(rows * at // count, rows * (at + 1) // count) for at in range(count)]
        for _ in self._pool.map(work, self._workers, parts):
            pass


class Batched:
    """All models in one program, at most `_SAMPLES` samples at a time."""

    def __init__(self, models: Models, *, products: bool) -> None:
        self._layout = models.layout
        self._one = models.value_by_products if products else models.value
        self._all = vmap(grad(self._one))

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.in_pieces(self.piece, theta, inputs, targets)

    def piece(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        with exact():
            return self._layout.join(self._all(self._layout.split(theta), inputs, targets))

    def losses(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each row [B]."""
        with torch.no_grad(), exact():
            values: Tensor = vmap(self._one)(self._layout.split(theta), inputs, targets)
            return values

    @staticmethod
    def in_pieces(piece: Gradients, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        size = rows_at_once(inputs)
        if len(theta) <= size:
            return piece(theta, inputs, targets)
        output = torch.empty_like(theta)
        for start in range(0, len(theta), size):
            part = slice(start, start + size)
            output[part] = piece(theta[part], inputs[part], targets[part])
        return output


class Captured:
    """The batched program as CUDA graphs, one a shape of its inputs."""

    def __init__(self, batched: Batched) -> None:
        self._batched = batched
        self._recordings: dict[tuple[torch.Size, torch.Size], _Recording] = {}

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return Batched.in_pieces(self._piece, theta, inputs, targets)

    def _piece(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        shape = (inputs.shape, targets.shape)
        if shape not in self._recordings:
            while len(self._recordings) >= _RECORDINGS:
                self._recordings.pop(next(iter(self._recordings)))
            self._recordings[shape] = _Recording(self._batched.piece, (theta, inputs, targets))
        return self._recordings[shape].replay(theta, inputs, targets)


class _Recording:
    """One program with its places for inputs and output."""

    def __init__(self, program: Gradients, example: tuple[Tensor, Tensor, Tensor]) -> None:
        self._inputs = tuple(value.clone(memory_format=torch.contiguous_format) for value in example)
        # Libraries set themselves up at a first call, which a graph may not hold: that happens on a side stream.
        side = torch.cuda.Stream(example[0].device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            program(*self._inputs)
            program(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = program(*self._inputs)

    def replay(self, *values: Tensor) -> Tensor:
        for place, value in zip(self._inputs, values, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._output.clone()


def rows_at_once(inputs: Tensor) -> int:
    """How many rows of inputs [B, s, ...] one batched program takes."""
    return max(1, _SAMPLES // max(1, inputs.shape[1]))


@contextmanager
def exact() -> Iterator[None]:
    """Full float32 in cuDNN: its default rounds the inputs of convolutions to 10 bits."""
    if not torch.backends.cudnn.is_available():
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def _one_thread() -> None:
    torch.set_num_threads(1)
