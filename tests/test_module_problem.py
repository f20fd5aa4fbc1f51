"""Problems from torch modules: every way to compute gradients and losses equals plain autograd, one model at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bymi.core.performance_thresholds import LIMITS
from bymi.problems import ModuleProblem, Shards, lenet, start_of
from bymi.problems import gradient_backends as gradients
from bymi.problems import module_problem as module
from bymi.problems.gradient_backends import Batched, Loop, Models
from bymi.problems.parameter_vector import ParameterShapes
from tests.modules import (
    MODELS,
    NODES,
    SAMPLES,
    TOLERANCE,
    Scaled,
    assert_close,
    chosen_of,
    draw,
    make,
    mlp,
    plain_gradient,
    plain_gradients,
    plain_losses,
    small,
    spread,
    with_layer,
)

# Layout


def test_a_vector_lists_parameters_in_torchs_order() -> None:
    model = Scaled()
    layout = ParameterShapes.of(model)
    assert [name for name, _ in layout.shapes] == ["scale", "layer.weight", "layer.bias", "last.weight"]
    assert layout.dim == 1 + 49 + 7 + 21
    assert torch.equal(layout.join(dict(model.named_parameters())), parameters_to_vector(model.parameters()))


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_split_and_join_undo_each_other(lead: tuple[int, ...], scalar: bool) -> None:
    layout = ParameterShapes.of(Scaled() if scalar else Scaled(1))
    vectors = draw(*lead, layout.dim, seed=0)
    pieces = layout.split(vectors)
    assert {name: piece.shape for name, piece in pieces.items()} == {name: (*lead, *shape) for name, shape in layout.shapes}
    assert torch.equal(layout.join(pieces), vectors)
    assert torch.equal(pieces["scale"], vectors[..., 0] if scalar else vectors[..., :1])
    assert torch.equal(pieces["layer.bias"], vectors[..., 50:57])


def test_pieces_are_views() -> None:
    layout = ParameterShapes.of(mlp())
    vector = draw(layout.dim, seed=0)
    layout.split(vector)["0.weight"][1, 2] = 77.0
    assert vector[7 + 2] == 77.0


# Models


@pytest.mark.parametrize("classes", [10, 47])
def test_the_size_of_lenet(classes: int) -> None:
    by_hand = (25 + 1) * 6 + (6 * 25 + 1) * 16 + (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * classes
    assert ParameterShapes.of(lenet(classes)).dim == by_hand
    assert classes != 10 or by_hand == 61_706


def test_pooling_first_is_the_same_function() -> None:
    ours = lenet()
    layers = list(ours)
    usual = nn.Sequential(*layers[:1], nn.ReLU(), nn.MaxPool2d(2), layers[3], nn.ReLU(), nn.MaxPool2d(2), *layers[6:])
    images = draw(5, 1, 28, 28, seed=0, dtype=torch.float32)
    assert torch.equal(ours(images), usual(images))


def test_a_start_has_weights_for_relu_and_usual_biases() -> None:
    """Within +-sqrt(6 / fan in) and +-1 / sqrt(fan in), and as spread as uniform numbers are.

    The mean square of n uniform numbers on +-b has mean b^2 / 3 and standard deviation b^2 sqrt(4 / 45 / n), the mean
    has b sqrt(1 / 3 n): eight of them off is a false alarm of less than 1e-12, ten times over.
    """
    model = lenet()
    values = ParameterShapes.of(model).split(start_of(model, seed=3).double())
    fans = {"0": 25, "3": 150, "7": 400, "9": 120, "11": 84}
    assert {name.split(".")[0] for name in values} == set(fans)
    for name, value in values.items():
        layer, part = name.split(".")
        bound = ((6 if part == "weight" else 1) / fans[layer]) ** 0.5
        number = value.numel()
        assert float(value.abs().max()) <= bound * (1 + 1e-6)
        assert abs(float(value.mean())) <= 8 * bound / (3 * number) ** 0.5
        assert abs(float(value.square().mean()) - bound**2 / 3) <= 8 * bound**2 * (4 / 45 / number) ** 0.5


def test_a_start_does_not_depend_on_torchs_generator() -> None:
    starts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = lenet()
        before = torch.get_rng_state()
        starts.append(start_of(model, seed=7))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*starts)
    assert not torch.equal(starts[0], start_of(lenet(), seed=8))
    pieces = ParameterShapes.of(lenet()).split(starts[0])
    other = ParameterShapes.of(lenet(47)).split(start_of(lenet(47), seed=7))
    assert torch.equal(pieces["9.weight"], other["9.weight"]), "a layer's draw has its own name"
    assert not torch.equal(pieces["9.weight"][:, :84].T, pieces["9.weight"][:84, :84])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_start_leaves_other_layers_as_they_are(dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    with torch.no_grad():
        model[1].weight.fill_(3.0)  # type: ignore[index]
    before = parameters_to_vector(model.parameters()).clone()
    start = start_of(model, seed=0)
    assert start.dtype == dtype
    assert not start.requires_grad
    pieces = ParameterShapes.of(model).split(start)
    assert pieces["1.weight"].tolist() == [3.0] * 6
    assert pieces["1.bias"].tolist() == [0.0] * 6
    assert torch.equal(parameters_to_vector(model.parameters()), before)


def test_the_start_of_a_single_layer() -> None:
    """Its parameters have no path before their names."""
    assert float(start_of(nn.Linear(100, 100), seed=0).abs().max()) > 0.2


# Gradients


def ways_of(problem: ModuleProblem, model: nn.Module) -> dict[str, Any]:
    models = Models(copy.deepcopy(model).requires_grad_(False), nnf.cross_entropy)
    return {
        "loop": Loop(models, 1),
        "threads": Loop(models, 2),
        "batched": Batched(models, products=False),
        "products": Batched(models, products=True),
    }


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_way_gives_the_gradients_of_plain_autograd(name: str, dtype: torch.dtype) -> None:
    problem, model, shards = make(name, dtype)
    theta = spread(problem, NODES)
    expected = plain_gradients(model, theta, shards, torch.arange(NODES), torch.arange(SAMPLES).expand(NODES, -1))
    assert bool((torch.linalg.vector_norm(expected, dim=1) > 1e-3).all())
    for way in ways_of(problem, model).values():
        assert_close(way(theta, shards.inputs, shards.targets), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("way", ["loop", "batched"])
def test_a_parameter_may_be_a_single_number(way: Any) -> None:
    model = Scaled().double()
    shards = Shards(draw(2, 5, 7, seed=0), torch.zeros(2, 5, dtype=torch.int64))
    problem = ModuleProblem(model, nnf.cross_entropy, shards, gradients=way)
    theta, nodes, chosen = spread(problem, 2), torch.arange(2), torch.arange(5).expand(2, -1)
    assert_close(problem.gradient(theta, nodes, chosen), plain_gradients(model, theta, shards, nodes, chosen), 1e-10)


@pytest.mark.parametrize("way", ["loop", "batched"])
@pytest.mark.parametrize("name", ["lenet", "strided"])
def test_nodes_may_come_in_any_order_and_more_than_once(name: str, way: Any) -> None:
    problem, model, shards = make(name, torch.float64, gradients=way)
    assert problem.way == way
    nodes = torch.tensor([2, 0, 2, 3, 2])
    theta, chosen = spread(problem, 5), chosen_of(5)
    chosen[0] = chosen[2]  # the same samples of the same node, at two points
    assert_close(problem.gradient(theta, nodes, chosen), plain_gradients(model, theta, shards, nodes, chosen), 1e-10)


@pytest.mark.parametrize("name", ["lenet", "mlp", "grouped"])
def test_the_loop_gives_the_same_bits_for_any_number_of_threads(name: str) -> None:
    nodes, chosen = torch.tensor([0, 1, 2, 3, 1]), chosen_of(5)
    found = []
    for threads in (1, 2, 3, 8):
        problem, _, _ = make(name, torch.float32, gradients="loop", threads=threads)
        theta = spread(problem, 5)
        found.append((problem.gradient(theta, nodes, chosen), problem.pooled_gradient(theta[0], nodes[:3])))
    for one, other in zip(found[0], zip(*found[1:], strict=True), strict=True):
        assert all(torch.equal(one, another) for another in other)


@pytest.mark.parametrize("samples", [4, 9, 1000])
def test_batches_are_worked_through_in_pieces(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Seven models of four samples, one or two at a time: the last piece reaches back over the one before."""
    problem, model, shards = make("mlp", torch.float64, gradients="batched")
    nodes, chosen, theta = torch.arange(7) % NODES, chosen_of(7), spread(problem, 7)
    monkeypatch.setattr(gradients, "_SAMPLES", samples)
    monkeypatch.setattr(gradients, "_SAMPLES_FORWARD", samples)
    assert_close(problem.gradient(theta, nodes, chosen), plain_gradients(model, theta, shards, nodes, chosen), 1e-10)
    wanted = draw(7, 7, seed=8) > 0
    torch.testing.assert_close(
        problem.losses(theta, nodes, chosen, wanted), plain_losses(model, theta, shards, nodes, chosen, wanted)
    )


