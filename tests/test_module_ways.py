"""What a problem from a module refuses, and which way it takes to its gradients."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from bymi import InputError
from bymi.problems import ModuleProblem, Shards
from bymi.problems import gradient_backends as gradients
from bymi.problems.gradient_backends import Captured
from tests.modules import (
    MODELS,
    NODES,
    Fork,
    assert_close,
    chosen_of,
    draw,
    make,
    needs_cuda,
    plain_gradients,
    plain_losses,
    small,
    spread,
    with_layer,
)

# What cannot be


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(inputs)


class Noisy(nn.Module):
    """Adds noise to what it says, without a layer that would tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        said: Tensor = self.layer(inputs)
        return said + torch.rand_like(said)


START = 7 * 3 + 3
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "batch norm": (with_layer(nn.BatchNorm1d(3)), small(), {}, r"^model: 1\.0 \(BatchNorm1d\) keeps running statistics"),
    "instance norm": (
        with_layer(nn.InstanceNorm1d(3, track_running_stats=True)),
        small(),
        {},
        r"^model: 1\.0 \(InstanceNorm1d\)",
    ),
    "dropout": (with_layer(nn.Dropout(0.1)), small(), {}, r"^model: 1\.0 draws dropout .*set p = 0"),
    "alpha dropout": (with_layer(nn.AlphaDropout(0.1)), small(), {}, r"^model: 1\.0 draws dropout"),
    "buffer": (nn.Sequential(Counting()), small(), {}, r"^model: a forward pass changes the buffer 0\.calls"),
    "captured": (
        nn.Linear(7, 3),
        small(),
        {"gradients": "captured"},
        r"^gradients: got 'captured' on cpu, allowed: a CUDA device",
    ),
    "way": (
        nn.Linear(7, 3),
        small(),
        {"gradients": "fast"},
        r"^gradients: got 'fast', allowed: auto, loop, stacked, batched, captured$",
    ),
    "start": (nn.Linear(7, 3), small(), {"start": torch.zeros(5)}, rf"^start: got .* \[5\], allowed: .* \[{START}\]"),
    "start matrix": (nn.Linear(7, 3), small(), {"start": torch.zeros(1, START)}, rf"^start: got .* \[1, {START}\]"),
    "nodes": (nn.Linear(7, 3), (small()[0], small(3)[1]), {}, r"^shards: inputs are of 2 x 5 samples, targets of \[3, 5\]"),
    "samples": (nn.Linear(7, 3), (small()[0], small(2, 4)[1]), {}, r"^shards: inputs are of 2 x 5 .* targets of \[2, 4\]"),
    "flat targets": (nn.Linear(7, 3), (small()[0], torch.zeros(2)), {}, r"^shards: .* shapes \[2, 5, 7\] and \[2\], allowed: "),
    "nothing to learn": (nn.Flatten(), small(), {}, r"^model: it has no parameters, so there is nothing to learn$"),
    "random": (Noisy(), small(), {}, r"^model: two forward passes on the same inputs differ"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    model, shards, how, pattern = REFUSED[case]
    with pytest.raises(InputError, match=pattern) as problem:
        ModuleProblem(model, nnf.cross_entropy, Shards(*shards), **how)
    assert "\n" not in str(problem.value)


def test_inputs_without_samples_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^shards: "):
        ModuleProblem(nn.Linear(7, 3), nnf.cross_entropy, Shards(torch.zeros(2), torch.zeros(2)))


def test_a_start_is_taken_in_the_dtype_of_the_model() -> None:
    problem = ModuleProblem(nn.Linear(7, 3), nnf.cross_entropy, Shards(*small()), start=torch.zeros(START).double())
    assert problem.initial(torch.tensor([0])).dtype == torch.float32


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False)], ids=str)
def test_layers_without_state_are_welcome(layer: nn.Module) -> None:
    problem = ModuleProblem(with_layer(layer), nnf.cross_entropy, Shards(*small()))
    nodes = torch.arange(2)
    assert problem.gradient(problem.initial(nodes), nodes, torch.arange(5).expand(2, -1)).shape == (2, problem.dim)


# Ways and fall-backs


def fork(**how: Any) -> tuple[ModuleProblem, Tensor]:
    inputs, targets = draw(2, 5, 7, seed=0, dtype=torch.float32), torch.zeros(2, 5, dtype=torch.int64)
    problem = ModuleProblem(Fork(), nnf.cross_entropy, Shards(inputs, targets), **how)
    return problem, problem.initial(torch.arange(2))


def test_a_cpu_loops_unless_told_otherwise() -> None:
    assert make("mlp", torch.float32)[0].way == "loop"
    assert make("mlp", torch.float32, gradients="batched")[0].way == "batched"


def test_a_model_that_cannot_be_batched_falls_back_once_with_a_warning() -> None:
    problem, theta = fork()
    nodes, chosen = torch.arange(2), torch.arange(5).expand(2, -1)
    expected = problem.gradient(theta, nodes, chosen)
    problem._ways = [problem._batched, problem._loop]
    with pytest.warns(
        UserWarning, match=r"^gradients: batched does not work for this model, going on with loop \(.+\)$"
    ) as said:
        found = problem.gradient(theta, nodes, chosen)
    assert len(said) == 1
    assert torch.equal(found, expected)
    assert problem.way == "loop"
    assert torch.equal(problem.gradient(theta, nodes, chosen), expected)  # a warning would be an error here
    assert bool(torch.isfinite(problem.losses(theta, nodes, chosen, torch.ones(2, 2, dtype=torch.bool))).all())


