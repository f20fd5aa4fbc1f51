"""Rounds by slices: instead of whole rows to all who hear them, each shard gets one slice of the coordinates of all rows.

It mixes for all receivers, or finds medians, and what it finds goes back; products of rows are sums over slices. With P ranks
that is 2 / P of the bytes of rows on a dense graph. Slices are those of the shards, whoever holds these: every product has the
same shape and every sum the same order on any number of ranks, so the bits do not depend on it, nor does what is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bymi.core.graph import MatrixGraph
from bymi.core.linalg import VectorStack, from_middle, inner
from bymi.core.message_validity import MAX_NORM_RATIO, OVERFLOW
from bymi.core.neighbourhoods import Work, reduce_members

if TYPE_CHECKING:
    from bymi.distributed.router import Router


def usable(lengths: Tensor) -> bool:
    """Whether everybody can hear everybody, by the lengths of all rows; if not, each receiver has to look at the rows."""
    return bool((lengths.max() <= MAX_NORM_RATIO * lengths.min().clamp_min(1.0)) & (lengths.max() < OVERFLOW))


class DenseShardPlan:
    """Who has which slice of the rows of a graph's nodes, and what pays."""

    def __init__(self, router: Router) -> None:
        layout, hears = router.lockstep.layout, router.whole.hears
        self.router, self.group = router, router.lockstep.group
        self.shards, self.held = layout.shards, layout.held
        self.order = torch.cat(list(layout.shards))  # [M] nodes, shard by shard
        self.place = torch.argsort(self.order)  # [M] where each node stands there
        self.nodes = [sum(len(self.shards[shard]) for shard in some) for some in self.held]  # of each rank
        self.member = hears | torch.eye(len(hears), dtype=torch.bool, device=hears.device)
        self.sizes = self.member.sum(1).to("cpu")
        self.numbers = [nodes.to("cpu") for nodes in self.shards]  # counts are made where no accelerator has to be waited for
        self._crossing = sum(int(hears[nodes].any(0).index_fill(0, nodes, False).sum()) for nodes in self.shards)

    @property
    def products(self) -> int:
        """Numbers in a matrix of all pairs."""
        return self.member.numel()

    @property
    def weights(self) -> int:
        """Numbers in all weights of a round."""
        return int(self.sizes.sum())

    def pays(self, rows: Tensor, numbers: int = 0) -> bool:
        """Whether slices of such rows, there and back, and so many float64 to everybody are less than rows that cross."""
        row, others = rows.shape[1] * rows.element_size(), len(self.shards) - 1
        return 2 * len(self.order) * others / len(self.shards) * row + 8 * numbers * others < self._crossing * row

    def spans(self, dim: int) -> list[tuple[int, int]]:
        """From which coordinate to which each shard's slice goes."""
        count = len(self.shards)
        return [(shard * dim // count, (shard + 1) * dim // count) for shard in range(count)]

    def collect(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """One row of each shard of the network, in their order."""
        return self.group.collect(torch.stack(list(parts)), [len(some) for some in self.held], name)

    def by_shard(self, rows: Tensor) -> list[Tensor]:
        """Rows of all nodes held here as those of each shard."""
        return list(rows.split([len(nodes) for nodes in self.router.nodes]))


class DenseShards:
    """One round's rows. Whatever is collective here is worked out where all shards of a process meet."""

    def __init__(self, cut: DenseShardPlan, parts: Sequence[Tensor]) -> None:
        """`parts` are the rows of each shard held here."""
        self.cut, self._parts, self.dim = cut, parts, parts[0].shape[1]
        spans = cut.spans(self.dim)
        self._spans = [spans[shard] for shard in cut.held[cut.group.rank]]
        self._ranges = [(spans[some[0]][0], spans[some[-1]][1]) for some in cut.held]  # of each rank
        self._widths = [last - first for first, last in self._ranges]
        self.by_distances = cut.pays(parts[0], cut.weights + cut.products)
        self.by_products = cut.pays(parts[0], cut.weights + 2 * cut.products)
        self._by_weights = cut.pays(parts[0], cut.weights)

    @property
    def whole(self) -> bool:
        """Rows have come: there is nothing to gain from slices any more."""
        return "rows" in self.__dict__

    @cached_property
    def rows(self) -> list[Tensor]:
        """Whole rows, as each shard held here hears them."""
        return self.cut.router.needed.carry(torch.cat(list(self._parts)), "parameters")

    @cached_property
    def _slices(self) -> list[Tensor]:
        """Of each shard held here its slice of all rows [M, D / S], in order of nodes."""
        rows, (start, stop) = torch.cat(list(self._parts)), self._ranges[self.cut.group.rank]
        blocks = [rows[:, first:last] for first, last in self._ranges]
        came = torch.cat(self.cut.group.trade(blocks, [(count, stop - start) for count in self.cut.nodes], "parameters"))
        return [came[:, first - start : last - start].index_select(0, self.cut.place) for first, last in self._spans]

    def _receivers(self, given: Sequence[tuple[Tensor, bool]]) -> tuple[list[Tensor], Tensor]:
        """For whom to work: numbers of nodes of each shard of the network, and of which [M] a shard says more than that."""
        pairs = zip(given, self.cut.router.nodes, strict=True)
        marks = [torch.isin(nodes, who).to(torch.uint8) * (1 + more) for (who, more), nodes in pairs]
        kinds = self.cut.router.gather(marks, "weights").to("cpu")
        return [nodes[kinds[nodes] > 0] for nodes in self.cut.numbers], kinds > 1

    def _back(self, found: Sequence[Tensor], who: Sequence[Tensor]) -> list[Tensor]:
        """From what was found on slices for all receivers [n, D / S] to whole rows for those of each shard held here."""
        cut, here = self.cut, self.cut.group.rank
        counts = [sum(len(who[shard]) for shard in some) for some in cut.held]
        blocks = torch.cat(list(found), 1).split(counts)
        came = cut.group.trade(blocks, [(counts[here], width) for width in self._widths], "mixtures")
        return list(torch.cat(came, 1).split([len(who[shard]) for shard in cut.held[here]]))

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> Sequence[Tensor | None]:
        """Mixed rows for the receivers of each shard, from their numbers and weights [b, M], None for those of the graph.

        None where the weights would be more to send than rows.
        """
        cut = self.cut
        who, tells = self._receivers([(nodes, weight is not None) for nodes, weight in given])
        everybody = torch.cat(who)
        if not len(everybody):
            return [part[:0] for part in self._parts]
        graph = cut.router.graph
        assert isinstance(graph, MatrixGraph)  # lists are never cut
        weights = graph.mixing[everybody]
        if bool(tells.any()):
            if not self._by_weights:
                return [None] * len(given)
            # Only those of arcs, which all know: the others are zero.
            sent = [weights.new_zeros(0)] + [weight[cut.member[nodes]] for nodes, weight in given if weight is not None]
            counts = [sum(int(cut.sizes[who[shard][tells[who[shard]]]].sum()) for shard in some) for some in cut.held]
            values = cut.group.collect(torch.cat(sent), counts, "weights")
            own = everybody[tells[everybody]]
            weights[tells[everybody]] = torch.zeros_like(weights[: len(own)]).masked_scatter(cut.member[own], values)
        return self._back([weights.to(part.dtype) @ part for part in self._slices], who)

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, bool, Work]]) -> Sequence[Tensor | None]:
        """What is worked out on each coordinate alone, for receivers that have heard all their neighbours.

        None if some have not: others do not know which.
        """
        who, tells = self._receivers([(nodes, not complete) for nodes, complete, _ in given])
        everybody = torch.cat(who)
        if bool(tells.any()):
            return [None] * len(given)
        if not len(everybody):
            return [part[:0] for part in self._parts]
        work, member = given[0][2], self.cut.member[everybody]
        return self._back([reduce_members(VectorStack(part), member, work) for part in self._slices], who)

    @cached_property
    def _origin(self) -> Tensor:
        """Which row stands nearest to the coordinate-wise median, as for `Rows`."""
        parts = zip(self._slices, self._spans, strict=True)
        away = self.cut.collect([from_middle(part, self.dim, first) for part, (first, _) in parts], "products")
        return reduce(torch.add, away.unbind()).argmin()

    @cached_property
    def _products(self) -> Tensor:
        """Inner products about the origin of the nodes held here with all [B, M], float64: sums over slices, in order."""
        cut, size = self.cut, len(self.cut.order)
        parts = [inner(part, part, part[self._origin]).index_select(0, cut.order) for part in self._slices]
        blocks = torch.stack(parts, 1).split(cut.nodes)
        shapes = [(cut.nodes[cut.group.rank], len(some), size) for some in cut.held]
        return reduce(torch.add, torch.cat(cut.group.trade(blocks, shapes, "products"), 1).unbind(1))

    @cached_property
    def _squares(self) -> Tensor:
        """Squared lengths about the origin of all rows [M]."""
        pairs = zip(self.cut.by_shard(self._products), self.cut.router.nodes, strict=True)
        return self.cut.router.gather([rows.gather(1, nodes[:, None]).squeeze(1) for rows, nodes in pairs], "products")

    @cached_property
    def _gram(self) -> Tensor:
        return self.cut.router.gather(self.cut.by_shard(self._products), "products")

    def distances(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Squared distances of the receivers of each shard, given by their numbers, to all rows [b, M]."""
        square, found = self._squares, []
        for nodes, held, rows in zip(given, self.cut.router.nodes, self.cut.by_shard(self._products), strict=True):
            products = rows.index_select(0, torch.searchsorted(held, nodes))
            found.append((square[nodes][:, None] + square).sub_(products, alpha=2).clamp_min_(0.0))
        return found

    def gram(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Products of those rows that each shard names [J, J]."""
        return [self._gram.index_select(0, columns).index_select(1, columns) for columns in given]