def test_no_rows_are_no_matter() -> None:
    for way in ("loop", "batched"):
        problem, _, _ = make("mlp", torch.float64, gradients=way)
        nothing = torch.zeros(0, dtype=torch.int64)
        assert problem.gradient(problem.initial(nothing), nothing, chosen_of(0)).shape == (0, problem.dim)


@pytest.mark.parametrize("way", ["loop", "batched"])
def test_what_goes_in_stays_as_it_was(way: Any) -> None:
    torch.manual_seed(0)
    model = mlp()
    inputs, targets = draw(NODES, SAMPLES, 7, seed=0, dtype=torch.float32), torch.zeros(NODES, SAMPLES, dtype=torch.int64)
    before = parameters_to_vector(model.parameters()).clone()
    problem = ModuleProblem(model, nnf.cross_entropy, Shards(inputs.clone(), targets), gradients=way)
    theta = spread(problem, NODES)
    kept, state = theta.clone(), torch.get_rng_state()
    nodes, chosen = torch.arange(NODES), chosen_of(NODES)
    gradient = problem.gradient(theta, nodes, chosen)
    problem.losses(theta, nodes, chosen, torch.ones(NODES, NODES, dtype=torch.bool))
    pooled, said = problem.pooled_gradient(theta[0], nodes), problem.outputs(theta[0], inputs[0])
    assert torch.equal(theta, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(parameters_to_vector(model.parameters()), before)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(value.requires_grad for value in (theta, gradient, pooled, said))


def test_every_node_starts_from_the_same_model() -> None:
    problem, model, _ = make("mlp", torch.float32)
    start = problem.initial(torch.tensor([3, 1]))
    assert torch.equal(start, start_of(model, seed=5).expand(2, -1))
    start[0] += 1  # a copy of their own
    assert torch.equal(problem.initial(torch.tensor([3])), start[1:])
    given = ModuleProblem(model, nnf.cross_entropy, Shards(*small()), start=start[0])
    assert torch.equal(given.initial(torch.tensor([0]))[0], start[0])


# Losses


@pytest.mark.parametrize("way", ["loop", "batched", "products"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_where_wanted_and_infinity_elsewhere(name: str, way: str) -> None:
    """Six models, three receivers, one of them twice; a receiver that wants nothing, a model that nobody wants."""
    problem, model, shards = make(name, torch.float64, gradients="loop" if way == "loop" else "batched", threads=2)
    if way == "products":
        problem._ways = [Batched(problem._models, products=True)]
        problem._batched = problem._ways[0]
    vectors, nodes, chosen = spread(problem, 6), torch.tensor([3, 1, 3]), chosen_of(3)
    wanted = torch.tensor([[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 1]], dtype=torch.bool)
    found = problem.losses(vectors, nodes, chosen, wanted)
    assert torch.equal(torch.isfinite(found), wanted)
    torch.testing.assert_close(found, plain_losses(model, vectors, shards, nodes, chosen, wanted), rtol=1e-11, atol=0)


@pytest.mark.parametrize("way", ["loop", "batched"])
def test_losses_that_nobody_wants(way: Any) -> None:
    problem, _, _ = make("mlp", torch.float32, gradients=way)
    wanted = torch.zeros(2, 3, dtype=torch.bool)
    found = problem.losses(spread(problem, 3), torch.tensor([0, 1]), chosen_of(2), wanted)
    assert found.tolist() == [[torch.inf] * 3] * 2


def test_a_loss_that_is_no_number_is_passed_on() -> None:
    for way in ("loop", "batched"):
        problem, _, _ = make("mlp", torch.float32, gradients=way)
        vectors = spread(problem, 2)
        vectors[1] = torch.nan
        found = problem.losses(vectors, torch.tensor([0]), chosen_of(1), torch.ones(1, 2, dtype=torch.bool))
        assert found.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("way", ["loop", "batched"])
def test_losses_of_a_model_whose_samples_see_each_other(way: Any) -> None:
    """Each receiver tries a model on its own samples: those of others must not enter the statistics of the batch."""
    model = with_layer(nn.BatchNorm1d(3, track_running_stats=False)).double()
    shards = Shards(draw(NODES, SAMPLES, 7, seed=0), torch.zeros(NODES, SAMPLES, dtype=torch.int64))
    problem = ModuleProblem(model, nnf.cross_entropy, shards, gradients=way)
    vectors, nodes, chosen = spread(problem, 2), torch.arange(3), chosen_of(3)
    wanted = torch.ones(3, 2, dtype=torch.bool)
    expected = plain_losses(model, vectors, shards, nodes, chosen, wanted)
    torch.testing.assert_close(problem.losses(vectors, nodes, chosen, wanted), expected)


# Pooled data


@pytest.mark.parametrize("pooled", [2048, 5])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("looked_at", [("cpu",), ()])
def test_the_pooled_gradient_is_the_mean_over_samples(
    monkeypatch: pytest.MonkeyPatch, pooled: int, threads: int, looked_at: tuple[str, ...]
) -> None:
    """Of 3 x 6 samples one by one; passes of 5 leave one of 3, which weighs less. On an accelerator node by node."""
    monkeypatch.setattr(module, "_POOLED", pooled)
    monkeypatch.setattr(LIMITS, "looked_at", looked_at)
    problem, model, shards = make("strided", torch.float64, threads=threads)
    if pooled < SAMPLES:
        monkeypatch.setattr(problem, "gradient", None)  # takes all samples of a node in one pass
    theta, nodes = spread(problem, 1)[0], torch.tensor([3, 0, 1])
    inputs, targets = shards.inputs[nodes].flatten(0, 1), shards.targets[nodes].flatten()
    each = [plain_gradient(model, theta, inputs[at : at + 1], targets[at : at + 1]) for at in range(18)]
    assert_close(problem.pooled_gradient(theta, nodes), torch.stack(each).mean(0), 1e-12)


def test_the_pooled_gradient_of_no_nodes_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "looked_at", ())
    problem, _, _ = make("mlp", torch.float64)
    found = problem.pooled_gradient(spread(problem, 1)[0], torch.arange(0))
    assert found.shape == (problem.dim,)
    assert found.isnan().all(), "the mean of nothing"


def test_the_pooled_gradient_of_single_precision_models_is_summed_in_double() -> None:
    problem, model, shards = make("mlp", torch.float32)
    theta, nodes = spread(problem, 1)[0], torch.arange(NODES)
    found = problem.pooled_gradient(theta, nodes)
    assert found.dtype == torch.float64
    expected = plain_gradient(model, theta, shards.inputs.flatten(0, 1), shards.targets.flatten())
    assert_close(found, expected.double(), 1e-5)


@pytest.mark.parametrize("pooled", [2048, 4])
def test_outputs_of_one_model(monkeypatch: pytest.MonkeyPatch, pooled: int) -> None:
    monkeypatch.setattr(module, "_POOLED", pooled)
    problem, model, shards = make("strided", torch.float64, threads=2)
    theta, inputs = spread(problem, 1)[0], shards.inputs.flatten(0, 1)
    own = copy.deepcopy(model)
    vector_to_parameters(theta, own.parameters())
    with torch.no_grad():
        torch.testing.assert_close(problem.outputs(theta, inputs), own(inputs))
