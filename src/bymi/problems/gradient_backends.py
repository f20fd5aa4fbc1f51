"""Gradient backends: ways to compute the gradients of many models, each on its own mini-batch. All agree up to rounding.

`loop`: one model after the other, over several threads. `stacked` (stacked_layers.py): several in one pass, for chains of known
layers; the fastest on a CPU. `batched`: all at once through torch.func. `captured`: the batched program as a CUDA graph,
without launch overhead; the fastest on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bymi.core.cuda_graphs import Recording, on_device
from bymi.core.linalg import gather_members
from bymi.core.performance_thresholds import LIMITS
from bymi.core.threaded_work import one_torch_thread
from bymi.problems.parameter_vector import ParameterShapes
from bymi.problems.pooled_convolution import fuse
from bymi.problems.vmap_convolution import ConvolutionsOfMany

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [s, ...], targets [s, ...]) -> mean loss, a scalar."""

Program = Callable[..., Tensor]
"""A function of tensors of fixed shapes."""

Path = Literal["auto", "loop", "stacked", "batched", "captured"]

_SAMPLES = 8192  # samples in one batched call: bounds its memory
_SAMPLES_FORWARD = 65536  # the same for losses alone
_FEW = 4  # pieces up to which little is computed twice if they have equal sizes
_MULTIPLE = 4  # models per row of a piece are a multiple of this, so that few shapes occur
_RECORDINGS = 8  # CUDA graphs kept, one per shape


class Gradients(Protocol):
    """Gradients [B, D] of each row of theta [B, D] on its row of inputs [B, s, ...] and targets [B, s, ...]."""

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor: ...


