"""Questions that cross processes: points have travelled to those who are asked, and the answers travel back in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bymi.engine.ears import arcs_to
from bymi.faces import Sent
from bymi.inbox import Inbox, Replies
from bymi.network import Answer

if TYPE_CHECKING:
    from bymi.engine.distributed import ShardNetwork

_NUMBERS = 1 << 25  # in the answers that come to one shard in one turn: 128 MB in float32

_Told = tuple[Tensor, Tensor, Tensor]  # vectors [Q, topics x D] that nodes [Q] answer askers [Q]: those, askers, nodes


class Inquiry:
    """The questions of one shard and its part in answering those of all others. Every shard takes every turn."""

    def __init__(self, network: ShardNetwork, step: int, points: Tensor, answer: Answer, asks: Tensor, dim: int) -> None:
        """`points` are those of the nodes `network.wires.points` of this shard; `asks` [M] says who asks."""
        self._network, self._step, self._points, self._answer = network, step, points, answer
        layout = network.wires.board.layout
        self._counts = 1 + network.wires.whole.hears.sum(1)  # [M] how many answer each asker, which is one of them itself
        size = max(1, _NUMBERS // (int(self._counts[asks].max()) * dim)) if bool(asks.any()) else 1
        askers = [nodes[asks[nodes]].split(size) for nodes in layout.shards]
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
        shard, questions = self._network.shard, self._questions(turn)
        here = self._network.wires.board.layout.home[questions[1]] == shard
        askers, nodes = questions[0][here], questions[1][here]
        answers: Mapping[str, Tensor] = {}
        if len(nodes):
            known = self._network.wires.points[shard]
            answers = self._answer(self._points[torch.searchsorted(known, askers)], nodes, askers)
        told = self._network.meet((answers, askers), lambda given: self._carry(given, *questions))
        return self._read(told, self._asking(shard, turn), list(answers))

    def _asking(self, shard: int, turn: int) -> Tensor:
        turns = self._askers[shard]
        return turns[turn] if turn < len(turns) else self._network.nodes[:0]

    def _questions(self, turn: int) -> tuple[Tensor, Tensor]:
        """Who asks [Q] whom [Q] in one turn, in all shards: by asker, then by the number of the node asked."""
        wires = self._network.wires
        asking = torch.cat([self._asking(shard, turn) for shard in range(len(wires.board.layout.shards))])
        row, node = arcs_to(wires.whole, asking)
        row, node = torch.cat([row, torch.arange(len(asking), device=row.device)]), torch.cat([node, asking])
        order = torch.argsort(row * wires.graph.size + node)
        return asking[row[order]], node[order]

    def _carry(self, given: list[tuple[Mapping[str, Tensor], Tensor]], askers: Tensor, nodes: Tensor) -> list[_Told]:
        """Answers of all shards of this rank to those who asked, and what comes to each shard from all."""
        board = self._network.wires.board
        layout, group = board.layout, board.group
        some = [torch.cat(list(answers.values()), 1) for answers, _ in given if answers]
        rows = torch.cat(some) if some else self._points.new_zeros(0, 1)
        to = layout.holder[torch.cat([who for _, who in given])]
        # Every rank sends what its shards answer one after the other.
        mine = layout.holder[askers] == group.rank
        order = torch.argsort(layout.home[nodes[mine]], stable=True)
        askers, nodes = askers[mine][order], nodes[mine][order]
        counts, coming = (torch.bincount(ranks, minlength=group.size).tolist() for ranks in (to, layout.holder[nodes]))
        came = group.swap(rows[torch.argsort(to, stable=True)], counts, coming, "answers")
        if board.count == 1:
            return [(came, askers, nodes)]
        parts = [layout.home[askers] == shard for shard in layout.held[group.rank]]
        return [(came[part], askers[part], nodes[part]) for part in parts]

    def _read(self, told: _Told, mine: Tensor, topics: list[str]) -> Iterator[Replies]:
        vectors, askers, nodes = told
        size, counts = self._network.size, self._counts[mine]
        # By asker; those asked by number, and last the asker itself.
        order = torch.argsort(askers * (size + 1) + torch.where(nodes == askers, size, nodes))
        receivers = torch.searchsorted(self._network.nodes, mine)
        columns = self._network.arcs[receivers].nonzero()[:, 1]  # in the same order: numbers go up along a row
        parts = zip(mine.tolist(), receivers.tolist(), order.split(counts.tolist()), strict=True)
        for (asker, receiver, places), some in zip(parts, columns.split((counts - 1).tolist()), strict=True):
            answers, who = vectors[places].chunk(len(topics), 1), nodes[places]
            weight = self._network.wires.weight[asker, some][None]
            inboxes = [self._reply(part, who, weight, asker, topic) for topic, part in zip(topics, answers, strict=True)]
            yield Replies(receiver, some, Inbox.together(inboxes))

    def _reply(self, vectors: Tensor, who: Tensor, weight: Tensor, asker: int, topic: str) -> Inbox:
        """The inbox of one receiver: answers of those asked, and its own in the last row."""
        wires, step, senders = self._network.wires, self._step, who[:-1]
        adversary = wires.adversary
        sent: Sent = {}
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
