"""What holds for every rule, examples from hypothesis on rules of every kind; tests/test_all_rules.py has all rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bymi import RULES, Complete, Inbox, LocalNetwork, Round
from bymi.aggregation import CoordinateRule, WeightedRule
from bymi.core.topic import PARAMETERS
from tests.inbox_fixtures import Lone, draw_lone, lone_of, network_of, quadratic, unusable
from tests.reference.scenes import RunSetup, draw_scene
from tests.rule_kinds import KINDS

# Without shrinking: a seed does not become simpler by becoming smaller.
quick = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
seeds = st.integers(0, 2**32 - 1)
lones = st.builds(draw_lone, neighbours=st.integers(2, 9), dim=st.sampled_from([1, 2, 5, 30]), seed=seeds)
scenes = st.builds(
    draw_scene,
    nodes=st.integers(5, 10),
    dim=st.sampled_from([1, 3, 30]),
    directed=st.booleans(),
    losses=st.booleans(),
    seed=seeds,
)


def every_rule(of: type = object) -> pytest.MarkDecorator:
    """One test a rule of a kind."""
    return pytest.mark.parametrize("name", [name for name in KINDS if issubclass(RULES[name], of)])


def every_rule_at(sizes: Sequence[float]) -> pytest.MarkDecorator:
    """One test a rule and size."""
    return pytest.mark.parametrize(("name", "size"), [(name, size) for name in KINDS for size in sizes])


def apply(name: str, lone: Lone) -> Tensor:
    """The rule's new vector for a lone node."""
    return RULES[name]()(lone.inbox(), Round(1, 4, lone.losses()))[0]


def close(left: Tensor, right: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(left, right, rtol=0, atol=tolerance)


@every_rule()
@quick
@given(scene=scenes)
def test_a_row_of_the_batch_is_a_lone_node(name: str, scene: RunSetup) -> None:
    """All nodes in one process, or one process a node that sees its neighbours only: the same rows."""
    network = network_of(scene)
    (inbox,) = network.exchange(0, {PARAMETERS: torch.from_numpy(scene.vectors)})
    together = RULES[name]()(inbox, Round(1, 4, quadratic(torch.from_numpy(scene.targets))))
    for receiver in range(scene.size):
        if scene.hears[receiver].any():
            assert close(together[receiver], apply(name, lone_of(scene, receiver, network.graph.mixing)))


@every_rule_at([torch.nan, torch.inf, 1e30, 1e200])
@quick
@given(dim=st.sampled_from([3, 30]), seed=seeds)
def test_a_node_that_has_diverged_disturbs_nobody(name: str, size: float, dim: int, seed: int) -> None:
    """Its message is out of reach for the others, so they come out as if each were alone."""
    lone = draw_lone(neighbours=7, dim=dim, seed=seed)
    vectors = torch.stack([lone.own, *lone.messages, torch.full_like(lone.own, size)])  # type: ignore[list-item]
    network = LocalNetwork(Complete().draw(9))
    (inbox,) = network.exchange(0, {PARAMETERS: vectors})
    together = RULES[name]()(inbox, Round(1, 4, quadratic(lone.target.expand(9, -1))))
    equal = torch.full((8,), 1 / 9, dtype=torch.float64)
    alone = Lone(lone.own, [*lone.messages, None], equal, equal[0], lone.target)
    assert close(together[0], apply(name, alone))


@every_rule_at([3.0, 1e5])
@quick
@given(lone=lones, seed=seeds)
def test_what_is_not_heard_does_not_matter(name: str, size: float, lone: Lone, seed: int) -> None:
    """Two messages that are meant for others lie in the same stack; whatever they say, the output is the same."""
    messages = torch.stack(list(lone.messages))  # type: ignore[arg-type]
    others = torch.stack(list(draw_lone(neighbours=2, dim=len(lone.own), seed=seed).messages))  # type: ignore[arg-type]
    expected = torch.tensor([[True] * len(messages) + [False] * 2])
    weight = torch.cat([lone.weight, torch.zeros(2, dtype=torch.float64)])[None]

    def among(foreign: Tensor) -> Tensor:
        stack = torch.cat([messages, foreign])
        inbox = Inbox.receive(lone.own[None], stack, expected=expected, weight=weight, self_weight=lone.self_weight[None])
        return RULES[name]()(inbox, Round(1, 4, lone.losses()))[0]

    assert close(among(size * others), among(torch.zeros_like(others)))


@every_rule()
@quick
@given(lone=lones, data=st.data())
def test_the_order_of_senders_does_not_matter(name: str, lone: Lone, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(lone.messages))))
    assert close(apply(name, lone.chosen(order)), apply(name, lone))


@every_rule()
@quick
@given(lone=lones, scale=st.sampled_from([1e-3, 0.4, 30.0, 1e3]))
def test_scaling_all_vectors_scales_the_output(name: str, lone: Lone, scale: float) -> None:
    if name == "drsa":  # signs have no length
        return
    assert close(apply(name, lone.moved(scale=scale)), scale * apply(name, lone), tolerance=1e-9 * scale)


