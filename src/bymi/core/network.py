"""How vectors travel. The algorithm knows the protocol only; here is the one for a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.graph import Graph
from bymi.core.inbox import Inbox, fold
from bymi.core.list_graph import GraphLike, ListGraph, as_graph
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists
from bymi.core.neighbourhood_reply import NeighbourhoodReply
from bymi.core.topic import PREMIX, Topic
from bymi.core.variants import ListedVariants, Variants

_NUMBERS = 1 << 25  # in the answers to the questions handled at a time: 128 MB in float32
LONG = 1 << 20  # numbers in the answers to one question from which on a CPU handles it alone: they stay in its cache


class Answer(Protocol):
    """What nodes [P] find at points [P, D] that they were sent by `askers` [P]: vectors [P, D] by topic."""

    def __call__(self, points: Tensor, nodes: Tensor, askers: Tensor) -> Mapping[Topic, Tensor]: ...


class Received(Protocol):
    """What one asker receives in place of the answers [J + 1, D] of nodes [J + 1], of which the last is its own.

    Called where all answers to one question have come together.
    """

    def __call__(self, vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor: ...


Messages = Tensor | Sequence[Tensor | None]
"""Messages [J, D] in one stack, or one by one, None for one that is missing."""


@dataclass(frozen=True, eq=False)
class Outgoing:
    """What the nodes held here send under one topic, where that is not simply what they hold.

    A row of NaN in `sent` stands for no message, or for one of the wrong shape. `variants` gives the further messages of a
    network that was built with some, all of them or those whose numbers [K] it is called with. Every process of a network gives
    `sent`, or none does; the same holds for `variants` and `known`.
    """

    own: Tensor  # [B, D] what they hold
    sent: Tensor | None = None  # [B, D] what is on the wire; None: what they hold
    same: Tensor | None = None  # [B] bool: nodes that send what they hold; None: all
    variants: Callable[[Tensor | None], Messages] | None = None
    known: Tensor | None = None  # [M, D] what all nodes send, where every process knows it: then nothing has to travel

    @staticmethod
    def of(given: Tensor | Outgoing) -> Outgoing:
        return given if isinstance(given, Outgoing) else Outgoing(given)

    @property
    def messages(self) -> Tensor:
        """[B, D] on the wire."""
        return self.own if self.sent is None else self.sent


class Network(Protocol):
    """The seam between the algorithm and the place where it runs: `nodes` are held here, out of `size` in all."""

    @property
    def nodes(self) -> Tensor: ...

    @property
    def size(self) -> int: ...

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        """Every node sends its rows, by topic; one Inbox per topic comes back, in order, with the same arcs heard."""
        ...

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        """The nodes of `who` [B] send their points [B, D] to those they hear; each of these answers, as the node itself does.

        `received`: what the asker gets in place of the answers; None: the answers. `deeds` come with the answers: of each node
        held here what others saw of it, and what it did, [B, D] each.

        Walked through receiver by receiver, so that memory does not grow with their number, and before anything else is sent.
        """
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag holds in every process of the network, so that all take the same turn."""
        ...

    def count(self, mask: Tensor) -> int:
        """How many nodes are marked in all processes of the network, by masks of those held [B] bool."""
        ...

    @property
    def arcs(self) -> Tensor:
        """[B, M] bool: whom each node held here can hear. Over lists, here and below: [B, n], place by place."""
        ...

    def prune(self, flagged: Tensor) -> Network:
        """The network without the in-arcs flagged [B, M]."""
        ...

    def weigh(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> Network:
        """The network in which flagged in-arcs [B, M] carry no weight, with `mutual` in neither direction.

        Messages travel on: who is watched can come back.
        """
        ...


class Observable(Network, Protocol):
    """A network of a simulation: whoever wraps it can look at the vectors of all nodes. Every method is collective.

    A network of real nodes is none. `graph`: the arcs of all nodes. `variants`: which senders have more than one message per
    topic, and for whom; None for no sender. `whole_here`: this process holds all nodes.
    """

    @property
    def graph(self) -> Graph: ...

    @property
    def variants(self) -> Variants | ListedVariants | None: ...

    @property
    def whole_here(self) -> bool: ...

    def gather(self, rows: Tensor, what: str) -> Tensor:
        """Rows of all nodes [M, ...] in their order, from those of the nodes held here [B, ...]; `what` names the traffic."""
        ...

    def total(self, values: Tensor, what: str) -> Tensor:
        """The sum of the values [...] of all processes, in an order that does not depend on their number."""
        ...

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        """What `work` makes of the rows of all nodes [M, ...] and their numbers [M]: again one row per node, [M, ...].

        It is called once per process, however many shards that holds.
        """
        ...

    def prune(self, flagged: Tensor) -> Observable: ...

    def weigh(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> Observable: ...


@runtime_checkable
class Settles(Protocol):
    """A network that knows where premixing ends without going there."""

    def settle(self, step: int) -> Tensor | None:
        """The entries [y_i]_i [B] of the tracker after endless premixing; None if they have to be found by premixing."""
        ...


def settled(
    network: Observable, exchange: Callable[[int, Mapping[Topic, Tensor]], tuple[Inbox, ...]], step: int
) -> Tensor | None:
    """The tracker's limit [B] with the messages that are heard in premixing through `exchange`; None unless by lists."""
    graph = network.graph
    if not isinstance(graph, ListGraph):
        return None
    # What travels does not matter, who is heard does: each sends a tracker of one entry.
    ones = torch.ones(len(network.nodes), 1, dtype=torch.float64, device=network.nodes.device)
    (inbox,) = exchange(step, {PREMIX: ones})
    used = inbox.average()

    def limit(weights: Tensor, nodes: Tensor) -> Tensor:
        return graph.tracker_limit(weights[:, :-1], weights[:, -1])

    return network.on_all(torch.cat([used.weight, used.own[:, None]], 1), limit, "premix")[network.nodes]


@dataclass(frozen=True, eq=False)
class _Wiring:
    """Who hears which column of an inbox, with which weight."""

    expected: Tensor  # [M, J] bool
    weight: Tensor  # [M, J] float64
    senders: Tensor | None  # [J]
    lists: NeighbourLists | None  # of columns; then the two above are [M, n]


class LocalNetwork:
    """All nodes in this process: B = J = M, and nothing is copied. `graph` may be of networkx, or an array.

    With `variants`, an exchange that gives some has the further messages as columns after the first M: the same ones in every
    round and after any pruning, each arc in exactly one of its sender's columns. If they are many, the inbox has them in a
    Table.
    """

    whole_here = True

    def __init__(
        self,
        graph: GraphLike,
        *,
        variants: Variants | ListedVariants | None = None,
        whole: Graph | None = None,
    ) -> None:
        graph = as_graph(graph)
        fits = variants is None or isinstance(variants, Variants | ListedVariants)
        require(fits, "variants", variants, "Faces, ListedFaces or None, such as Adversary.layout gives")
        self.graph: Graph = graph
        self.variants = variants
        self._whole = graph if whole is None else whole
        self.arcs = self._whole.hears
        self._nodes = torch.arange(graph.size, device=graph.hears.device)
        self._plain = _Wiring(self.arcs, graph.weight, None, graph.lists)
        self._self_weight = graph.self_weight

    @property
    def nodes(self) -> Tensor:
        return self._nodes

    @property
    def size(self) -> int:
        return self.graph.size

    def over(self, graph: Graph, *, whole: Graph | None = None) -> LocalNetwork:
        """The same nodes over another graph; over arcs of the `whole` that it lacks messages are heard and carry no weight."""
        return LocalNetwork(graph, variants=self.variants, whole=whole)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        outgoing = [Outgoing.of(given) for given in vectors.values()]
        split = any(given.variants is not None for given in outgoing)
        return Inbox.together([self._deliver(given, split=split) for given in outgoing])

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        if not bool(who.any()):
            return
        # Lists of neighbours are walked on the CPU: one copy here instead of a wait for each receiver.
        places = [row.nonzero().flatten() for row in self.arcs.cpu()]
        largest = 1 + max(len(some) for some in places)
        alone = points.device.type == "cpu" and largest * points.shape[1] >= LONG
        size = 1 if alone else max(1, _NUMBERS // (largest * points.shape[1]))
        for some in self._nodes[who].split(size):
            columns = [places[node].to(some) for node in some.tolist()]
            senders = [self.graph.nodes_at(node.expand_as(at), at) for node, at in zip(some, columns, strict=True)]
            # Those who answer each receiver, and last the receiver itself.
            asked = [torch.cat([others, node[None]]) for others, node in zip(senders, some, strict=True)]
            counts = [len(nodes) for nodes in asked]
            askers = some.repeat_interleave(torch.tensor(counts, device=some.device))
            # One point for all who answer one question, without a copy for each.
            answers = answer(points[some].expand(len(askers), -1) if alone else points[askers], torch.cat(asked), askers)
            parts = {topic: vectors.split(counts) for topic, vectors in answers.items()}
            for place, node in enumerate(some.tolist()):
                found = {topic: vectors[place] for topic, vectors in parts.items()}
                weight = self._plain.weight[node, columns[place]][None]
                read = partial(self._replies, found, node, asked[place], weight, received)
                seen = None if deeds is None else partial(_deeds, *deeds, asked[place])
                yield NeighbourhoodReply(node, columns[place], points[node], read, seen)

    def agree(self, flag: bool) -> bool:
        return flag

    def count(self, mask: Tensor) -> int:
        return int(mask.sum())

    def prune(self, flagged: Tensor) -> LocalNetwork:
        """Columns of `flagged` are senders [M, M] or the messages of an exchange [M, J]."""
        if flagged.shape[1] > self.size and isinstance(self.variants, Variants):
            flagged = fold(flagged, torch.cat([self._nodes, self.variants.senders]), self.size)
        return self.over(self.graph.prune(flagged))

    def weigh(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> LocalNetwork:
        whole = self._whole
        pruned = whole.prune_mutually(flagged, exile=exile) if mutual else whole.prune(flagged)
        return self.over(pruned, whole=whole)

    def settle(self, step: int) -> Tensor | None:
        return settled(self, self.exchange, step)

    def gather(self, rows: Tensor, what: str) -> Tensor:
        return rows

    def total(self, values: Tensor, what: str) -> Tensor:
        return values

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        return work(rows, self._nodes)

    @cached_property
    def _split(self) -> _Wiring:
        """With the further messages as columns."""
        assert self.variants is not None
        plain, numbers = self._plain, torch.cat([self._nodes, self.variants.senders])
        if isinstance(self.variants, ListedVariants):
            assert plain.lists is not None
            at = torch.where(self.variants.at >= 0, self.size + self.variants.at, plain.lists.at)
            return _Wiring(plain.expected, plain.weight, numbers, NeighbourLists(at, plain.lists.there))
        senders, audience = self.variants.senders, self.variants.audience
        if len(senders) > self.size:  # more columns for some than for all: most entries of a matrix would be empty
            receivers, columns = (audience & self.arcs.index_select(1, senders)).nonzero(as_tuple=True)
            at = self._nodes.expand(self.size, -1).clone()
            at[receivers, senders[columns]] = self.size + columns
            return _Wiring(plain.expected, plain.weight, numbers, PerArcLists(at, plain.expected))
        first = ~fold(audience, senders, self.size)
        extra = audience & self.arcs.index_select(1, senders)
        weight = plain.weight
        return _Wiring(
            torch.cat([self.arcs & first, extra], 1),
            torch.cat([weight * first, weight.index_select(1, senders) * extra], 1),
            numbers,
            None,
        )

    def _deliver(self, given: Outgoing, *, split: bool) -> Inbox:
        wiring, messages = self._plain, given.messages
        heard: Messages = messages
        own_column = self._nodes if given.same is None else torch.where(given.same, self._nodes, -1)
        if split:
            assert self.variants is not None
            wiring = self._split
            further = messages[self.variants.senders] if given.variants is None else given.variants(None)
            heard = followed_by(messages, further)
        return Inbox.receive(
            given.own,
            heard,
            expected=wiring.expected,
            weight=wiring.weight,
            self_weight=self._self_weight,
            own_column=own_column,
            senders=wiring.senders,
            lists=wiring.lists,
        )

    def _replies(
        self, found: Mapping[Topic, Tensor], node: int, asked: Tensor, weight: Tensor, received: Received | None
    ) -> tuple[Inbox, ...]:
        """The inboxes of one receiver: answers of those asked, and its own in the last row."""
        inboxes = []
        for topic, vectors in found.items():
            vectors = vectors if received is None else received(vectors, asked, node, topic)
            inbox = Inbox.receive(
                vectors[-1:],
                vectors[:-1],
                expected=torch.ones_like(weight, dtype=torch.bool),
                weight=weight,
                self_weight=self._self_weight[node][None],
            )
            inboxes.append(inbox)
        return Inbox.together(inboxes)


def followed_by(rows: Tensor, further: Messages) -> Messages:
    """Messages [J, D] and then further ones."""
    return torch.cat([rows, further]) if isinstance(further, Tensor) else [*rows, *further]


def _deeds(seen: Tensor, own: Tensor, asked: Tensor) -> Tensor:
    """Those of nodes asked, as others saw them, and last of the asker itself [J + 1, D]."""
    return torch.cat([seen.index_select(0, asked[:-1]), own.index_select(0, asked[-1:])])
