"""How vectors travel. The algorithm knows the protocol only; here is the one for a single process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bymi.errors import require
from bymi.faces import Faces, ListedFaces, Sent, Tamper, TwoFaced
from bymi.graph import Graph
from bymi.inbox import Inbox, fold
from bymi.lists import Lists, Table
from bymi.sparse import GraphLike, SparseGraph, as_graph
from bymi.staying import Replies
from bymi.topic import PREMIX, Topic

_NUMBERS = 1 << 25  # in the answers to the questions handled at a time: 128 MB in float32
LONG = 1 << 20  # numbers in the answers to one question from which on a CPU handles it alone: they stay in its cache


class Answer(Protocol):
    """What nodes [P] find at points [P, D] that they were sent by `askers` [P]: vectors [P, D] by topic."""

    def __call__(self, points: Tensor, nodes: Tensor, askers: Tensor) -> Mapping[Topic, Tensor]: ...


class Say(Protocol):
    """What nodes [J] say to one asker of the vectors [J, D] that they found: those who lie know what the others say to it."""

    def __call__(self, vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor: ...


class Network(Protocol):
    """The seam between the algorithm and the place where it runs: `nodes` are held here, out of `size` in all."""

    @property
    def nodes(self) -> Tensor: ...

    @property
    def size(self) -> int: ...

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor]) -> tuple[Inbox, ...]:
        """Every node sends its rows, by topic; one Inbox per topic comes back, in order, with the same arcs heard."""
        ...

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        say: Say | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[Replies]:
        """The nodes of `who` [B] send their points [B, D] to those they hear; each of these answers, as the node itself does.

        Without `say` they say what they found. `deeds` come with the answers: of each node held here what others saw of it, and
        what it did, [B, D] each.

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


@runtime_checkable
class Settles(Protocol):
    """A network that knows where premixing ends without going there."""

    def settle(self, step: int) -> Tensor | None:
        """The entries [y_i]_i [B] of the tracker after endless premixing; None if they have to be found by premixing."""
        ...


@dataclass(frozen=True, eq=False)
class _Wiring:
    """Who hears which column of an inbox, with which weight."""

    expected: Tensor  # [M, J] bool
    weight: Tensor  # [M, J] float64
    senders: Tensor | None  # [J]
    lists: Lists | None  # of columns; then the two above are [M, n]


