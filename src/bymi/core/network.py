"""The network interface that the algorithm sees, and `LocalNetwork`, its implementation within one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from bymi.core.errors import require
from bymi.core.graph import Graph
from bymi.core.inbox import Inbox, fold
from bymi.core.linalg import pad_rows
from bymi.core.list_graph import GraphLike, ListGraph, as_graph
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists
from bymi.core.performance_thresholds import LIMITS
from bymi.core.recall import Recall
from bymi.core.topic import PREMIX, Topic


@dataclass(frozen=True, eq=False)
class Variants:
    """Further messages of equivocating senders: receivers `audience[:, c]` get variant c of `senders[c]` instead."""

    senders: Tensor  # [C]
    audience: Tensor  # [M, C] bool

    @cached_property
    def receivers(self) -> Tensor:
        """First receiver of each variant [C]."""
        return self.audience.to(torch.uint8).argmax(0)


@dataclass(frozen=True, eq=False)
class ListedVariants:
    """Variants over neighbour lists: `index` holds the variant at each place of a receiver's list, -1 for none."""

    senders: Tensor  # [C]
    receivers: Tensor  # [C] one receiver of each variant
    index: Tensor  # [M, n]


# Columns of a round's inboxes: which messages some receivers get, and with what weight.


Messages = Tensor | Sequence[Tensor | None]
"""Messages as a tensor [J, D], or one by one with None for a missing one."""


@dataclass(frozen=True, eq=False)
class MessageColumns:
    """The messages that B nodes may receive, and which of them each node does. With lists, [B, J] is [B, n]."""

    nodes: Tensor  # [B] receivers, ascending
    columns: Tensor  # [J] numbers of the messages among all of a round, ascending: one per node, then one per variant
    senders: Tensor | None  # [J]; None: message j comes from node j
    expected: Tensor  # [B, J] bool: arcs
    weight: Tensor  # [B, J] float64 mixing weights
    self_weight: Tensor  # [B] float64
    lists: NeighbourLists | None = None  # of columns

    @cached_property
    def own_column(self) -> Tensor:
        """[B] column of each node's own message."""
        return torch.searchsorted(self.columns, self.nodes)

    @cached_property
    def _recall(self) -> Recall:
        return Recall()

    def receive(self, own: Tensor, messages: Messages, same: Tensor | None) -> Inbox:
        """The inbox of these nodes; `same` [B]: nodes that sent the vector they hold, None for all."""
        return Inbox.receive(
            own,
            messages,
            expected=self.expected,
            weight=self.weight,
            self_weight=self.self_weight,
            own_column=self.own_column if same is None else torch.where(same, self.own_column, -1),
            senders=self.senders,
            lists=self.lists,
            recall=self._recall if same is None else None,
        )


def followed_by(rows: Tensor, further: Messages) -> Messages:
    """Messages [J, D] followed by further ones."""
    return torch.cat([rows, further]) if isinstance(further, Tensor) else [*rows, *further]


# Point queries: a receiver asks its neighbours for vectors at its own point, and gets a neighbourhood of replies.


class Answer(Protocol):
    """Vectors [P, D] by topic that nodes [P] compute at the points [P, D] sent by `askers` [P]."""

    def __call__(self, points: Tensor, nodes: Tensor, askers: Tensor) -> Mapping[Topic, Tensor]: ...


