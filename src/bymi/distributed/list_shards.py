"""Coordinate shards of a round on a list graph: each shard holds some coordinates of all rows and works for all receivers.

No process holds more than its share of the rows, however many its nodes receive. Strips of coordinates belong to shards, not to
ranks, and sums over them go in shard order, so the bits do not depend on the number of ranks. Every public method is
collective: it runs inside `Lockstep.meet`, on all ranks.
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

_NUMBERS = 1 << 23  # upper bound on the numbers that a process receives at a time
_TOGETHER = 4  # shards that may share a process
_SETS = 256  # receivers per shard whose products are computed at a time


class ListShardPlan:
    """Which shard holds which strip of coordinates, and the order in which rows arrive."""

    def __init__(self, router: Router, all_lists: NeighbourLists) -> None:
        """`all_lists`: neighbour lists of all nodes, shard by shard. List positions do not move when arcs are pruned."""
        assert isinstance(router.whole, ListGraph)
        layout = router.lockstep.layout
        self.router, self.group, self.whole = router, router.lockstep.group, router.whole
        self.shards, self.held = layout.shards, layout.held
        self.ranks = range(self.group.size)
        self.nodes = [layout.nodes(rank) for rank in self.ranks]
        self.all_lists = all_lists

    @cached_property
    def places(self) -> tuple[list[NeighbourLists], list[Tensor]]:
        """Per shard of this rank: the neighbour lists of its nodes, and which list positions are arcs [B, n]."""
        nodes = self.router.nodes
        lists = [self.whole.lists.of(block) for block in nodes]
        arcs = [self.whole.hears[block] for block in nodes]
        # Keep one tensor for both where nothing was pruned, as in the graph.
        whole = self.whole.hears is self.whole.lists.there
        return lists, [block.there for block in lists] if whole else arcs

    def spans(self, dim: int) -> list[tuple[int, int]]:
        """First and last (exclusive) coordinate of each shard's strip."""
        count = len(self.shards)
        return [(shard * dim // count, (shard + 1) * dim // count) for shard in range(count)]


class ListShards:
    """The rows of one topic in a round: `sent` [B, D] per shard of this rank, zero where no receiver may accept them.

    `own` [K, D]: own vectors of the nodes in the mask `whose` [M], which sent something else.
    """

    def __init__(
        self, list_shard_plan: ListShardPlan, sent: Sequence[Tensor], own: Sequence[Tensor], whose: Tensor, acceptable: Tensor
    ) -> None:
        self.list_shard_plan, self.sent, self._own, self._acceptable = list_shard_plan, sent, own, acceptable
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
        """Yield a few coordinates per shard at a time, which bounds the memory in transit; the same on any number of ranks."""
        size = max(1, _NUMBERS // (self._count * min(len(self._all_spans), _TOGETHER)))
        for start in range(0, max(last - first for first, last in self._all_spans), size):
            yield [slice(min(first + start, last), min(first + start + size, last)) for first, last in self._all_spans]

    def _of(self, rank: int, parts: Sequence[slice]) -> list[slice]:
        """The entries of `parts` that belong to the shards of a rank."""
        return [parts[shard] for shard in self.list_shard_plan.held[rank]]

    def _columns(self, part: slice) -> Tensor:
        """Some of this rank's coordinates, of all rows."""
        start = self._spans[0][0]
        return self._table[:, part.start - start : part.stop - start]

    @cached_property
    def _table(self) -> Tensor:
        """This rank's coordinates of all rows, then of own vectors that were not sent [M + K, D / P]. Collective."""
        list_shard_plan, start = self.list_shard_plan, self._spans[0][0]
        rows = torch.cat([*self.sent, *self._own]) if len(self.sent) > 1 or len(self._own[0]) else self.sent[0]
        if list_shard_plan.group.size == 1:
            return torch.empty_like(rows).index_copy_(0, self._place[0], rows)
        table = rows.new_empty(self._count, self._spans[-1][1] - start)
        for parts in self._turns():
            # The strips of a rank's shards are not contiguous, so they are sent one after the other.
            sent = [torch.cat([rows[:, part].flatten() for part in self._of(rank, parts)]) for rank in list_shard_plan.ranks]
            mine = self._of(self._rank, parts)
            widths = [part.stop - part.start for part in mine]
            received = list_shard_plan.group.trade(sent, [(len(place) * sum(widths),) for place in self._place], "parameters")
            for place, block in zip(self._place, received, strict=True):
                for part, one in zip(mine, block.split([len(place) * width for width in widths]), strict=True):
                    into = table[:, part.start - start : part.stop - start]
                    into.index_copy_(0, place, one.view(len(place), part.stop - part.start))
        return table

    @property
    def _strips(self) -> list[Tensor]:
        """One strip per shard of this rank."""
        return [self._columns(slice(*span)) for span in self._spans]

    def _back(self, receivers: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Whole rows for the receivers of each shard of this rank. Collective.

        `work` maps some coordinates of all rows to those of all receivers; `receivers`: node numbers per shard, in that order.
        """
        list_shard_plan, rank_here = self.list_shard_plan, self._rank
        counts = [sum(len(receivers[shard]) for shard in held) for held in list_shard_plan.held]
        rows = self._table.new_empty(counts[rank_here], self.dim)
        for parts in self._turns():
            results = [self._made(part, sum(counts), work).split(counts) for part in self._of(rank_here, parts)]
            sent = [torch.cat([blocks[rank].flatten() for blocks in results]) for rank in list_shard_plan.ranks]
            widths = [[part.stop - part.start for part in self._of(rank, parts)] for rank in list_shard_plan.ranks]
            received = list_shard_plan.group.trade(sent, [(counts[rank_here] * sum(held),) for held in widths], "mixtures")
            for rank, block in enumerate(received):
                pieces = block.split([counts[rank_here] * width for width in widths[rank]])
                for part, piece in zip(self._of(rank, parts), pieces, strict=True):
                    rows[:, part] = piece.view(counts[rank_here], part.stop - part.start)
        return list(rows.split([len(receivers[shard]) for shard in list_shard_plan.held[rank_here]]))

    def _made(self, part: slice, count: int, work: Callable[[Tensor], Tensor]) -> Tensor:
        """`work` on some coordinates; with more shards than coordinates some strips are empty."""
        return work(self._columns(part)) if part.stop > part.start else self._table.new_empty(count, 0)

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """Weighted sums of messages for the receivers of each shard: (node numbers, weights [b, n] or None for the graph's)."""
        list_shard_plan, router = self.list_shard_plan, self.list_shard_plan.router
        marks, weights = [], []
        for (nodes, weight), held in zip(given, router.nodes, strict=True):
            places = torch.searchsorted(held, nodes)
            mark = torch.zeros(len(held), dtype=torch.uint8, device=held.device)
            marks.append(mark.index_fill(0, places, 1 if weight is None else 2))
            usual = router.weight[held]
            weights.append(usual if weight is None else usual.index_copy(0, places, weight))
        kinds = router.gather(marks, "weights")
        by_shard = [nodes[kinds[nodes] > 0] for nodes in list_shard_plan.shards]
        receivers = torch.cat(by_shard)
        if not len(receivers):
            return [part[:0] for part in self.sent]
        used = router.gather(weights, "weights") if bool((kinds > 1).any()) else router.weight
        lists = list_shard_plan.all_lists if len(receivers) == self.size else list_shard_plan.whole.lists.of(receivers)
        chosen = used[receivers]
        return self._back(by_shard, lambda part: lists.total(chosen, part))

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, Work]]) -> list[Tensor]:
        """Results of a coordinate-wise reduction for all receivers, from masks [B, n] of accepted messages per shard."""
        list_shard_plan, work = self.list_shard_plan, given[0][1]
        valid = list_shard_plan.router.gather([heard for heard, _ in given], "weights")
        all_nodes = torch.cat(list(list_shard_plan.shards))
        members = self._sets(all_nodes)
        valid = torch.nn.functional.pad(valid[all_nodes], (0, 1), value=True)
        return self._back(list_shard_plan.shards, lambda part: work(VectorStack(part), members, valid))

    def _sets(self, nodes: Tensor) -> Tensor:
        """Row indices [b, n + 1] of each receiver's neighbourhood, its own row last."""
        return torch.cat([self.list_shard_plan.whole.lists.at[nodes], self.own_row[nodes][:, None]], 1)

    def distances(self) -> list[Tensor]:
        """Squared distances [B, n] of each message to the receiver's own vector, per shard of this rank."""
        list_shard_plan, lists = self.list_shard_plan, self.list_shard_plan.all_lists
        masks = lists.there.split([len(nodes) for nodes in list_shard_plan.nodes])
        counts = [int(places.sum()) for places in masks]
        receivers, numbers = lists.flat
        own = self.own_row[torch.cat(list_shard_plan.nodes)[receivers]]
        pairs = zip(own.split(counts), numbers.split(counts), strict=True)
        blocks = [torch.stack([apart(strip, one, strip, other) for strip in self._strips]) for one, other in pairs]
        own_mask = masks[self._rank]
        sums = self._sum(blocks, [(len(held), counts[self._rank]) for held in list_shard_plan.held])
        output = torch.zeros(own_mask.shape, dtype=torch.float64, device=sums.device).masked_scatter_(own_mask, sums)
        return list(output.split([len(nodes) for nodes in list_shard_plan.router.nodes]))

    def _sum(self, blocks: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Sum over all strips, for the nodes of this rank, from blocks that this rank computed for each rank."""
        return reduce(torch.add, torch.cat(self.list_shard_plan.group.trade(blocks, shapes, "products")).unbind())

    @cached_property
    def _origin(self) -> Tensor:
        """Index of the row nearest to the coordinate-wise median, as in `VectorStack`."""
        acceptable = self._acceptable if bool(self._acceptable.any()) else torch.ones_like(self._acceptable)
        candidates = acceptable.nonzero().flatten()
        pairs = zip(self._strips, self._spans, strict=True)
        away = torch.stack([from_middle(strip[candidates], self.dim, first) for strip, (first, _) in pairs])
        counts = [len(held) for held in self.list_shard_plan.held]
        return candidates[reduce(torch.add, self.list_shard_plan.group.collect(away, counts, "products").unbind()).argmin()]

    def among(self) -> list[Tensor]:
        """Inner products [B, n + 1, n + 1] within each receiver's neighbourhood, its own row last, per shard of this rank."""
        list_shard_plan, products, size = self.list_shard_plan, [], 1 + self.list_shard_plan.whole.hears.shape[1]
        step = max(1, min(_SETS, _NUMBERS // (len(list_shard_plan.shards) * size**2)))
        for start in range(0, max(len(nodes) for nodes in list_shard_plan.shards), step):
            # Shard by shard: the order of sums inside a product depends on the batch size.
            batch = [nodes[start : start + step] for nodes in list_shard_plan.shards]
            partial = [[self._products(strip, nodes) for strip in self._strips] for nodes in batch]
            blocks = [
                torch.stack([torch.cat(parts) for parts in zip(*(partial[shard] for shard in held), strict=True)])
                for held in list_shard_plan.held
            ]
            counts = [len(batch[shard]) for shard in list_shard_plan.held[self._rank]]
            products.append(
                self._sum(blocks, [(len(held), sum(counts), size, size) for held in list_shard_plan.held]).split(counts)
            )
        return [torch.cat(parts) for parts in zip(*products, strict=True)]

    def _products(self, strip: Tensor, nodes: Tensor) -> Tensor:
        members = self._sets(nodes)
        return inner_of_sets(strip, members, strip, members, strip[self._origin])
