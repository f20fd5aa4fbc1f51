"""Questions that cross processes: points have travelled to those who are asked, and the answers travel back in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bymi.faces import Sent
from bymi.inbox import Inbox, Replies
from bymi.network import Answer

if TYPE_CHECKING:
    from bymi.engine.distributed import ShardNetwork

_NUMBERS = 1 << 25  # in the answers that come to one shard in one turn: 128 MB in float32


class Inquiry:
    """The questions of one shard and its part in answering those of all others. Every shard takes every turn."""

    def __init__(self, network: ShardNetwork, step: int, points: Tensor, answer: Answer, asks: Tensor, dim: int) -> None:
        """`points` are those of the nodes `network.wires.points` of this shard; `asks` [M] says who asks."""
        self._network, self._step, self._points, self._answer = network, step, points, answer
        wires = network.wires
        hears, layout = wires.whole.hears, wires.board.layout
        eye = torch.eye(len(hears), dtype=torch.bool, device=hears.device)
        self._asked = (hears | eye) & asks[:, None]  # who answers whom, each asker itself among them
        size = max(1, _NUMBERS // (int(self._asked.sum(1).max()) * dim)) if bool(asks.any()) else 1
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
        askers, nodes = self._questions(self._network.shard, turn)
        answers: Mapping[str, Tensor] = {}
        if len(nodes):
            known = self._network.wires.points[self._network.shard]
            answers = self._answer(self._points[torch.searchsorted(known, askers)], nodes, askers)
        mine = self._asking(self._network.shard, turn)
        told = self._network.meet((answers, askers), lambda given: self._carry(given, turn))
        return self._read(told, mine, list(answers))

    def _asking(self, shard: int, turn: int) -> Tensor:
        turns = self._askers[shard]
        return turns[turn] if turn < len(turns) else self._network.nodes[:0]

    def _questions(self, shard: int, turn: int) -> tuple[Tensor, Tensor]:
        """Who asks [Q] whom [Q] of a shard in one turn."""
        layout = self._network.wires.board.layout
        askers = torch.cat([self._asking(other, turn) for other in range(len(layout.shards))])
        nodes = layout.shards[shard]
        row, column = self._asked[askers][:, nodes].nonzero(as_tuple=True)
        return askers[row], nodes[column]

    def _carry(self, given: list[tuple[Mapping[str, Tensor], Tensor]], turn: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Answers of all shards of this rank to those who asked: (vectors [Q, topics x D], askers [Q], nodes [Q]) each."""
        board = self._network.wires.board
        layout, group = board.layout, board.group
        some = [torch.cat(list(answers.values()), 1) for answers, _ in given if answers]
        rows = torch.cat(some) if some else self._points.new_zeros(0, 1)
        to = layout.holder[torch.cat([askers for _, askers in given])]
        counts = [int((to == rank).sum()) for rank in range(group.size)]
        coming: list[int] = []
        who: list[Tensor] = []
        whom: list[Tensor] = []
        for rank in range(group.size):
            for shard in layout.held[rank]:
                askers, nodes = self._questions(shard, turn)
                here = layout.holder[askers] == group.rank
                who.append(askers[here])
                whom.append(nodes[here])
            coming.append(sum(len(part) for part in who) - sum(coming))
        came = group.swap(rows[torch.argsort(to, stable=True)], counts, coming, "answers")
        askers, nodes = torch.cat(who), torch.cat(whom)
        return [
            (came, askers, nodes) if board.count == 1 else _part(came, askers, nodes, self._asking(shard, turn))
            for shard in layout.held[group.rank]
        ]

    def _read(self, told: tuple[Tensor, Tensor, Tensor], mine: Tensor, topics: list[str]) -> Iterator[Replies]:
        vectors, askers, nodes = told
        size = len(self._asked)
        # By asker; those asked by number, and last the asker itself.
        order = torch.argsort(askers * (size + 1) + torch.where(nodes == askers, size, nodes))
        counts = self._asked[mine].sum(1).tolist()
        for asker, places in zip(mine.tolist(), order.split(counts), strict=True):
            parts = vectors[places].chunk(len(topics), 1)
            who = nodes[places]
            inboxes = [self._reply(part, who, asker, topic) for topic, part in zip(topics, parts, strict=True)]
            place = int(torch.searchsorted(self._network.nodes, asker))
            yield Replies(place, who[:-1], Inbox.together(inboxes))

    def _reply(self, vectors: Tensor, who: Tensor, asker: int, topic: str) -> Inbox:
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
        graph = wires.graph
        return Inbox.receive(
            vectors[-1:],
            messages,
            expected=torch.ones(1, len(senders), dtype=torch.bool, device=vectors.device),
            weight=(graph.mixing * graph.hears)[asker, senders][None],
            self_weight=graph.mixing[asker, asker][None],
        )


def _part(vectors: Tensor, askers: Tensor, nodes: Tensor, mine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of what came to this rank, what a shard asked for."""
    here = torch.isin(askers, mine)
    return vectors[here], askers[here], nodes[here]
