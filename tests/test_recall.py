"""What is remembered of the same objects, and that nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bymi import LocalNetwork
from bymi.aggregation import NNM, Chain, Krum, NeighbourhoodRule
from bymi.core.inbox import Round
from bymi.core.neighbourhoods import Neighbourhoods
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.core.recall import Recall
from bymi.core.topic import PARAMETERS
from bymi.core.topology import ErdosRenyi


def test_results_belong_to_objects_not_to_values() -> None:
    recall, calls = Recall(), []

    def made(name: str, *of: object) -> int:
        return recall(name, of, lambda: calls.append(name) or len(calls))  # type: ignore[func-returns-value]

    one, equal = torch.zeros(2), torch.zeros(2)
    assert made("a", one) == made("a", one) == 1
    assert made("a", equal) == 2
    assert made("b", one) == 3
    assert made("c", one, None) == made("c", one, None) == 4
    assert made("c", one, equal) == 5


def test_only_the_last_few_are_kept() -> None:
    recall, objects, calls = Recall(), [object() for _ in range(5)], []
    for one in (*objects, objects[4], objects[1], objects[0]):
        recall("name", (one,), lambda one=one: calls.append(one))  # type: ignore[misc]
    assert calls == [*objects, objects[0]]


class Squared(NeighbourhoodRule):
    """The average by squared mixing weights, computed in place."""

    def weights_at(self, hood: Neighbourhoods, mixing: Tensor, round: Round) -> Tensor:
        mixing.pow_(2)
        return mixing / mixing.sum(1, keepdim=True)


@pytest.mark.parametrize("looked_at", [("cpu",), ()])
def test_a_rule_may_change_its_mixing_weights(looked_at: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "looked_at", looked_at)
    network, vectors = LocalNetwork(ErdosRenyi(0.6).draw(20, seed=0)), stream(0, "vectors").normal(20, 300)
    outputs = [Squared()(network.exchange(step, {PARAMETERS: vectors})[0], Round()) for step in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_rounds_of_one_network_are_those_of_new_ones() -> None:
    """Rules over a network that remembers places and weights: after a lost message, after pruning, in other dimensions."""
    graph = ErdosRenyi(0.6).draw(20, seed=0)
    network, rule = LocalNetwork(graph), Chain(NNM(f=3), Krum(f=3))
    flagged = torch.zeros(20, 20, dtype=torch.bool)
    flagged[:, 3] = True
    for step, dim in enumerate((40, 300, 40, 40, 300)):
        vectors = stream(0, "vectors", step=step).normal(20, dim)
        if step == 2:
            vectors[5] = torch.nan
        if step == 4:
            network, graph = network.prune(flagged), graph.prune(flagged)
        (inbox,), (fresh,) = (one.exchange(step, {PARAMETERS: vectors}) for one in (network, LocalNetwork(graph)))
        for made in (rule, Krum(f=3)):
            assert torch.equal(made(inbox, Round()).nan_to_num(0.0), made(fresh, Round()).nan_to_num(0.0))