class LocalNetwork:
    """All nodes in this process: B = J = M, nothing is copied unless somebody tampers. `graph` may be of networkx, or an array.

    With senders of two faces an exchange in which they may differ has their further messages as columns after the first M:
    the same ones in every round and after any pruning, each arc in exactly one of its sender's columns. If they are many, the
    inbox has them in a Table.
    """

    def __init__(
        self,
        graph: GraphLike,
        tamper: Tamper | None = None,
        two_faced: TwoFaced | None = None,
        *,
        faces: Faces | ListedFaces | None = None,
        whole: Graph | SparseGraph | None = None,
    ) -> None:
        graph = as_graph(graph)
        require(tamper is None or callable(tamper), "tamper", tamper, "a function, such as Adversary.tamper, or None")
        fits = two_faced is None or (hasattr(two_faced, "layout") and not isinstance(two_faced, type))
        require(fits, "two_faced", two_faced, "an Adversary or None")
        self.graph: Graph | SparseGraph = graph
        self._whole = graph if whole is None else whole
        self.arcs = self._whole.hears
        self._tamper, self._two_faced = tamper, two_faced
        self._faces = two_faced.layout(graph) if two_faced is not None and faces is None else faces
        self._nodes = torch.arange(graph.size, device=graph.hears.device)
        self._plain = _Wiring(self.arcs, graph.weight, None, graph.lists)
        self._self_weight = graph.self_weight

    @property
    def nodes(self) -> Tensor:
        return self._nodes

    @property
    def size(self) -> int:
        return self.graph.size

    def over(self, graph: Graph | SparseGraph, *, whole: Graph | SparseGraph | None = None) -> LocalNetwork:
        """The same nodes over another graph; over arcs of the `whole` that it lacks messages are heard and carry no weight."""
        return LocalNetwork(graph, self._tamper, self._two_faced, faces=self._faces, whole=whole)

    def columns(self, topic: Topic) -> int:
        """How many columns the inboxes of a topic have, in every round."""
        faces = self._faces if self._two_faced is not None and self._two_faced.differs(topic) else None
        return self.size + (0 if faces is None else len(faces.senders))

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor]) -> tuple[Inbox, ...]:
        split = self._two_faced is not None and self._faces is not None and any(map(self._two_faced.differs, vectors))
        return Inbox.together([self._deliver(own, topic, step, split=split) for topic, own in vectors.items()])

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        say: Say | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[Replies]:
        if not bool(who.any()):
            return
        # Lists of neighbours are walked on the CPU: one copy here instead of a wait for each receiver.
        places = [row.nonzero().flatten() for row in self.arcs.cpu()]
        numbers = self.graph.lists.at if self.graph.lists is not None else None
        largest = 1 + max(len(some) for some in places)
        alone = points.device.type == "cpu" and largest * points.shape[1] >= LONG
        size = 1 if alone else max(1, _NUMBERS // (largest * points.shape[1]))
        for some in self._nodes[who].split(size):
            columns = [places[node].to(some) for node in some.tolist()]
            senders = columns if numbers is None else [numbers[node, at] for node, at in zip(some, columns, strict=True)]
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
                read = partial(self._replies, found, node, asked[place], weight, say, step)
                seen = None if deeds is None else partial(_deeds, *deeds, asked[place])
                yield Replies(node, columns[place], points[node], read, seen)

    def agree(self, flag: bool) -> bool:
        return flag

    def count(self, mask: Tensor) -> int:
        return int(mask.sum())

    def prune(self, flagged: Tensor) -> LocalNetwork:
        """Columns of `flagged` are senders [M, M] or the messages of an exchange [M, J]."""
        if flagged.shape[1] > self.size and isinstance(self._faces, Faces):
            flagged = fold(flagged, torch.cat([self._nodes, self._faces.senders]), self.size)
        return self.over(self.graph.prune(flagged))

    def weigh(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> LocalNetwork:
        whole = self._whole
        pruned = whole.prune_mutually(flagged, exile=exile) if mutual else whole.prune(flagged)
        return self.over(pruned, whole=whole)

    def settle(self, step: int) -> Tensor | None:
        """The tracker's limit with the messages that are heard in premixing; on a graph of lists only."""
        if not isinstance(self.graph, SparseGraph):
            return None
        # What travels does not matter, who is heard does: each sends a tracker of one entry.
        (inbox,) = self.exchange(step, {PREMIX: torch.ones(self.size, 1, dtype=torch.float64, device=self._nodes.device)})
        mixture = inbox.average()
        return self.graph.tracker_limit(mixture.weight, mixture.own)

    @cached_property
    def _split(self) -> _Wiring:
        """With the further messages as columns."""
        assert self._faces is not None
        plain, numbers = self._plain, torch.cat([self._nodes, self._faces.senders])
        if isinstance(self._faces, ListedFaces):
            assert plain.lists is not None
            at = torch.where(self._faces.at >= 0, self.size + self._faces.at, plain.lists.at)
            return _Wiring(plain.expected, plain.weight, numbers, Lists(at, plain.lists.there))
        senders, audience = self._faces.senders, self._faces.audience
        if len(senders) > self.size:  # more columns for some than for all: most entries of a matrix would be empty
            receivers, columns = (audience & self.arcs.index_select(1, senders)).nonzero(as_tuple=True)
            at = self._nodes.expand(self.size, -1).clone()
            at[receivers, senders[columns]] = self.size + columns
            return _Wiring(plain.expected, plain.weight, numbers, Table(at, plain.expected))
        first = ~fold(audience, senders, self.size)
        extra = audience & self.arcs.index_select(1, senders)
        weight = plain.weight
        return _Wiring(
            torch.cat([self.arcs & first, extra], 1),
            torch.cat([weight * first, weight.index_select(1, senders) * extra], 1),
            numbers,
            None,
        )

    def _deliver(self, own: Tensor, topic: Topic, step: int, *, split: bool) -> Inbox:
        forged = self._tamper(own, self._nodes, topic, step) if self._tamper is not None else {}
        messages, own_at = _replace(own, forged), self._nodes
        if isinstance(forged, Tensor):
            own_at = torch.where((forged == own).all(1), own_at, -1) if forged is not own else own_at
        elif forged:
            own_at = own_at.clone()
            own_at[list(forged)] = -1
        wiring = self._plain
        if split:
            assert self._two_faced is not None
            assert self._faces is not None
            wiring = self._split
            shown = self._two_faced.show(own, self._faces, self.graph, topic, step)
            if isinstance(messages, Tensor) and isinstance(shown, Tensor):
                messages = torch.cat([messages, shown])
            else:
                messages = [*messages, *shown]
        return Inbox.receive(
            own,
            messages,
            expected=wiring.expected,
            weight=wiring.weight,
            self_weight=self._self_weight,
            own_at=own_at,
            senders=wiring.senders,
            lists=wiring.lists,
        )

    def _replies(
        self, found: Mapping[Topic, Tensor], node: int, asked: Tensor, weight: Tensor, say: Say | None, step: int
    ) -> tuple[Inbox, ...]:
        """The inboxes of one receiver: answers of those asked, and its own in the last row."""
        inboxes = []
        for topic, vectors in found.items():
            vectors = vectors if say is None else say(vectors, asked, node, topic)
            forged: Sent = self._tamper(vectors[:-1], asked[:-1], topic, step) if self._tamper is not None else {}
            if self._two_faced is not None and self._faces is not None and self._two_faced.differs(topic):
                forged = self._two_faced.reply(vectors[:-1], asked[:-1], node, topic, step)
            inbox = Inbox.receive(
                vectors[-1:],
                _replace(vectors[:-1], forged),
                expected=torch.ones_like(weight, dtype=torch.bool),
                weight=weight,
                self_weight=self._self_weight[node][None],
            )
            inboxes.append(inbox)
        return Inbox.together(inboxes)


def _deeds(seen: Tensor, own: Tensor, asked: Tensor) -> Tensor:
    """Those of nodes asked, as others saw them, and last of the asker itself [J + 1, D]."""
    return torch.cat([seen.index_select(0, asked[:-1]), own.index_select(0, asked[-1:])])


def _replace(vectors: Tensor, forged: Sent) -> Tensor | list[Tensor | None]:
    """What is on the wire when rows hold `vectors`."""
    if isinstance(forged, Tensor):
        return forged
    return [forged.get(row, vector) for row, vector in enumerate(vectors)] if forged else vectors
