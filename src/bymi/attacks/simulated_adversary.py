"""The adversary around any simulated network: a Network that changes what Byzantine nodes send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from bymi.attacks.adversary import Adversary
from bymi.attacks.message import put_on_wire
from bymi.core.inbox import Inbox
from bymi.core.neighbourhood_reply import Answer, NeighbourhoodReply, Received
from bymi.core.network import Observable, Outgoing, settled
from bymi.core.topic import Topic


class SimulatedAdversary:
    """A Network that turns what nodes hold into what they send: the adversary's vectors for Byzantine nodes.

    The wrapped network carries vectors and does not know the adversary. For an adversary that equivocates it must have been
    built with `variants` of `adversary.layout(graph)`, as `local_network` does.
    """

    def __init__(self, network: Observable, adversary: Adversary) -> None:
        self.network, self.adversary = network, adversary
        self.nodes, self.size, self.arcs = network.nodes, network.size, network.arcs
        self.graph, self.variants, self.whole_here = network.graph, network.variants, network.whole_here
        self.deviation = SimulatedDeviation(network, adversary)  # what Byzantine nodes do inside the phases

    def columns(self, topic: Topic) -> int:
        """Number of columns of a topic's inboxes in every round, if all nodes are in one process."""
        further = self.variants if self.adversary.differs(topic) else None
        return self.size + (0 if further is None else len(further.senders))

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        """The inboxes of a round. Vectors that are Outgoing already are sent as they are."""
        outgoing = {
            topic: given if isinstance(given, Outgoing) else self._outgoing(given, topic, step)
            for topic, given in vectors.items()
        }
        return self.network.exchange(step, outgoing)

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        return self.network.ask(step, points, answer, who, partial(self._received, received, step), deeds)

    def all_agree(self, flag: bool) -> bool:
        return self.network.all_agree(flag)

    def count(self, mask: Tensor) -> int:
        return self.network.count(mask)

    def prune(self, flagged: Tensor) -> SimulatedAdversary:
        return SimulatedAdversary(self.network.prune(flagged), self.adversary)

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> SimulatedAdversary:
        return SimulatedAdversary(self.network.reweight(flagged, mutual=mutual, exile=exile), self.adversary)

    def tracker_limit(self, step: int) -> Tensor | None:
        return settled(self.network, self.exchange, step)

    def _outgoing(self, own: Tensor, topic: Topic, step: int) -> Outgoing:
        network, adversary, name = self.network, self.adversary, topic.stream_name()
        if network.variants is not None and adversary.differs(topic):
            held = network.gather(own, name)
            show = partial(adversary.show, held, network.variants, network.graph, topic, step)
            return Outgoing(own, variants=show, known=held)
        if not adversary.lies(topic, step):
            return Outgoing(own)
        if network.whole_here or adversary.sees == "nothing":
            return Outgoing(own, *put_on_wire(own, adversary.tamper(own, network.nodes, topic, step)))
        if adversary.sees == "mean":
            mean = mean_of_others(network, adversary, own, f"{name} for those who lie")
            sent = own if mean is None else adversary.tamper(own, network.nodes, topic, step, mean)
            return Outgoing(own, *put_on_wire(own, sent))

        def work(held: Tensor, nodes: Tensor) -> Tensor:
            return put_on_wire(held, adversary.tamper(held, nodes, topic, step))[0]

        known = network.on_all(own, work, name)
        return Outgoing(own, *put_on_wire(own, known[network.nodes]), known=known)

    def _received(self, before: Received | None, step: int, vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor:
        vectors = vectors if before is None else before(vectors, nodes, asker, topic)
        own, senders = vectors[:-1], nodes[:-1]
        if self.variants is not None and self.adversary.differs(topic):
            sent = self.adversary.reply(own, senders, asker, topic, step)
        else:
            sent = self.adversary.tamper(own, senders, topic, step)
        messages, _ = put_on_wire(own, sent)
        return vectors if messages is own else torch.cat([messages, vectors[-1:]])


class SimulatedDeviation:
    """The Deviation of the phases: what Byzantine nodes compute and keep, with the vectors of all nodes at hand."""

    def __init__(self, network: Observable, adversary: Adversary) -> None:
        self._network, self._adversary = network, adversary
        self.keep, self.asks, self.prune = adversary.keep, adversary.asks, adversary.prune
        self._updates: Tensor | None = None

    def observe(self, updates: Tensor | None) -> None:
        network = self._network
        known = updates is not None and self._adversary.reads_updates
        self._updates = network.gather(updates, "updates for those who lie") if known and updates is not None else None

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int) -> Tensor:
        network, adversary = self._network, self._adversary
        # All answers to one asker are together where this is called.
        if network.whole_here or topic.asker is not None or not adversary.deviates(topic, step) or adversary.sees == "nothing":
            return adversary.gradients(vectors, nodes, topic, step, self._updates)
        name = f"{topic.stream_name()}s for those who lie"
        if adversary.sees == "mean":
            mean = mean_of_others(network, adversary, vectors, name)
            return vectors if mean is None else adversary.gradients_about(vectors, nodes, topic, step, mean)
        return network.on_all(vectors, lambda held, all_nodes: adversary.gradients(held, all_nodes, topic, step), name)[nodes]


def mean_of_others(network: Observable, adversary: Adversary, vectors: Tensor, name: str) -> Tensor | None:
    """Mean [D] of all vectors of the network that are not the adversary's; None if there are none. Collective.

    Sums over shards, always in the same order: the bits do not depend on which rank holds a shard.
    """
    total = network.total(adversary.total(vectors, network.nodes), name)
    return total[:-1] / total[-1] if total[-1] > 0 else None
