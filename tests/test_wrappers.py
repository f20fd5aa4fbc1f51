"""Wrappers of rules, chains of them, and local gradients with memory, against loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bymi
from bymi import RULES, Detector, Graph, InputError, LocalNetwork, Plan, Round, StepSize, WarmUp
from bymi.aggregation import NNM, WRAPPERS, Bucketing, Bulyan, Chain, Clipping, Krum, LocalSamples, Median, Momentum, TrMean
from bymi.aggregation.gradient_estimators import LSVRG, SAGA
from bymi.core.random_streams import stream
from bymi.core.topic import PARAMETERS
from bymi.experiment import load
from bymi.experiment.spec import read_spec
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import simulate
from tests.golden.forms import LISTS, STRIPS, Form, forced, rounds
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
from tests.reference.rules import Vector
from tests.test_all_rules import Crowd, draw

CROWD = draw(6, receivers=40)


def mean_of_nearest(one: Vector, vectors: list[Vector], keep: int) -> Vector:
    near: Vector = np.mean(sorted(vectors, key=lambda other: float(np.sum((other - one) ** 2)))[:keep], axis=0)
    return near


def by_hand(wrapper: str, crowd: Crowd, receiver: int, rule: str, **settings: Any) -> Tensor:
    """NNM or clipping by loops, then the transcription of a rule with equal mixing weights."""
    node = crowd.node(receiver)
    vectors = node.everybody
    if wrapper == "nnm":
        keep = len(vectors) - int(np.ceil(0.35 * len(node.heard) - 1e-9))
        vectors = [mean_of_nearest(one, vectors, keep) for one in vectors]
    else:
        distances = sorted(float(np.linalg.norm(vector - node.own)) for vector in node.heard)
        radius = distances[(len(distances) - 1) // 2]
        factors = [min(1.0, radius / float(np.linalg.norm(vector - node.own))) for vector in node.heard]
        vectors = [node.own, *(node.own + k * (v - node.own) for k, v in zip(factors, node.heard, strict=True))]
    mixed = replace(node, own=vectors[0], heard=list(vectors[1:]))
    return torch.from_numpy(ALL_TRANSCRIPTIONS[rule](mixed, **settings))


@pytest.mark.parametrize("wrapper", ["nnm", "clipping"])
@pytest.mark.parametrize(("rule", "settings"), [("multi-krum", {"share": 0.35, "f": None}), ("mean", {}), ("median", {})])
def test_a_wrapped_rule_sees_what_the_wrapper_makes(wrapper: str, rule: str, settings: dict[str, Any]) -> None:
    output = RULES[f"{wrapper}+{rule}"]()(CROWD.inbox(), CROWD.moment())
    expected = torch.stack([by_hand(wrapper, CROWD, receiver, rule, **settings) for receiver in range(len(CROWD.own))])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("wrapper", ["nnm", "bucketing", "clipping"])
@pytest.mark.parametrize("rule", ["krum", "ios", "scclip", "multi-krum"])
def test_products_give_what_vectors_give(wrapper: str, rule: str) -> None:
    """By weights from inner products, and with the vectors of one receiver after the other."""
    chain = RULES[f"{wrapper}+{rule}"]().chain  # type: ignore[attr-defined]
    moment = CROWD.moment()
    torch.testing.assert_close(
        chain.combine(CROWD.inbox(), moment), chain._one_by_one(CROWD.inbox(), moment), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("rule", ["ubar", "rtc", "bulyan", "faba", "meamed", "mda"])
@pytest.mark.parametrize("wrapper", ["nnm", "clipping"])
def test_exact_ties_are_broken_alike_in_every_form(wrapper: str, rule: str) -> None:
    """NNM makes vectors equal, and clipping makes them equally far: rounding, which differs by form, must not choose."""
    words = ("nodes=12", "steps=3", "method=rule", "attack=ipm", f"warm_up.rule={wrapper}+{rule}", "data.samples=20")
    results = []
    for form in (Form(()), Form((), limits=LISTS), Form((), sharded=True, limits=STRIPS)):
        *_, last = rounds((*words, "graph=regular:degree=8", "data.dim=60"), form)
        theta = torch.empty(12, 60, dtype=torch.float64)
        for part in last:
            theta[part.nodes] = part.snapshot.theta
        results.append(theta)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-10)


CHAINS = ["nnm+krum", "bucketing+scclip", "clipping+median", "bucketing+nnm+trimmed-mean", "nnm+balance"]


@pytest.mark.parametrize("name", CHAINS)
def test_lists_give_what_matrices_give(name: str) -> None:
    """Buckets are drawn per receiver and sender, so that they are the same in every form."""
    hears = stream(0, "arcs").uniform(14, 14) < 0.6
    vectors = stream(1, "vectors").normal(14, 5)
    results = []
    for constants in ({}, LISTS):
        with forced(Form((), limits=constants)):
            graph = Graph.from_hears(hears.clone().fill_diagonal_(False)) if not constants else _lists(hears)
            (inbox,) = LocalNetwork(graph).exchange(0, {PARAMETERS: vectors})
            results.append(RULES[name]()(inbox, Round(3, 9, seed=5, nodes=torch.arange(14))))
    assert type(results[0]) is type(results[1])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)


def _lists(hears: Tensor) -> Graph:
    from bymi import ListGraph

    receivers, senders = hears.clone().fill_diagonal_(False).nonzero(as_tuple=True)
    return ListGraph.of_arcs(receivers, senders, len(hears))


def test_buckets_are_random_means_that_cover_all() -> None:
    vectors = torch.arange(7, dtype=torch.float64)[:, None]
    means = Bucketing(2)(vectors)
    assert means.shape == (4, 1)
    assert float(2 * means.sum() - vectors.sum()) in vectors  # three pairs, and one alone
    inbox = CROWD.inbox()
    draws = [RULES["bucketing+median"]()(inbox, Round(step, 9)) for step in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_names_and_parameters_of_chains() -> None:
    assert WarmUp("nnm+krum:f=5").rule.chain == Chain(NNM(f=5), Krum(f=5))  # type: ignore[arg-type, attr-defined]
    (spec,) = load(None, ["method=drsgd-bymi", "warm_up.rule=momentum+nnm+trimmed-mean:f=3,beta=0.5"]).expand()
    assert spec.resolved["warm_up"]["rule"] == {"name": "momentum+nnm+trimmed-mean", "beta": 0.5, "share": 0.35, "f": 3}
    assert spec.label == "MOMENTUM+NNM+TRIMMED-MEAN-hardened-ByMI"
    values = {"beta": 0.5, "share": 0.35, "f": 3}
    assert Chain(Momentum(0.5), NNM(f=3), TrMean(f=3)).named() == ("momentum+nnm+trimmed-mean", values)
    for wrong in ("nnm+crumb", "crumb+krum", "krum+nnm"):
        with pytest.raises(InputError, match=r"rule: got .*allowed: wrappers"):
            WarmUp(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"f: got \[1, 2\], allowed: one value for all parts"):
        Chain(NNM(f=1), Krum(f=2)).named()
    for parts in ((NNM(),), (Krum(), NNM()), ()):
        with pytest.raises(InputError, match="then one rule"):
            Chain(*parts)  # type: ignore[arg-type]
    assert set(WRAPPERS) == {"nnm", "bucketing", "clipping", "momentum"}
    assert Clipping(0.0)(CROWD.messages[0]).allclose(CROWD.messages[0, :1])


def test_parts_of_a_chain_that_share_a_parameter_have_defaults_of_their_own() -> None:
    own, given = WarmUp("nnm+bulyan").rule, WarmUp("nnm+bulyan:share=0.2").rule  # type: ignore[arg-type]
    assert own.chain == Chain(NNM(), Bulyan())  # type: ignore[attr-defined]
    assert NNM().share != Bulyan().share
    assert given.chain == Chain(NNM(share=0.2), Bulyan(share=0.2))  # type: ignore[attr-defined]
    assert Chain(NNM(), Bulyan()).named() == ("nnm+bulyan", {"share": None, "f": None})
    assert Chain(NNM(share=0.2), Bulyan(share=0.2)).named() == ("nnm+bulyan", {"share": 0.2, "f": None})
    torch.testing.assert_close(own(CROWD.inbox(), Round()), Chain(NNM(), Bulyan())(CROWD.inbox(), Round()), rtol=0, atol=0)
    for words, share in (("nnm+bulyan", None), ("nnm+bulyan:share=0.2", 0.2)):
        (spec,) = load(None, ["method=drsgd-bymi", f"warm_up.rule={words}"]).expand()
        assert spec.resolved["warm_up"]["rule"].get("share") == share
        again = read_spec({"method": "drsgd-bymi", "warm_up": {"rule": spec.resolved["warm_up"]["rule"]}})
        assert again.digest == spec.digest


# Local gradients.

TARGETS = stream(0, "targets").normal(3, 10, 4)  # [nodes, samples, D]; the loss of a sample is |x - target|^4 / 4


def gradient(theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
    away = theta[:, None] - TARGETS[nodes[:, None], chosen]
    return (away.square().sum(2, keepdim=True) * away).mean(1)


def samples(step: int, sizes: Tensor | None = None) -> LocalSamples:
    return LocalSamples(gradient, torch.arange(3), torch.arange(10).expand(3, -1), sizes, seed=3, step=step)


def full(theta: Tensor, sizes: list[int]) -> Tensor:
    rows = [gradient(theta[i : i + 1], torch.tensor([i]), torch.arange(sizes[i])[None])[0] for i in range(3)]
    return torch.stack(rows)


@pytest.mark.parametrize("estimator", [SAGA(4), LSVRG(4), SAGA(1), LSVRG(3), SAGA(25)])
@pytest.mark.parametrize("sizes", [[10, 10, 10], [10, 7, 4]])
def test_variance_reduced_gradients(estimator: SAGA | LSVRG, sizes: list[int]) -> None:
    """Exact in the first round; unbiased later, as the mean over all blocks; exact again where nodes have come to rest."""
    theta, given = stream(1, "theta").normal(3, 4), torch.tensor(sizes)
    first, memory = estimator.estimate(samples(0, given), theta, torch.zeros(3, 1, dtype=torch.int64), {})
    torch.testing.assert_close(first, full(theta, sizes), rtol=0, atol=1e-10)
    assert set(memory) == set(estimator.names)
    moved = theta + 0.3
    blocks = samples(0, given).blocks(estimator.batch)
    assert blocks.tolist() == [size // np.gcd(size, estimator.batch) for size in sizes]
    if isinstance(estimator, SAGA):
        assert memory["table"].shape == (3, int(blocks.max()), 4)
    # By the definition of an expectation: over all blocks, each with the memory after the first round.
    every = samples(0, given)
    rounds = int(np.lcm.reduce(blocks.numpy()))
    drawn = [every.block(torch.full((3,), number) % blocks, estimator.batch) for number in range(rounds)]
    by_block = torch.stack([gradient(moved, torch.arange(3), chosen) for chosen in drawn])
    torch.testing.assert_close(by_block.mean(0), full(moved, sizes), rtol=0, atol=1e-10)
    seen = 0.0
    for step in range(1, 200):
        estimate, memory = estimator.estimate(samples(step, given), moved, torch.zeros(3, 1, dtype=torch.int64), memory)
        seen = float((estimate - full(moved, sizes)).abs().max())
    assert seen < 1e-9  # all blocks were drawn: one is missed with probability below 30 (9/10)^199 < 1e-7


def test_saga_by_hand() -> None:
    """One round after the first, from its formula; and its table bound."""
    theta, zero = stream(1, "theta").normal(3, 4), torch.zeros(3, 1, dtype=torch.int64)
    _, memory = SAGA(5).estimate(samples(0), theta, zero, {})
    table = memory["table"].clone()
    estimate, after = SAGA(5).estimate(samples(1), theta + 1, zero, memory)
    drawn = stream(3, "saga", node=torch.arange(3), step=1).integers(torch.tensor([2, 2, 2]))
    for node in range(3):
        block = int(drawn[node])
        new = gradient(theta[node : node + 1] + 1, torch.tensor([node]), torch.arange(5)[None] + 5 * block)[0]
        expected = new - table[node, block] + table[node].mean(0)
        torch.testing.assert_close(estimate[node], expected, rtol=0, atol=1e-12)
        table[node, block] = new
    torch.testing.assert_close(after["table"], table, rtol=0, atol=0)
    torch.testing.assert_close(after["table mean"], table.mean(1), rtol=0, atol=1e-12)
    with pytest.raises(InputError, match=r"saga: got 'a table of 30.0 GiB', allowed: at most 4 GiB"):
        SAGA(1).estimate(samples(0), torch.zeros(1, device="meta").expand(3, 1 << 28), zero, {})


SMALL = ["method=rule", "nodes=10", "graph=complete", "steps=12", "warm_up.steps=6", "attack=ipm"]
SMALL += ["data.dim=6", "data.samples=20"]


@pytest.mark.parametrize("rule", ["momentum+krum", "bravo-saga:batch=8", "bravo-lsvrg:batch=8"])
def test_a_run_resumes_with_its_memory(rule: str) -> None:
    """From the state after round 5: the same bits as without a break; without the memory other ones."""
    (spec,) = load(None, [*SMALL, f"warm_up.rule={rule}"]).expand()
    made = set_up_run(spec.resolved)
    run = [made.problem, made.graph, made.plan, made.adversary]
    states, last = {}, None
    for snapshot in simulate(*run):  # type: ignore[arg-type]
        assert snapshot.state is not None
        if snapshot.step == 5:
            states = {"kept": snapshot.state.copy(), "lost": replace(snapshot.state, memory={})}
        last = snapshot.theta
    ends = {name: [*simulate(*run, state)][-1].theta for name, state in states.items()}  # type: ignore[arg-type]
    assert last is not None
    assert torch.equal(ends["kept"], last)
    assert not torch.equal(ends["lost"], last)


def test_checkpoints_hold_the_memory(tmp_path: Path) -> None:
    from bymi.runs.checkpoints import Place, newest, save
    from bymi.runs.pack_state import StateShape

    (spec,) = load(None, [*SMALL, "warm_up.rule=bravo-saga"]).expand()
    made = set_up_run(spec.resolved)
    network = LocalNetwork(made.graph)
    place = Place(network.nodes)
    for snapshot in simulate(made.problem, made.graph, made.plan, made.adversary):
        if snapshot.step == 4:
            assert snapshot.state is not None
            save(tmp_path, "d", snapshot.state, place, {}, {})
            frame = StateShape.of(made.problem, network, made.plan)
            found = newest(tmp_path, "d", frame, [place], lambda saved: saved.states[0], print)
            assert found is not None
            assert all(torch.equal(found.memory[name], part) for name, part in snapshot.state.memory.items())


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_gradient_and_mixing_is_an_option(name: str) -> None:
    """One round by hand: the gradient step before or after the exchange."""
    graph = bymi.Complete().draw(9)
    start = 2 + 0.3 * stream(1, "start").normal(9, 4)  # a step reverses the order of values

    class Problem:
        dim, samples = 4, 10

        def initial(self, nodes: Tensor) -> Tensor:
            return start

        def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
            return theta**3

        def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
            return (vectors - 1).square().sum(-1).expand_as(wanted)

    from bymi.core.byzantine_hooks import FollowsProtocol
    from bymi.training.phases import round_of, warm_up

    rule, network, pool = RULES[name](), LocalNetwork(graph), torch.arange(10).expand(9, -1)
    ends = []
    for order in ("adapt-then-combine", "combine-then-adapt"):
        plan = Plan(10, 5, WarmUp(rule, StepSize(0.1), 1, order=order), detector=Detector())  # type: ignore[arg-type]
        (after,) = warm_up(Problem(), network, plan, pool, FollowsProtocol(), rounds=1)  # type: ignore[arg-type]
        context = round_of(Problem(), network.nodes, pool[:, :1], plan, 0, 0.1)  # type: ignore[arg-type]
        step = 0.1 * rule.descent(start**3, context)
        first = order == "adapt-then-combine"
        (inbox,) = network.exchange(0, {PARAMETERS: start - step if first else start})
        expected = rule(inbox, context) - (0 if first else step)
        torch.testing.assert_close(after.theta, expected, rtol=0, atol=1e-12)
        ends.append(after.theta)
    assert not torch.allclose(*ends)
    assert Median.order == "adapt-then-combine"
