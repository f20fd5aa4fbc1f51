"""A node's own data and model: Python objects named as module:object, or files with a model that is built in."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.core.errors import BymiError, InputError, is_integer, require
from bymi.core.linalg import norms
from bymi.core.named_parts import read_shorthand
from bymi.core.random_streams import stream
from bymi.datasets import read_idx
from bymi.node.roster import ModelSignature
from bymi.problems import ModuleProblem, Shards, lenet, start_of
from bymi.problems.gradient_backends import Loss

LOSSES: dict[str, Loss] = {"cross-entropy": nnf.cross_entropy, "squared": nnf.mse_loss}
_MODELS = {"lenet": {"classes": 10}, "linear": {"inputs": 1, "outputs": 1}}  # built in: parameters and their defaults
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_object(name: str, key: str) -> Any:
    """The object that module:object names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except BymiError:
        raise
    except Exception as problem:  # the module may raise anything
        raise InputError(f"{key}: got {name!r}, allowed: an object that can be imported ({type(problem).__name__})") from None


def is_object(name: object) -> bool:
    """Whether a value has the form module:object."""
    return isinstance(name, str) and _OBJECT.fullmatch(name) is not None


def load_samples(source: str | Mapping[str, str], folder: Path, key: str, dtype: torch.dtype) -> Shards:
    """Inputs [n, ...] and targets [n, ...] of a node.

    `source`: module:object, a pair of arrays or a function that returns one; an .npz file with `inputs` and `targets`; a .csv
    file without a heading, target last; or a table with the IDX files `inputs` and `targets`, bytes scaled to 0..1.
    """
    try:
        inputs, targets = _read_pair(source, folder, key)
    except BymiError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{key}: cannot read {source!r} ({type(problem).__name__}: {problem})") from None
    inputs = torch.as_tensor(np.asarray(inputs)).to(dtype)
    targets = torch.as_tensor(np.asarray(targets))
    targets = targets.to(dtype) if targets.is_floating_point() else targets.to(torch.int64)
    require(len(inputs) == len(targets) >= 2, key, f"{len(inputs)} inputs, {len(targets)} targets", "as many, 2 or more")
    require(bool(torch.isfinite(inputs).all()), key, "inputs that are not finite", "finite numbers")
    return Shards(inputs, targets)


def _read_pair(source: str | Mapping[str, str], folder: Path, key: str) -> tuple[Any, Any]:
    if not isinstance(source, str):
        images, labels = (read_idx(folder / source[name]) for name in ("inputs", "targets"))
        return images[:, None].numpy() / 255.0, labels.numpy()
    if is_object(source):
        found = load_object(source, key)
        inputs, targets = found() if callable(found) else found
        return inputs, targets
    path = folder / source
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["inputs"], arrays["targets"]
    if path.suffix == ".csv":
        rows = np.loadtxt(path, delimiter=",", ndmin=2)
        whole = np.array_equal(rows[:, -1], np.round(rows[:, -1]))
        return rows[:, :-1], rows[:, -1].astype(np.int64) if whole else rows[:, -1:]
    raise InputError(f"{key}: got {source!r}, allowed: module:object, an .npz or .csv file, or a table of two IDX files")


def load_model(name: str) -> nn.Module:
    """The module that a name stands for: module:object (a module or a function that makes one), or one that is built in.

    Built in: "lenet" for images of 28 x 28 (lenet:classes=10), "linear" (linear:inputs=30,outputs=1).
    """
    if is_object(name):
        found = load_object(name, "model")
        made = found if isinstance(found, nn.Module) else found() if callable(found) else found
        require(isinstance(made, nn.Module), "model", name, "a torch.nn.Module, or a function that returns one")
        return made
    part = read_shorthand(name)
    kind = part.pop("name")
    require(kind in _MODELS, "model", name, f"module:object, or one of {', '.join(_MODELS)}")
    counts = {**_MODELS[kind], **part}
    fits = counts.keys() == _MODELS[kind].keys() and all(is_integer(count) and count >= 1 for count in counts.values())
    require(fits, "model", name, f"{kind} with {', '.join(f'{key}=NUMBER' for key in _MODELS[kind])}")
    if kind == "lenet":
        return lenet(counts["classes"])
    return nn.Sequential(nn.Flatten(), nn.Linear(counts["inputs"], counts["outputs"], dtype=torch.float64))


def load_loss(name: str) -> Loss:
    """The loss that a name stands for: module:object, or one of LOSSES."""
    if is_object(name):
        return cast("Loss", load_object(name, "loss"))
    require(name in LOSSES, "loss", name, f"module:object, or one of {', '.join(LOSSES)}")
    return LOSSES[name]


def signature_of(model: nn.Module) -> ModelSignature:
    """Dimension, type and layout of a model, as the roster has them."""
    shapes = [(name, list(value.shape)) for name, value in model.named_parameters()]
    dtypes = {str(value.dtype).removeprefix("torch.") for value in model.parameters()}
    require(len(dtypes) == 1, "model", sorted(dtypes), "parameters of one type, float32 or float64")
    layout = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
    return ModelSignature(sum(value.numel() for value in model.parameters()), dtypes.pop(), layout)


class OwnProblem(ModuleProblem):
    """The problem of one node: its own samples, and the model that all nodes train from one common start.

    Gradients may be clipped to a norm and get Gaussian noise, of `noise` times that norm in all, from a secret seed: a
    neighbour then learns less of the samples, and training is slower. Calls are serialised: questions are answered in another
    thread.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        samples: Shards,
        node: int,
        seed: int,
        *,
        clip: float | None = None,
        noise: float = 0.0,
    ) -> None:
        shards, start, numbers = (
            Shards(samples.inputs[None], samples.targets[None]),
            start_of(model, seed=seed),
            torch.tensor([node]),
        )
        super().__init__(model, loss, shards, start=start, numbers=numbers, gradients="loop", threads=1)
        self._clip, self._noise = clip, noise
        self._secret = int.from_bytes(os.urandom(7), "little")
        self._draws = 0
        self._lock = threading.RLock()

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        with self._lock:
            gradient = super().gradient(theta, nodes, chosen)
            if self._clip is None:
                return gradient
            factor = (self._clip / norms(gradient).clamp_min(1e-300)).clamp_max(1.0)
            self._draws += 1
            draws = stream(self._secret, "gradient noise", step=self._draws).normal(*gradient.shape)
            spread = self._noise * self._clip / self.dim**0.5
            noisy: Tensor = gradient * factor[:, None] + spread * draws
            return noisy.to(gradient.dtype)

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        with self._lock:
            return super().losses(vectors, nodes, chosen, wanted)

    def evaluate(self, theta: Tensor, held_out: Shards | None) -> dict[str, float]:
        """Loss of a model [D] on own samples and on held-out ones, and accuracy on these where targets are classes."""
        with self._lock:
            found = {"loss": float(self.pooled_loss(theta, self.node_numbers))}
            if held_out is None:
                return found
            outputs = self.outputs(theta, held_out.inputs)
            found["held_out_loss"] = float(self._models.loss(outputs, held_out.targets))
        if not held_out.targets.is_floating_point():
            found["held_out_accuracy"] = float((outputs.argmax(1) == held_out.targets).double().mean())
        return found
