"""Point queries between shards: points travel to the nodes that are asked, and their answers travel back, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bymi.core.network import Answer, NeighbourhoodReply, Received, received_vectors
from bymi.core.performance_thresholds import LIMITS
from bymi.core.topic import Topic

if TYPE_CHECKING:
    from bymi.distributed.sharded_run import ShardNetwork


HISTORY = "history"
"""Key of the update history among the vectors by topic that a node hands over; the adversary cannot alter it."""


class Told(NamedTuple):
    """What the nodes of one shard tell one asker: one vector per topic."""

    asker: int
    nodes: Tensor  # [q]
    vectors: dict[Topic | str, Tensor]  # [q, D] each


class PointQueries:
    """The queries of one shard, and its part in answering those of all others.

    Collective: every shard takes every turn. Points travel turn by turn, too, so that only those being answered are in memory.
    """

    def __init__(
        self,
        network: ShardNetwork,
        points: Tensor,
        answer: Answer,
        asks: Tensor,
        received: Received | None = None,
        history: tuple[Tensor, Tensor] | None = None,
        *,
        visits: bool = False,
    ) -> None:
        """`points` [B, D]: one per node of this shard; `asks` [M]: mask of the nodes that ask.

        `history`: update history of these nodes, observed and own [B, D] each. `visits`: there are no points; nodes hand over
        what they have sent.
        """
        self._network, self._points, self._answer, self._received = network, points, answer, received
        self._history, self._visits = history, visits
        layout = network.router.lockstep.layout
        counts = 1 + network.router.whole.hears.sum(1)  # nodes that answer each asker, the asker included
        numbers = int(counts[asks].max()) * points.shape[1] if bool(asks.any()) else 1
        self._alone = numbers >= LIMITS.replies_alone and points.device.type == "cpu" and not visits
        askers = [nodes[asks[nodes]].split(max(1, LIMITS.answers // numbers)) for nodes in layout.shards]
        self._askers = [[turn for turn in turns if len(turn)] for turns in askers]
        self.turns_left = max(len(turns) for turns in self._askers)
        self._turn = 0

    def replies(self) -> Iterator[NeighbourhoodReply]:
        """Yield what each asker of this shard is told, in order of node numbers."""
        for _ in range(len(self._askers[self._network.shard])):
            yield from self.take_turn()

    def take_turn(self) -> Iterator[NeighbourhoodReply]:
        """Answer queries to this shard for one turn, and receive replies to its own (built lazily). Collective."""
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
        if self._history is not None:
            for one in answers:
                askers = torch.full_like(one.nodes, one.asker)
                one.vectors[HISTORY] = own_or_sent(*self._history, self._network.nodes, one.nodes, askers)
        told: list[list[Told]] = self._network.meet(answers, lambda given: self._carry(given, numbers, questions))
        return map(self._read, told)

    def _asking(self, shard: int, turn: int) -> Tensor:
        turns = self._askers[shard]
        return turns[turn] if turn < len(turns) else self._network.nodes[:0]

    def _questions(self, asking: list[int]) -> dict[tuple[int, int], Tensor]:
        """Node numbers asked, ascending and including the asker, by (asker, shard)."""
        router = self._network.router
        layout = router.lockstep.layout
        row, node = router.whole.neighbours(torch.tensor(asking, dtype=torch.int64, device=layout.home.device))
        by_pair = {}
        for asker, neighbours in zip(asking, node.split(torch.bincount(row, minlength=len(asking)).tolist()), strict=True):
            asked = torch.cat([neighbours, neighbours.new_tensor([asker])]).sort().values
            home = layout.home[asked]
            by_pair.update({(asker, shard): asked[home == shard] for shard in range(len(layout.shards))})
        return by_pair

    def _send_points(
        self, given: list[Tensor], asking: list[list[int]], questions: Mapping[tuple[int, int], Tensor]
    ) -> list[dict[int, Tensor]]:
        """The points of this turn about which nodes of this rank are asked, by asker. Collective."""
        lockstep = self._network.router.lockstep
        group, held = lockstep.group, lockstep.layout.held

        def crossing(home: int, to: int) -> list[int]:
            """Askers of one rank that ask a node of another."""
            some = [asker for shard in held[home] for asker in asking[shard]]
            return [] if home == to else [asker for asker in some if any(len(questions[asker, shard]) for shard in held[to])]

        askers = [asker for shard in held[group.rank] for asker in asking[shard]]
        rows = torch.cat(given)
        known = dict(zip(askers, rows, strict=True))
        sent = [crossing(group.rank, rank) for rank in range(group.size)]
        coming = [crossing(rank, group.rank) for rank in range(group.size)]
        place = {asker: number for number, asker in enumerate(askers)}
        picked = torch.tensor([place[asker] for some in sent for asker in some], dtype=torch.int64, device=rows.device)
        received = group.swap(rows[picked], [len(some) for some in sent], [len(some) for some in coming], "points")
        known.update(zip([asker for some in coming for asker in some], received if group.size > 1 else (), strict=True))
        return [known] * len(given)

    def _answers(self, questions: Mapping[tuple[int, int], Tensor], points: Mapping[int, Tensor]) -> list[Told]:
        """The answers of this shard's nodes, one entry per asker."""
        shard = self._network.shard
        asked = {asker: nodes for (asker, where), nodes in questions.items() if where == shard and len(nodes)}
        if self._alone:  # one point, expanded for all nodes that answer about it, without copies
            told = []
            for asker, nodes in asked.items():
                answers = self._answer(points[asker].expand(len(nodes), -1), nodes, nodes.new_full((len(nodes),), asker))
                told.append(Told(asker, nodes, dict(answers.items())))
            return told
        if not asked:
            return []
        counts = [len(nodes) for nodes in asked.values()]
        many = torch.tensor(counts, device=self._points.device)
        askers = torch.tensor(list(asked), device=many.device).repeat_interleave(many)
        at_points = (
            self._points[:0] if self._visits else torch.stack([points[asker] for asker in asked]).repeat_interleave(many, 0)
        )
        answers = self._answer(at_points, torch.cat(list(asked.values())), askers)
        parts = {topic: vectors.split(counts) for topic, vectors in answers.items()}
        return [
            Told(asker, nodes, {topic: vectors[place] for topic, vectors in parts.items()})
            for place, (asker, nodes) in enumerate(asked.items())
        ]

    def _carry(
        self, given: list[list[Told]], asking: list[list[int]], questions: Mapping[tuple[int, int], Tensor]
    ) -> list[list[list[Told]]]:
        """What all shards tell each asker of this rank, by shard and asker. Collective.

        Rows are ordered by asker, answering shard, topic; those for askers of this rank are not sent.
        """
        lockstep = self._network.router.lockstep
        layout, group = lockstep.layout, lockstep.group
        made = {
            (told.asker, shard): told for shard, batch in zip(layout.held[group.rank], given, strict=True) for told in batch
        }
        topics = next((list(told.vectors) for told in made.values()), [])
        others = [rank for rank in range(group.size) if rank != group.rank]
        # Per other rank: (asker there, shard here) and (asker here, shard there).
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
        # The update history has another dtype (float64) than the answers.
        batches: list[list[Topic | str]] = [[topic for topic in topics if topic != HISTORY]]
        for batch in batches + [[HISTORY]] * (self._history is not None):
            counts, expected = (
                [len(batch) * sum(len(questions[pair]) for pair in by_rank.get(rank, ())) for rank in range(group.size)]
                for by_rank in (going, coming)
            )
            sent = [made[pair].vectors[topic] for rank in others for pair in going[rank] for topic in batch]
            blank = self._history[0][:0] if HISTORY in batch and self._history is not None else self._points[:0]
            received = group.swap(torch.cat(sent) if sent else blank, counts, expected, "answers")
            parts = iter(received.split([len(questions[pair]) for pair in pairs for _ in batch]))
            for pair in pairs:
                vectors[pair].update({topic: next(parts) for topic in batch})
        for asker, shard in pairs:
            made[asker, shard] = Told(asker, questions[asker, shard], vectors[asker, shard])
        everywhere = range(len(layout.shards))
        return [
            [[made[asker, shard] for shard in everywhere if (asker, shard) in made] for asker in asking[home]]
            for home in layout.held[group.rank]
        ]

    def _read(self, told: list[Told]) -> NeighbourhoodReply:
        """The reply to one asker, from all shards; vectors are put in order when it is read."""
        asker, network, graph = told[0].asker, self._network, self._network.graph
        receiver = int(torch.searchsorted(network.nodes, asker))
        columns = network.arcs[receiver].nonzero().flatten()  # in ascending order of node numbers
        nodes = torch.cat([part.nodes for part in told])
        order = torch.argsort(torch.where(nodes == asker, network.size, nodes))  # as the columns are, and the asker last

        def ordered(topic: Topic | str) -> Tensor:
            """The vectors [J + 1, D] of one topic, in that order."""
            places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
            output = told[0].vectors[topic].new_empty(len(order), told[0].vectors[topic].shape[1])
            for part, rows in zip(told, places.split([len(part.nodes) for part in told]), strict=True):
                output.index_copy_(0, rows, part.vectors[topic])
            return output

        def vectors() -> Mapping[Topic, Tensor]:
            # This is where all answers to one query are together.
            replies = {topic: ordered(topic) for topic in told[0].vectors if isinstance(topic, Topic)}
            return received_vectors(replies, nodes[order], asker, self._received)

        def weights() -> tuple[Tensor, Tensor]:
            return graph.weight[asker, columns], graph.self_weight[asker]

        history = partial(ordered, HISTORY) if self._history is not None else None
        return NeighbourhoodReply(receiver, columns, self._points[receiver], vectors, weights, history)


def own_or_sent(sent: Tensor, own: Tensor, held: Tensor, nodes: Tensor, askers: Tensor) -> Tensor:
    """Vectors [q, D] of `nodes` [q], among those `held` [B], for each asker [q]: as sent [B, D], their own to themselves."""
    places, themselves = torch.searchsorted(held, nodes), (nodes == askers).nonzero().flatten()
    return sent.index_select(0, places).index_copy_(0, themselves, own.index_select(0, places[themselves]))