class Received(Protocol):
    """Vectors that one asker receives in place of the replies [J + 1, D] of nodes [J + 1], of which the last is the asker.

    Called once all replies to one query are available.
    """

    def __call__(self, vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class NeighbourhoodReply:
    """Replies of J nodes to the query of one receiver, and its own. Read it once, in any thread: replies are computed then."""

    receiver: int  # position among the nodes held here
    senders: Tensor  # [J] columns of the network's arcs
    point: Tensor  # [D] at which gradients were queried; without a query, the receiver's own vector
    vectors: Callable[[], Mapping[Topic, Tensor]]  # what it received [J + 1, D] by topic; the last row is its own
    weights: Callable[[], tuple[Tensor, Tensor]]  # mixing weights of its neighbours [J] and its own, a scalar
    history: Callable[[], Tensor] | None = (
        None  # [J + 1, D] update history of the nodes queried, then its own; None if not sent
    )

    def read(self) -> tuple[Inbox, ...]:
        """One inbox per topic, with this receiver alone (B = 1)."""
        weight, self_weight = self.weights()
        everyone = torch.ones(1, len(weight), dtype=torch.bool, device=weight.device)
        return Inbox.align(
            [
                Inbox.receive(rows[-1:], rows[:-1], expected=everyone, weight=weight[None], self_weight=self_weight[None])
                for rows in self.vectors().values()
            ]
        )


def read_together(replies: Sequence[NeighbourhoodReply]) -> tuple[Inbox, ...]:
    """Replies to b queries as one inbox per topic with b receivers, over lists of as many places as the longest reply.

    Messages are all replies [b, n, D] in a row: those to one receiver, its own, padding. Mixing weights are left out.
    """
    given = [reply.vectors() for reply in replies]
    counts, device = [len(reply.senders) for reply in replies], replies[0].point.device
    size = 1 + max(counts)
    own = torch.tensor(counts, device=device) + size * torch.arange(len(replies), device=device)
    index = torch.arange(len(replies) * size, device=device).view(-1, size)
    expected = index < own[:, None]
    weight = torch.zeros(expected.shape, dtype=torch.float64, device=device)
    lists = NeighbourLists(index, expected)
    inboxes = []
    for topic in given[0]:
        rows = pad_rows([vectors[topic] for vectors in given], size).flatten(0, 1)
        how = {"expected": expected, "weight": weight, "self_weight": torch.ones_like(weight[:, 0]), "lists": lists}
        inboxes.append(Inbox.receive(rows.index_select(0, own), rows, own_column=own, **how))  # type: ignore[arg-type]
    return Inbox.align(inboxes)


def received_vectors(
    replies: Mapping[Topic, Tensor], nodes: Tensor, asker: int, received: Received | None
) -> Mapping[Topic, Tensor]:
    """What an asker receives, from the replies [J + 1, D] of nodes [J + 1], the last of them its own."""
    if received is None:
        return replies
    return {topic: received(vectors, nodes, asker, topic) for topic, vectors in replies.items()}


@dataclass(frozen=True, eq=False)
class Outgoing:
    """What the nodes held here send under one topic, where that differs from the vectors that they hold.

    A row of NaN in `sent` is no message, or one of the wrong shape. `variants` returns the variants of the network's
    equivocating senders: all, or those with the given numbers [K]. Either every process of a network sets `sent` or none does;
    the same holds for `variants` and `known`.
    """

    own: Tensor  # [B, D] vectors held
    sent: Tensor | None = None  # [B, D] vectors sent; None: those held
    same: Tensor | None = None  # [B] bool: nodes that send the vector they hold; None: all
    variants: Callable[[Tensor | None], Messages] | None = None
    known: Tensor | None = None  # [M, D] vectors sent by all nodes, if every process can compute them: no traffic

    @staticmethod
    def of(given: Tensor | Outgoing) -> Outgoing:
        """The Outgoing itself, or one of vectors that are sent as held."""
        return given if isinstance(given, Outgoing) else Outgoing(given)

    @property
    def messages(self) -> Tensor:
        """[B, D] vectors sent."""
        return self.own if self.sent is None else self.sent


class Network(Protocol):
    """The interface between the algorithm and its transport: this process holds `nodes`, out of `size` in all.

    Collective: all processes of a network must make the same calls in the same order.
    """

    @property
    def nodes(self) -> Tensor:
        """Numbers of the nodes held here [B], ascending."""
        ...

    @property
    def size(self) -> int:
        """Number of all nodes, M."""
        ...

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        """Send one row per node and topic; returns one Inbox per topic, in order, with the same arcs heard."""
        ...

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        """The nodes of `who` [B] send their points [B, D] to those that they hear; these reply, and so does the node itself.

        `received` maps replies to what the asker gets; None: unchanged. `history`: update histories that come with the replies,
        as neighbours received them and as they are, [B, D] each.

        Consume the iterator receiver by receiver, so that memory does not grow with their number, and before any other call.
        """
        ...

    def all_agree(self, flag: bool) -> bool:
        """Whether the flag holds in every process, so that all take the same branch."""
        ...

    def count(self, mask: Tensor) -> int:
        """Number of nodes marked in all processes, from masks of the nodes held [B]."""
        ...

    @property
    def arcs(self) -> Tensor:
        """Mask [B, M] of the nodes that each node held here can hear. Over lists, here and below: [B, n], per place."""
        ...

    def prune(self, flagged: Tensor) -> Network:
        """The network without flagged in-arcs [B, M]."""
        ...

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> Network:
        """The network in which flagged in-arcs [B, M] have zero weight, with `mutual` in both directions.

        Their messages still arrive: a node that is monitored can be readmitted.
        """
        ...


class Observable(Network, Protocol):
    """A simulated network, which exposes the vectors of all nodes, as the adversary needs. Every method is collective.

    A network of real nodes is not Observable. `graph`: arcs of all nodes. `variants`: equivocating senders, None for none.
    `whole_here`: this process holds all nodes.
    """

    @property
    def graph(self) -> Graph: ...

    @property
    def variants(self) -> Variants | ListedVariants | None: ...

    @property
    def whole_here(self) -> bool: ...

    def gather(self, rows: Tensor, what: str) -> Tensor:
        """Rows of all nodes [M, ...] in order, from those of the nodes held here [B, ...]; `what` names the traffic."""
        ...

    def total(self, values: Tensor, what: str) -> Tensor:
        """Sum of the values [...] of all processes, in an order that does not depend on their number."""
        ...

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        """Rows [M, ...] that `work` computes from the rows of all nodes [M, ...] and their numbers [M].

        `work` is called once per process, however many shards it holds.
        """
        ...

    def prune(self, flagged: Tensor) -> Observable: ...

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> Observable: ...


def tracker_limit(network: Network, step: int) -> Tensor | None:
    """Tracker entries [y_i]_i [B] in the limit of premixing; None if rounds of premixing have to find them. Collective.

    It is computed for a simulated network on neighbour lists, from the weights of the messages heard in one round.
    """
    graph, on_all = getattr(network, "graph", None), getattr(network, "on_all", None)
    if not isinstance(graph, ListGraph) or on_all is None:
        return None
    # Only who is heard matters, not the content: each node sends a tracker of one entry.
    ones = torch.ones(len(network.nodes), 1, dtype=torch.float64, device=network.nodes.device)
    (inbox,) = network.exchange(step, {PREMIX: ones})
    used = inbox.average()

    def limit(weights: Tensor, nodes: Tensor) -> Tensor:
        return graph.tracker_limit(weights[:, :-1], weights[:, -1])

    entries: Tensor = on_all(torch.cat([used.weight, used.own[:, None]], 1), limit, "premix")
    return entries[network.nodes]


class LocalNetwork:
    """A network whose nodes are all in this process: B = J = M, without copies. `graph` may be a networkx graph or an array.

    With `variants`, an exchange that has any appends them as columns after the first M: the same columns in every round and
    after any pruning, each arc in exactly one of its sender's columns. If there are many, the inbox stores them as PerArcLists.
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
        require(fits, "variants", variants, "Variants, ListedVariants or None, such as Adversary.layout gives")
        self.graph: Graph = graph
        self.variants = variants
        self.whole = graph if whole is None else whole
        self.arcs = self.whole.hears
        self.size = graph.size
        self.nodes = torch.arange(graph.size, device=graph.hears.device)
        self._plain = MessageColumns(self.nodes, self.nodes, None, self.arcs, graph.weight, graph.self_weight, graph.lists)

    def over(self, graph: Graph, *, whole: Graph | None = None) -> LocalNetwork:
        """The same nodes over another graph; on arcs of `whole` that it lacks, messages arrive with zero weight."""
        return LocalNetwork(graph, variants=self.variants, whole=whole)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        outgoing = [Outgoing.of(given) for given in vectors.values()]
        varied = any(given.variants is not None for given in outgoing)
        return Inbox.align([self._deliver(given, varied=varied) for given in outgoing])

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        if not bool(who.any()):
            return
        largest = 1 + int(self.arcs.sum(1).max())
        alone = points.device.type == "cpu" and largest * points.shape[1] >= LIMITS.replies_alone
        size = 1 if alone else max(1, replies_at_a_time(points.device, LIMITS.replies_cuda) // (largest * points.shape[1]))
        for batch in self.nodes[who].split(size):
            row, place = self.arcs[batch].nonzero(as_tuple=True)
            # Nodes that reply to each receiver, then the receiver itself.
            position = torch.cat([row, torch.arange(len(batch), device=row.device)])
            position, order = position.sort(stable=True)
            asked, askers = torch.cat([self.graph.nodes_at(batch[row], place), batch])[order], batch[position]
            counts = torch.bincount(row, minlength=len(batch)).tolist()
            # One point per query, expanded without a copy per reply.
            answers = answer(points[batch].expand(len(askers), -1) if alone else points[askers], asked, askers)
            ends = [count + 1 for count in counts]
            parts = {topic: vectors.split(ends) for topic, vectors in answers.items()}
            by_receiver = zip(batch.tolist(), place.split(counts), asked.split(ends), strict=True)
            for number, (node, columns, nodes) in enumerate(by_receiver):
                replies = {topic: vectors[number] for topic, vectors in parts.items()}
                vectors = partial(received_vectors, replies, nodes, node, received)
                read_history = None if history is None else partial(_histories, *history, nodes)
                weights = partial(self._weights, node, columns)
                yield NeighbourhoodReply(node, columns, points[node], vectors, weights, read_history)

    def _weights(self, node: int, columns: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.weight[node, columns], self._plain.self_weight[node]

    def all_agree(self, flag: bool) -> bool:
        return flag

    def count(self, mask: Tensor) -> int:
        return int(mask.sum())

    def prune(self, flagged: Tensor) -> LocalNetwork:
        """The network without flagged in-arcs; columns are senders [M, M] or the messages of an exchange [M, J]."""
        if flagged.shape[1] > self.size and isinstance(self.variants, Variants):
            flagged = fold(flagged, torch.cat([self.nodes, self.variants.senders]), self.size)
        return self.over(self.graph.prune(flagged))

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> LocalNetwork:
        whole = self.whole
        pruned = whole.prune_mutually(flagged, exile=exile) if mutual else whole.prune(flagged)
        return self.over(pruned, whole=whole)

    def gather(self, rows: Tensor, what: str) -> Tensor:
        return rows

    def total(self, values: Tensor, what: str) -> Tensor:
        return values

    def on_all(self, rows: Tensor, work: Callable[[Tensor, Tensor], Tensor], what: str) -> Tensor:
        return work(rows, self.nodes)

    @cached_property
    def _varied(self) -> MessageColumns:
        """The columns of a round with variants."""
        assert self.variants is not None
        plain, senders = self._plain, self.variants.senders
        numbers = torch.cat([self.nodes, senders])
        varied = partial(replace, plain, columns=torch.arange(len(numbers), device=numbers.device), senders=numbers)
        if isinstance(self.variants, ListedVariants):
            assert plain.lists is not None
            index = torch.where(self.variants.index >= 0, self.size + self.variants.index, plain.lists.index)
            return varied(lists=NeighbourLists(index, plain.lists.mask))
        extra = self.variants.audience & self.arcs.index_select(1, senders)
        if len(senders) > self.size:  # many variants: most entries of a matrix would be empty
            receivers, columns = extra.nonzero(as_tuple=True)
            index = self.nodes.expand(self.size, -1).clone()
            index[receivers, senders[columns]] = self.size + columns
            return varied(lists=PerArcLists(index, plain.expected))
        first = ~fold(self.variants.audience, senders, self.size)
        expected = torch.cat([self.arcs & first, extra], 1)
        weight = torch.cat([plain.weight * first, plain.weight.index_select(1, senders) * extra], 1)
        return varied(expected=expected, weight=weight)

    def _deliver(self, given: Outgoing, *, varied: bool) -> Inbox:
        if not varied:
            return self._plain.receive(given.own, given.messages, given.same)
        assert self.variants is not None
        further = given.messages[self.variants.senders] if given.variants is None else given.variants(None)
        return self._varied.receive(given.own, followed_by(given.messages, further), given.same)


def replies_at_a_time(device: torch.device, most: int) -> int:
    """How many numbers of replies are handled in one batch; on a GPU at most a sixty-fourth of its free bytes."""
    if device.type != "cuda":
        return LIMITS.replies
    return max(LIMITS.replies, min(most, torch.cuda.mem_get_info(device)[0] // 64))


def _histories(seen: Tensor, own: Tensor, asked: Tensor) -> Tensor:
    """Update histories [J + 1, D]: of the nodes asked as their neighbours received them, then the asker's own."""
    return torch.cat([seen.index_select(0, asked[:-1]), own.index_select(0, asked[-1:])])
