"""Trained models in a run folder: the mean over the core and one honest node's model, or each node's.

`model.safetensors` holds the mean, by the names of a state dict; `nodes.safetensors` holds models of single nodes, stacked:
node numbers [k] under "nodes", and each parameter [k, ...] under "models/NAME".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bymi.core.errors import InputError, StorageError, is_integer, require, shown
from bymi.core.linalg import all_finite
from bymi.distributed.device_and_thread_settings import KeepModels
from bymi.distributed.gathered_snapshots import Models
from bymi.problems import ModuleProblem, Problem
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.safetensors_file import TensorFile, UnusableError

MODEL, NODES = "model.safetensors", "nodes.safetensors"
_NUMBERS, _BEFORE = "nodes", "models/"


@dataclass(frozen=True, eq=False)
class Trained:
    """The final models of a run."""

    mean: Tensor  # [D]
    nodes: Tensor  # [k] node numbers
    models: Tensor  # [k, D] their models


def collect(models: Models, members: Tensor, byzantine: Tensor, keep: KeepModels, *, writes: bool = True) -> Trained:
    """The mean model of `members` [M] bool, and the models of single nodes: all, or the first honest one of the members.

    Collective: all ranks must call it, and only the one that `writes` the folder gets models of single nodes.
    """
    nodes = torch.arange(len(members), device=members.device)
    if keep != "all":
        honest = members & ~byzantine
        nodes = nodes[honest if bool(honest.any()) else ~byzantine][:1]
    nodes = nodes if writes else nodes[:0]
    means, rows = [], []
    for block in models.blocks():
        means.append(block[members].mean(0))
        rows.append(block[nodes])
    return Trained(torch.cat(means), nodes, torch.cat(rows, 1))


def write_models(folder: Path, trained: Trained, problem: Problem, words: Mapping[str, Any]) -> dict[str, Any]:
    """Write both files; returns their size in bytes and whether all numbers are finite, for the summary.

    The models of a run that diverged are written as they are.
    """
    stacked = {_BEFORE + name: part for name, part in _named(problem, trained.models).items()}
    try:
        size = tensorfile.write(folder / MODEL, _named(problem, trained.mean), words)
        size += tensorfile.write(folder / NODES, {_NUMBERS: trained.nodes, **stacked}, words)
    except OSError as failure:
        raise StorageError(f"cannot write the trained models to {folder.parent}: {failure.strerror or failure}") from None
    return {"model_bytes": size, "model_finite": all_finite(trained.mean) and all_finite(trained.models)}


def load_model(folder: str | Path, node: int | None = None) -> dict[str, Tensor]:
    """The final model of a run, by parameter name: the mean over its core, or one node's own.

    For a torch module it is a state dict, so that two lines restore the trained network:

        net = bymi.problems.lenet()
        net.load_state_dict(bymi.load_model("runs/balance-hardened-bymi-seed0-296dea9736"))

    For the linear model it is {"theta": [d]}. Without a detection the mean is over all honest nodes. A run stores the model of
    one honest node, or of all nodes with `--keep-models all`: `node` is its number. Any safetensors reader can read the files,
    too; this one executes nothing and verifies checksums.
    """
    require(isinstance(folder, (str, Path)), "folder", folder, "the path of a run folder")
    require(node is None or (is_integer(node) and node >= 0), "node", node, "a node number, or None for the mean")
    path = Path(folder) / (MODEL if node is None else NODES)
    if not path.is_file():
        raise InputError(f"{folder}: no {path.name} there; a run keeps it unless it is made with --keep-models none")
    try:
        file = TensorFile(path)
        if node is None:
            return {name: file.read(name) for name in file.names}
        numbers = file.read(_NUMBERS).tolist()
        require(node in numbers, "node", node, f"a node whose model was kept, one of {shown(numbers)}")
        index = numbers.index(node)
        names = [name for name in file.names if name.startswith(_BEFORE)]
        return {name.removeprefix(_BEFORE): file.read(name)[index].clone() for name in names}
    except (UnusableError, KeyError, OSError) as problem:
        raise InputError(f"{path}: not the models of a run ({problem})") from None


def _named(problem: Problem, vectors: Tensor) -> dict[str, Tensor]:
    """Vectors [..., D] by parameter name."""
    return problem.state_dict(vectors) if isinstance(problem, ModuleProblem) else {"theta": vectors}