FIXED_IN_SPACE = {"balance": {"gamma": 1e6}, "cge": {"f": 0}}  # by lengths, which change when all vectors move


@every_rule()
@quick
@given(lone=lones, shift=st.floats(-100, 100))
def test_moving_all_vectors_moves_the_output(name: str, lone: Lone, shift: float) -> None:
    if name in FIXED_IN_SPACE:
        # With the bound far out of reach before and after the move, even such a rule is a plain mean and moves along.
        rule, far = RULES[name](**FIXED_IN_SPACE[name]), lone.moved(shift=shift)
        before, after = (rule(one.inbox(), Round(1, 4))[0] for one in (lone, far))
        assert close(after, before + shift)
        return
    assert close(apply(name, lone.moved(shift=shift)), apply(name, lone) + shift)


@every_rule(of=WeightedRule)
@quick
@given(lone=lones)
def test_weights_are_convex(name: str, lone: Lone) -> None:
    """Non-negative, one in all, nothing on what was not heard; and the output is their sum."""
    inbox = lone.with_message(0, None).inbox()
    rule = RULES[name]()
    moment = Round(1, 4, lone.losses())
    mixture = rule.weigh(inbox, moment)  # type: ignore[attr-defined]
    assert mixture.own.dtype == mixture.weight.dtype == torch.float64
    assert mixture.own.item() >= 0
    assert (mixture.weight >= 0).all()
    assert mixture.weight[0, 0] == 0
    assert mixture.own.item() + mixture.weight.sum().item() == pytest.approx(1, abs=1e-12)
    assert close(rule(inbox, moment)[0], mixture.own * lone.own + mixture.weight[0] @ inbox.messages)


@every_rule(of=CoordinateRule)
@quick
@given(lone=lones)
def test_coordinates_stay_between_the_smallest_and_the_largest(name: str, lone: Lone) -> None:
    values = torch.stack([lone.own, *lone.messages])  # type: ignore[list-item]
    output = apply(name, lone)
    assert (output >= values.amin(0) - 1e-12).all()
    assert (output <= values.amax(0) + 1e-12).all()


@every_rule()
@quick
@given(lone=lones, data=st.data())
def test_an_unusable_neighbour_is_as_good_as_none(name: str, lone: Lone, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lone.messages) - 1))
    pitted = lone.own.clone()
    pitted[0] = torch.nan
    others = [other for other in range(len(lone.messages)) if other != place]
    without = apply(name, lone.chosen(others))
    assert without.isfinite().all()
    for message in [*unusable(lone.own), pitted, lone.own[None]]:
        assert close(apply(name, lone.with_message(place, message)), without)


@every_rule()
@quick
@given(lone=lones, reached=st.booleans())
def test_who_hears_nobody_keeps_its_vector(name: str, lone: Lone, reached: bool) -> None:
    """Whether there are no arcs to it, or arcs that bring nothing."""
    inbox = replace(lone, messages=[None] * len(lone.messages)).inbox()
    if not reached:
        nothing = torch.zeros_like(inbox.heard)
        zero = torch.zeros_like(inbox.weight)
        stack = torch.stack(list(lone.messages))  # type: ignore[arg-type]
        one = torch.ones(1, dtype=torch.float64)
        inbox = Inbox.receive(lone.own[None], stack, expected=nothing, weight=zero, self_weight=one)
    assert torch.equal(RULES[name]()(inbox, Round(1, 4, lone.losses()))[0], lone.own)


@every_rule()
def test_a_node_without_neighbours_keeps_its_vector(name: str) -> None:
    lone = draw_lone(neighbours=2, dim=3, seed=0).chosen([])
    assert torch.equal(apply(name, lone), lone.own)


@every_rule()
@quick
@given(lone=lones)
def test_where_all_agree_nothing_changes(name: str, lone: Lone) -> None:
    agreed = replace(lone, messages=[lone.own.clone() for _ in lone.messages])
    assert close(apply(name, agreed), lone.own, tolerance=1e-12)


@every_rule()
@quick
@given(lone=lones)
def test_inputs_are_left_as_they_were(name: str, lone: Lone) -> None:
    own, stack = lone.own[None].clone(), torch.stack(list(lone.messages))  # type: ignore[arg-type]
    expected = torch.ones(1, len(stack), dtype=torch.bool)
    given_ = [own, stack, expected, lone.weight[None].clone(), lone.self_weight[None].clone()]
    copies = [tensor.clone() for tensor in given_]
    inbox = Inbox.receive(own, stack, expected=expected, weight=given_[3], self_weight=given_[4])
    first = RULES[name]()(inbox, Round(1, 4, lone.losses()))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(given_, copies, strict=True))
    assert torch.equal(RULES[name]()(inbox, Round(1, 4, lone.losses())), first)  # nor did the inbox change
