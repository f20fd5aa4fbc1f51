"""Rows of a large graph by strips: each shard has some coordinates of all rows, and works on them for all receivers.

So no process has more than its share of the rows, however many of them its nodes hear. Strips are those of shards, whoever
holds these, and sums over them go in their order: the bits do not depend on the number of processes. Everything here is
collective: it is worked out where all shards of a process meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bymi.core.linalg import VectorStack, from_middle, inner_of_sets
from bymi.core.list_graph import ListGraph
from bymi.core.neighbour_lists import NeighbourLists, apart
from bymi.core.neighbourhoods import Work

if TYPE_CHECKING:
    from bymi.distributed.router import Router

_NUMBERS = 1 << 23  # of all rows that come to a process at a time
_TOGETHER = 4  # shards that may share one
_SETS = 256  # receivers of a shard whose products are found at a time


class ListShardPlan:
    """Who has which strip of the rows of a graph's nodes, and in which order they come."""

    def __init__(self, router: Router, all_lists: NeighbourLists) -> None:
        """`all_lists`: those of all nodes, shard by shard. Places do not move when arcs are cut."""
        assert isinstance(router.whole, ListGraph)
        layout = router.lockstep.layout
        self.router, self.group, self.whole = router, router.lockstep.group, router.whole
        self.shards, self.held = layout.shards, layout.held
        self.ranks = range(self.group.size)
        self.nodes = [layout.nodes(rank) for rank in self.ranks]
        self.all_lists = all_lists

    @cached_property
    def places(self) -> tuple[list[NeighbourLists], list[Tensor]]:
        """Of each shard held here the lists of its nodes, and which of the places are arcs [B, n]."""
        nodes = self.router.nodes
        lists = [self.whole.lists.of(some) for some in nodes]
        arcs = [self.whole.hears[some] for some in nodes]
        # One tensor for both where nothing was cut, as in a graph.
        whole = self.whole.hears is self.whole.lists.there
        return lists, [some.there for some in lists] if whole else arcs

    def spans(self, dim: int) -> list[tuple[int, int]]:
        """From which coordinate to which each shard's strip goes."""
        count = len(self.shards)
        return [(shard * dim // count, (shard + 1) * dim // count) for shard in range(count)]


class ListShards:
    """One topic's rows of a round: `sent` [B, D] by each shard held here, blank where nobody can use them.

    `own` [K, D]: what those of its nodes hold, given by `whose` [M], who sent something else.
    """

    def __init__(
        self, list_shard_plan: ListShardPlan, sent: Sequence[Tensor], own: Sequence[Tensor], whose: Tensor, usable: Tensor
    ) -> None:
        self.list_shard_plan, self.sent, self._own, self._usable = list_shard_plan, sent, own, usable
        self.size, self.dim = len(whose), sent[0].shape[1]
        self.own_row = torch.where(whose, self.size - 1 + torch.cumsum(whose, 0), list_shard_plan.router.everybody)  # [M]
        self._count = self.size + int(whose.sum())
        self._place = [torch.cat([nodes, self.own_row[nodes[whose[nodes]]]]) for nodes in list_shard_plan.nodes]
        self._all_spans = list_shard_plan.spans(self.dim)
        self._spans = [self._all_spans[shard] for shard in list_shard_plan.held[list_shard_plan.group.rank]]

    @property
    def _rank(self) -> int:
        return self.list_shard_plan.group.rank

    def _turns(self) -> Iterator[list[slice]]:
        """Some coordinates of each shard's at a time, so that what is on its way stays little: the same, whoever holds them."""
        size = max(1, _NUMBERS // (self._count * min(len(self._all_spans), _TOGETHER)))
        for start in range(0, max(last - first for first, last in self._all_spans), size):
            yield [slice(min(first + start, last), min(first + start + size, last)) for first, last in self._all_spans]

    def _of(self, rank: int, parts: Sequence[slice]) -> list[slice]:
        """Those of the shards of a rank."""
        return [parts[shard] for shard in self.list_shard_plan.held[rank]]

    def _columns(self, part: slice) -> Tensor:
        """Some coordinates of all rows, of those that this rank has."""
        start = self._spans[0][0]
        return self._table[:, part.start - start : part.stop - start]

    @cached_property
    def _table(self) -> Tensor:
        """The coordinates of this rank of all rows, then of own vectors that were not sent [M + K, D / P]."""
        list_shard_plan, start = self.list_shard_plan, self._spans[0][0]
        rows = torch.cat([*self.sent, *self._own]) if len(self.sent) > 1 or len(self._own[0]) else self.sent[0]
        if list_shard_plan.group.size == 1:
            return torch.empty_like(rows).index_copy_(0, self._place[0], rows)
        table = rows.new_empty(self._count, self._spans[-1][1] - start)
        for parts in self._turns():
            # Those of a rank's shards do not lie side by side, so they go one after the other.
            sent = [torch.cat([rows[:, part].flatten() for part in self._of(rank, parts)]) for rank in list_shard_plan.ranks]
            mine = self._of(self._rank, parts)
            widths = [part.stop - part.start for part in mine]
            came = list_shard_plan.group.trade(sent, [(len(place) * sum(widths),) for place in self._place], "parameters")
            for place, block in zip(self._place, came, strict=True):
                for part, one in zip(mine, block.split([len(place) * width for width in widths]), strict=True):
                    into = table[:, part.start - start : part.stop - start]
                    into.index_copy_(0, place, one.view(len(place), part.stop - part.start))
        return table

    @property
    def _strips(self) -> list[Tensor]:
        """Of each shard held here."""
        return [self._columns(slice(*span)) for span in self._spans]

    def _back(self, who: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Whole rows for the receivers of each shard held here, from what `work` makes of some coordinates of all rows.

        It gives those of all receivers, `who` of each shard, in their order.
        """
        list_shard_plan, here = self.list_shard_plan, self._rank
        counts = [sum(len(who[shard]) for shard in some) for some in list_shard_plan.held]
        found = self._table.new_empty(counts[here], self.dim)
        for parts in self._turns():
            made = [self._made(part, sum(counts), work).split(counts) for part in self._of(here, parts)]
            sent = [torch.cat([blocks[rank].flatten() for blocks in made]) for rank in list_shard_plan.ranks]
            widths = [[part.stop - part.start for part in self._of(rank, parts)] for rank in list_shard_plan.ranks]
            came = list_shard_plan.group.trade(sent, [(counts[here] * sum(some),) for some in widths], "mixtures")
            for rank, block in enumerate(came):
                pieces = block.split([counts[here] * width for width in widths[rank]])
                for part, piece in zip(self._of(rank, parts), pieces, strict=True):
                    found[:, part] = piece.view(counts[here], part.stop - part.start)
        return list(found.split([len(who[shard]) for shard in list_shard_plan.held[here]]))

    def _made(self, part: slice, count: int, work: Callable[[Tensor], Tensor]) -> Tensor:
        """With more shards than coordinates some have none."""
        return work(self._columns(part)) if part.stop > part.start else self._table.new_empty(count, 0)

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """Weighted sums of messages for the receivers of each shard, by number, from weights [b, n], None for the graph's."""
        list_shard_plan, router = self.list_shard_plan, self.list_shard_plan.router
        marks, weights = [], []
        for (nodes, weight), held in zip(given, router.nodes, strict=True):
            places = torch.searchsorted(held, nodes)
            mark = torch.zeros(len(held), dtype=torch.uint8, device=held.device)
            marks.append(mark.index_fill(0, places, 1 if weight is None else 2))
            usual = router.weight[held]
            weights.append(usual if weight is None else usual.index_copy(0, places, weight))
        kinds = router.gather(marks, "weights")
        who = [nodes[kinds[nodes] > 0] for nodes in list_shard_plan.shards]
        everybody = torch.cat(who)
        if not len(everybody):
            return [part[:0] for part in self.sent]
        used = router.gather(weights, "weights") if bool((kinds > 1).any()) else router.weight
        lists = list_shard_plan.all_lists if len(everybody) == self.size else list_shard_plan.whole.lists.of(everybody)
        some = used[everybody]
        return self._back(who, lambda part: lists.total(some, part))

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, Work]]) -> list[Tensor]:
        """What is worked out on each coordinate alone, for all receivers, of which each shard says whom they heard [B, n]."""
        list_shard_plan, work = self.list_shard_plan, given[0][1]
        valid = list_shard_plan.router.gather([heard for heard, _ in given], "weights")
        everybody = torch.cat(list(list_shard_plan.shards))
        at = self._sets(everybody)
        valid = torch.nn.functional.pad(valid[everybody], (0, 1), value=True)
        return self._back(list_shard_plan.shards, lambda part: work(VectorStack(part), at, valid))

    def _sets(self, nodes: Tensor) -> Tensor:
        """Which rows some receivers have before them, their own last [b, n + 1]."""
        return torch.cat([self.list_shard_plan.whole.lists.at[nodes], self.own_row[nodes][:, None]], 1)

    def distances(self) -> list[Tensor]:
        """Squared distances of the messages at each place to the own vectors, of each shard held here [B, n]."""
        list_shard_plan, lists = self.list_shard_plan, self.list_shard_plan.all_lists
        there = lists.there.split([len(nodes) for nodes in list_shard_plan.nodes])
        counts = [int(places.sum()) for places in there]
        receivers, numbers = lists.flat
        own = self.own_row[torch.cat(list_shard_plan.nodes)[receivers]]
        pairs = zip(own.split(counts), numbers.split(counts), strict=True)
        blocks = [torch.stack([apart(strip, one, strip, other) for strip in self._strips]) for one, other in pairs]
        mine = there[self._rank]
        found = self._sum(blocks, [(len(some), counts[self._rank]) for some in list_shard_plan.held])
        output = torch.zeros(mine.shape, dtype=torch.float64, device=found.device).masked_scatter_(mine, found)
        return list(output.split([len(nodes) for nodes in list_shard_plan.router.nodes]))

    def _sum(self, blocks: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """What all strips together say about the nodes held here, from what those here say about the nodes of each rank."""
        return reduce(torch.add, torch.cat(self.list_shard_plan.group.trade(blocks, shapes, "products")).unbind())

    @cached_property
    def _origin(self) -> Tensor:
        """Which row stands nearest to the coordinate-wise median, as for `Rows`."""
        usable = self._usable if bool(self._usable.any()) else torch.ones_like(self._usable)
        some = usable.nonzero().flatten()
        pairs = zip(self._strips, self._spans, strict=True)
        away = torch.stack([from_middle(strip[some], self.dim, first) for strip, (first, _) in pairs])
        counts = [len(held) for held in self.list_shard_plan.held]
        return some[reduce(torch.add, self.list_shard_plan.group.collect(away, counts, "products").unbind()).argmin()]

    def among(self) -> list[Tensor]:
        """Products of the rows that each receiver has before it, its own last, of each shard held here [B, n + 1, n + 1]."""
        list_shard_plan, found, size = self.list_shard_plan, [], 1 + self.list_shard_plan.whole.hears.shape[1]
        step = max(1, min(_SETS, _NUMBERS // (len(list_shard_plan.shards) * size**2)))
        for start in range(0, max(len(nodes) for nodes in list_shard_plan.shards), step):
            # Shard by shard: how a product is summed up depends on how many there are.
            some = [nodes[start : start + step] for nodes in list_shard_plan.shards]
            made = [[self._products(strip, nodes) for strip in self._strips] for nodes in some]
            blocks = [
                torch.stack([torch.cat(parts) for parts in zip(*(made[shard] for shard in held), strict=True)])
                for held in list_shard_plan.held
            ]
            counts = [len(some[shard]) for shard in list_shard_plan.held[self._rank]]
            found.append(
                self._sum(blocks, [(len(held), sum(counts), size, size) for held in list_shard_plan.held]).split(counts)
            )
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    def _products(self, strip: Tensor, nodes: Tensor) -> Tensor:
        at = self._sets(nodes)
        return inner_of_sets(strip, at, strip, at, strip[self._origin])