def test_losses_fall_back_like_gradients() -> None:
    problem, theta = fork()
    nodes, chosen, wanted = torch.arange(2), torch.arange(5).expand(2, -1), torch.tensor([[True, False], [True, True]])
    expected = problem.losses(theta, nodes, chosen, wanted)
    problem._ways = [problem._batched, problem._loop]
    with pytest.warns(UserWarning, match="batched does not work for this model, going on with loop"):
        found = problem.losses(theta, nodes, chosen, wanted)
    assert torch.equal(found, expected)


def test_a_way_that_was_named_is_taken_or_fails() -> None:
    problem, theta = fork(gradients="batched")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="data-dependent control flow"):
            problem.gradient(theta, torch.arange(2), torch.arange(5).expand(2, -1))
        assert problem.way == "batched"


def test_too_little_memory_is_no_reason_to_go_on_slowly() -> None:
    class Full:
        def __call__(self, *values: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("no room")

    problem, theta = fork()
    problem._ways = [Full(), problem._loop]
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        problem.gradient(theta, torch.arange(2), torch.arange(5).expand(2, -1))
    assert problem.way == "full"


def test_full_precision_holds_while_any_thread_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread leaves the block while another is inside, which had entered it later."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    entered, both, left = threading.Event(), threading.Event(), threading.Event()
    inside: list[bool] = []

    def first() -> None:
        with gradients.exact():
            entered.set()
            both.wait(10)
        left.set()

    def second() -> None:
        entered.wait(10)
        with gradients.exact():
            both.set()
            left.wait(10)
            inside.append(torch.backends.cudnn.allow_tf32)

    with torch.backends.cudnn.flags(allow_tf32=True):
        threads = [threading.Thread(target=work) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = torch.backends.cudnn.allow_tf32
    assert inside == [False]
    assert after


# On a GPU


@needs_cuda
@pytest.mark.parametrize("name", MODELS)
def test_all_ways_agree_on_a_gpu(name: str) -> None:
    problem, model, shards = make(name, torch.float32)
    there = Shards(shards.inputs.cuda(), shards.targets.cuda())
    nodes, theta, chosen = torch.tensor([2, 0, 2, 3, 1]), spread(problem, 5), chosen_of(5)
    expected = plain_gradients(model.double(), theta.double(), Shards(shards.inputs.double(), shards.targets), nodes, chosen)
    wanted = draw(5, 5, seed=8) > 0
    losses = plain_losses(model, theta.double(), Shards(shards.inputs.double(), shards.targets), nodes, chosen, wanted)
    model.float()
    for way in ("loop", "batched", "captured", "auto"):
        ours = ModuleProblem(model, nnf.cross_entropy, there, gradients=way)  # type: ignore[arg-type]
        for _ in range(2):  # the second time a recording is replayed
            found = ours.gradient(theta.cuda(), nodes.cuda(), chosen.cuda())
            assert_close(found.cpu().double(), expected, 1e-5)
            found = ours.losses(theta.cuda(), nodes.cuda(), chosen.cuda(), wanted.cuda())
            torch.testing.assert_close(found.cpu().double(), losses, rtol=1e-5, atol=1e-6)
        assert ours.way == ("captured" if way == "auto" else way)


@needs_cuda
def test_recordings_are_kept_by_shape_and_not_without_end() -> None:
    problem, model, shards = make("mlp", torch.float32)
    there = Shards(shards.inputs.cuda(), shards.targets.cuda())
    ours = ModuleProblem(model, nnf.cross_entropy, there, gradients="captured")
    for rows in (1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 1):
        nodes, theta, chosen = torch.arange(rows) % NODES, spread(problem, rows), chosen_of(rows)
        found = ours.gradient(theta.cuda(), nodes.cuda(), chosen.cuda())
        assert_close(found.cpu(), plain_gradients(model, theta, shards, nodes, chosen), 1e-5)
    way = ours._ways[0]
    assert isinstance(way, Captured)
    assert len(way._recordings) == gradients._RECORDINGS


@needs_cuda
def test_a_gpu_falls_back_from_recording_to_looping() -> None:
    inputs, targets = draw(2, 5, 7, seed=0, dtype=torch.float32).cuda(), torch.zeros(2, 5, dtype=torch.int64).cuda()
    problem = ModuleProblem(Fork(), nnf.cross_entropy, Shards(inputs, targets))
    nodes = torch.arange(2, device="cuda")
    with pytest.warns(UserWarning, match="does not work for this model"):
        found = problem.gradient(problem.initial(nodes), nodes, torch.arange(5, device="cuda").expand(2, -1))
    assert problem.way == "loop"
    assert bool(torch.isfinite(found).all())


def test_the_models_own_values_are_the_start_unless_another_is_given() -> None:
    model = nn.Linear(7, 3)
    shards = Shards(draw(2, 5, 7, seed=0, dtype=torch.float32), torch.zeros(2, 5, dtype=torch.int64))
    problem = ModuleProblem(model, nnf.cross_entropy, shards)
    own = torch.cat([value.detach().flatten() for value in model.parameters()])
    assert torch.equal(problem.initial(torch.arange(2)), own.expand(2, -1))


def test_frozen_parameters_are_refused() -> None:
    model = nn.Sequential(nn.Linear(7, 3), nn.Linear(3, 3).requires_grad_(False))
    shards = Shards(draw(2, 5, 7, seed=0, dtype=torch.float32), torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(InputError, match=r"model: 1\.weight does not require gradients"):
        ModuleProblem(model, nnf.cross_entropy, shards)


def test_other_threads_keep_their_number_of_torch_threads() -> None:
    problem, _, _ = make("mlp", torch.float32, threads=2)
    seen: list[int] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    look()
    problem.gradient(problem.initial(torch.arange(2)), torch.arange(2), torch.zeros(2, 3, dtype=torch.int64))
    look()
    assert seen[0] == seen[1]
