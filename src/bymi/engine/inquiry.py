"""Questions that cross processes: points have travelled to those who are asked, and the answers travel back in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bymi.engine.ears import arcs_to
from bymi.faces import Sent
from bymi.inbox import Inbox
from bymi.network import LONG, Answer, Replies, Say

if TYPE_CHECKING:
    from bymi.engine.distributed import ShardNetwork

_NUMBERS = 1 << 23  # in the answers that come to one shard in one turn: they fit a CPU's cache, as far as one asker's do


class Told(NamedTuple):
    """What the nodes of one shard tell one asker: one vector a topic."""

    asker: int
    nodes: Tensor  # [q]
    vectors: Mapping[str, Tensor]  # [q, D] each


class Inquiry:
    """The questions of one shard and its part in answering those of all others. Every shard takes every turn."""

    def __init__(self, network: ShardNetwork, step: int, points: Tensor, answer: Answer, asks: Tensor, say: Say | None) -> None:
        """`points` are those of the nodes `network.wires.points` of this shard; `asks` [M] says who asks."""
        self._network, self._step, self._points, self._answer, self._say = network, step, points, answer, say
        layout = network.wires.board.layout
        counts = 1 + network.wires.whole.hears.sum(1)  # how many answer each asker, which is one of them itself
        numbers = int(counts[asks].max()) * points.shape[1] if bool(asks.any()) else 1
        self._alone = numbers >= LONG and points.device.type == "cpu"
        askers = [nodes[asks[nodes]].split(max(1, _NUMBERS // numbers)) for nodes in layout.shards]
        self._askers = [[turn for turn in turns if len(turn)] for turns in askers]
        self.turns_left = max(len(turns) for turns in self._askers)
        self._turn = 0

    def replies(self) -> Iterator[Replies]:
        """What the nodes of this shard are told, in order of their numbers."""
        for _ in range(len(self._askers[self._network.shard])):
            yield from self.take_turn()

    def take_turn(self) -> Iterator[Replies]:
        """Answer what others ask of this shard in this turn, and take what they answer. Talks at once, reads on demand."""
        turn, self._turn = self._turn, self._turn + 1
        self.turns_left -= 1
        asking = [self._asking(shard, turn).tolist() for shard in range(len(self._network.wires.board.layout.shards))]
        questions = self._questions([asker for some in asking for asker in some])
        answers = self._answers(questions)
        told: list[list[Told]] = self._network.meet(answers, lambda given: self._carry(given, asking, questions))
        return map(self._read, told)

    def _asking(self, shard: int, turn: int) -> Tensor:
        turns = self._askers[shard]
        return turns[turn] if turn < len(turns) else self._network.nodes[:0]

    def _questions(self, asking: list[int]) -> dict[tuple[int, int], Tensor]:
        """Whom each of those asking asks in each shard, itself among them, by asker and shard: node numbers, upwards."""
        wires = self._network.wires
        layout = wires.board.layout
        row, node = arcs_to(wires.whole, torch.tensor(asking, dtype=torch.int64, device=layout.home.device))
        found = {}
        for asker, some in zip(asking, node.split(torch.bincount(row, minlength=len(asking)).tolist()), strict=True):
            asked = torch.cat([some, some.new_tensor([asker])]).sort().values
            home = layout.home[asked]
            found.update({(asker, shard): asked[home == shard] for shard in range(len(layout.shards))})
        return found

    def _answers(self, questions: Mapping[tuple[int, int], Tensor]) -> list[Told]:
        """What the nodes of this shard answer, asker by asker."""
        shard = self._network.shard
        asked = {asker: nodes for (asker, where), nodes in questions.items() if where == shard and len(nodes)}
        known = self._network.wires.points[shard]
        if self._alone:  # one point for all who answer one question, without a copy for each
            places = torch.searchsorted(known, torch.tensor(list(asked), dtype=torch.int64, device=known.device))
            return [
                Told(asker, nodes, self._answer(point.expand(len(nodes), -1), nodes, nodes.new_full((len(nodes),), asker)))
                for (asker, nodes), point in zip(asked.items(), self._points[places], strict=True)
            ]
        if not asked:
            return []
        counts = [len(nodes) for nodes in asked.values()]
        askers = torch.tensor(list(asked), device=known.device).repeat_interleave(torch.tensor(counts, device=known.device))
        answers = self._answer(self._points[torch.searchsorted(known, askers)], torch.cat(list(asked.values())), askers)
        parts = {topic: vectors.split(counts) for topic, vectors in answers.items()}
        return [
            Told(asker, nodes, {topic: vectors[place] for topic, vectors in parts.items()})
            for place, (asker, nodes) in enumerate(asked.items())
        ]

    def _carry(
        self, given: list[list[Told]], asking: list[list[int]], questions: Mapping[tuple[int, int], Tensor]
    ) -> list[list[list[Told]]]:
        """Answers of all shards of this rank to those who asked; for each of its shards what each of its askers is told by all.

        Rows go by asker, by shard that answers, by topic; those for askers of this rank stay where they are.
        """
        board = self._network.wires.board
        layout, group = board.layout, board.group
        made = {(told.asker, shard): told for shard, some in zip(layout.held[group.rank], given, strict=True) for told in some}
        topics = next((list(told.vectors) for told in made.values()), [])
        others = [rank for rank in range(group.size) if rank != group.rank]
        # Of each other rank: who there asks whom here, and who here asks whom there.
        going, coming = (
            {
                rank: [
                    (asker, shard)
                    for home in layout.held[rank if out else group.rank]
                    for asker in asking[home]
                    for shard in layout.held[group.rank if out else rank]
                    if len(questions[asker, shard])
                ]
                for rank in others
            }
            for out in (True, False)
        )
        sent = [made[pair].vectors[topic] for rank in others for pair in going[rank] for topic in topics]
        counts, expected = (
            [len(topics) * sum(len(questions[pair]) for pair in pairs.get(rank, ())) for rank in range(group.size)]
            for pairs in (going, coming)
        )
        came = group.swap(torch.cat(sent) if sent else self._points[:0], counts, expected, "answers")
        pairs = [pair for rank in others for pair in coming[rank]]
        parts = iter(came.split([len(questions[pair]) for pair in pairs for _ in topics]))
        for asker, shard in pairs:
            made[asker, shard] = Told(asker, questions[asker, shard], {topic: next(parts) for topic in topics})
        everywhere = range(len(layout.shards))
        return [
            [[made[asker, shard] for shard in everywhere if (asker, shard) in made] for asker in asking[home]]
            for home in layout.held[group.rank]
        ]

    def _read(self, told: list[Told]) -> Replies:
        """What one asker is told by all shards."""
        asker, network = told[0].asker, self._network
        receiver = int(torch.searchsorted(network.nodes, asker))
        columns = network.arcs[receiver].nonzero().flatten()  # in the order of their numbers
        point = self._points[int(torch.searchsorted(network.wires.points[network.shard], asker))]
        return Replies(receiver, columns, point, partial(self._inboxes, told, columns))

    def _inboxes(self, told: list[Told], columns: Tensor) -> tuple[Inbox, ...]:
        asker, network = told[0].asker, self._network
        nodes = torch.cat([part.nodes for part in told])
        # Those asked by number, as the columns are, and last the asker itself.
        order = torch.argsort(torch.where(nodes == asker, network.size, nodes))
        places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        weight = network.wires.weight[asker, columns][None]
        inboxes = []
        for topic, example in told[0].vectors.items():
            vectors = example.new_empty(len(nodes), example.shape[1])
            for part, at in zip(told, places.split([len(part.nodes) for part in told]), strict=True):
                vectors.index_copy_(0, at, part.vectors[topic])
            inboxes.append(self._reply(vectors, nodes[order], weight, asker, topic))
        return Inbox.together(inboxes)

    def _reply(self, vectors: Tensor, who: Tensor, weight: Tensor, asker: int, topic: str) -> Inbox:
        """The inbox of one receiver: answers of those asked, and its own in the last row."""
        wires, step, senders = self._network.wires, self._step, who[:-1]
        adversary = wires.adversary
        sent: Sent = {}
        vectors = vectors if self._say is None else self._say(vectors, who, asker, topic)
        if adversary is not None:
            # Here all answers to one question come together: only now can those who lie know what the others say.
            vectors = adversary.gradients(vectors, who, f"{topic} for {asker}", step)
            sent = adversary.tamper(vectors[:-1], senders, topic, step)
            if wires.faces is not None and adversary.differs(topic):
                sent = adversary.reply(vectors[:-1], senders, asker, topic, step)
        messages: Tensor | list[Tensor | None] = vectors[:-1]
        if isinstance(sent, Tensor):
            messages = sent
        elif sent:
            messages = [sent.get(row, vector) for row, vector in enumerate(vectors[:-1])]
        return Inbox.receive(
            vectors[-1:],
            messages,
            expected=torch.ones(1, len(senders), dtype=torch.bool, device=vectors.device),
            weight=weight,
            self_weight=wires.self_weight[asker][None],
        )
