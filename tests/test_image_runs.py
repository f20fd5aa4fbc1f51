"""Runs on images, tiny ones, end to end: attacks, methods, metrics; and rules on single-precision models."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bymi import RULES, Adversary, Round, datasets
from bymi.aggregation import WeightedRule
from bymi.attacks import GradientAttack, OutOfDistribution
from bymi.core.message_validity import MAX_NORM_RATIO
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, GRADIENT, SECOND_HALF, Topic
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, run
from bymi.problems import ModuleProblem, Shards, lenet
from bymi.runs import run_folder as store
from bymi.runs import tasks
from bymi.runs.metrics import Recorder
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import simulate
from tests.idx_files import write_image_set
from tests.inbox_fixtures import Lone, draw_lone
from tests.rule_kinds import KINDS

NODES, SAMPLES, TEST = 8, 40, 90
WORDS = (
    "profile=paper",
    f"nodes={NODES}",
    f"data=mnist:samples={SAMPLES},identification=12",
    "byzantine_ratio=0.25",
    "graph=complete",
    "steps=6",
    "warm_up.steps=3",
    "record_every=2",
    "optimisation.batch=8",
    "byzantine_mixing=none",
    "detection.point=receiver",
    "detection.cross_fit=true",
)
ATTACKS = ("ood", "gradient", "ipm")
METHODS = ("dsgd", "rule", "drsgd-bymi")
IMAGE_KEYS = {"acc_all", "acc_normal", "acc_scc", "grad_norm"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_image_set(folder / "mnist", train=NODES * SAMPLES, test=TEST)
    return folder


def tiny(*words: str, seed: int = 0) -> Spec:
    return load(None, [*WORDS, *words], seed)


def scene_of(spec: Spec, data: Path) -> RunSetup:
    return set_up_run(spec.resolved, Host(device="cpu", data=data, threads=1))


def inputs_of(scene: RunSetup) -> Tensor:
    """The images of all nodes [M, n, 1, 28, 28]."""
    assert isinstance(scene.problem, ModuleProblem)
    return scene.problem._inputs.unflatten(0, (NODES, SAMPLES))


# End to end


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_and_method_finishes(attack: str, method: str, data: Path, tmp_path: Path) -> None:
    spec = tiny(f"attack={attack}", f"method={method}")
    summary = run(spec, tmp_path, host=Host(device="cpu", data=data))
    assert set(summary) == {"method", "seed", "digest", *SUMMARY_KEYS}
    assert summary["steps_done"] == 6
    assert summary["outcome"] in ("finished", "isolated", "fragmented")
    folder = store.folder_of(tmp_path, spec)
    rows = store.read_rows(folder / store.METRICS)
    detection = method == "drsgd-bymi"
    assert [(row["step"], row["phase"]) for row in rows] == (
        [(2, "warm-up"), (3, "detection"), (4, "optimisation"), (6, "optimisation")]
        if detection
        else [(2, "warm-up"), (4, "warm-up"), (6, "warm-up")]
    )
    for row in rows:
        assert set(row) >= IMAGE_KEYS | {"consensus", "unheard"}
        assert all(0 <= row[key] <= 1 for key in ("acc_all", "acc_normal"))
        assert all(row[key] * TEST == pytest.approx(round(row[key] * TEST)) for key in ("acc_all", "acc_normal"))
        assert (row["acc_scc"] is None) == (row["phase"] == "warm-up")
        assert row["grad_norm"] > 0
    assert {key: summary[key] for key in IMAGE_KEYS} == {key: rows[-1][key] for key in IMAGE_KEYS}
    assert all(summary[key] is None for key in ("gap", "gap_weighted", "gap_true", "gap_population"))
    assert all((summary[key] is None) != detection for key in ("fdp", "pa", "core_size", "core_closed", "capped"))
    assert (folder / store.VERDICT).exists() == detection
    assert store.read_json(folder / store.ENVIRONMENT)["gradients"] == "stacked"


def test_threads_do_not_change_the_bits(data: Path, tmp_path: Path) -> None:
    """Beside others in other processes: tests/test_bare_runs.py."""
    spec, made = tiny("attack=gradient", "method=drsgd-bymi"), []
    for threads in (1, 3):
        run(spec, tmp_path / str(threads), host=Host(device="cpu", data=data, threads=threads))
        folder = store.folder_of(tmp_path / str(threads), spec)
        made.append([(folder / name).read_bytes() for name in (store.METRICS, store.VERDICT)])
    assert made[0] == made[1]


def test_all_ways_of_gradients_give_the_same_run(data: Path, tmp_path: Path) -> None:
    spec, rows = tiny("attack=ipm", "method=rule", "warm_up.rule=ubar", "steps=4"), []
    for way in ("loop", "stacked", "batched"):
        run(spec, tmp_path / way, host=Host(device="cpu", data=data, gradients=way))  # type: ignore[arg-type]
        folder = store.folder_of(tmp_path / way, spec)
        rows.append(store.read_rows(folder / store.METRICS))
        assert store.read_json(folder / store.ENVIRONMENT)["gradients"] == way
    for left, *others in zip(*rows, strict=True):
        for right in others:
            assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)
            assert left["consensus"] == pytest.approx(right["consensus"], rel=1e-4, abs=1e-7)


def test_without_attackers_the_model_learns(data: Path, tmp_path: Path) -> None:
    words = ["byzantine_ratio=0.0", "attack=ipm", "method=dsgd", "steps=30", "warm_up.batch=16", "record_every=30"]
    words += ["warm_up.step_size=0.05", "warm_up.schedule=constant"]
    summary = run(tiny(*words), tmp_path, host=Host(device="cpu", data=data))
    assert summary["acc_all"] == summary["acc_normal"] > 0.9


def test_a_run_that_leaves_all_bounds_is_a_row_and_no_trace(data: Path, tmp_path: Path) -> None:
    words = ["attack=gradient:push=1e9", "method=dsgd", "warm_up.step_size=1e3", "byzantine_mixing=none"]
    summary = run(tiny(*words), tmp_path, host=Host(device="cpu", data=data))
    assert summary["outcome"] == "diverged"
    assert "left all bounds by step 2" in summary["sentence"]
    assert summary["steps_done"] == 2


def test_another_folder_in_the_variable_is_another_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (0, 1):
        write_image_set(tmp_path / str(seed) / "mnist", train=NODES * SAMPLES, test=10, seed=seed)
        monkeypatch.setenv("BYMI_DATA", str(tmp_path / str(seed)))
        found.append(inputs_of(set_up_run(tiny("attack=ipm", "method=dsgd").resolved, Host(device="cpu", threads=1))))
    tasks._read_once.cache_clear()
    assert not torch.equal(*found)


# What is measured


def plain_model(theta: Tensor) -> torch.nn.Module:
    model = lenet()
    vector_to_parameters(theta, model.parameters())
    return model


def test_measures_are_those_of_a_direct_computation(data: Path) -> None:
    """Accuracy of averaged models on the test images, and the length of the gradient over all honest samples."""
    spec = tiny("attack=ood", "method=drsgd-bymi")
    scene = scene_of(spec, data)
    images = datasets.load_images("mnist", data)
    pixels = images.train_images.double()
    test = ((images.test_images - pixels.mean()) / pixels.std(correction=0)).float()
    recorder = Recorder(scene.evaluator, scene.graph, scene.byzantine, steps=spec.steps, every=1)
    honest = ~scene.byzantine
    inputs = inputs_of(scene)[honest].flatten(0, 1)
    assert isinstance(scene.problem, ModuleProblem)
    labels = scene.problem._targets.unflatten(0, (NODES, SAMPLES))[honest].flatten()
    members = None
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        row = recorder.see(snapshot)
        assert row is not None
        if snapshot.network is not None:
            members = snapshot.network.graph.core().members  # type: ignore[attr-defined]
        averages = {"acc_all": snapshot.theta.mean(0), "acc_normal": snapshot.theta[honest].mean(0)}
        judged = averages["acc_normal"]
        if members is not None:
            averages["acc_scc"] = judged = snapshot.theta[members].mean(0)
        for key, theta in averages.items():
            with torch.no_grad():
                said = plain_model(theta)(test).argmax(1)
            assert row[key] == int((said == images.test_labels).sum()) / TEST
        assert (row["acc_scc"] is None) == (members is None)
        model = plain_model(judged)
        nnf.cross_entropy(model(inputs), labels).backward()
        slope = parameters_to_vector([parameter.grad for parameter in model.parameters()])  # type: ignore[misc]
        assert row["grad_norm"] == pytest.approx(float(slope.norm()), rel=1e-5)
    assert members is not None


def test_pixels_have_mean_zero_and_variance_one(data: Path) -> None:
    """All samples are dealt out here, so their mean and variance are those of the set, which normalises them."""
    inputs = inputs_of(scene_of(tiny("attack=ipm", "method=dsgd"), data)).double()
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-6)
    assert float(inputs.var(correction=0)) == pytest.approx(1, abs=1e-6)


# Images out of the distribution


def test_the_formula_by_hand() -> None:
    """0.3 s + 0.7 scale (nu + e), nu = 20 z, with z and e of the streams that were given."""
    shard = Shards(torch.arange(2 * 3 * 4.0).reshape(2, 3, 1, 2, 2), torch.arange(6).reshape(2, 3))
    shared, fresh = stream(0, "one"), stream(0, "two", node=torch.tensor([4, 9]))
    made = OutOfDistribution(scale=0.5)(shard, shared, fresh)
    for place, node in enumerate((4, 9)):
        noise = stream(0, "two", node=node).normal(3, 1, 2, 2)
        for sample in range(3):
            for row in range(2):
                for column in range(2):
                    nu = 20 * shared.normal(1, 2, 2)[0, row, column]
                    e = noise[sample, 0, row, column]
                    expected = 0.3 * shard.inputs[place, sample, 0, row, column] + 0.7 * 0.5 * (nu + e)
                    assert float(made.inputs[place, sample, 0, row, column]) == pytest.approx(float(expected), rel=1e-5)
    assert made.inputs.dtype == torch.float32
    assert torch.equal(made.targets, shard.targets)
    assert shard.inputs[1, 2, 0, 1, 1] == 23.0


def test_noise_of_attackers_is_shared_where_it_should_be_and_fresh_elsewhere(data: Path) -> None:
    """From two scenes that differ in the attack: (image - 0.3 s) / (0.7 scale) = nu + e.

    Bounds are six standard deviations or more of each estimate, from 784 values of nu and 2 x 40 x 784 of e: each is
    crossed by chance in fewer than one of 1e8 cases.
    """
    clean, scene = (scene_of(tiny(f"attack={name}", "method=rule"), data) for name in ("ipm", "ood:scale=0.2"))
    wrong = scene.byzantine
    assert torch.equal(clean.byzantine, wrong)
    assert torch.equal(clean.graph.hears, scene.graph.hears)
    assert torch.equal(inputs_of(clean)[~wrong], inputs_of(scene)[~wrong])
    assert torch.equal(clean.problem._targets, scene.problem._targets)  # type: ignore[attr-defined]
    noise = ((inputs_of(scene) - 0.3 * inputs_of(clean))[wrong] / (0.7 * 0.2)).double().flatten(2)  # [2, 40, 784]
    nu = noise.mean((0, 1))
    assert float(nu.mean()) == pytest.approx(0, abs=6 * 20 / math.sqrt(784))
    assert float(nu.var()) == pytest.approx(400, rel=8 * math.sqrt(2 / 784))
    e = (noise - nu) * math.sqrt(80 / 79)  # the mean of 80 took one of 80 degrees of freedom
    count = e.numel()
    assert float(e.var()) == pytest.approx(1, abs=6 * math.sqrt(2 / count) + 1e-3)
    # One nu for both nodes: their means differ by the noise of 40 samples each.
    apart = noise[0].mean(0) - noise[1].mean(0)
    assert float(apart.square().mean()) == pytest.approx(2 / 40, rel=8 * math.sqrt(2 / 784))
    # Samples and nodes have their own e.
    assert float((e[0, 0] * e[0, 1]).mean()) == pytest.approx(0, abs=6 / math.sqrt(784) + 0.02)
    assert float((e[0] * e[1]).mean()) == pytest.approx(0, abs=6 / math.sqrt(40 * 784) + 0.02)


def test_another_seed_has_another_nu(data: Path) -> None:
    """All samples of 784 pixels: correlations are zero with a standard deviation of 1 / 28."""
    made = []
    for seed in (0, 1):
        pair = [scene_of(tiny(f"attack={name}", "method=rule", seed=seed), data) for name in ("ipm", "ood")]
        wrong = pair[0].byzantine
        made.append((inputs_of(pair[1]) - 0.3 * inputs_of(pair[0]))[wrong].double().mean((0, 1)).flatten())
    assert abs(float(torch.corrcoef(torch.stack(made))[0, 1])) < 7 / 28


# The gradient attack


def pushes(seed: int, topics: list[tuple[Topic, int]]) -> Tensor:
    """(forged - mean / 2) / std for two attackers at some topics and steps [t, 2, D]."""
    members = torch.tensor([False] * 6 + [True] * 2)
    adversary = Adversary(members, GradientAttack(), seed=seed)
    found = []
    for number, (topic, step) in enumerate(topics):
        vectors = (1 + number) * stream(9, "vectors", step=number).normal(8, 3000) + number
        forged = adversary.gradients(vectors, torch.arange(8), topic, step)
        assert torch.equal(forged[:6], vectors[:6])
        mean = vectors[:6].mean(0)
        found.append((forged[6:] - mean / 2) / (vectors[:6] - mean).square().mean().sqrt())
    return torch.stack(found)


def test_the_push_of_the_gradient_attack_is_drawn_once_a_run() -> None:
    """20 z + e: z the same in both halves, all rounds and for all attackers, e new each time.

    The mean square of 3000 differences of two e is 2 with a standard deviation of 0.052: off by 0.4 in fewer than one of
    1e12 cases, 45 times over. Products of two independent z of 3000 entries have a mean of 0 with one of 0.018.
    """
    topics = [(GRADIENT, 0), (GRADIENT, 1), (FIRST_HALF, 3), (SECOND_HALF, 3), (FIRST_HALF.to(2), 3)]
    found = pushes(0, topics).flatten(0, 1)
    for place in range(len(found)):
        for other in range(place):
            assert float((found[place] - found[other]).square().mean()) == pytest.approx(2, abs=0.4)
    z = found.mean(0) / 20
    assert float(z.square().mean()) == pytest.approx(1, abs=0.2)
    another = pushes(1, topics).flatten(0, 1).mean(0) / 20
    assert abs(float((z * another).mean())) < 0.13


# Rules on models in single precision, where products cancel


LENGTH, CLOSE = 10.0, 1e-4
FOLLOWERS = {"average", "mean"}  # any Byzantine node that is heard moves them


def near_consensus(seed: int, dim: int = 2000) -> Lone:
    """Nine neighbours that differ by CLOSE in length about a common vector of length 10, as float32 holds them."""
    common = torch.from_numpy(np.random.default_rng(seed).standard_normal(dim))
    lone = draw_lone(neighbours=9, dim=dim, seed=seed).moved(scale=CLOSE / dim**0.5, shift=LENGTH * common / common.norm())
    messages = [message.float() for message in lone.messages]  # type: ignore[union-attr]
    return replace(lone, own=lone.own.float(), messages=messages)


def huge(lone: Lone) -> Lone:
    """Far beyond what can be a message."""
    return lone.with_message(2, torch.full_like(lone.own, 1e8))


def almost_absurd(lone: Lone) -> Lone:
    """As long as a message may be."""
    return lone.with_message(2, -0.99 * MAX_NORM_RATIO * lone.own)


def nothing(lone: Lone) -> Lone:
    return lone.with_message(2, torch.zeros_like(lone.own))


def twins(lone: Lone) -> Lone:
    """Two identical Byzantine nodes, each as long as the others."""
    message = lone.own.flip(0)
    return lone.with_message(2, message).with_message(5, message)


def echo(lone: Lone) -> Lone:
    """Three senders repeat the receiver's own words."""
    return lone.with_message(2, lone.own.clone()).with_message(5, lone.own.clone()).with_message(7, lone.own.clone())


