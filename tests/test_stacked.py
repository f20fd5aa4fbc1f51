"""Several rows in one pass: the numbers of the loop, for the models that it knows and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi.core.errors import InputError
from bymi.problems import ModuleProblem, Shards, lenet
from bymi.problems import stacked_layers as stacked
from bymi.problems.gradient_backends import Loop, Loss, Models
from bymi.problems.stacked_layers import LargestOfFour, MaxPool, Stacked, four_places
from tests.modules import TOLERANCE, Fork, Scaled, assert_close, draw, mlp, plain_gradient, strided, with_layer

ROWS, SAMPLES = 7, 5


def tied() -> nn.Module:
    """One matrix in two places."""
    model = nn.Sequential(nn.Linear(7, 7, bias=False), nn.Tanh(), nn.Sequential(nn.Linear(7, 7), nn.GELU()), nn.Linear(7, 3))
    model[0].weight = model[2][0].weight
    return model


def pools() -> nn.Module:
    """Pools that halve, and pools that do not."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, (2, 1), dilation=(2, 1), bias=False),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.ELU(),
        nn.MaxPool2d((2, 2)),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def joined() -> nn.Module:
    """Convolutions of few channels right before pools that halve, with and without a bias, and one that leaves some out."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 5, (3, 2), padding=(1, 1)), nn.MaxPool2d(2, 2), nn.Tanh()),
        nn.Conv2d(5, 3, (2, 2), padding=(0, 1), bias=False),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2, 3),
    )


KNOWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lenet, (1, 28, 28)),
    "strided": (strided, (2, 7, 9)),
    "tied": (tied, (7,)),
    "words": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)), (3, 4)),
    "pools": (pools, (2, 10, 10)),
    "joined": (joined, (2, 10, 9)),
}
UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "other layers": mlp,
    "norm over groups": lambda: nn.Sequential(nn.Linear(7, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
    "words by number": lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(28, 3)),
    "own code": Fork,
    "own parameters": Scaled,
    "named padding": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")),
    "padding that repeats": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
    "in place": lambda: nn.Sequential(nn.Linear(7, 3), nn.ReLU(inplace=True)),
    "over samples": lambda: nn.Sequential(nn.Linear(7, 3), nn.Flatten(0)),
    "a layer of a kind": lambda: nn.Sequential(type("Own", (nn.Linear,), {})(7, 3)),
    "a layer that changes": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(7, 3))),
}


def scene(name: str, dtype: torch.dtype) -> tuple[Models, Tensor, Tensor, Tensor]:
    build, shape = KNOWN[name]
    models = Models(build().to(dtype).requires_grad_(False), nnf.cross_entropy)
    targets = torch.randint(0, 3, (ROWS, SAMPLES), generator=torch.Generator().manual_seed(1))
    theta = 0.1 * draw(ROWS, models.layout.dim, seed=2, dtype=dtype)  # larger, and losses are known to few digits in float32
    return models, theta, draw(ROWS, SAMPLES, *shape, seed=0, dtype=dtype), targets


def points(theta: Tensor, kind: str) -> Tensor:
    if kind == "one, without copies":
        return theta[:1].expand_as(theta)
    places = {
        "all different": range(ROWS),
        "one": [0] * ROWS,
        "runs": [3, 3, 3, 1, 2, 2, 2],
        "some twice": [0, 1, 1, 2, 3, 4, 5],
    }
    return theta[list(places[kind])]


@pytest.mark.parametrize("size", [1, 11, 1000])
@pytest.mark.parametrize("kind", ["all different", "one", "one, without copies", "runs", "some twice"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_gradients_are_those_of_plain_autograd(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, kind: str, size: int
) -> None:
    models, theta, inputs, targets = scene(name, dtype)
    theta, model = points(theta, kind), KNOWN[name][0]().to(dtype)
    assert Stacked.fits(model)
    monkeypatch.setattr(stacked, "_SAMPLES", size)
    expected = torch.stack([plain_gradient(model, *row) for row in zip(theta, inputs, targets, strict=True)])
    before = theta.clone()
    assert_close(Stacked(Loop(models, 2))(theta, inputs, targets), expected, TOLERANCE[dtype])
    assert torch.equal(theta, before)


@pytest.mark.parametrize("kind", ["all different", "one", "runs"])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    models, theta, inputs, targets = scene("lenet", torch.float32)
    monkeypatch.setattr(stacked, "_SAMPLES", 10)
    one, *others = (Stacked(Loop(models, threads))(points(theta, kind), inputs, targets) for threads in (1, 2, 3, 8))
    assert all(torch.equal(one, other) for other in others)


def test_of_equal_numbers_the_first_is_the_largest() -> None:
    inputs = torch.randint(0, 3, (4, 3, 6, 8), generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    towards = draw(4, 3, 3, 4, seed=1)
    ours, torchs = MaxPool.apply(inputs), nnf.max_pool2d(inputs, 2)  # type: ignore[no-untyped-call]
    assert torch.equal(ours, torchs)
    assert torch.equal(*(torch.autograd.grad(said, inputs, towards)[0] for said in (ours, torchs)))


def test_a_convolution_at_four_places_and_the_largest_of_them() -> None:
    """Whole numbers: sums are exact in any order, and many of them are equal."""
    source = torch.Generator().manual_seed(3)
    inputs, kernels = (torch.randint(-1, 2, shape, generator=source).double() for shape in ((4, 2, 7, 8), (3, 2, 2, 3)))
    towards = draw(4, 3, 4, 4, seed=1)
    ours, torchs = (part.requires_grad_() for part in (kernels.clone(), kernels.clone()))
    made = LargestOfFour.apply(nnf.conv2d(inputs, four_places(ours[None])[0], stride=2, padding=1))  # type: ignore[no-untyped-call]
    usual = nnf.max_pool2d(nnf.conv2d(inputs, torchs, padding=1), 2)
    assert torch.equal(made, usual)
    assert (
        nnf.unfold(nnf.conv2d(inputs, kernels, padding=1), 2, stride=2).unflatten(1, (3, 4)).sort(2).values.diff(dim=2) == 0
    ).any()
    assert_close(torch.autograd.grad(made, ours, towards)[0], torch.autograd.grad(usual, torchs, towards)[0], 1e-14)


@pytest.mark.parametrize("loss", [nnf.cross_entropy, lambda said, wanted: nnf.cross_entropy(said, wanted, label_smoothing=0.1)])
def test_a_sample_that_does_not_count_counts_nowhere(loss: Loss) -> None:
    models, theta, inputs, targets = scene("lenet", torch.float64)
    models.loss = loss
    targets[2, 1:3] = -100
    expected = Loop(models, 1)(theta, inputs, targets)
    assert_close(Stacked(Loop(models, 1))(theta, inputs, targets), expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_left_to_the_loop(case: str) -> None:
    assert not Stacked.fits(UNKNOWN[case]())


def test_a_cpu_stacks_what_it_can() -> None:
    shards = Shards(draw(2, 5, 7, seed=0, dtype=torch.float32), torch.zeros(2, 5, dtype=torch.int64))
    assert ModuleProblem(with_layer(nn.Tanh()), nnf.cross_entropy, shards).way == "stacked"
    assert ModuleProblem(with_layer(nn.LayerNorm(3)), nnf.cross_entropy, shards).way == "loop"
    with pytest.raises(InputError, match=r"^gradients: got 'stacked', allowed for a Sequential of layers that it knows"):
        ModuleProblem(with_layer(nn.LayerNorm(3)), nnf.cross_entropy, shards, gradients="stacked")


def test_no_rows_are_no_matter() -> None:
    models, theta, inputs, targets = scene("tied", torch.float64)
    assert Stacked(Loop(models, 2))(theta[:0], inputs[:0], targets[:0]).shape == (0, models.layout.dim)
