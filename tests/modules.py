"""Small models of many kinds, and problems made of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bymi.problems import ModuleProblem, Shards, lenet, start_of

NODES, SAMPLES = 4, 6
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Scaled(nn.Module):
    """A parameter of its own, with one dimension or none, beside ordinary ones, and one layer used twice."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full(shape, 1.5))
        self.layer = nn.Linear(7, 7)
        self.last = nn.Linear(7, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.layer(torch.tanh(self.layer(inputs))) * self.scale)


class Fork(nn.Module):
    """Decides by the data, which torch.func cannot follow for many models at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        said = self.layer(inputs)
        return said if said.sum() > 0 else 2 * said


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Conv2d(3, 2, (2, 3)), nn.Flatten(), nn.Linear(18, 3)
    )


def grouped() -> nn.Module:
    """Convolutions that are not written as products, between ones that are."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Tanh(),
        nn.Conv2d(4, 3, 2, dilation=2),
        nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding="same"),
        nn.Flatten(),
        nn.Linear(45, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lenet, (1, 28, 28)),
    "mlp": (mlp, (7,)),
    "strided": (strided, (2, 7, 9)),
    "grouped": (grouped, (2, 7, 9)),
    "scaled": (lambda: Scaled(1), (7,)),
}


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(name: str, dtype: torch.dtype, **how: Any) -> tuple[ModuleProblem, nn.Module, Shards]:
    """A problem of four nodes with its model and shards."""
    build, shape = MODELS[name]
    model = build().to(dtype)
    targets = torch.randint(0, 3, (NODES, SAMPLES), generator=torch.Generator().manual_seed(1))
    shards = Shards(draw(NODES, SAMPLES, *shape, seed=0, dtype=dtype), targets)
    return ModuleProblem(model, nnf.cross_entropy, shards, **{"start": start_of(model, seed=5), **how}), model, shards


def spread(problem: ModuleProblem, rows: int) -> Tensor:
    """Different models around the start."""
    start = problem.initial(torch.zeros(rows, dtype=torch.int64))
    return start + 0.05 * draw(*start.shape, seed=3, dtype=start.dtype)


def chosen_of(rows: int, count: int = 4) -> Tensor:
    return torch.randint(0, SAMPLES, (rows, count), generator=torch.Generator().manual_seed(4))


def plain_loss(model: nn.Module, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    own = copy.deepcopy(model)
    vector_to_parameters(theta.clone(), own.parameters())
    return nnf.cross_entropy(own(inputs), targets)


def plain_gradient(model: nn.Module, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """One model, one backward pass, nothing else."""
    own = copy.deepcopy(model)
    vector_to_parameters(theta.clone(), own.parameters())
    own.zero_grad()
    nnf.cross_entropy(own(inputs), targets).backward()
    return parameters_to_vector([parameter.grad for parameter in own.parameters()])  # type: ignore[misc]


def plain_gradients(model: nn.Module, theta: Tensor, shards: Shards, nodes: Tensor, chosen: Tensor) -> Tensor:
    picked = [(shards.inputs[node, some], shards.targets[node, some]) for node, some in zip(nodes, chosen, strict=True)]
    return torch.stack([plain_gradient(model, row, *pair) for row, pair in zip(theta, picked, strict=True)])


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """To a part of each row's length."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    away = torch.linalg.vector_norm((found - expected).double(), dim=-1)
    assert bool((away <= tolerance * torch.linalg.vector_norm(expected.double(), dim=-1)).all()), away


def small(nodes: int = 2, samples: int = 5) -> tuple[Tensor, Tensor]:
    return torch.zeros(nodes, samples, 7), torch.zeros(nodes, samples, dtype=torch.int64)


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(7, 3), nn.Sequential(layer))


def plain_losses(model: nn.Module, vectors: Tensor, shards: Shards, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
    """One forward pass a wanted pair."""
    found = torch.full(wanted.shape, torch.inf, dtype=vectors.dtype)
    for place, (node, some) in enumerate(zip(nodes, chosen, strict=True)):
        for row in wanted[place].nonzero().flatten():
            with torch.no_grad():
                found[place, row] = plain_loss(model, vectors[row], shards.inputs[node, some], shards.targets[node, some])
    return found
