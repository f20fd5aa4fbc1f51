"""A learning problem from any torch module, any loss and data in shards."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from bymi.core.errors import InputError, first_line, is_integer, require
from bymi.core.linalg import all_finite, check_tensor, on_host
from bymi.problems.gradient_backends import Batched, Captured, Gradients, Loop, Loss, Models, Path
from bymi.problems.parameter_vector import ParameterShapes
from bymi.problems.problem import check_numbers, places_of
from bymi.problems.stacked_layers import Stacked, losses_of

_POOLED, _POOLED_ON_DEVICE = 2048, 8192  # samples in one pass over pooled data, on the CPU and on an accelerator


class Shards(NamedTuple):
    """The samples of all nodes: inputs [M, n, ...] and targets [M, n, ...], the same number n for each node."""

    inputs: Tensor
    targets: Tensor


class ModuleProblem:
    """`loss(model(inputs), targets)` on each node's shard; every node starts from `start` [D], or from the model's own values.

    `shards`: tensors [M, n, ...] of all nodes, or a list of a pair of tensors [n, ...] per node, with any number n of samples;
    mini-batches have one size for all nodes. They belong to nodes 0, 1, 2, ...; with `numbers` [M] to these nodes only.
    Everything lives on the device of the shards, parameters in the model's dtype. `gradients` selects the gradient backend:
    "auto" takes the fastest for the device and falls back, with a warning, when a model does not allow it; a named backend is
    used or fails. `samples`: least and largest number of samples of all nodes, if `shards` are those of some only. For models
    whose state is all in their parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        shards: Shards | Sequence[Shards],
        *,
        start: Tensor | None = None,
        numbers: Tensor | None = None,
        gradients: Path = "auto",
        threads: int | None = None,
        samples: tuple[int, int] | None = None,
    ) -> None:
        ways = get_args(Path)
        require(isinstance(gradients, str) and gradients in ways, "gradients", gradients, ", ".join(ways))
        require(threads is None or (is_integer(threads) and threads >= 1), "threads", threads, "an integer, 1 or more, or None")
        require(isinstance(model, nn.Module), "model", model, "an instance of torch.nn.Module")
        require(callable(loss) and not isinstance(loss, type), "loss", loss, "a function (outputs, targets) -> mean loss")
        joined, counts = _join(shards)
        nodes, device = len(counts), joined.inputs.device
        if gradients == "captured" and device.type != "cuda":
            raise InputError(f"gradients: got 'captured' on {device.type}, allowed: a CUDA device only")
        if gradients == "stacked" and not Stacked.fits(model):
            raise InputError("gradients: got 'stacked', allowed for a Sequential of layers that it knows; take loop or batched")
        self._together = _refuse_state(model, loss, Shards(joined.inputs[:2], joined.targets[:2]))
        self._models = Models(copy.deepcopy(model).to(device).requires_grad_(False), loss)
        dtype = next(model.parameters()).dtype
        own = ParameterShapes.of(model).join(dict(model.named_parameters()))
        if start is not None:
            check_tensor("start", start, (self.dim,))
        self._start = (own if start is None else start).detach().to(device, dtype)
        self._inputs, self._targets = joined
        self._samples, self.largest = (min(counts), max(counts)) if samples is None else samples
        self._counts = torch.tensor(counts, device=device)
        self._first = torch.cumsum(self._counts, 0) - self._counts  # [M] index of each node's first sample
        if numbers is not None:
            check_numbers("numbers", numbers, nodes)
        self.node_numbers = torch.arange(nodes, device=device) if numbers is None else numbers
        self._places = None if numbers is None else places_of(numbers.to(device))
        self._loop = Loop(self._models, threads or torch.get_num_threads())
        self._batched = Batched(self._models, products=device.type == "cuda")
        self._ways = self._order(gradients, device)

    @property
    def dim(self) -> int:
        return self._models.layout.dim

    @property
    def samples(self) -> int:
        """Samples of the node that has fewest."""
        return self._samples

    @property
    def sizes(self) -> Callable[[Tensor], Tensor] | None:
        """Samples of nodes [B], as [B]; None where all nodes have the same number."""
        return None if self._samples == self.largest else lambda nodes: self._counts[self._at(nodes)]

    @property
    def way(self) -> str:
        """The gradient backend in use: loop, stacked, batched or captured."""
        return type(self._ways[0]).__name__.lower()

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """Parameters theta [..., D] as a state dict of the model, each [..., *shape]; its buffers are repeated."""
        model, values = self._models.model, self._models.layout.split(theta)
        first = {id(value): name for name, value in model.named_parameters()}
        for name, value in model.named_parameters(remove_duplicate=False):  # a parameter may have several names
            values[name] = values[first[id(value)]]
        state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        return {name: values.get(name, value.expand((*theta.shape[:-1], *value.shape))) for name, value in state.items()}

    def initial(self, nodes: Tensor) -> Tensor:
        return self._start.expand(len(nodes), -1).clone()

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        inputs, targets = self._pick(nodes, chosen)
        return self._by_best_way(lambda way: way(theta, inputs, targets))

    def _by_best_way(self, work: Callable[[Gradients], Tensor]) -> Tensor:
        """The result of `work` with the first backend that can do it; those that cannot are dropped with a warning."""
        while True:
            try:
                return work(self._ways[0])
            except Exception as problem:  # torch.func, a kernel's compiler and graph capture fail with errors of all kinds
                if len(self._ways) == 1 or isinstance(problem, torch.cuda.OutOfMemoryError):
                    raise
                failed = self.way
                self._ways = self._ways[1:]
                warnings.warn(
                    f"gradients: {failed} does not work for this model, going on with {self.way} ({first_line(problem)})",
                    stacklevel=3,
                )

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        inputs, targets = self._pick(nodes, chosen)

        def work(way: Gradients) -> Tensor:
            if isinstance(way, Batched):
                return way.losses(vectors, wanted, inputs, targets)
            output = torch.full(wanted.shape, torch.inf, dtype=vectors.dtype, device=vectors.device)
            self._losses_by_loop(output, vectors, inputs, targets, wanted)
            return output

        return self._by_best_way(work)

    def pooled_gradient(self, theta: Tensor, nodes: Tensor) -> Tensor:
        """Gradient of the mean loss of one model [D] over all samples of the nodes."""
        size = _pass_size(theta)
        if not on_host(theta) and self.sizes is None and self.largest <= size:  # by the kernels and graphs of training
            parts = nodes.tensor_split(max(1, -(-len(nodes) * self.largest // size)))
            everything = torch.arange(self.largest, device=nodes.device).expand(len(nodes), -1)
            by_node = [self.gradient(theta.expand(len(part), -1), part, everything[: len(part)]) for part in parts]
            return torch.cat(by_node).mean(0, dtype=torch.float64)
        places = self._all_rows(nodes)
        parts = places.split(size)
        gradients = theta.new_zeros(len(parts), self.dim)

        def work(models: Models, numbers: range) -> None:
            for number in numbers:
                point = theta.detach().requires_grad_()
                loss = models.loss(models.outputs(point, self._inputs[parts[number]]), self._targets[parts[number]])
                gradients[number] = torch.autograd.grad(loss, point)[0] * (len(parts[number]) / len(places))

        self._loop.spread(work, len(parts))
        return gradients.sum(0, dtype=torch.float64)

    def pooled_loss(self, theta: Tensor, nodes: Tensor) -> Tensor:
        """Mean loss of one model [D] over all samples of the nodes, float64."""
        places = self._all_rows(nodes)
        with torch.no_grad():
            sums = [
                self._models.loss(self.outputs(theta, self._inputs[rows]), self._targets[rows]).double() * len(rows)
                for rows in places.split(_pass_size(theta))
            ]
        return torch.stack(sums).sum() / len(places)

    def _all_rows(self, nodes: Tensor) -> Tensor:
        """Flat indices of all samples of nodes."""
        everything = torch.arange(self.largest, device=nodes.device).expand(len(nodes), -1)
        rows = self._rows(nodes, everything)
        return rows if self.sizes is None else rows[(everything < self.sizes(nodes)[:, None]).flatten()]

    def outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of one model [D] on inputs [s, ...]."""
        parts = inputs.split(_pass_size(theta))
        outputs: list[Tensor] = [theta] * len(parts)

        def work(models: Models, numbers: range) -> None:
            with torch.no_grad():
                for number in numbers:
                    outputs[number] = models.outputs(theta, parts[number])

        self._loop.spread(work, len(parts))
        return torch.cat(outputs)

    def _pick(self, nodes: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen samples of each node, [B, s, ...] each."""
        places = self._rows(nodes, chosen)
        inputs, targets = self._inputs.index_select(0, places), self._targets.index_select(0, places)
        return inputs.unflatten(0, chosen.shape), targets.unflatten(0, chosen.shape)

    def _rows(self, nodes: Tensor, chosen: Tensor) -> Tensor:
        """Flat indices of the chosen samples [B, s] of nodes [B]."""
        return (self._first[self._at(nodes)][:, None] + chosen).flatten()

    def _at(self, nodes: Tensor) -> Tensor:
        """Indices of the shards of nodes [B]."""
        return nodes if self._places is None else self._places[nodes]

    def _order(self, path: Path, device: torch.device) -> list[Gradients]:
        """The gradient backends to try, best first."""
        captured, stacked = Captured(self._models, products=True), Stacked(self._loop)
        ways: dict[str, Gradients] = {
            "loop": self._loop,
            "stacked": stacked,
            "batched": self._batched,
            "captured": captured,
        }
        if path != "auto":
            return [ways[path]]
        if device.type != "cpu":
            return [captured, self._batched, self._loop]
        return [stacked, self._loop] if Stacked.fits(self._models.model) else [self._loop]

    def _losses_by_loop(self, output: Tensor, vectors: Tensor, inputs: Tensor, targets: Tensor, wanted: Tensor) -> None:
        chain = self._together and Stacked.fits(self._models.model)

        def work(models: Models, rows: range) -> None:
            with torch.no_grad():
                for row in rows:
                    receivers = wanted[:, row].nonzero().flatten()
                    if not len(receivers):
                        continue
                    if chain:
                        output[receivers, row] = losses_of(models, vectors[row], inputs[receivers], targets[receivers]).to(
                            output.dtype
                        )
                        continue
                    if self._together:  # one pass for all receivers that want this model, then a loss for each of them
                        outputs = models.outputs(vectors[row], inputs[receivers].flatten(0, 1)).unflatten(
                            0, (len(receivers), -1)
                        )
                    else:
                        outputs = torch.stack([models.outputs(vectors[row], inputs[place]) for place in receivers])
                    losses = [models.loss(*pair) for pair in zip(outputs, targets[receivers], strict=True)]
                    output[receivers, row] = torch.stack(losses).to(output.dtype)

        self._loop.spread(work, len(vectors))


def _pass_size(theta: Tensor) -> int:
    """Samples in one pass over pooled data. An accelerator waits for the host where passes are small."""
    return _POOLED if theta.device.type == "cpu" else _POOLED_ON_DEVICE


def _join(shards: Shards | Sequence[Shards]) -> tuple[Shards, list[int]]:
    """All samples, one node after the other, and the number of samples per node."""
    if isinstance(shards, list) and shards and not isinstance(shards[0], Tensor):
        pairs = [_check_shards(shard) for shard in shards]
        for node, (inputs, targets) in enumerate(pairs):
            fits = inputs.ndim > 0 and targets.ndim > 0 and len(inputs) == len(targets)
            got = f"inputs of shape {list(inputs.shape)} and targets of shape {list(targets.shape)}"
            require(fits, f"shards[{node}]", got, "as many of both")
        try:
            joined = Shards(torch.cat([pair.inputs for pair in pairs]), torch.cat([pair.targets for pair in pairs]))
        except (RuntimeError, TypeError) as problem:
            raise InputError(f"shards: samples of nodes do not go together ({first_line(problem)})") from None
        return joined, [len(pair.inputs) for pair in pairs]
    shards = _check_shards(shards)
    if shards.inputs.ndim < 2 or shards.targets.ndim < 2:
        shapes = f"{list(shards.inputs.shape)} and {list(shards.targets.shape)}"
        raise InputError(f"shards: got inputs and targets of shapes {shapes}, allowed: [nodes, samples, ...] each")
    nodes, samples = shards.inputs.shape[:2]
    if shards.targets.shape[:2] != (nodes, samples):
        got = f"inputs are of {nodes} x {samples} samples, targets of {list(shards.targets.shape[:2])}"
        raise InputError(f"shards: {got}, allowed: as many of both")
    return Shards(shards.inputs.flatten(0, 1), shards.targets.flatten(0, 1)), [samples] * nodes


def _check_shards(shards: object) -> Shards:
    """Inputs and targets as tensors; raises InputError if they are empty or not finite."""
    pair = isinstance(shards, (tuple, list)) and len(shards) == 2 and all(isinstance(part, Tensor) for part in shards)
    require(pair, "shards", shards, "Shards(inputs, targets), tensors [nodes, samples, ...] each")
    assert isinstance(shards, (tuple, list))
    for name, part in zip(Shards._fields, shards, strict=True):
        require(part.numel() > 0, f"shards.{name}", part, "one sample or more for each node")
        require(not part.is_floating_point() or all_finite(part), f"shards.{name}", "NaN or infinite numbers", "finite numbers")
    return Shards(*shards)


def _refuse_state(model: nn.Module, loss: Loss, some: Shards) -> bool:
    """Raise InputError for models that cannot be averaged, with the part at fault: state outside of parameters, randomness.

    Also for models and losses that cannot be applied to `some` samples. Returns whether samples may be passed through the model
    together, because no output depends on another sample.
    """
    inputs = some.inputs.to("cpu")
    if not any(True for _ in model.parameters()):
        raise InputError("model: it has no parameters, so there is nothing to learn")
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    if frozen:
        raise InputError(f"model: {frozen[0]} does not require gradients; make fixed values buffers, all parameters are learnt")
    for path, module in model.named_modules():
        name = path or "the model"
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InputError(f"model: {name} draws dropout from a generator that nodes do not share; set p = 0 or remove it")
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise InputError(
                f"model: {name} ({type(module).__name__}) keeps running statistics, which cannot be averaged over nodes; "
                "use GroupNorm or LayerNorm, or track_running_stats=False"
            )
    trial = copy.deepcopy(model).to("cpu").train()
    buffers = {name: value.clone() for name, value in trial.named_buffers()}
    try:
        with torch.no_grad():
            first, again = trial(inputs), trial(inputs)
    except Exception as problem:  # the user's code may raise anything
        raise InputError(f"model: cannot be applied to inputs of shape {list(inputs.shape)}: {first_line(problem)}") from None
    changed = [name for name, value in trial.named_buffers() if not torch.equal(value, buffers[name])]
    if changed:
        raise InputError(f"model: a forward pass changes the buffer {changed[0]}, which cannot be averaged over nodes")
    if not isinstance(first, Tensor):
        return False
    _try_loss(loss, first.to(some.inputs.device), some.targets)
    if not torch.equal(torch.nan_to_num(first), torch.nan_to_num(again)):
        raise InputError("model: two forward passes on the same inputs differ; it must not draw random numbers")
    try:
        with torch.no_grad():
            separate = torch.cat([trial(inputs[:1]), trial(inputs[1:])])
    except Exception:  # a layer that refuses a single sample depends on several
        return False
    return torch.allclose(first, separate, rtol=1e-3, atol=1e-5, equal_nan=True)


def _try_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for a loss that cannot be applied to the outputs, or is not a scalar."""
    try:
        with torch.no_grad():
            value = loss(outputs, targets)
    except Exception as problem:  # the user's code may raise anything
        what = f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}"
        raise InputError(f"loss: cannot be applied to {what}: {first_line(problem)}") from None
    require(isinstance(value, Tensor) and value.ndim == 0, "loss", value, "a function to a scalar tensor, the mean")
