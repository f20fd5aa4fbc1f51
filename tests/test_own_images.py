"""A process that holds some nodes of a run on images has their images alone, and the same numbers as one that has all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bymi import InputError
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.problems import ModuleProblem, Shards, lenet
from bymi.runs import tasks
from bymi.runs.evaluators import ImageEvaluator
from bymi.runs.run_setup import RunSetup, set_up_run
from tests.idx_files import write_image_set

NODES, SAMPLES, TEST = 9, 20, 50
WORDS = [
    f"nodes={NODES}",
    f"data=mnist:samples={SAMPLES},identification=8",
    "byzantine_ratio=0.4",
    "steps=4",
    "warm_up.steps=2",
]
ATTACKS = ["ood", "label-flip", "ipm"]
PARTITIONS = ["stratified", "dirichlet:dirichlet_alpha=0.5", "label-shards:shards=2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_image_set(folder / "mnist", train=NODES * SAMPLES + 7, test=TEST)
    return folder


def scenes(data: Path, size: int, *words: str) -> tuple[RunSetup, list[RunSetup]]:
    """The whole, and the part of each rank."""
    resolved, host = load(None, [*WORDS, *words]).resolved, Host(device="cpu", data=data, threads=1)
    return set_up_run(resolved, host), [set_up_run(resolved, host, Group(rank, size)) for rank in range(size)]


def nodes_of(scene: RunSetup, rank: int) -> torch.Tensor:
    assert scene.layout is not None
    return scene.layout.nodes(rank)


def problem_of(scene: RunSetup) -> ModuleProblem:
    assert isinstance(scene.problem, ModuleProblem)
    return scene.problem


def shards_of(scene: RunSetup) -> Shards:
    """All that the problem of a scene has."""
    problem = problem_of(scene)
    return Shards(problem._inputs.unflatten(0, (-1, SAMPLES)), problem._targets.unflatten(0, (-1, SAMPLES)))


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("size", [2, 4])
def test_each_has_the_images_of_its_nodes(size: int, attack: str, partition: str, data: Path) -> None:
    whole, parts = scenes(data, size, f"attack={attack}", f"data.partition={partition}")
    numbers = []
    for rank, part in enumerate(parts):
        nodes = nodes_of(part, rank)
        for own, everybody in zip(shards_of(part), shards_of(whole), strict=True):
            assert len(own) == len(nodes)
            assert own.untyped_storage().nbytes() == own.nbytes, "and not a view of more"
            assert torch.equal(own, everybody[nodes])
        numbers += nodes.tolist()
    assert sorted(numbers) == list(range(NODES))


def test_an_attack_on_data_touches_those_under_attack_alone(data: Path) -> None:
    clean, attacked = (shards_of(scenes(data, 1, f"attack={attack}")[0]) for attack in ("ipm", "ood"))
    byzantine = scenes(data, 1, "attack=ood")[0].byzantine
    assert 0 < int(byzantine.sum()) < NODES
    changed = (clean.inputs != attacked.inputs).flatten(1).any(1)
    assert torch.equal(changed, byzantine)
    assert torch.equal(clean.targets, attacked.targets)


@pytest.mark.parametrize("size", [2, 4])
def test_gradients_and_losses_are_those_of_the_whole(size: int, data: Path) -> None:
    whole, parts = scenes(data, size, "attack=ood")
    for rank, part in enumerate(parts):
        nodes = nodes_of(part, rank).flip(0)
        theta = problem_of(part).initial(nodes)
        theta = theta + 0.1 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(rank))
        chosen = torch.randint(0, SAMPLES, (len(nodes), 5), generator=torch.Generator().manual_seed(rank))
        wanted = torch.ones(len(nodes), len(nodes), dtype=torch.bool)
        own, everybody = (
            (
                problem.gradient(theta, nodes, chosen),
                problem.losses(theta, nodes, chosen, wanted),
                problem.pooled_gradient(theta[0], nodes),
            )
            for problem in (problem_of(part), problem_of(whole))
        )
        for one, other in zip(own, everybody, strict=True):
            assert torch.equal(one, other)


def test_of_others_it_says_nothing(data: Path) -> None:
    _, parts = scenes(data, 2, "attack=ipm")
    problem, chosen = problem_of(parts[0]), torch.zeros(1, 2, dtype=torch.int64)
    for missing in (nodes_of(parts[1], 1)[:1], nodes_of(parts[1], 1)[-1:]):
        for asked in (
            lambda nodes=missing: problem.gradient(problem.initial(nodes), nodes, chosen),
            lambda nodes=missing: problem.pooled_gradient(problem.initial(nodes)[0], nodes),
        ):
            with pytest.raises(IndexError):
                asked()


def test_numbers_are_one_a_node() -> None:
    shards = Shards(torch.zeros(3, 4, 1, 28, 28), torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(InputError, match=r"numbers: got .* \[2\], allowed: node numbers .* \[3\]"):
        ModuleProblem(lenet(), torch.nn.functional.cross_entropy, shards, numbers=torch.tensor([4, 5]))


@pytest.mark.parametrize("size", [2, 4, 9])
def test_parts_measure_like_the_whole(size: int, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over ranks is put in the place of the collective; some ranks hold nobody honest."""
    whole, parts = scenes(data, size, "attack=label-flip")
    models = [problem_of(whole).initial(torch.arange(1))[0] + 0.05 * at for at in range(3)]
    told: list[torch.Tensor] = []
    monkeypatch.setattr(Group, "total", lambda group, values, name: told.append(values) or values)
    for rank, part in enumerate(parts):
        assert part.layout is not None
        group = Group(rank, size)
        stick = part.evaluator.shared(group, part.layout)
        assert isinstance(stick, ImageEvaluator)
        assert stick._inputs.untyped_storage().nbytes() == stick._inputs.nbytes < TEST * 28 * 28 * 4
        stick.measure(models)
    total = torch.stack(told).sum(0)
    monkeypatch.setattr(Group, "total", lambda group, values, name: total)
    found = stick.measure(models)
    monkeypatch.undo()
    expected = whole.evaluator.measure(models)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


def test_images_of_all_are_not_kept_by_who_holds_some(data: Path) -> None:
    tasks._read_once.cache_clear()
    resolved, host = load(None, [*WORDS, "attack=ipm"]).resolved, Host(device="cpu", data=data, threads=1)
    set_up_run(resolved, host, Group(0, 2))
    assert tasks._read_once.cache_info().currsize == 0
    set_up_run(resolved, host)
    assert tasks._read_once.cache_info().currsize == 1
