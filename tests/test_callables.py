"""Aggregators of other libraries and functions as rules, rules on plain vectors, and the rules of ByzFL beside ours."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bymi
from bymi import RULES, Inbox, InputError, Plan, Round, TrMean, WarmUp
from bymi.aggregation import (
    CAF,
    MDA,
    CallableRule,
    CenteredClipping,
    Chain,
    GeometricMedian,
    Krum,
    Meamed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
)
from bymi.aggregation import NNM as OurNNM
from bymi.aggregation.base import Rule
from bymi.experiment import load
from bymi.runs import foreign_source_digests
from bymi.runs.foreign_source_digests import foreign_source, refuse_imports
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import simulate
from tests.golden.forms import STRIPS, Form, forced, rounds
from tests.test_all_rules import draw

CROWD = draw(5, receivers=30)


class Trim:
    """As a ByzFL aggregator: parameters in the constructor, vectors in a call."""

    def __init__(self, f: int = 0) -> None:
        self.f = f

    def __call__(self, vectors: Any) -> Any:
        return np.sort(np.asarray(vectors), axis=0)[self.f : len(vectors) - self.f].mean(0)


class Aggregator:
    """As a ByzPy aggregator: `aggregate` with a list, which is first asked whether it is empty."""

    def aggregate(self, gradients: list[Any]) -> Any:
        if not gradients:
            raise ValueError("gradients must be a non-empty sequence")
        return torch.stack(gradients).mean(0)


def Middle(vectors: Tensor) -> Tensor:  # noqa: N802 - named as a part of a spec
    return vectors.quantile(0.5, dim=0)


def lists_only(vectors: Any) -> Any:
    if not isinstance(vectors, list):
        raise TypeError("a list is needed")
    return np.mean(vectors, axis=0)


@pytest.mark.parametrize(
    ("given", "same"),
    [(Trim(2), TrMean(f=2)), (Aggregator(), Mean()), (Middle, Median()), (lists_only, Mean()), (np.mean, None)],
)
def test_a_callable_is_a_rule(given: Any, same: Any) -> None:
    rule = WarmUp(given).rule
    assert isinstance(rule, CallableRule)
    if same is None:
        with pytest.raises(InputError, match=r"rule: got 'mean returned shape \[\]', allowed: a function of n vectors"):
            rule(CROWD.inbox(), Round())
    else:
        torch.testing.assert_close(rule(CROWD.inbox(), Round()), same(CROWD.inbox(), Round()), rtol=0, atol=1e-9)


def fails(vectors: Any) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize("wrong", [fails, lambda vectors: None, lambda vectors: vectors[0] * torch.nan, lambda vectors: "x"])
def test_what_a_callable_does_wrong_is_one_line(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"^rule: .*allowed: a function of n vectors"):
        WarmUp(wrong).rule(CROWD.inbox(), Round())


WORDS = ["method=drsgd-bymi", "nodes=12", "graph=complete", "steps=6", "warm_up.steps=3", "data.samples=16", "attack=ipm"]


def test_callables_by_name_in_specs_and_over_shards() -> None:
    """Parameters are the arguments of the class; over shards with rows that stay it gives the numbers of one process."""
    (spec,) = load(None, [*WORDS, "warm_up.rule=tests.test_callables:Trim:f=3"]).expand()
    assert spec.label == "TRIM-hardened-ByMI"
    assert spec.resolved["warm_up"]["rule"] == {"name": "tests.test_callables:Trim", "f": 3}
    ends = []
    for words in (["warm_up.rule=tests.test_callables:Trim:f=3"], ["warm_up.rule=trimmed-mean:f=3"]):
        made = set_up_run(load(None, [*WORDS, *words]).expand()[0].resolved)
        ends.append([*simulate(made.problem, made.graph, made.plan, made.adversary)][-1].theta)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-9)
    strips = (
        "nodes=12",
        "steps=3",
        "warm_up.steps=2",
        "data.samples=16",
        "attack=ipm",
        "data.dim=150",
        "graph=regular:degree=8",
    )
    by_shards = []
    for rule in ("tests.test_callables:Middle", "median"):
        form = Form((), sharded=True, limits=STRIPS)
        with forced(form):
            *_, last = rounds((*strips, "method=rule", f"warm_up.rule={rule}"), form)
        by_shards.append(torch.cat([part.snapshot.theta for part in last]))
    torch.testing.assert_close(by_shards[0], by_shards[1], rtol=0, atol=1e-9)
    with pytest.raises(InputError, match=r"warm_up.rule.g: unknown key \(got 3\); allowed: f, name"):
        load(None, [*WORDS, "warm_up.rule=tests.test_callables:Trim:g=3"])


def test_train_takes_a_callable(tmp_path: Path) -> None:
    """It is in the label and, with its parameters, in the digest: another f is another run."""
    shards = [(torch.randn(16, 3), torch.randint(2, (16,))) for _ in range(8)]
    folders = set()
    for f in (1, 1, 2):
        run = bymi.train(
            torch.nn.Linear(3, 2, bias=False).requires_grad_().apply(lambda part: torch.nn.init.ones_(part.weight)),  # type: ignore[arg-type]
            torch.nn.functional.cross_entropy,
            shards,
            graph="complete",
            rule=Trim(f),
            attack="ipm",
            byzantine=[0],
            steps=4,
            warm_up={"steps": 2},
            out=tmp_path,
        )
        assert run.folder.name.startswith("trim-hardened-bymi-")
        folders.add(run.folder)
    assert len(folders) == 2
    assert Plan.hardened(4, 2, warm_up=WarmUp(Trim(1))).warm_up.rule.name == "Trim"  # type: ignore[arg-type, attr-defined]


def test_a_chain_may_end_in_a_callable() -> None:
    """As `Chain(NNM(), function)` in Python, `nnm+module:Name` in a spec."""
    same = Chain(OurNNM(f=3), Median())(CROWD.inbox(), Round())
    torch.testing.assert_close(Chain(OurNNM(f=3), Middle)(CROWD.inbox(), Round()), same, rtol=0, atol=1e-9)
    alone, spec = (
        load(None, [*WORDS, f"warm_up.rule={name}tests.test_callables:Trim:f=3"]).expand()[0] for name in ("", "nnm+")
    )
    assert spec.label == "NNM+TRIM-hardened-ByMI"
    assert foreign_source(spec.resolved) == foreign_source(alone.resolved) != b""
    with pytest.raises(InputError, match="--allow-imports"):
        refuse_imports(spec.resolved["warm_up"], "spec")
    ends = []
    for words in ("nnm+tests.test_callables:Trim:f=3", "nnm+trimmed-mean:f=3"):
        made = set_up_run(load(None, [*WORDS, f"warm_up.rule={words}"]).expand()[0].resolved)
        ends.append([*simulate(made.problem, made.graph, made.plan, made.adversary)][-1].theta)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-9)


def test_a_function_in_a_spec_has_the_same_digest_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> list[str]:
        foreign_source_digests.sources_of.cache_clear()
        foreign_source_digests._text.cache_clear()
        rules = ("tests.test_callables:Middle", "nnm+tests.test_callables:Middle")
        return [load(None, [*WORDS, f"warm_up.rule={rule}"]).expand()[0].resolved.digest for rule in rules]

    here = digests()
    monkeypatch.setattr(foreign_source_digests, "_WITHOUT_SOURCE", "another process")
    assert digests() == here


@dataclass(frozen=True)
class Nearest(Rule):
    """A rule with a parameter that has no default, and one whose default is made."""

    keep: int
    tags: dict[str, int] = field(default_factory=dict)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        return inbox.own * self.keep


def test_a_chain_may_end_in_an_imported_rule_that_needs_a_parameter() -> None:
    for name in ("nnm+tests.test_callables:Nearest", "NNM+tests.test_callables:Nearest"):
        rule = WarmUp(f"{name}:keep=2").rule  # type: ignore[arg-type]
        assert rule.chain == Chain(OurNNM(), Nearest(2))  # type: ignore[attr-defined]
        with pytest.raises(InputError, match="keep"):
            WarmUp(name)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="f: "):
        WarmUp("nnm+krum:f")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["tests.test_callables:lists_only", "nnm+tests.test_callables:lists_only", "torch:median:f=1"])
def test_a_function_in_small_letters_is_told_what_names_are_allowed(text: str) -> None:
    for attempt in (lambda: load(None, [*WORDS, f"warm_up.rule={text}"]), lambda: WarmUp(text)):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"rule: got .*, allowed: module:Name, whose Name begins with a capital letter"):
            attempt()
    (spec,) = load(None, [*WORDS, "warm_up.rule=krum:f=1"]).expand()
    assert spec.resolved["warm_up"]["rule"]["name"] == "krum"


def test_a_class_is_no_rule_until_it_is_called() -> None:
    with pytest.raises(InputError, match=r"rule: got .*Krum.*, allowed: an instance of it, such as Krum\(\)"):
        WarmUp(Krum)  # type: ignore[arg-type]


def test_train_takes_chains_that_no_spec_can_name(tmp_path: Path) -> None:
    """A callable at the end, or parts with values of their own: all of it is in the digest, and the same call resumes."""
    shards = [(torch.ones(16, 3) * node, torch.full((16,), node % 2)) for node in range(8)]
    folders = {}
    for rule in (
        Chain(OurNNM(f=1), Trim(1)),
        Chain(OurNNM(f=1), Trim(2)),
        Chain(OurNNM(f=2), Trim(1)),
        Chain(OurNNM(f=1), Krum(f=2)),
    ):
        model = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.ones_(model.weight)
        call: dict[str, Any] = {"graph": "complete", "attack": "ipm", "byzantine": [0], "steps": 4, "warm_up": {"steps": 2}}
        runs = [bymi.train(model, torch.nn.functional.cross_entropy, shards, rule=rule, out=tmp_path, **call) for _ in range(2)]
        assert runs[0].folder == runs[1].folder
        folders[runs[0].folder] = runs[0].folder.name.partition("-hardened")[0]
    assert [*folders.values()] == ["nnm+trim", "nnm+trim", "nnm+trim", "nnm+krum"]


@pytest.mark.parametrize("name", ["krum", "trimmed-mean", "scclip", "bulyan", "ios"])
def test_rules_take_and_return_plain_vectors(name: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((9, 4))
    rule = RULES[name]()
    array, tensor = rule(vectors), rule(torch.from_numpy(vectors))
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, Tensor)
    assert array.shape == tensor.shape == (4,)
    np.testing.assert_array_equal(array, tensor.numpy())
    np.testing.assert_array_equal(rule(list(vectors)), array)
    assert torch.equal(rule(list(torch.from_numpy(vectors))), tensor)
    assert rule(torch.from_numpy(vectors).float()).dtype == torch.float32
    wild = np.concatenate([vectors, np.full((1, 4), np.nan)])
    np.testing.assert_allclose(rule(wild), array, rtol=0, atol=1e-9)  # a message that cannot be used is not heard
    for wrong in ([], [[1.0], [1.0, 2.0]], torch.zeros(3), np.zeros((0, 3))):
        with pytest.raises(InputError, match=r"^vectors: got"):
            rule(wrong)


# ByzFL, where it is installed: `pip install --no-deps byzfl`. Its package imports torchvision, which aggregators do not need.


@pytest.fixture(scope="module")
def byzfl() -> Any:
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip("byzfl is not installed: make test-extras")
    before = dict(sys.modules)
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    try:
        yield importlib.import_module("byzfl.aggregators")
    except ImportError as problem:
        pytest.skip(f"byzfl cannot be imported: {problem}")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.partition(".")[0] == "byzfl"})


def vectors_with_outliers(seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((11, 6))
    vectors[-2:] += 20 * (seed % 2)
    return vectors


PAIRS: dict[str, tuple[Any, Any]] = {
    "Average": (lambda f: Mean(), lambda peer, f: peer.Average()),
    "Median": (lambda f: Median(), lambda peer, f: peer.Median()),
    "TrMean": (lambda f: TrMean(f=f), lambda peer, f: peer.TrMean(f)),
    "Krum": (lambda f: Krum(f=f - 1), lambda peer, f: peer.Krum(f)),
    "MDA": (lambda f: MDA(f=f), lambda peer, f: peer.MDA(f)),
    "MoNNA": (lambda f: MoNNA(f=f), lambda peer, f: peer.MoNNA(f, idx=0)),
    "Meamed": (lambda f: Meamed(f=f), lambda peer, f: peer.Meamed(f)),
    "NNM": (lambda f: OurNNM(f=f), lambda peer, f: peer.NNM(f)),
}
"""ByzFL's Krum sums the n - f - 1 nearest, the published n - f - 2: theirs with f is ours with f - 1."""


