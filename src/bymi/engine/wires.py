"""What is on the wires of a graph, and which of it each shard held here hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bymi.attacks import Adversary
from bymi.engine.board import Board
from bymi.engine.layout import Routes
from bymi.engine.sliced import SlicedInbox
from bymi.engine.slices import Cut, Slices, usable
from bymi.faces import Faces
from bymi.graph import Graph
from bymi.inbox import Inbox, fold
from bymi.vectors import norms

_SLICES = 3  # with two shards slices there and back are as many bytes as rows
Messages = Tensor | list[Tensor | None]


@dataclass(frozen=True, eq=False)
class _Ear:
    """The columns of a shard's inboxes, and who of its nodes hears which."""

    nodes: Tensor  # [B]
    columns: Tensor  # [J] among all columns of a round: nodes first, then further messages
    senders: Tensor  # [J]
    expected: Tensor  # [B, J] bool
    weight: Tensor  # [B, J] float64
    self_weight: Tensor  # [B]
    own_at: Tensor  # [B]


class Wires:
    """One graph's arcs as seen by this rank. Messages also travel over arcs of the `whole` that the graph lacks."""

    def __init__(
        self, board: Board, graph: Graph, adversary: Adversary | None, *, faces: Faces | None = None, whole: Graph | None = None
    ) -> None:
        self.board, self.graph, self.adversary = board, graph, adversary
        self.by_slices = True  # where they are less to send; whoever keeps whole messages needs them anyway
        self.whole = graph if whole is None else whole
        found = adversary.layout(graph) if adversary is not None and faces is None else faces
        assert found is None or isinstance(found, Faces)
        self.faces = found
        layout = board.layout
        self.nodes = [layout.shards[shard] for shard in layout.held[board.group.rank]]
        self.everybody = torch.arange(graph.size, device=graph.hears.device)

    def over(self, graph: Graph, *, whole: Graph | None = None) -> Wires:
        wires = Wires(self.board, graph, self.adversary, faces=self.faces, whole=whole)
        wires.by_slices = self.by_slices
        return wires

    @cached_property
    def all_rows(self) -> Routes:
        """Every row to every rank."""
        layout = self.board.layout
        return Routes(layout, self.board.group, [self.everybody] * len(layout.shards))

    def gather(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """Rows of all nodes [M, ...] in their order, from those of the shards held here."""
        return self.all_rows.carry(torch.cat(list(parts)), name)[0]

    def collect(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """One row of each shard of the network, in their order, from those held here."""
        counts = [len(held) for held in self.board.layout.held]
        return self.board.group.collect(torch.stack(list(parts)), counts, f"{name}s for those who lie")

    def columns(self, topic: str) -> list[Tensor]:
        """Of each shard held here: which of all columns of a topic its inboxes have, in every round."""
        split = self.faces is not None and self.adversary is not None and self.adversary.differs(topic)
        return [ear.columns for ear in (self._split_ears if split else self._ears)]

    @cached_property
    def points(self) -> list[Tensor]:
        """Of each shard of the network: itself and those who hear any of its nodes, whose points it is sent."""
        hears, shards = self.whole.hears, self.board.layout.shards
        return [_members(hears[:, nodes].any(1), nodes) for nodes in shards]

    @cached_property
    def to_points(self) -> Routes:
        return Routes(self.board.layout, self.board.group, self.points)

    def deliver(self, given: list[Mapping[str, Tensor]], step: int) -> list[tuple[Inbox, ...]]:
        """What each shard hears of the vectors that all of them send, by topic."""
        adversary = self.adversary
        topics = list(given[0])
        split = adversary is not None and self.faces is not None and any(map(adversary.differs, topics))
        true = not split and (adversary is None or not any(adversary.lies(topic, step) for topic in topics))
        by_topic = []
        for topic in topics:
            parts = [vectors[topic] for vectors in given]
            sliced = self._sliced(parts) if true and topic == "parameters" else None
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
                crowd=_Crowd(self, seat, ear.columns, self.graph.size),
                nodes=ear.nodes,
                slices=slices,
                seat=seat,
            )
            for seat, (ear, own) in enumerate(zip(self._ears, parts, strict=True))
        ]

    @cached_property
    def _cut(self) -> Cut | None:
        many = len(self.board.layout.shards) >= _SLICES
        return Cut(self) if self.by_slices and many and isinstance(self.whole, Graph) else None

    def _topic(self, parts: list[Tensor], topic: str, step: int, *, split: bool) -> list[Inbox]:
        ears = self._split_ears if split else self._ears
        messages: Sequence[Messages]
        true = None
        if not split and (self.adversary is None or not self.adversary.lies(topic, step)):
            messages = self.needed.carry(torch.cat(parts), topic)
        else:
            # Who lies knows what all others hold, and its lie is the same wherever it is worked out.
            sent, true = self._sent(self.gather(parts, topic), topic, step, split=split)
            messages = [_chosen(sent, ear.columns) for ear in ears]
        total = self.graph.size + (len(self.faces.senders) if split and self.faces is not None else 0)
        return [
            _receive(ear, own, heard, true, _Crowd(self, place, ear.columns, total))
            for place, (ear, own, heard) in enumerate(zip(ears, parts, messages, strict=True))
        ]

    def _sent(self, held: Tensor, topic: str, step: int, *, split: bool) -> tuple[Messages, Tensor | None]:
        """All messages of a round, and which nodes [M] send what they hold; None for all."""
        assert self.adversary is not None
        forged = self.adversary.tamper(held, self.everybody, topic, step)
        messages: Messages = held
        true = None
        if isinstance(forged, Tensor):
            messages = forged
            true = (forged == held).all(1) if forged is not held else None
        elif forged:
            messages = [forged.get(row, vector) for row, vector in enumerate(held)]
            true = torch.ones_like(self.everybody, dtype=torch.bool)
            true[list(forged)] = False
        if split:
            assert self.faces is not None
            shown = self.adversary.show(held, self.faces, self.graph, topic, step)
            both = isinstance(messages, Tensor) and isinstance(shown, Tensor)
            messages = torch.cat([messages, shown]) if both else [*messages, *shown]  # type: ignore[list-item]
        return messages, true

    @cached_property
    def needed(self) -> Routes:
        hears = self.whole.hears
        wanted = [_members(hears[nodes].any(0), nodes) for nodes in self.board.layout.shards]
        return Routes(self.board.layout, self.board.group, wanted)

    @cached_property
    def _weight(self) -> Tensor:
        return self.graph.mixing * self.graph.hears

    @cached_property
    def _ears(self) -> list[_Ear]:
        ears = []
        for nodes in self.nodes:
            arcs = self.whole.hears[nodes]
            columns = _members(arcs.any(0), nodes)
            ears.append(self._ear(nodes, columns, columns, arcs[:, columns], self._weight[nodes][:, columns]))
        return ears

    @cached_property
    def _split_ears(self) -> list[_Ear]:
        """With the further messages as columns: each arc is in exactly one of its sender's."""
        assert self.faces is not None
        senders, audience = self.faces.senders, self.faces.audience
        first = ~fold(audience, senders, self.graph.size)
        ears = []
        for nodes in self.nodes:
            arcs, weight = self.whole.hears[nodes], self._weight[nodes]
            columns = _members(arcs.any(0), nodes)
            extra = audience[nodes] & arcs[:, senders]
            more = extra.any(0).nonzero().flatten()
            expected = torch.cat([(arcs & first[nodes])[:, columns], extra[:, more]], 1)
            weights = torch.cat([(weight * first[nodes])[:, columns], (weight[:, senders] * extra)[:, more]], 1)
            places = torch.cat([columns, self.graph.size + more])
            ears.append(self._ear(nodes, places, torch.cat([columns, senders[more]]), expected, weights))
        return ears

    def _ear(self, nodes: Tensor, columns: Tensor, senders: Tensor, expected: Tensor, weight: Tensor) -> _Ear:
        own_at = torch.searchsorted(columns, nodes)
        return _Ear(nodes, columns, senders, expected, weight, self.graph.mixing.diagonal()[nodes], own_at)


