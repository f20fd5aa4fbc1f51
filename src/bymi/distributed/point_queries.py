"""Questions that cross processes: points have travelled to those who are asked, and the answers travel back in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bymi.core.inbox import Inbox
from bymi.core.neighbourhood_reply import DEEDS, NeighbourhoodReply
from bymi.core.network import LONG, Answer, Received
from bymi.core.topic import Topic
from bymi.distributed.shard_columns import arcs_to

if TYPE_CHECKING:
    from bymi.distributed.sharded_run import ShardNetwork

_NUMBERS = 1 << 22  # in the answers of one topic that come to one shard in one turn; a rank has several times as many at work


class Told(NamedTuple):
    """What the nodes of one shard tell one asker: one vector a topic."""

    asker: int
    nodes: Tensor  # [q]
    vectors: Mapping[Topic | str, Tensor]  # [q, D] each


class PointQueries:
    """The questions of one shard and its part in answering those of all others. Every shard takes every turn.

    Points travel turn by turn, too: nowhere are more of them than are being answered.
    """

    def __init__(
        self,
        network: ShardNetwork,
        points: Tensor,
        answer: Answer,
        asks: Tensor,
        received: Received | None = None,
        deeds: tuple[Tensor, Tensor] | None = None,
        *,
        visits: bool = False,
    ) -> None:
        """`points` [B, D] are those of the nodes of this shard; `asks` [M] says who asks.

        `deeds`: of these nodes what others saw of each, and what it did [B, D] each. `visits`: nobody answers about a point.
        What nodes have sent comes as it is, and points stay where they are.
        """
        self._network, self._points, self._answer, self._received = network, points, answer, received
        self._deeds, self._visits = deeds, visits
        layout = network.router.lockstep.layout
        counts = 1 + network.router.whole.hears.sum(1)  # how many answer each asker, which is one of them itself
        numbers = int(counts[asks].max()) * points.shape[1] if bool(asks.any()) else 1
        self._alone = numbers >= LONG and points.device.type == "cpu" and not visits
        askers = [nodes[asks[nodes]].split(max(1, _NUMBERS // numbers)) for nodes in layout.shards]
        self._askers = [[turn for turn in turns if len(turn)] for turns in askers]
        self.turns_left = max(len(turns) for turns in self._askers)
        self._turn = 0

    def replies(self) -> Iterator[NeighbourhoodReply]:
        """What the nodes of this shard are told, in order of their numbers."""
        for _ in range(len(self._askers[self._network.shard])):
            yield from self.take_turn()

    def take_turn(self) -> Iterator[NeighbourhoodReply]:
        """Answer what others ask of this shard in this turn, and take what they answer. Talks at once, reads on demand."""
        turn, self._turn = self._turn, self._turn + 1
        self.turns_left -= 1
        asking = [self._asking(shard, turn) for shard in range(len(self._network.router.lockstep.layout.shards))]
        numbers = [some.tolist() for some in asking]
        questions = self._questions([asker for some in numbers for asker in some])
        mine = torch.searchsorted(self._network.nodes, asking[self._network.shard])
        points: dict[int, Tensor] = {}
        if not self._visits:
            points = self._network.meet(self._points[mine], lambda given: self._send_points(given, numbers, questions))
        answers = self._answers(questions, points)
        if self._deeds is not None:
            answers = [one._replace(vectors={**one.vectors, DEEDS: self._deeds_for(one)}) for one in answers]
        told: list[list[Told]] = self._network.meet(answers, lambda given: self._carry(given, numbers, questions))
        return map(self._read, told)

    def _asking(self, shard: int, turn: int) -> Tensor:
        turns = self._askers[shard]
        return turns[turn] if turn < len(turns) else self._network.nodes[:0]

    def _questions(self, asking: list[int]) -> dict[tuple[int, int], Tensor]:
        """Whom each of those asking asks in each shard, itself among them, by asker and shard: node numbers, upwards."""
        router = self._network.router
        layout = router.lockstep.layout
        row, node = arcs_to(router.whole, torch.tensor(asking, dtype=torch.int64, device=layout.home.device))
        found = {}
        for asker, some in zip(asking, node.split(torch.bincount(row, minlength=len(asking)).tolist()), strict=True):
            asked = torch.cat([some, some.new_tensor([asker])]).sort().values
            home = layout.home[asked]
            found.update({(asker, shard): asked[home == shard] for shard in range(len(layout.shards))})
        return found

    def _send_points(
        self, given: list[Tensor], asking: list[list[int]], questions: Mapping[tuple[int, int], Tensor]
    ) -> list[dict[int, Tensor]]:
        """The points of this turn that anybody of this rank is asked about, by asker."""
        lockstep = self._network.router.lockstep
        group, held = lockstep.group, lockstep.layout.held

        def crossing(home: int, to: int) -> list[int]:
            """Askers of one rank who ask anybody of another."""
            some = [asker for shard in held[home] for asker in asking[shard]]
            return [] if home == to else [asker for asker in some if any(len(questions[asker, shard]) for shard in held[to])]

        here = [asker for shard in held[group.rank] for asker in asking[shard]]
        rows = torch.cat(given)
        known = dict(zip(here, rows, strict=True))
        sent = [crossing(group.rank, rank) for rank in range(group.size)]
        coming = [crossing(rank, group.rank) for rank in range(group.size)]
        place = {asker: number for number, asker in enumerate(here)}
        picked = torch.tensor([place[asker] for some in sent for asker in some], dtype=torch.int64, device=rows.device)
        came = group.swap(rows[picked], [len(some) for some in sent], [len(some) for some in coming], "points")
        known.update(zip([asker for some in coming for asker in some], came if group.size > 1 else (), strict=True))
        return [known] * len(given)

    def _answers(self, questions: Mapping[tuple[int, int], Tensor], points: Mapping[int, Tensor]) -> list[Told]:
        """What the nodes of this shard answer, asker by asker."""
        shard = self._network.shard
        asked = {asker: nodes for (asker, where), nodes in questions.items() if where == shard and len(nodes)}
        if self._alone:  # one point for all who answer one question, without a copy for each
            told = []
            for asker, nodes in asked.items():
                found = self._answer(points[asker].expand(len(nodes), -1), nodes, nodes.new_full((len(nodes),), asker))
                told.append(Told(asker, nodes, dict(found.items())))
            return told
        if not asked:
            return []
        counts = [len(nodes) for nodes in asked.values()]
        many = torch.tensor(counts, device=self._points.device)
        askers = torch.tensor(list(asked), device=many.device).repeat_interleave(many)
        at = self._points[:0] if self._visits else torch.stack([points[asker] for asker in asked]).repeat_interleave(many, 0)
        answers = self._answer(at, torch.cat(list(asked.values())), askers)
        parts = {topic: vectors.split(counts) for topic, vectors in answers.items()}
        return [
            Told(asker, nodes, {topic: vectors[place] for topic, vectors in parts.items()})
            for place, (asker, nodes) in enumerate(asked.items())
        ]

    def _deeds_for(self, told: Told) -> Tensor:
        assert self._deeds is not None
        return own_or_sent(*self._deeds, self._network.nodes, told.nodes, torch.full_like(told.nodes, told.asker))

    def _carry(
        self, given: list[list[Told]], asking: list[list[int]], questions: Mapping[tuple[int, int], Tensor]
    ) -> list[list[list[Told]]]:
        """Answers of all shards of this rank to those who asked; for each of its shards what each of its askers is told by all.

        Rows go by asker, by shard that answers, by topic; those for askers of this rank stay where they are.
        """
        lockstep = self._network.router.lockstep
        layout, group = lockstep.layout, lockstep.group
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
        pairs = [pair for rank in others for pair in coming[rank]]
        vectors: dict[tuple[int, int], dict[Topic | str, Tensor]] = {pair: {} for pair in pairs}
        # Deeds are more precise than what they come with.
        batches: list[list[Topic | str]] = [[topic for topic in topics if topic != DEEDS]]
        for some in batches + [[DEEDS]] * (self._deeds is not None):
            counts, expected = (
                [len(some) * sum(len(questions[pair]) for pair in by_rank.get(rank, ())) for rank in range(group.size)]
                for by_rank in (going, coming)
            )
            sent = [made[pair].vectors[topic] for rank in others for pair in going[rank] for topic in some]
            blank = self._points[:0].to(torch.float64) if DEEDS in some else self._points[:0]
            came = group.swap(torch.cat(sent) if sent else blank, counts, expected, "answers")
            parts = iter(came.split([len(questions[pair]) for pair in pairs for _ in some]))
            for pair in pairs:
                vectors[pair].update({topic: next(parts) for topic in some})
        for asker, shard in pairs:
            made[asker, shard] = Told(asker, questions[asker, shard], vectors[asker, shard])
        everywhere = range(len(layout.shards))
        return [
            [[made[asker, shard] for shard in everywhere if (asker, shard) in made] for asker in asking[home]]
            for home in layout.held[group.rank]
        ]

    def _read(self, told: list[Told]) -> NeighbourhoodReply:
        """What one asker is told by all shards."""
        asker, network = told[0].asker, self._network
        receiver = int(torch.searchsorted(network.nodes, asker))
        columns = network.arcs[receiver].nonzero().flatten()  # in the order of their numbers
        deeds = partial(self._in_order, told, DEEDS) if self._deeds is not None else None
        return NeighbourhoodReply(receiver, columns, self._points[receiver], partial(self._inboxes, told, columns), deeds)

    def _inboxes(self, told: list[Told], columns: Tensor) -> tuple[Inbox, ...]:
        asker = told[0].asker
        nodes = torch.cat([part.nodes for part in told])
        nodes = nodes[self._order(nodes, asker)]
        weight = self._network.router.weight[asker, columns][None]
        topics = [topic for topic in told[0].vectors if isinstance(topic, Topic)]
        return Inbox.together([self._reply(self._in_order(told, topic), nodes, weight, asker, topic) for topic in topics])

    def _order(self, nodes: Tensor, asker: int) -> Tensor:
        """Those asked by number, as the columns are, and last the asker itself."""
        return torch.argsort(torch.where(nodes == asker, self._network.size, nodes))

    def _in_order(self, told: list[Told], topic: Topic | str) -> Tensor:
        """The vectors of one topic [J + 1, D]."""
        order = self._order(torch.cat([part.nodes for part in told]), told[0].asker)
        places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        example = told[0].vectors[topic]
        vectors = example.new_empty(len(order), example.shape[1])
        for part, at in zip(told, places.split([len(part.nodes) for part in told]), strict=True):
            vectors.index_copy_(0, at, part.vectors[topic])
        return vectors

    def _reply(self, vectors: Tensor, who: Tensor, weight: Tensor, asker: int, topic: Topic) -> Inbox:
        """The inbox of one receiver: answers of those asked, and its own in the last row."""
        # All answers to one question have come together here.
        vectors = vectors if self._received is None else self._received(vectors, who, asker, topic)
        return Inbox.receive(
            vectors[-1:],
            vectors[:-1],
            expected=torch.ones(1, len(vectors) - 1, dtype=torch.bool, device=vectors.device),
            weight=weight,
            self_weight=self._network.router.self_weight[asker][None],
        )


def own_or_sent(sent: Tensor, own: Tensor, held: Tensor, nodes: Tensor, askers: Tensor) -> Tensor:
    """What some nodes [q] of those held [B] have for each asker [q]: what they sent [B, D] or, to themselves, their own."""
    places, themselves = torch.searchsorted(held, nodes), (nodes == askers).nonzero().flatten()
    return sent.index_select(0, places).index_copy_(0, themselves, own.index_select(0, places[themselves]))
