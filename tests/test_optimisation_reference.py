"""The optimisation phase equals its node-by-node transcription."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Detector, Graph, LocalNetwork, Optimisation, Plan, StepSize
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.training.phases import local_steps, optimise, premix
from tests.reference import graphs, optimisation
from tests.reference.scenes import RunSetup, draw_scene


class Slopes:
    """A gradient that depends on the node and on where it stands, the same for every sample."""

    def __init__(self, targets: np.ndarray) -> None:
        self.targets = targets
        self.dim, self.samples = targets.shape[1], 5

    def by_node(self, theta: np.ndarray) -> np.ndarray:
        return np.array([(1 + i) * np.tanh(theta[i] - self.targets[i]) for i in range(len(theta))])

    def initial(self, nodes: Tensor) -> Tensor:
        raise AssertionError("the optimisation phase starts where the warm-up ended")

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        return torch.from_numpy(self.by_node(theta.numpy()))

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        raise AssertionError("the optimisation phase compares no losses")


def pruned(scene: RunSetup, seed: int) -> tuple[LocalNetwork, np.ndarray]:
    """A network after one-sided cuts, and its mixing matrix by transcription."""
    flagged = np.random.default_rng(seed).random(scene.hears.shape) < 0.3
    network = LocalNetwork(Graph.from_hears(torch.from_numpy(scene.hears))).prune(torch.from_numpy(flagged))
    return network, graphs.prune(graphs.metropolis(scene.hears), flagged)


@pytest.mark.parametrize(
    "settings",
    [
        {"convention": "paper", "max_local_step": 1e9, "min_weight": 1e-9},  # the printed formula, floor and cap out of reach
        {"convention": "mean", "max_local_step": 1e9, "min_weight": 1e-9},
        {"convention": "mean", "max_local_step": 0.06, "min_weight": 0.9},
    ],
    ids=["paper", "mean", "floor and cap"],
)
@pytest.mark.parametrize("premix_rounds", [0, 3])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("order", ["combine-then-adapt", "adapt-then-combine"])
def test_rounds_of_optimisation(settings: dict[str, Any], premix_rounds: int, directed: bool, order: Any) -> None:
    scene = draw_scene(nodes=14, dim=4, directed=directed, losses=False, seed=3)
    network, mixing = pruned(scene, seed=4)
    rate = 0.002 if settings["convention"] == "paper" else 0.05
    how = Optimisation(StepSize(rate, "linear"), batch=2, premix_rounds=premix_rounds, order=order, **settings)
    problem = Slopes(scene.targets)
    plan = Plan(steps=9, warm_up_steps=3, optimisation=how, detector=Detector())

    trackers = np.eye(14)
    for _ in range(premix_rounds):
        trackers = optimisation.mix(mixing, trackers)
    theta = scene.vectors
    snapshots = list(optimise(problem, network, plan, torch.from_numpy(scene.vectors), FollowsProtocol()))
    assert [snapshot.step for snapshot in snapshots] == [4, 5, 6, 7, 8, 9]
    for number, snapshot in enumerate(snapshots):
        now = rate * (1 - number / 6)  # falls linearly to zero over the rounds of this phase
        theta, trackers = optimisation.one_round(theta, trackers, problem.by_node(theta), mixing, now, order=order, **settings)
        np.testing.assert_allclose(snapshot.theta.numpy(), theta, rtol=0, atol=1e-9)


def test_local_steps_one_by_one() -> None:
    """Entries below and above the floor, steps below and above the cap, and the counts of both."""
    entries = np.array([0.5, 0.2, 0.1, 0.05, 0.02, 0.004, 0.0])
    how = Optimisation(convention="paper", max_local_step=0.3, min_weight=0.1)
    steps, capped, floored = local_steps(torch.diag(torch.from_numpy(entries)), torch.arange(7), 0.01, how, 7)
    limits = {"nodes": 7, "min_weight": 0.1, "max_local_step": 0.3, "convention": "paper"}
    expected = [optimisation.local_step(entry, 0.01, **limits) for entry in entries]  # type: ignore[arg-type]
    np.testing.assert_allclose(steps.numpy(), expected, rtol=1e-15)
    assert steps.tolist() == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.3, 0.3, 0.3])
    assert capped.tolist() == [False] * 4 + [True] * 3
    assert floored.tolist() == [False] * 5 + [True] * 2  # the floor is 0.1 / 7


@pytest.mark.parametrize("seed", range(3))
def test_a_settled_tracker_holds_the_perron_vector(seed: int) -> None:
    """On a strongly connected graph every row of Y = W^t tends to the left Perron vector."""
    scene = draw_scene(nodes=25, dim=1, directed=True, losses=False, seed=seed)
    network, mixing = pruned(scene, seed)
    component = graphs.largest_component(network.graph.hears.numpy())
    assert len(component) == 25
    tracker, settled = premix(network, Optimisation())
    assert settled
    np.testing.assert_allclose(tracker.diagonal().numpy(), graphs.perron(mixing, component), rtol=0, atol=1e-9)


def test_premixing_a_given_number_of_rounds_is_a_matrix_power() -> None:
    scene = draw_scene(nodes=12, dim=1, directed=True, losses=False, seed=8)
    network, mixing = pruned(scene, seed=8)
    tracker, settled = premix(network, Optimisation(premix_rounds=4))
    assert not settled
    np.testing.assert_allclose(tracker.numpy(), np.linalg.matrix_power(mixing, 4), rtol=0, atol=1e-12)