@pytest.mark.parametrize("name", PAIRS)
def test_equal_to_byzfl(name: str, byzfl: Any) -> None:
    ours, theirs = PAIRS[name]
    for seed in range(20):
        vectors, f = vectors_with_outliers(seed), 2 + seed % 3
        if name == "MDA" and not _clear(vectors, f):
            continue  # subsets of equal diameter: theirs takes the first, ours the closest
        np.testing.assert_allclose(ours(f)(vectors), theirs(byzfl, f)(vectors.copy()), rtol=0, atol=1e-9)


def _clear(vectors: np.ndarray, f: int) -> bool:
    from itertools import combinations

    sets = list(combinations(range(len(vectors)), len(vectors) - f))
    apart = ((vectors[:, None] - vectors[None]) ** 2).sum(2)
    diameters = np.sort([apart[np.ix_(one, one)].max() for one in sets])
    return bool(diameters[1] > diameters[0] * (1 + 1e-9))


def test_where_byzfl_differs(byzfl: Any) -> None:
    """Each difference has a reason, and goes away where the reason does."""
    vectors = vectors_with_outliers(1)
    # Multi-Krum: scores of n - f - 1 nearest against n - f - 2; both average n - f. With f = 0 all are averaged.
    np.testing.assert_allclose(MultiKrum(f=0)(vectors), byzfl.MultiKrum(0)(vectors), rtol=0, atol=1e-12)
    # Geometric median: 3 steps from zero with a floor of 0.1 on distances, against convergence: many steps and no floor agree.
    peer = byzfl.GeometricMedian(nu=1e-9, T=3000)(vectors)
    np.testing.assert_allclose(GeometricMedian()(vectors), peer, rtol=0, atol=1e-7)
    # Centred clipping: from zero, or from its last output, against from the own vector: about zero they agree.
    centred = np.concatenate([np.zeros((1, 6)), vectors])
    with np.errstate(divide="ignore"):
        peer = byzfl.CenteredClipping(L=2, tau=1.5)(centred)
    np.testing.assert_allclose(CenteredClipping(tau=1.5, iterations=2)(centred), peer, rtol=0, atol=1e-9)
    # CAF: one power step from a random vector, against exact eigenvectors; and the largest tau is taken over removed vectors as
    # well, which slows its later steps. On a line every vector is an eigenvector, and with f = 1 one step is enough.
    line = np.random.default_rng(3).standard_normal((11, 1))
    np.testing.assert_allclose(CAF(f=1)(line), byzfl.CAF(1)(line), rtol=0, atol=1e-9)


def test_a_byzfl_object_is_a_warm_up_rule(byzfl: Any) -> None:
    rule = WarmUp(byzfl.TrMean(2)).rule
    torch.testing.assert_close(rule(CROWD.inbox(), Round()), TrMean(f=2)(CROWD.inbox(), Round()), rtol=0, atol=1e-5)
