"""The adversary: what Byzantine nodes compute, keep and send, and the Network around another one that sends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bymi.attacks.base import PARTS, AttackContext, Level, PerReceiver, Timetable, VectorAttack, is_finite_row
from bymi.attacks.data import DataAttack
from bymi.attacks.registry import ALIASES, ATTACKS, Mixing, Pruning, Shown, check_options
from bymi.attacks.tailor_messages import tailor_by_lists, tailor_by_matrices
from bymi.attacks.unusable_messages import MessageAttack, Sent, put_on_wire
from bymi.core.errors import InputError, require, shown
from bymi.core.graph import Graph
from bymi.core.inbox import Inbox
from bymi.core.linalg import all_finite, on_host
from bymi.core.list_graph import ListGraph
from bymi.core.named_parts import check_fields, part_by_name
from bymi.core.network import Answer, ListedVariants, NeighbourhoodReply, Observable, Outgoing, Received, Variants
from bymi.core.random_streams import Stream, stream
from bymi.core.recall import Recall
from bymi.core.topic import Part, Topic

OnVectors = VectorAttack | PerReceiver | MessageAttack


@dataclass(frozen=True, eq=False)
class Adversary:
    """What Byzantine nodes compute, keep and send. SimulatedAdversary applies it to a network.

    `members`: a tensor, array or list of truth values, one per node. `attack`: an attack on vectors or messages, or its name in
    ATTACKS with parameters as in "ipm:a=2.0"; None for nodes that attack by the options below or by their data alone (a data
    attack rewrites the samples before a run, not here). `mixing`: what Byzantine nodes keep after a round: the plain average of
    what they received, their own vector, or the rule's output as honest nodes do. `pruning`: which in-arcs they cut: none, all,
    or those that the detector flagged.

    `level`: where the attack acts, by default where it belongs. `start`: the nodes follow the protocol before that round;
    `period`: they attack in the first half of every so many rounds from then on. `faces`: "two" is equivocation, a random half
    of the honest nodes receives the attack, the others true vectors. Since training gradients are not sent, such nodes train
    truthfully and change the parameters that they send as the attack changes gradients. `timetable`: what attacks that are
    timed between detections know of the plan.
    """

    members: Tensor  # [M] bool
    attack: OnVectors | str | None
    mixing: Mixing = "plain"
    pruning: Pruning = "none"
    seed: int = 0
    level: Level | None = None
    start: int = 0
    period: int | None = None
    faces: Shown = "one"
    timetable: Timetable | None = None

    def __post_init__(self) -> None:
        sent = {name: entry for name, entry in ATTACKS.items() if not issubclass(entry, DataAttack)}
        attack: OnVectors | None = part_by_name("attack", self.attack, OnVectors | None, sent, ALIASES)
        object.__setattr__(self, "members", _mask(self.members))
        object.__setattr__(self, "attack", attack)
        check_options(attack, self.level, self.start, self.period, self.faces)
        check_fields(self)

    def started(self, step: int | None) -> bool:
        """Whether its nodes have left the protocol by this round; None means after that."""
        return step is None or step >= self.start

    def acts(self, step: int) -> bool:
        """Whether it attacks in this round."""
        return self.started(step) and (self.period is None or 2 * ((step - self.start) % self.period) < self.period)

    @cached_property
    def _parts(self) -> frozenset[Part] | None:
        """Parts of the protocol that it changes; None for everything that is sent."""
        if self.level is not None:
            return PARTS[self.level]
        return PARTS[self.attack.level] if isinstance(self.attack, (VectorAttack, PerReceiver)) else None

    @cached_property
    def _tailored(self) -> PerReceiver | None:
        return self.attack if isinstance(self.attack, PerReceiver) and self.attack.tailored else None

    @cached_property
    def _shared(self) -> Stream:
        """One stream per run."""
        return stream(self.seed, "attack", device=self.members.device)

    @cached_property
    def _recall(self) -> Recall:
        return Recall()

    def _sides(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Positions among `nodes` of the adversary's nodes, and of the others."""

        def make() -> tuple[Tensor, Tensor]:
            under = self.members[nodes]
            order = under.argsort(stable=True)
            others, own = order.split([len(order) - (count := int(under.sum())), count])  # a GPU waits for one number
            return own, others

        return self._recall("sides", (nodes,), make)

    @cached_property
    def _honest(self) -> Tensor:
        return (~self.members).nonzero().flatten()

    @cached_property
    def fooled(self) -> Tensor:
        """Mask [M] of honest nodes that receive the attack: all of them, or with equivocation a random half."""
        if self.faces == "one":
            return ~self.members
        order = stream(self.seed, "faces", device=self.members.device).permutation(len(self.members))
        order = order[~self.members[order]]
        return torch.zeros_like(self.members).index_fill(0, order[: (len(order) + 1) // 2], True)

    # What Byzantine nodes do inside the phases (see bymi.training's Deviation).

    def deviates(self, topic: Topic, step: int) -> bool:
        """Whether `gradients` may change vectors of this topic; `sees` says what it must know of other nodes then."""
        parts = self._parts
        if not isinstance(self.attack, VectorAttack) or self._tailored is not None or parts is None:
            return False
        if topic.part not in parts or not self.acts(step):
            return False
        if self.faces == "two":
            return topic.asker is not None and bool(self.fooled[topic.asker])
        return True

    def gradients(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int, updates: Tensor | None = None) -> Tensor:
        return self._forged(vectors, nodes, topic, step, updates=updates) if self.deviates(topic, step) else vectors

    def observe(self, updates: Tensor | None) -> None:
        """Nothing: update histories are collected from the network, by SimulatedDeviation."""

    @property
    def reads_updates(self) -> bool:
        """Whether its answers in a detection depend on the update histories of all nodes."""
        return isinstance(self.attack, VectorAttack) and self.attack.reads_updates

    @property
    def sees(self) -> Literal["all", "mean", "nothing"]:
        """What it must know of the vectors of other nodes to make its own."""
        if isinstance(self.attack, MessageAttack):
            return "nothing"
        return self.attack.sees if isinstance(self.attack, VectorAttack) else "all"

    def total(self, vectors: Tensor, nodes: Tensor) -> Tensor:
        """Sum of the vectors that are not the adversary's, with their number as the last entry [D + 1]."""
        others = vectors.index_select(0, self._sides(nodes)[1])
        total = others.sum(0)
        if not bool(torch.isfinite(total).all()):
            others = others[is_finite_row(others)]
            total = others.sum(0)
        return torch.cat([total, total.new_tensor([len(others)])])

    def gradients_about(self, vectors: Tensor, nodes: Tensor, topic: Topic, step: int, mean: Tensor) -> Tensor:
        """As `gradients`, for an attack that needs only the mean [D] of the other nodes' vectors."""
        return self._forged(vectors, nodes, topic, step, mean)

    def keep(self, inbox: Inbox, mixed: Tensor, nodes: Tensor, *, averaged: bool = False, step: int | None = None) -> Tensor:
        if self.mixing == "rule" or (averaged and self.mixing == "plain") or not self.started(step):
            return mixed
        own = self._sides(nodes)[0]
        if self.mixing == "none":
            return mixed.index_copy(0, own, inbox.own.index_select(0, own))
        return mixed.index_copy(0, own, inbox.averages_of(own))

    def asks(self, nodes: Tensor, step: int | None = None) -> Tensor:
        """Mask of the nodes that query their neighbours; its nodes do not if they will not act on the answers."""
        follows = self.pruning == "rule" or not self.started(step)
        return torch.ones_like(nodes, dtype=torch.bool) if follows else ~self.members[nodes]

    def prune(self, flagged: Tensor, nodes: Tensor, step: int | None = None) -> Tensor:
        if self.pruning == "rule" or not self.started(step):
            return flagged
        return torch.where(self.members[nodes][:, None], self.pruning == "all", flagged)

    # What Byzantine nodes send.

    def lies(self, topic: Topic, step: int) -> bool:
        """Whether messages of this topic may differ from what their senders hold; `sees` says what they are made from."""
        return self.acts(step) and self.may_lie(topic)

    def may_lie(self, topic: Topic) -> bool:
        return self.differs(topic) or self._on_wire(topic.part)

    def tamper(self, vectors: Tensor, senders: Tensor, topic: Topic, step: int, mean: Tensor | None = None) -> Sent:
        """What senders send in place of their vectors; `mean` [D]: that of honest nodes, if these are not all in `vectors`."""
        return {} if self.differs(topic) or not self.acts(step) else self._sent(vectors, senders, topic, step, mean)

    def layout(self, graph: Graph) -> Variants | ListedVariants | None:
        """Variants sent in all rounds over these arcs, as lists if the graph is a list graph; None without equivocation."""
        if self._tailored is None and self.faces == "one":
            return None
        arcs = graph.hears & self.fooled[:, None] & graph.at_places(self.members)
        senders = self.members.nonzero().flatten()
        if isinstance(graph, ListGraph):
            receivers, places = arcs.nonzero(as_tuple=True)
            numbers = graph.lists.index[receivers, places]
            which = torch.arange(len(numbers), device=numbers.device)
            if self._tailored is None:
                which = (torch.cumsum(self.members, 0) - 1)[numbers]
                receivers = self.fooled.to(torch.uint8).argmax().expand(len(senders))
            index = torch.full_like(graph.lists.index, -1).masked_scatter(arcs, which)
            return ListedVariants(senders if self._tailored is None else numbers, receivers, index)
        if self._tailored is None:
            return Variants(senders, self.fooled[:, None].expand(-1, len(senders)))
        # A message has one sender, so there is one per arc, although those to one receiver are equal.
        receivers, senders = arcs.nonzero().unbind(1)
        return Variants(senders, torch.nn.functional.one_hot(receivers, graph.size).T.bool())

    def needs_all(self, topics: Iterable[Topic]) -> bool:
        """Whether sending some topic requires the vectors of all nodes, or receivers get different variants."""
        return any(self.differs(topic) or (self.may_lie(topic) and self.sees == "all") for topic in topics)

    def differs(self, topic: Topic) -> bool:
        """Whether receivers ever get different variants of this topic."""
        return topic.part == "message" if self._tailored is not None else self.faces == "two" and self._on_wire(topic.part)

    def show(
        self,
        vectors: Tensor,
        faces: Variants | ListedVariants,
        graph: Graph,
        topic: Topic,
        step: int,
        which: Tensor | None = None,
    ) -> Tensor | list[Tensor | None]:
        """The further variants of a round, all or those in `which` [K]; None for a message that is not sent."""
        selected = slice(None) if which is None else which
        senders = faces.senders[selected]
        if not self.differs(topic) or not self.acts(step):
            return vectors[senders]
        if self._tailored is not None:
            return self._tailor(self._tailored, vectors, graph, faces.receivers[selected])
        sent = self._sent(vectors, torch.arange(len(vectors), device=vectors.device), topic, step)
        if isinstance(sent, Tensor):
            return sent[senders]
        return [sent.get(sender, vectors[sender]) for sender in senders.tolist()]

    def reply(self, vectors: Tensor, senders: Tensor, asker: int, topic: Topic, step: int) -> Sent:
        """What senders answer to one asker, if receivers get different variants."""
        # Vectors in an answer were changed when it was made.
        if not isinstance(self.attack, MessageAttack) or not bool(self.fooled[asker]) or not self.acts(step):
            return {}
        return self._sent(vectors, senders, topic, step)

    def _on_wire(self, part: Part) -> bool:
        """Whether messages in this part of the protocol may differ from what its nodes hold."""
        parts = self._parts
        if isinstance(self.attack, MessageAttack):
            return parts is None or part in parts
        if not isinstance(self.attack, VectorAttack) or self._tailored is not None or parts is None:
            return False
        if self.faces == "two":
            return part in parts or (part == "message" and "training" in parts)
        return part in parts and part in ("message", "tracker")

    def _sent(self, vectors: Tensor, senders: Tensor, topic: Topic, step: int, mean: Tensor | None = None) -> Sent:
        if not self._on_wire(topic.part):
            return {}
        if isinstance(self.attack, MessageAttack):
            return self.attack.put_on(vectors, self._sides(senders)[0])
        return self._forged(vectors, senders, topic, step, mean)

    def _forged(
        self,
        vectors: Tensor,
        nodes: Tensor,
        topic: Topic,
        step: int,
        mean: Tensor | None = None,
        updates: Tensor | None = None,
    ) -> Tensor:
        """The vectors with those of the adversary's nodes replaced."""
        own, others = self._sides(nodes)
        if not len(own):
            return vectors
        if mean is not None or self.sees == "nothing":
            seen = vectors[:1] if mean is None else mean[None]
            return self._replaced(vectors, nodes, own, seen, None, nodes[:0], topic, step)
        if not len(others):
            return vectors
        honest, known, others = self._known(vectors, others)
        return self._replaced(vectors, nodes, own, honest, known, nodes[others], topic, step, updates)

    def _known(self, vectors: Tensor, others: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """What an attack knows of the other nodes' vectors [h, D], whether any of these is finite (None: all are), and whose
        they are [h].

        In place of a vector that is not finite it sees the first one that is, or the mean of those that are.
        """
        honest = vectors.index_select(0, others)
        if on_host(honest) and all_finite(honest):  # on a GPU the host would wait in every round
            return honest, None, others
        finite = is_finite_row(honest)
        if self.sees == "mean":
            total = torch.where(finite[:, None], honest, 0.0).sum(0, keepdim=True)
            return total / finite.sum().clamp_min(1).to(honest.dtype), finite.any(), others
        place = torch.where(finite, torch.arange(len(others), device=others.device), finite.int().argmax())
        return honest.index_select(0, place).nan_to_num(0.0, 0.0, 0.0), finite.any(), others[place]

    def _replaced(
        self,
        vectors: Tensor,
        nodes: Tensor,
        mine: Tensor,
        honest: Tensor,
        known: Tensor | None,
        whose: Tensor,
        topic: Topic,
        step: int,
        updates: Tensor | None = None,
    ) -> Tensor:
        assert isinstance(self.attack, VectorAttack)
        own = nodes[mine]
        fresh = stream(self.seed, f"attack {topic.stream_name()}", node=own, step=step, device=vectors.device)
        first = self._first_half(honest, topic, step) if updates is not None else None
        context = AttackContext(
            *(topic.part, whose, own, self.members, self.seed, step, self.timetable),
            *(topic.at_start, topic.asker, updates, first),
        )
        would_send = vectors.index_select(0, mine)
        forged = self.attack.act(honest, would_send, self._shared, fresh, context)
        return vectors.index_copy(0, mine, forged if known is None else torch.where(known, forged, would_send))

    def _first_half(self, honest: Tensor, topic: Topic, step: int) -> Tensor | None:
        """Honest first halves for one asker, kept from the call for these until that for second ones."""
        if topic.part == "first half":
            self._first_halves[topic.asker] = (step, honest)
            return None
        at, first = self._first_halves.pop(topic.asker, (step, None))
        return first if at == step and first is not None and first.shape == honest.shape else None

    @cached_property
    def _first_halves(self) -> dict[int | None, tuple[int, Tensor | None]]:
        return {}

    def _tailor(self, attack: PerReceiver, vectors: Tensor, graph: Graph, receivers: Tensor) -> Tensor:
        """One message per honest receiver in `receivers` [K]; the same for a receiver that occurs more than once."""
        if isinstance(graph, ListGraph):
            return tailor_by_lists(attack, vectors, graph, receivers, self.members, self._shared)
        within, outside = self._weights(graph, self._honest)
        return tailor_by_matrices(attack, vectors, within, outside, self._honest, receivers, self._shared)

    def _weights(self, graph: Graph, honest: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of honest nodes on each other, and on Byzantine nodes: constant until the next pruning."""

        def make() -> tuple[Tensor, Tensor]:
            weight = graph.weight.index_select(0, honest)
            return weight.index_select(1, honest), (weight * self.members).sum(1)

        return self._recall("weights of others", (graph,), make)


def _mask(members: Any) -> Tensor:
    """Truth values, one per node, as a mask [M]."""
    allowed = "a mask [nodes] of truth values"
    try:
        mask = members if isinstance(members, Tensor) else torch.as_tensor(np.asarray(members))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"members: got {shown(members)}, allowed: {allowed}") from None
    require(mask.ndim == 1 and len(mask) > 0 and mask.dtype == torch.bool, "members", members, allowed)
    return mask


# The adversary around any simulated network: a Network that changes what Byzantine nodes send.


class SimulatedAdversary:
    """A Network that turns what nodes hold into what they send: the adversary's vectors for Byzantine nodes.

    The wrapped network carries vectors and does not know the adversary. For an adversary that equivocates it must have been
    built with `variants` of `adversary.layout(graph)`, as `local_network` does.
    """

    def __init__(self, network: Observable, adversary: Adversary) -> None:
        self.network, self.adversary = network, adversary
        self.nodes, self.size, self.arcs = network.nodes, network.size, network.arcs
        self.graph, self.variants, self.whole_here = network.graph, network.variants, network.whole_here
        self.all_agree, self.count, self.on_all = network.all_agree, network.count, network.on_all
        self.deviation = SimulatedDeviation(network, adversary)  # what Byzantine nodes do inside the phases

    @property
    def window(self) -> SimulatedAdversary | None:
        """The same over the window of a graph that is redrawn; None for any other."""
        inner = getattr(self.network, "window", None)
        return None if inner is None else SimulatedAdversary(inner, self.adversary)

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
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        return self.network.ask(step, points, answer, who, partial(self._received, received, step), history)

    def prune(self, flagged: Tensor) -> SimulatedAdversary:
        return SimulatedAdversary(self.network.prune(flagged), self.adversary)

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> SimulatedAdversary:
        return SimulatedAdversary(self.network.reweight(flagged, mutual=mutual, exile=exile), self.adversary)

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
