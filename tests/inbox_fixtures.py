"""Rounds for the tests of rules and detection: networks that lose messages, lone nodes, a loss to try models on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bymi import Graph, Inbox, LocalNetwork
from bymi.attacks.unusable_messages import Sent, put_on_wire
from bymi.core.inbox import Losses
from bymi.core.neighbour_lists import NeighbourLists
from bymi.core.network import Answer, NeighbourhoodReply, Outgoing
from bymi.core.topic import Topic
from tests.reference.scenes import RunSetup


def quadratic(targets: Tensor) -> Losses:
    """The squared distance of each vector to each receiver's row of `targets` [B, D]."""

    def losses(vectors: Tensor, wanted: Tensor) -> Tensor:
        distance = (vectors.double()[None] - targets.double()[:, None]).square().sum(2)
        return torch.where(wanted, distance, torch.inf)

    return losses


def unusable(like: Tensor) -> list[Tensor | None]:
    """The ways in which a message can fail to be one."""
    return [None, torch.full_like(like, torch.nan), torch.full_like(like, 1e30), like[:-1], torch.full_like(like, torch.inf)]


def sent_in(scene: RunSetup, vectors: Tensor) -> dict[int, Tensor | None]:
    """What the senders whose messages get lost put on the wire: each loses its own in another way."""
    ways = len(unusable(vectors[0]))
    return {sender: unusable(vectors[sender])[number % ways] for number, sender in enumerate(scene.lost)}


class Tampering(LocalNetwork):
    """A network whose nodes send what `tamper(vectors, senders, topic, step)` says, by row, in place of what they hold."""

    def __init__(self, graph: Graph, tamper: Callable[[Tensor, Tensor, Topic, int], Sent]) -> None:
        super().__init__(graph)
        self._tamper = tamper

    def exchange(self, step: int, vectors: Mapping[Topic, Any]) -> tuple[Inbox, ...]:
        sent = {topic: self._tamper(own, self.nodes, topic, step) for topic, own in vectors.items()}
        return super().exchange(step, {topic: Outgoing(own, *put_on_wire(own, sent[topic])) for topic, own in vectors.items()})

    def ask(self, step: int, points: Tensor, answer: Answer, who: Tensor, *others: Any) -> Iterator[NeighbourhoodReply]:
        def received(vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor:
            sent, _ = put_on_wire(vectors[:-1], self._tamper(vectors[:-1], nodes[:-1], topic, step))
            return torch.cat([sent, vectors[-1:]])

        return super().ask(step, points, answer, who, received)


def network_of(scene: RunSetup) -> LocalNetwork:
    """All nodes of a scene in one process."""
    graph = Graph.from_hears(torch.from_numpy(scene.hears))
    return Tampering(graph, lambda vectors, senders, topic, step: sent_in(scene, vectors))


@dataclass(frozen=True)
class Lone:
    """One node with its neighbours' messages, mixing weights that sum to one, and the target of its loss."""

    own: Tensor  # [D]
    messages: Sequence[Tensor | None]  # J of [D]
    weight: Tensor  # [J]
    self_weight: Tensor  # []
    target: Tensor  # [D]

    def inbox(self) -> Inbox:
        expected = torch.ones(1, len(self.messages), dtype=torch.bool)
        weights = {"weight": self.weight[None], "self_weight": self.self_weight[None]}
        return Inbox.receive(self.own[None], self.messages, expected=expected, **weights)

    def losses(self) -> Losses:
        return quadratic(self.target[None])

    def moved(self, *, scale: float = 1.0, shift: Tensor | float = 0.0) -> Lone:
        """The same round with x -> scale x + shift applied to everything that is a point."""
        messages = [None if message is None else scale * message + shift for message in self.messages]
        return replace(self, own=scale * self.own + shift, messages=messages, target=scale * self.target + shift)

    def with_message(self, place: int, message: Tensor | None) -> Lone:
        return replace(self, messages=[*self.messages[:place], message, *self.messages[place + 1 :]])

    def chosen(self, places: Sequence[int]) -> Lone:
        """Only the neighbours at `places`, in that order; what the others weighed is shared over the rest."""
        weight = self.weight[list(places)]
        total = weight.sum() + self.self_weight
        messages = [self.messages[place] for place in places]
        return replace(self, messages=messages, weight=weight / total, self_weight=self.self_weight / total)


def lone_of(scene: RunSetup, receiver: int, mixing: Tensor) -> Lone:
    """One node of a scene by itself, with what its neighbours really sent and its row of the mixing matrix."""
    vectors = torch.from_numpy(scene.vectors)
    sent = dict(enumerate(vectors)) | sent_in(scene, vectors)
    places = np.flatnonzero(scene.hears[receiver]).tolist()
    return Lone(
        vectors[receiver],
        [sent[sender] for sender in places],
        mixing[receiver, places],
        mixing[receiver, receiver],
        torch.from_numpy(scene.targets)[receiver],
    )


def draw_lone(*, neighbours: int, dim: int, seed: int) -> Lone:
    """Random vectors of unit size about a random centre with random weights: no two distances are alike."""
    random = np.random.default_rng(seed)
    vectors = torch.from_numpy(random.standard_normal(dim) + random.standard_normal((neighbours + 2, dim)))
    weights = torch.from_numpy(random.uniform(0.5, 1.5, neighbours + 1))
    weights = weights / weights.sum()
    return Lone(vectors[0], list(vectors[1:-1]), weights[1:], weights[0], vectors[-1])


def wide(lists: NeighbourLists, values: Tensor, size: int) -> Tensor:
    """Values over places [B, n] as values per message [B, size], zero without an arc."""
    return values.new_zeros(len(values), size).scatter_(1, lists.index, values * lists.mask)


def narrow(lists: NeighbourLists, values: Tensor) -> Tensor:
    """Values per message [B, J] as values over places [B, n]."""
    return values.gather(1, lists.index) * lists.mask
