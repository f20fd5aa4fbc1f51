"""What is on the wires of a graph, and which of it each shard held here hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.attacks import Adversary
from bymi.crowd import Crowd
from bymi.engine.board import Board
from bymi.engine.ears import Ear, Messages, ear_of, heard_by
from bymi.engine.layout import Routes
from bymi.engine.sliced import SlicedInbox
from bymi.engine.slices import Cut, Slices, usable
from bymi.engine.striped import striped
from bymi.engine.strips import Weave
from bymi.faces import Faces, ListedFaces, Sent
from bymi.graph import Graph
from bymi.inbox import Inbox
from bymi.lists import Lists
from bymi.sparse import SparseGraph
from bymi.topic import FIRST_HALF, PARAMETERS, SECOND_HALF, Topic
from bymi.vectors import norms

_Told = tuple[Messages, Tensor | None]
"""What a shard is told, and which of its nodes [B] send what they hold; None for all."""

LONG = 1 << 24  # numbers in the rows of all nodes, from which on these stay where they are if many would have to come
_FEW = 128  # coordinates of a row that always travels
_STAY = (PARAMETERS, FIRST_HALF, SECOND_HALF)
_MANY = 1.5  # rows that shards hear, for each node: with neighbours in one place they hear little more than their own
_SLICES = 3  # with two shards slices there and back are as many bytes as rows


class Wires:
    """One graph's arcs as seen by this rank. Messages also travel over arcs of the `whole` that the graph lacks."""

    def __init__(
        self,
        board: Board,
        graph: Graph | SparseGraph,
        adversary: Adversary | None,
        *,
        faces: Faces | ListedFaces | None = None,
        whole: Graph | SparseGraph | None = None,
    ) -> None:
        self.board, self.graph, self.adversary = board, graph, adversary
        self.by_slices = True  # where they are less to send; whoever keeps whole messages needs them anyway
        self.by_strips = False
        self.all_lists: Lists | None = None  # where rows go by strips, those of all nodes, shard by shard
        self.whole = graph if whole is None else whole
        self.faces = adversary.layout(graph) if adversary is not None and faces is None else faces
        layout = board.layout
        self.nodes = [layout.shards[shard] for shard in layout.held[board.group.rank]]
        self.everybody = torch.arange(graph.size, device=graph.hears.device)

    def over(self, graph: Graph | SparseGraph, *, whole: Graph | SparseGraph | None = None) -> Wires:
        wires = Wires(self.board, graph, self.adversary, faces=self.faces, whole=whole)
        wires.by_slices, wires.by_strips, wires.all_lists = self.by_slices, self.by_strips, self.all_lists
        return wires

    @cached_property
    def weight(self) -> Tensor:
        """Mixing weights of arcs, [M, M] or [M, n]: a graph of matrices makes them anew each time."""
        return self.graph.weight

    @cached_property
    def self_weight(self) -> Tensor:
        return self.graph.self_weight

    @cached_property
    def all_rows(self) -> Routes:
        """Every row to every rank."""
        layout = self.board.layout
        return Routes(layout, self.board.group, [self.everybody] * len(layout.shards))

    def gather(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """Rows of all nodes [M, ...] in their order, from those of the shards held here."""
        return self.all_rows.carry(torch.cat(list(parts)), name)[0]

    def mean_of_others(self, totals: Sequence[Tensor], name: str) -> Tensor | None:
        """The mean of what is not the adversary's own [D], from the `total` of each shard held here; None if there is nothing.

        Sums of shards, always in the same order: the bits do not depend on who holds which.
        """
        counts = [len(held) for held in self.board.layout.held]
        whole = self.board.group.collect(torch.stack(list(totals)), counts, f"{name} for those who lie").sum(0)
        return whole[:-1] / whole[-1] if whole[-1] > 0 else None

    def set_out(self, dim: int) -> None:
        """Decide how vectors of so many coordinates travel in all rounds to come: by the graph as it is now."""
        shards, whole = self.board.layout.shards, self.whole
        if not isinstance(whole, SparseGraph) or len(shards) == 1 or self._needs_all():
            return
        # With fewer coordinates than members of a neighbourhood there are rules that look at these themselves.
        long = dim > max(_FEW, 1 + whole.hears.shape[1]) and whole.size * dim >= LONG
        if long and sum(len(heard_by(whole, nodes)) for nodes in shards) > _MANY * whole.size:
            self.by_strips, self.all_lists = True, whole.lists.of(torch.cat(list(shards)))

    def _needs_all(self) -> bool:
        """Whether senders have to know what all others hold, or tell each receiver something else: then all rows are here."""
        adversary = self.adversary
        if adversary is None:
            return False
        return any(adversary.differs(topic) or (adversary.may_lie(topic) and adversary.sees == "all") for topic in _STAY)

    def stays(self, topic: Topic) -> bool:
        """Whether the rows of a topic stay with those who send them, in every round."""
        return self.by_strips and topic.part in {some.part for some in _STAY}

    def columns(self, topic: Topic) -> list[Tensor]:
        """Of each shard held here: of which of all columns of a topic it keeps a trail, in every round."""
        if self.stays(topic):
            return self.nodes
        split = self.faces is not None and self.adversary is not None and self.adversary.differs(topic)
        return [ear.columns for ear in (self._split_ears if split else self._ears)]

    def deliver(self, given: list[Mapping[Topic, Tensor]], step: int) -> list[tuple[Inbox, ...]]:
        """What each shard hears of the vectors that all of them send, by topic."""
        adversary = self.adversary
        topics = list(given[0])
        split = adversary is not None and self.faces is not None and any(map(adversary.differs, topics))
        true = not split and (adversary is None or not any(adversary.lies(topic, step) for topic in topics))
        by_topic = []
        for topic in topics:
            parts = [vectors[topic] for vectors in given]
            if self.stays(topic):
                by_topic.append(striped(self, parts, topic, step))
                continue
            sliced = self._sliced(parts) if true and topic == PARAMETERS else None
            by_topic.append(self._topic(parts, topic, step, split=split) if sliced is None else sliced)
        return [Inbox.together(inboxes) for inboxes in zip(*by_topic, strict=True)]

    def _sliced(self, parts: list[Tensor]) -> list[Inbox] | None:
        """Inboxes whose rows have not come, if that is less to send and everybody hears all neighbours."""
        cut = self._cut
        if cut is None or not cut.pays(parts[0]) or not usable(self.gather([norms(part) for part in parts], "lengths")):
            return None
        slices = Slices(cut, parts)
        return [
            SlicedInbox(
                own,
                ear.expected,
                ear.expected,
                ear.weight,
                ear.self_weight,
                ear.own_at,
                ear.senders,
                crowd=self.crowd(seat, ear.columns, self.graph.size),
                nodes=ear.nodes,
                slices=slices,
                seat=seat,
            )
            for seat, (ear, own) in enumerate(zip(self._ears, parts, strict=True))
        ]

    @cached_property
    def weave(self) -> Weave:
        assert self.all_lists is not None
        return Weave(self, self.all_lists)

    @cached_property
    def _cut(self) -> Cut | None:
        many = len(self.board.layout.shards) >= _SLICES
        return Cut(self) if self.by_slices and many and isinstance(self.whole, Graph) else None

    def _topic(self, parts: list[Tensor], topic: Topic, step: int, *, split: bool) -> list[Inbox]:
        ears = self._split_ears if split else self._ears
        told = self._told(parts, topic, step, split=split)
        total = self.graph.size + (len(self.faces.senders) if split and self.faces is not None else 0)
        return [
            replace(ear.receive(own, messages, true), crowd=self.crowd(place, ear.columns, total))
            for place, (ear, own, (messages, true)) in enumerate(zip(ears, parts, told, strict=True))
        ]

    def _told(self, parts: list[Tensor], topic: Topic, step: int, *, split: bool) -> list[_Told]:
        """What each shard held here is told. What a lie is made from decides which vectors have to be known here."""
        adversary = self.adversary
        if adversary is None or not (split or adversary.lies(topic, step)):
            return [(rows, None) for rows in self.needed.carry(torch.cat(parts), topic.stream_name())]
        if split or adversary.sees == "all":
            return self._told_by_all_seeing(adversary, parts, topic, step, split=split)
        rows = self.needed.carry(torch.cat(parts), topic.stream_name())
        told: list[_Told] = []
        for ear, (messages, true) in zip(self._ears, self.tampered(parts, topic, step, rows), strict=True):
            told.append((messages, None if true is None else true[ear.own_at]))
        return told

    def tampered(self, parts: list[Tensor], topic: Topic, step: int, rows: list[Tensor] | None = None) -> list[_Told]:
        """What is sent in place of `rows` [J, D], as each shard held here hears them, or of its own; which are as they were.

        For those who need not know all `parts`.
        """
        adversary, mean = self.adversary, None
        assert adversary is not None
        if adversary.sees == "mean":
            totals = [adversary.total(part, nodes) for part, nodes in zip(parts, self.nodes, strict=True)]
            mean = self.mean_of_others(totals, topic.stream_name())
        numbers = self.nodes if rows is None else [ear.columns for ear in self._ears]
        told = []
        for held, some in zip(parts if rows is None else rows, numbers, strict=True):
            speechless = adversary.sees == "mean" and mean is None
            told.append(_put_on(held, {} if speechless else adversary.tamper(held, some, topic, step, mean)))
        return told

    def crowd(self, seat: int, columns: Tensor, total: int, kept: Tensor | None = None) -> Crowd:
        """All receivers of a round, as one shard sees them."""
        return _Crowd(self, seat, columns, total, columns if kept is None else kept)

    def _told_by_all_seeing(
        self, adversary: Adversary, parts: list[Tensor], topic: Topic, step: int, *, split: bool
    ) -> list[_Told]:
        """The same of those who know what all others hold: their lie is the same wherever it is worked out."""
        held, size = self.gather(parts, topic.stream_name()), self.graph.size
        messages, true = _put_on(held, adversary.tamper(held, self.everybody, topic, step))
        told: list[_Told] = []
        for ear in self._split_ears if split else self._ears:
            heard = _chosen(messages, ear.columns[ear.columns < size])
            if split:
                assert self.faces is not None
                further = ear.columns[ear.columns >= size] - size
                shown = adversary.show(held, self.faces, self.graph, topic, step, further)
                both = isinstance(heard, Tensor) and isinstance(shown, Tensor)
                heard = torch.cat([heard, shown]) if both else [*heard, *shown]  # type: ignore[list-item]
            told.append((heard, None if true is None else true[ear.nodes]))
        return told

    @cached_property
    def needed(self) -> Routes:
        wanted = [heard_by(self.whole, nodes) for nodes in self.board.layout.shards]
        return Routes(self.board.layout, self.board.group, wanted)

    @cached_property
    def _ears(self) -> list[Ear]:
        return [ear_of(nodes, self.whole, self.weight, self.self_weight, None) for nodes in self.nodes]

    @cached_property
    def _split_ears(self) -> list[Ear]:
        return [ear_of(nodes, self.whole, self.weight, self.self_weight, self.faces) for nodes in self.nodes]


@dataclass(frozen=True, eq=False)
class _Crowd:
    """All receivers of a round, for whoever needs to look beyond those held here."""

    wires: Wires
    place: int
    columns: Tensor
    total: int
    kept: Tensor

    def agree(self, flag: bool) -> bool:
        board = self.wires.board
        verdict: bool = board.meet(self.place, flag, lambda flags: [board.group.agree(all(flags), "crowd")] * board.count)
        return verdict

    def gather(self, rows: Tensor) -> Tensor:
        board = self.wires.board
        whole: Tensor = board.meet(self.place, rows, lambda parts: [self.wires.gather(parts, "crowd")] * board.count)
        return whole


def _put_on(held: Tensor, forged: Sent) -> tuple[Messages, Tensor | None]:
    """Messages of senders that hold vectors [J, D], and who of them [J] sends what it holds; None for all."""
    if isinstance(forged, Tensor):
        return forged, (forged == held).all(1) if forged is not held else None
    if not forged:
        return held, None
    true = torch.ones(len(held), dtype=torch.bool, device=held.device)
    true[list(forged)] = False
    return [forged.get(row, vector) for row, vector in enumerate(held)], true


def _chosen(messages: Messages, columns: Tensor) -> Messages:
    if isinstance(messages, Tensor):
        return messages.index_select(0, columns)
    return [messages[column] for column in columns.tolist()]