@dataclass(frozen=True, eq=False)
class _Crowd:
    """All receivers of a round, for whoever needs to look beyond those held here."""

    wires: Wires
    place: int
    columns: Tensor
    total: int

    def agree(self, flag: bool) -> bool:
        board = self.wires.board
        verdict: bool = board.meet(self.place, flag, lambda flags: [board.group.agree(all(flags), "crowd")] * board.count)
        return verdict

    def gather(self, rows: Tensor) -> Tensor:
        board = self.wires.board
        whole: Tensor = board.meet(self.place, rows, lambda parts: [self.wires.gather(parts, "crowd")] * board.count)
        return whole


def _receive(ear: _Ear, own: Tensor, messages: Messages, true: Tensor | None, crowd: _Crowd) -> Inbox:
    """`true` [M] says who sent what it holds; None for all."""
    inbox = Inbox.receive(
        own,
        messages,
        expected=ear.expected,
        weight=ear.weight,
        self_weight=ear.self_weight,
        own_at=ear.own_at if true is None else torch.where(true[ear.nodes], ear.own_at, -1),
        senders=ear.senders,
    )
    return replace(inbox, crowd=crowd)


def _chosen(messages: Messages, columns: Tensor) -> Messages:
    if isinstance(messages, Tensor):
        return messages.index_select(0, columns)
    return [messages[column] for column in columns.tolist()]


def _members(mask: Tensor, nodes: Tensor) -> Tensor:
    """Numbers of the nodes in a mask [M], and of these nodes themselves, upwards."""
    return mask.index_fill(0, nodes, True).nonzero().flatten()