class Models:
    """A module and a loss as functions of parameter vectors."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss, self.layout = model, loss, ParameterShapes.of(model)

    def value(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of one model, given by its named parameters."""
        return self.loss(functional_call(self.model, values, (inputs,)), targets)

    def value_by_products(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        with ConvolutionsOfMany():
            return self.value(values, inputs, targets)

    def outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of one model [D] on inputs [s, ...]."""
        result: Tensor = functional_call(self.model, self.layout.split(theta), (inputs,))
        return result


class Loop:
    """One model after the other; rows are divided over `threads`, each with its own copy of the module."""

    def __init__(self, models: Models, threads: int) -> None:
        # functional_call temporarily writes the parameters into the module, so a module belongs to one thread.
        self._workers = [Models(copy.deepcopy(models.model), models.loss) for _ in range(threads)]
        # Always through the pool, so that each row is computed with one torch thread and has the same bits, whatever `threads`
        # is.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gradients", initializer=one_torch_thread)

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        output = theta.new_empty(theta.shape)  # contiguous, even where the rows of theta are one expanded row

        def work(models: Models, rows: range) -> None:
            for row in rows:
                values = {name: value.requires_grad_() for name, value in models.layout.split(theta[row].detach()).items()}
                loss = models.value(values, inputs[row], targets[row])
                gradients = torch.autograd.grad(loss, list(values.values()), materialize_grads=True)
                output[row] = models.layout.join(dict(zip(values, gradients, strict=True)))

        self.spread(work, len(theta))
        return output

    def spread(self, work: Callable[[Models, range], None], rows: int) -> None:
        """Call `work(models, rows)` on every thread with its part of the rows, and wait."""
        count = len(self._workers)
        parts = [range(rows * part // count, rows * (part + 1) // count) for part in range(count)]
        before = torch.get_num_threads()
        with exact():  # around all threads: the flags belong to the process
            for _ in self._pool.map(work, self._workers, parts):
                pass
        torch.set_num_threads(before)  # a new worker thread changes the default for threads that are started later


class Batched:
    """All models in one call, at most `_SAMPLES` samples at a time."""

    def __init__(self, models: Models, *, products: bool) -> None:
        self._layout = models.layout
        self._one = models.value_by_products if products else models.value
        self._each = vmap(self._one)
        self._loss_alone = Models(fuse(models.model), models.loss).value_by_products if products else models.value

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = _pieces(len(theta), _SAMPLES // max(1, inputs.shape[1]))
        if len(parts) == 1:
            return self.run(self.piece, theta, inputs, targets)
        output = theta.new_empty(theta.shape)
        for part in parts:
            output[part] = self.run(self.piece, theta[part], inputs[part], targets[part])
        return output

    def run(self, program: Program, *values: Tensor) -> Tensor:
        """The result of a program on these values."""
        return program(*values)

    def piece(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gradients [b, D] of models theta [b, D], each on its own inputs."""
        # The gradient of the sum of all losses: row by row that of its own. Not torch.func.grad, whose first call imports the
        # compiler of torch, for seconds.
        with torch.enable_grad(), exact(), on_device(theta.device):
            values = {name: value.detach().requires_grad_() for name, value in self._layout.split(theta).items()}
            total = self._each(values, inputs, targets).sum()
            gradients = torch.autograd.grad(total, list(values.values()), materialize_grads=True)
        return self._layout.join(dict(zip(values, gradients, strict=True)))

    def losses(self, vectors: Tensor, wanted: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [B, R] of models vectors [R, D] where wanted [B, R], else inf, on rows of inputs and targets [B, s, ...].

        At most `_SAMPLES_FORWARD` samples at a time. Rows that want most come first, so that those of a piece want similar
        numbers, and little is padded.
        """
        counts, order = wanted.sum(1).sort(descending=True, stable=True)
        numbers = counts.tolist()
        output = torch.full(wanted.shape, torch.inf, dtype=vectors.dtype, device=vectors.device)
        if not any(numbers):
            return output
        index, valid = gather_members(wanted[order], numbers[0])
        size = min(_SAMPLES_FORWARD // inputs.shape[1], LIMITS.copied_models // vectors.shape[1]) // numbers[0]
        for part in _pieces(len(index), size):
            rows = order[part]
            most = min(numbers[0], -(-max(1, numbers[part.start]) // _MULTIPLE) * _MULTIPLE)
            some, mask = index[part, :most], valid[part, :most]
            values = self.run(self.losses_piece, vectors, some, inputs[rows], targets[rows]).to(output.dtype)
            output[rows] = output[rows].scatter(1, some, torch.where(mask, values, torch.inf))
        return output

    def losses_piece(self, vectors: Tensor, index: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [b, k] of the models vectors[index], index [b, k], those of a row on the same inputs."""
        # By rows: vectors[index] would look up an index per number.
        theta = vectors.index_select(0, index.flatten()).view(*index.shape, -1)
        # The inner vmap is over models that share their inputs, the outer one over inputs.
        every = vmap(vmap(self._loss_alone, in_dims=(0, None, None)))
        with torch.no_grad(), exact(), on_device(theta.device):
            values: Tensor = every(self._layout.split(theta), inputs, targets)
            return values


class Captured(Batched):
    """The batched programs as CUDA graphs, one per shape of their inputs."""

    def __init__(self, models: Models, *, products: bool) -> None:
        super().__init__(models, products=products)
        self._recordings: dict[tuple[Any, ...], Recording] = {}
        self._pool: Any = None  # of memory, which all recordings share: they are replayed one by one, and results copied

    def run(self, program: Program, *values: Tensor) -> Tensor:
        key = (program.__name__, *((value.shape, value.dtype) for value in values))
        if key not in self._recordings:
            while len(self._recordings) >= _RECORDINGS:
                self._recordings.pop(next(iter(self._recordings)))
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._recordings[key] = Recording(program, values, self._pool)
        output: Tensor = self._recordings[key].replay(*values)
        return output


def _pieces(rows: int, size: int) -> list[slice]:
    """Slices of at most `size` rows that cover all. The last one overlaps the one before: a CUDA graph needs one shape."""
    size = max(1, size)
    count = -(-rows // size)
    if count <= _FEW:  # as few slices, and of equal size; many have a size that does not depend on the number of rows
        size = -(-rows // max(1, count))
    starts = [min(start, rows - size) for start in range(0, rows, size)] if rows else []
    return [slice(start, start + size) for start in starts]


class _Exact:
    """Context manager for full float32 in cuDNN, whose default rounds the inputs of convolutions to 10 bits.

    The flag belongs to the process: the first to enter sets it, the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._before: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                try:
                    self._before = torch.backends.cudnn.allow_tf32
                    torch.backends.cudnn.allow_tf32 = False
                except RuntimeError:  # torch's newer API was used for this setting, and the two may not be mixed
                    newer: Any = torch.backends.cudnn
                    self._before, newer.conv.fp32_precision = newer.conv.fp32_precision, "ieee"
            self._inside += 1

    def __exit__(self, *reason: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and isinstance(self._before, bool):
                torch.backends.cudnn.allow_tf32 = self._before
            elif not self._inside:
                newer: Any = torch.backends.cudnn
                newer.conv.fp32_precision = self._before


_EXACT = _Exact()


def exact() -> _Exact:
    """A context in which float32 means float32."""
    return _EXACT