def all_one(lone: Lone) -> Lone:
    """Perfect consensus, and one Byzantine node."""
    return replace(lone, messages=[lone.own.clone() for _ in lone.messages]).with_message(2, torch.zeros_like(lone.own))


WILD: dict[Any, tuple[int, ...]] = {huge: (2,), almost_absurd: (2,), nothing: (2,), twins: (2, 5), echo: (), all_one: (2,)}


DECIDERS = [
    (name, circumstance)
    for name in KINDS
    for circumstance, attacks in WILD.items()
    if (name not in FOLLOWERS or circumstance is huge or not attacks) and name not in ("drsa", "cge")
]


@pytest.mark.parametrize(("name", "circumstance"), DECIDERS)
def test_no_wild_message_is_accepted_through_cancellation(name: str, circumstance: Any) -> None:
    """The output stays with the good: no farther from their mean than twice the farthest of them, plus rounding.

    Weighted rules that choose give an attacker no weight at all; geometric median and filtering next to none. Float32 holds a
    vector of length 10 to about 5e-7, far less than the 1e-4 between good ones.
    """
    rule = RULES[name]()
    for seed in range(6):
        lone = circumstance(near_consensus(seed))
        inbox = lone.inbox()
        output = rule(inbox, Round(0, 1, lone.losses()))[0].double()
        good = [message for place, message in enumerate(lone.messages) if place not in WILD[circumstance]]
        vectors = torch.stack([lone.own, *good]).double()
        middle = vectors.mean(0)
        spread = (vectors - middle).norm(dim=1).max()
        assert float((output - middle).norm()) <= 2 * float(spread) + 1e-5
        if isinstance(rule, WeightedRule):
            mixture = rule.weigh(inbox, Round(0, 1, lone.losses()))
            assert float(mixture.weight.sum() + mixture.own.sum()) == pytest.approx(1, abs=1e-12)
            for place in WILD[circumstance]:
                limit = 0.0 if name in ("ubar", "ios", "balance") or circumstance is huge else 1e-4
                assert 0 <= float(mixture.weight[0, place]) <= limit
