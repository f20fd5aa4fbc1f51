"""The Network of a real node: B = 1, and its neighbours are other machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.network import Answer, NeighbourhoodReply, Outgoing, Received, received_vectors
from bymi.core.topic import Topic
from bymi.node.round_session import QUESTION, Session
from bymi.node.wire import encode

_HALVES = ("first half", "second half")
_UNKNOWN = -1.0  # a vote not yet heard of


@dataclass(frozen=True, eq=False)
class PeerNetwork:
    """What one node sees of the network: messages of its neighbours, pulled by a session.

    Mixing weights come from the graph that all nodes agreed on. After mutual pruning they depend on how many neighbours each
    node has left, which it says itself: a false number can only lower the weight of the node that says it.
    """

    collective: ClassVar[bool] = False
    """Whether rules on its inboxes need other processes. They do not: nodes must not depend on the votes of others."""

    session: Session
    hears: Tensor  # [M] bool: nodes whose messages are pulled
    weight: Tensor  # [M] float64, zero without an arc
    self_weight: Tensor  # [1] float64

    @staticmethod
    def of(session: Session) -> PeerNetwork:
        """The network before any pruning."""
        graph, node = session.config.graph, session.config.node
        return PeerNetwork(session, graph.hears[node], graph.weight[node], graph.self_weight[node][None])

    @property
    def nodes(self) -> Tensor:
        return torch.tensor([self.session.config.node])

    @property
    def size(self) -> int:
        return len(self.hears)

    @property
    def arcs(self) -> Tensor:
        return self.hears[None]

    @property
    def _senders(self) -> list[int]:
        """Nodes whose messages are pulled."""
        senders: list[int] = self.hears.nonzero().flatten().tolist()
        return senders

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        outgoing = {topic.stream_name(): Outgoing.of(given) for topic, given in vectors.items()}
        rows = {name: given.messages[0] for name, given in outgoing.items()}
        halves = any(topic.kind in _HALVES for topic in vectors)
        heard = self.session.exchange("+".join(rows), rows, self._senders, step=step, sealed=halves, reuse=not halves)
        # Senders of the columns of every inbox, pruned ones included: columns stay the same over a run.
        columns, inboxes = torch.tensor(self.session.senders, dtype=torch.int64), []
        expected, weight = self.hears[columns][None], self.weight[columns][None]
        came = [heard.get(number) for number in self.session.senders]
        for name, given in outgoing.items():
            present = [one[name] for one in came if one is not None]
            whole = len(present) == len(came) > 0  # a tensor is checked several times faster than a list
            messages = torch.stack(present) if whole else [None if one is None else one[name] for one in came]
            inbox = Inbox.receive(
                given.own, messages, expected=expected, weight=weight, self_weight=self.self_weight, senders=columns
            )
            inboxes.append(inbox)
        return Inbox.align(inboxes)

    def ask(
        self,
        step: int,
        points: Tensor,
        answer: Answer,
        who: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[NeighbourhoodReply]:
        session, node = self.session, self.nodes

        def answer_one(asker: int, point: Tensor) -> bytes:
            rows = answer(point[None], node, torch.tensor([asker]))
            return encode({topic.stream_name(): row[0] for topic, row in rows.items()})

        tag = session.tag(QUESTION, step)
        questions = session.open_questions(tag, answer_one)
        mine = answer(points, node, node)
        expected = {topic.stream_name(): (row.dtype, row.shape[1]) for topic, row in mine.items()}
        asks = bool(who[0])
        replies = session.ask(tag, questions, points[0] if asks else None, expected)
        if not asks:
            return iter(())
        columns = self.hears.nonzero().flatten()

        def vectors() -> Mapping[Topic, Tensor]:
            rows = {}
            for topic, own in mine.items():
                blank = torch.full_like(own[0], torch.nan)
                came = [replies.get(number) for number in columns.tolist()]
                rows[topic] = torch.stack([*(blank if one is None else one[topic.stream_name()] for one in came), own[0]])
            return received_vectors(rows, torch.cat([columns, node]), int(node), received)

        weights = self.weight[columns], self.self_weight[0]
        return iter([NeighbourhoodReply(0, columns, points[0], vectors, lambda: weights)])

    def all_agree(self, flag: bool) -> bool:
        return bool((self._votes(float(flag)) == 1.0).all())

    def count(self, mask: Tensor) -> int:
        return int(self._votes(float(mask.sum())).sum())

    def _votes(self, value: float) -> Tensor:
        """Values [M] of all nodes, passed on from node to node.

        A neighbour can lie about the nodes behind it, so a run of real nodes needs no vote: `Roster` sees to it.
        """
        votes = torch.full((self.size,), _UNKNOWN, dtype=torch.float64)
        votes[self.nodes] = value
        for _ in range(self.size - 1):
            for sender, came in self.session.exchange("votes", {"votes": votes.clone()}, self.session.senders).items():
                if came is not None:
                    told = came["votes"]
                    votes = torch.where((votes == _UNKNOWN) & (told >= 0), told, votes)
                    votes[sender] = told[sender] if told[sender] >= 0 else votes[sender]
        return votes.clamp_min(0.0)

    def prune(self, flagged: Tensor) -> PeerNetwork:
        cut = flagged[0] & self.hears
        weight = torch.where(cut, torch.zeros_like(self.weight), self.weight)
        self_weight = self.self_weight
        if bool(cut.any()):
            total = weight.sum() + self_weight
            weight, self_weight = weight / total, self_weight / total
        return replace(self, hears=self.hears & ~cut, weight=weight, self_weight=self_weight)

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> PeerNetwork:
        whole = PeerNetwork.of(self.session)
        cut = flagged[0] & self.hears
        if not mutual:
            pruned = replace(whole, hears=self.hears).prune(cut[None])
            return replace(pruned, hears=self.hears)
        flags = {number: {"flag": cut[number].double()[None]} for number in self.session.peers}
        told = self.session.exchange("flags", {"flag": torch.zeros(1, dtype=torch.float64)}, self._senders, each=flags)
        # A neighbour that does not say whether it flags this node counts as one that does not.
        cut_by = torch.zeros_like(cut)
        for number, came in told.items():
            cut_by[number] = came is not None and bool(came["flag"][0] != 0)
        kept = self.hears & ~cut & ~cut_by
        degree = float(kept.sum())
        most = self.session.config.graph.hears.sum(1, dtype=torch.float64)
        said = self.session.exchange("degree", {"degree": torch.tensor([degree], dtype=torch.float64)}, self._senders)
        degrees = most.clone()
        for number, came in said.items():
            if came is not None:
                degrees[number] = came["degree"][0].clamp(0.0, float(most[number]))
        weight = kept / (1 + degrees.clamp_min(degree))
        if exile is not None and float(cut_by.sum()) > exile * float(self.hears.sum()):
            listens = self.hears & ~cut
            weight = listens / (1 + listens.sum(dtype=torch.float64))
        return replace(self, weight=weight, self_weight=1 - weight.sum()[None])
