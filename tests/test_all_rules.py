"""What holds for every rule that is listed, each on hundreds of neighbourhoods at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import RULES, ErdosRenyi, Inbox, LocalNetwork, Round
from bymi.aggregation import WeightedRule
from bymi.core.topic import PARAMETERS
from tests.inbox_fixtures import quadratic
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
from tests.reference.rules import Node

NEIGHBOURS, FAR = 7, 50.0
EXACT: dict[str, dict[str, Any]] = {"geometric-median": {"iterations": 3000, "tolerance": 1e-15}}
"""Until it stands still, as its transcription does."""

NOT_SCALED = {"drsa", "rsa", "bravo-saga", "bravo-lsvrg"}  # signs have no length
NOT_MOVED = {"balance", "cge"}  # compare lengths, which change when all vectors move
NO_BREAKDOWN = {
    "average": "undefended",
    "mean": "undefended",
    "cge": "short Byzantine vectors are averaged like any other",
    "drsa": "a neighbour moves a coordinate by the step size times the penalty, whatever the spread",
    "rsa": "as drsa",
    "bravo-saga": "as drsa",
    "bravo-lsvrg": "as drsa",
}


@dataclass(frozen=True)
class Crowd:
    """B receivers with NEIGHBOURS messages each, none of them shared."""

    own: Tensor  # [B, D]
    messages: Tensor  # [B, n, D]
    weight: Tensor  # [B, n]
    self_weight: Tensor  # [B]
    targets: Tensor  # [B, D]
    heard: Tensor  # [B, n] bool: not even expected where false

    def inbox(self, sent: Tensor | None = None) -> Inbox:
        size, count = self.heard.shape
        expected = torch.zeros(size, size, count, dtype=torch.bool)
        expected[torch.arange(size), torch.arange(size)] = self.heard
        weight = torch.zeros(size, size, count, dtype=torch.float64)
        weight[torch.arange(size), torch.arange(size)] = self.weight * self.heard
        messages = (self.messages if sent is None else sent).flatten(0, 1)
        weights = {"weight": weight.flatten(1), "self_weight": self.self_weight}
        return Inbox.receive(self.own, messages, expected=expected.flatten(1), **weights)

    def moment(self) -> Round:
        return Round(1, 4, quadratic(self.targets), 0.3)

    def node(self, receiver: int) -> Node:
        heard, target = self.heard[receiver], self.targets[receiver].numpy()
        return Node(
            own=self.own[receiver].numpy(),
            heard=list(self.messages[receiver][heard].numpy()),
            weights=self.weight[receiver][heard].tolist(),
            self_weight=float(self.self_weight[receiver]),
            loss=lambda vector: float(np.sum((vector - target) ** 2)),
            step=1,
            steps=4,
            step_size=0.3,
        )

    def of(self, receivers: Tensor) -> Crowd:
        return Crowd(*(getattr(self, name)[receivers] for name in self.__dataclass_fields__))


def draw(dim: int, *, receivers: int = 100, seed: int = 0) -> Crowd:
    """Vectors of unit size about a centre; every other receiver has two messages that are far out, and some lack messages."""
    random = np.random.default_rng([seed, dim])
    vectors = torch.from_numpy(3 + random.standard_normal((receivers, NEIGHBOURS + 2, dim)))
    vectors[::2, 1:3] += FAR * torch.from_numpy(random.standard_normal((1, 1, dim))) / dim**0.5
    weights = torch.from_numpy(random.uniform(0.5, 1.5, (receivers, NEIGHBOURS + 1)))
    heard = torch.from_numpy(random.random((receivers, NEIGHBOURS)) < 0.9)
    heard[::5] = True
    weights[:, 1:] *= heard
    weights = weights / weights.sum(1, keepdim=True)
    return Crowd(vectors[:, 0], vectors[:, 1:-1], weights[:, 1:], weights[:, 0], vectors[:, -1], heard)


CROWDS = {dim: draw(dim) for dim in (3, 30)}


def apply(name: str, crowd: Crowd, sent: Tensor | None = None) -> Tensor:
    return RULES[name](**EXACT.get(name, {}))(crowd.inbox(sent), crowd.moment())


def close(left: Tensor, right: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", RULES)
def test_each_of_200_neighbourhoods_comes_out_as_by_the_transcription(name: str) -> None:
    rule = RULES[name](**EXACT.get(name, {}))
    for crowd in CROWDS.values():
        expected = [ALL_TRANSCRIPTIONS[name](crowd.node(i), **asdict(rule)) for i in range(len(crowd.own))]  # type: ignore[call-overload]
        close(apply(name, crowd), torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize("name", RULES)
def test_symmetries(name: str) -> None:
    """Alone as among many; senders in another order; other units; another origin."""
    for crowd in CROWDS.values():
        output = apply(name, crowd)
        few = torch.tensor([0, 1, 7])
        close(torch.cat([apply(name, crowd.of(one[None])) for one in few]), output[few])
        order = torch.randperm(NEIGHBOURS, generator=torch.Generator().manual_seed(0))
        parts = {key: getattr(crowd, key)[:, order] for key in ("messages", "weight", "heard")}
        close(apply(name, replace(crowd, **parts)), output)
        points = {key: getattr(crowd, key) for key in ("own", "messages", "targets")}
        if name not in NOT_SCALED:
            close(apply(name, replace(crowd, **{key: 20 * value for key, value in points.items()})), 20 * output, 2e-8)
        if name not in NOT_MOVED:
            close(apply(name, replace(crowd, **{key: value + 9 for key, value in points.items()})), output + 9)


@pytest.mark.parametrize("name", RULES)
def test_unacceptable_messages_count_as_missing(name: str) -> None:
    """NaN, Inf or huge from one neighbour of each receiver: as without that neighbour, and finite."""
    crowd = CROWDS[3]
    place = torch.arange(len(crowd.own)) % NEIGHBOURS
    receivers = torch.arange(len(crowd.own))
    heard = crowd.heard.clone()
    heard[receivers, place] = False
    weight = crowd.weight * heard
    total = weight.sum(1) + crowd.self_weight
    without = apply(name, replace(crowd, heard=heard, weight=weight / total[:, None], self_weight=crowd.self_weight / total))
    assert bool(without.isfinite().all())
    for wild in (torch.nan, torch.inf, 1e30):
        sent = crowd.messages.clone()
        sent[receivers, place] = wild
        close(apply(name, crowd, sent), without)


@pytest.mark.parametrize("name", RULES)
def test_fixed_points(name: str) -> None:
    """Where all agree nothing changes; a receiver that hears nobody keeps its vector."""
    crowd = CROWDS[3]
    close(apply(name, crowd, crowd.own[:, None].expand_as(crowd.messages).clone()), crowd.own, 1e-12)
    alone = replace(crowd, heard=torch.zeros_like(crowd.heard), self_weight=torch.ones_like(crowd.self_weight))
    assert torch.equal(apply(name, alone), crowd.own)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if issubclass(rule, WeightedRule)])
def test_weights_are_convex(name: str) -> None:
    for crowd in CROWDS.values():
        inbox = crowd.inbox()
        mixture = RULES[name]().weigh(inbox, crowd.moment())  # type: ignore[attr-defined]
        assert mixture.own.dtype == mixture.weight.dtype == torch.float64
        assert bool((mixture.own >= -1e-15).all())
        assert bool((mixture.weight >= 0).all())
        assert not bool((mixture.weight[~inbox.heard] != 0).any())
        close(mixture.own + mixture.weight.sum(1), torch.ones(len(crowd.own), dtype=torch.float64), 1e-12)


SPREADS = 4.0


@pytest.mark.parametrize("distance", [0.5, 3.0, 30.0, 1e5])
@pytest.mark.parametrize("name", [name for name in RULES if name not in NO_BREAKDOWN])
def test_two_bad_neighbours_of_seven_move_the_output_by_few_spreads(name: str, distance: float) -> None:
    """Within 4 times the largest distance of an honest vector to the honest mean, wherever the bad ones are.

    The default share of 0.35 assumes up to 3 of 7; Bulyan, with n >= 4 f + 3 = 7, stands one.
    """
    crowd, bad = draw(4, seed=1), 1 if name in ("bulyan", "bridge-b") else 2
    sent, heard = crowd.messages.clone(), torch.ones_like(crowd.heard)
    direction = torch.from_numpy(np.random.default_rng(7).standard_normal((len(sent), 1, 4)))
    honest = torch.cat([crowd.own[:, None], sent[:, 2:]], 1)
    centre = honest.mean(1, keepdim=True)
    spread = (honest - centre).norm(dim=2).amax(1)
    sent[:, :2] = honest[:, 1:3]
    sent[:, :bad] = centre + distance * spread[:, None, None] * direction / direction.norm(dim=2, keepdim=True)
    output = apply(
        name, replace(crowd, heard=heard, weight=torch.full_like(crowd.weight, 0.125), self_weight=spread * 0 + 0.125), sent
    )
    assert bool(((output - centre[:, 0]).norm(dim=1) <= SPREADS * spread).all())


@pytest.mark.parametrize("name", ["average", "mean"])
def test_the_undefended_do_break_down(name: str) -> None:
    """Else the test above could not fail."""
    crowd = CROWDS[3]
    sent = crowd.messages.clone()
    sent[:, 0] = 1e5
    far = (apply(name, crowd, sent) - crowd.own).norm(dim=1)
    assert bool((far[crowd.heard[:, 0]] > 1e3).all())


NO_CONSENSUS = {
    "drsa": "signs with step size 0 move nothing",
    "rsa": "as drsa",
    "bravo-saga": "as drsa",
    "bravo-lsvrg": "as drsa",
    "byrdie": "one coordinate per round",
}


@pytest.mark.parametrize("name", RULES)
def test_without_steps_nodes_agree(name: str) -> None:
    """Rounds without gradient steps contract the disagreement of all nodes to a tenth, by every rule that promises it."""
    rule, targets = RULES[name](**{"f": 2} if name == "mda" else {}), torch.zeros(12, 3, dtype=torch.float64)
    network = LocalNetwork(ErdosRenyi(0.8).draw(12, seed=4))
    vectors = start = 20 + torch.from_numpy(np.random.default_rng(5).standard_normal((12, 3)))
    for step in range(15):
        (inbox,) = network.exchange(step, {PARAMETERS: vectors})
        vectors = rule(inbox, Round(step, 15, quadratic(targets), 0.0, nodes=torch.arange(12)))
    before, after = ((held - held.mean(0)).norm() for held in (start, vectors))
    assert float(after / before) <= (1.0 if name in NO_CONSENSUS else 0.1)
