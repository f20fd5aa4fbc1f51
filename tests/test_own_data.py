"""A process that holds some nodes of a linear problem has their data alone, and the same numbers as one that has all."""

from __future__ import annotations

import pytest
import torch

from bymi import LinearProblem
from bymi.distributed.collectives import Group
from bymi.experiment import load
from bymi.runs.evaluators import LinearEvaluator
from bymi.runs.run_setup import RunSetup, set_up_run

WORDS = ["nodes=23", "data.dim=6", "data.samples=12", "steps=4", "warm_up.steps=2", "graph=erdos-renyi:p=0.5"]
ATTACKS = ["parameter", "covariate", "response-flip", "sign-flip"]


def scenes(attack: str, size: int) -> tuple[RunSetup, list[RunSetup]]:
    """The whole, and the part of each rank. No other process is needed to know who holds what."""
    resolved = load(None, [*WORDS, f"attack={attack}"]).resolved
    return set_up_run(resolved), [set_up_run(resolved, None, Group(rank, size)) for rank in range(size)]


def linear(scene: RunSetup) -> LinearProblem:
    assert isinstance(scene.problem, LinearProblem)
    return scene.problem


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_each_has_the_data_of_its_nodes(attack: str, size: int) -> None:
    whole, parts = scenes(attack, size)
    numbers = []
    for rank, part in enumerate(parts):
        assert part.layout is not None
        problem, nodes = linear(part), part.layout.nodes(rank)
        assert problem.features.shape == (len(nodes), 12, 6)
        torch.testing.assert_close(problem.features, linear(whole).features[nodes], rtol=0, atol=0)
        torch.testing.assert_close(problem.targets, linear(whole).targets[nodes], rtol=1e-13, atol=1e-13)
        assert torch.equal(problem.start, linear(whole).start)
        numbers += nodes.tolist()
    assert sorted(numbers) == list(range(23))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_losses_and_risks_are_those_of_the_whole(size: int) -> None:
    whole, parts = scenes("parameter", size)
    for rank, part in enumerate(parts):
        assert part.layout is not None
        nodes = part.layout.nodes(rank).flip(0)
        theta, chosen = torch.randn(len(nodes), 6, dtype=torch.float64), torch.randint(0, 12, (len(nodes), 5))
        wanted = torch.ones(len(nodes), len(nodes), dtype=torch.bool)
        often, twelve = nodes.repeat_interleave(6), theta.repeat_interleave(6, 0)
        found, expected = (
            [
                problem.gradient(theta, nodes, chosen),
                problem.gradient(twelve, often, chosen.repeat_interleave(6, 0)),
                problem.losses(theta, nodes, chosen, wanted),
                problem.risk(theta[0], nodes),
                problem.minimiser(nodes),
                problem.curvature(nodes),
                problem.excess(theta[0], theta[1], nodes),
            ]
            for problem in (linear(part), linear(whole))
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_of_others_it_says_nothing() -> None:
    _, parts = scenes("sign-flip", 2)
    assert parts[1].layout is not None
    missing = parts[1].layout.nodes(1)[:1]
    with pytest.raises(IndexError):
        linear(parts[0]).gradient(torch.zeros(1, 6, dtype=torch.float64), missing, torch.zeros(1, 2, dtype=torch.int64))


def test_sums_of_parts_measure_like_the_whole() -> None:
    whole, parts = scenes("parameter", 4)
    honest = ~whole.byzantine
    sums = []
    for rank, part in enumerate(parts):
        assert part.layout is not None
        sums += [linear(part).moments(nodes[honest[nodes]]) for nodes in part.layout.blocks(rank)]
    theta = torch.randn(23, 6, dtype=torch.float64)
    shared = LinearEvaluator(linear(parts[0]), whole.byzantine, torch.stack(sums).sum(0))
    one, other = (stick.measure([theta[honest].mean(0)]) for stick in (shared, whole.evaluator))
    assert one.keys() == other.keys()
    for key, value in other.items():
        assert one[key] == (value if value is None else pytest.approx(value, rel=1e-9))
