"""Coordinate shards of a dense round: each shard receives one slice of the coordinates of all rows, in place of whole rows.

A shard mixes (or reduces) its coordinates for all receivers and sends the results back; inner products are sums over slices.
With P ranks this takes 2 / P of the bytes of whole rows on a dense graph. Slices belong to shards, not to ranks: every product
has the same shape and every sum the same order on any number of ranks, so the bits do not depend on it.
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


def acceptable(lengths: Tensor) -> bool:
    """Whether every receiver may accept every message, from the norms [M] of all rows; if not, receivers must check."""
    return bool((lengths.max() <= MAX_NORM_RATIO * lengths.min().clamp_min(1.0)) & (lengths.max() < OVERFLOW))


class DenseShardPlan:
    """Which shard holds which slice of all rows, and when slices cost less traffic than whole rows."""

    def __init__(self, router: Router) -> None:
        layout, hears = router.lockstep.layout, router.whole.hears
        self.router, self.group = router, router.lockstep.group
        self.shards, self.held = layout.shards, layout.held
        self.order = torch.cat(list(layout.shards))  # [M] node numbers, shard by shard
        self.place = torch.argsort(self.order)  # [M] position of each node in `order`
        self.nodes = [sum(len(self.shards[shard]) for shard in held) for held in self.held]  # per rank
        self.member = hears | torch.eye(len(hears), dtype=torch.bool, device=hears.device)
        self.sizes = self.member.sum(1).to("cpu")
        self.numbers = [nodes.to("cpu") for nodes in self.shards]  # on the CPU: counting must not wait for an accelerator
        self._crossing = sum(int(hears[nodes].any(0).index_fill(0, nodes, False).sum()) for nodes in self.shards)

    @property
    def products(self) -> int:
        """Number of entries in the matrix of all pairs."""
        return self.member.numel()

    @property
    def weights(self) -> int:
        """Number of mixing weights in a round."""
        return int(self.sizes.sum())

    def pays(self, rows: Tensor, numbers: int = 0) -> bool:
        """Whether slices of `rows` (out and back) plus `numbers` float64 to all shards are less traffic than whole rows."""
        row, others = rows.shape[1] * rows.element_size(), len(self.shards) - 1
        return 2 * len(self.order) * others / len(self.shards) * row + 8 * numbers * others < self._crossing * row

    def spans(self, dim: int) -> list[tuple[int, int]]:
        """First and last (exclusive) coordinate of each shard's slice."""
        count = len(self.shards)
        return [(shard * dim // count, (shard + 1) * dim // count) for shard in range(count)]

    def collect(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """One row per shard of the whole network, in shard order. Collective: all ranks must call it."""
        return self.group.collect(torch.stack(list(parts)), [len(held) for held in self.held], name)

    def by_shard(self, rows: Tensor) -> list[Tensor]:
        """Rows of all nodes held by this rank, split by shard."""
        return list(rows.split([len(nodes) for nodes in self.router.nodes]))


class DenseShards:
    """The rows of one round, sharded by coordinate.

    Collective: mix, reduce_coordinates, distances, gram and rows run inside `Lockstep.meet`, once per process, on all ranks.
    """

    def __init__(self, cut: DenseShardPlan, parts: Sequence[Tensor]) -> None:
        """`parts`: rows [B, D] of each shard held by this rank."""
        self.cut, self._parts, self.dim = cut, parts, parts[0].shape[1]
        spans = cut.spans(self.dim)
        self._spans = [spans[shard] for shard in cut.held[cut.group.rank]]
        self._ranges = [(spans[held[0]][0], spans[held[-1]][1]) for held in cut.held]  # per rank
        self._widths = [last - first for first, last in self._ranges]
        self.by_distances = cut.pays(parts[0], cut.weights + cut.products)
        self.by_products = cut.pays(parts[0], cut.weights + 2 * cut.products)
        self._by_weights = cut.pays(parts[0], cut.weights)

    @property
    def whole(self) -> bool:
        """Whether whole rows have been fetched already; slices then save nothing."""
        return "rows" in self.__dict__

    @cached_property
    def rows(self) -> list[Tensor]:
        """Whole rows [J, D] received by each shard of this rank. Collective."""
        return self.cut.router.needed.carry(torch.cat(list(self._parts)), "parameters")

    @cached_property
    def _slices(self) -> list[Tensor]:
        """Slice of all rows [M, D / S] per shard of this rank, in node order. Collective."""
        rows, (start, stop) = torch.cat(list(self._parts)), self._ranges[self.cut.group.rank]
        blocks = [rows[:, first:last] for first, last in self._ranges]
        received = torch.cat(self.cut.group.trade(blocks, [(count, stop - start) for count in self.cut.nodes], "parameters"))
        return [received[:, first - start : last - start].index_select(0, self.cut.place) for first, last in self._spans]

    def _receivers(self, given: Sequence[tuple[Tensor, bool]]) -> tuple[list[Tensor], Tensor]:
        """Receivers per shard of the whole network (node numbers), and a mask [M] of those marked in `given`. Collective."""
        pairs = zip(given, self.cut.router.nodes, strict=True)
        marks = [torch.isin(nodes, receivers).to(torch.uint8) * (1 + more) for (receivers, more), nodes in pairs]
        kinds = self.cut.router.gather(marks, "weights").to("cpu")
        return [nodes[kinds[nodes] > 0] for nodes in self.cut.numbers], kinds > 1

    def _back(self, results: Sequence[Tensor], receivers: Sequence[Tensor]) -> list[Tensor]:
        """Whole rows per shard of this rank, from results on slices [n, D / S] for all receivers. Collective."""
        cut, rank = self.cut, self.cut.group.rank
        counts = [sum(len(receivers[shard]) for shard in held) for held in cut.held]
        blocks = torch.cat(list(results), 1).split(counts)
        received = cut.group.trade(blocks, [(counts[rank], width) for width in self._widths], "mixtures")
        return list(torch.cat(received, 1).split([len(receivers[shard]) for shard in cut.held[rank]]))

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> Sequence[Tensor | None]:
        """Mixed rows for the receivers of each shard, given as (node numbers, weights [b, M] or None for the graph's weights).

        Returns None per shard if sending the weights would cost more than whole rows.
        """
        cut = self.cut
        by_shard, marked = self._receivers([(nodes, weight is not None) for nodes, weight in given])
        receivers = torch.cat(by_shard)
        if not len(receivers):
            return [part[:0] for part in self._parts]
        graph = cut.router.graph
        assert isinstance(graph, MatrixGraph)  # list graphs use list_shards
        weights = graph.mixing[receivers]
        if bool(marked.any()):
            if not self._by_weights:
                return [None] * len(given)
            # Only weights on arcs, which all shards know; the others are zero.
            sent = [weights.new_zeros(0)] + [weight[cut.member[nodes]] for nodes, weight in given if weight is not None]
            counts = [
                sum(int(cut.sizes[by_shard[shard][marked[by_shard[shard]]]].sum()) for shard in held) for held in cut.held
            ]
            values = cut.group.collect(torch.cat(sent), counts, "weights")
            own = receivers[marked[receivers]]
            weights[marked[receivers]] = torch.zeros_like(weights[: len(own)]).masked_scatter(cut.member[own], values)
        return self._back([weights.to(part.dtype) @ part for part in self._slices], by_shard)

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, bool, Work]]) -> Sequence[Tensor | None]:
        """Results of a coordinate-wise reduction, for receivers that accepted all their neighbours' messages.

        Returns None per shard if some receiver did not: the other shards do not know which message is missing.
        """
        by_shard, marked = self._receivers([(nodes, not complete) for nodes, complete, _ in given])
        receivers = torch.cat(by_shard)
        if bool(marked.any()):
            return [None] * len(given)
        if not len(receivers):
            return [part[:0] for part in self._parts]
        work, member = given[0][2], self.cut.member[receivers]
        return self._back(
            [reduce_members(VectorStack(part), member, work, receivers.to(part.device)) for part in self._slices], by_shard
        )

    @cached_property
    def _origin(self) -> Tensor:
        """Index of the row nearest to the coordinate-wise median, as in `VectorStack`."""
        parts = zip(self._slices, self._spans, strict=True)
        away = self.cut.collect([from_middle(part, self.dim, first) for part, (first, _) in parts], "products")
        return reduce(torch.add, away.unbind()).argmin()

    @cached_property
    def _products(self) -> Tensor:
        """Inner products [B, M] of this rank's nodes with all nodes about the origin, float64: sums over slices, in shard
        order.
        """
        cut, size = self.cut, len(self.cut.order)
        parts = [inner(part, part, part[self._origin]).index_select(0, cut.order) for part in self._slices]
        blocks = torch.stack(parts, 1).split(cut.nodes)
        shapes = [(cut.nodes[cut.group.rank], len(held), size) for held in cut.held]
        return reduce(torch.add, torch.cat(cut.group.trade(blocks, shapes, "products"), 1).unbind(1))

    @cached_property
    def _squares(self) -> Tensor:
        """Squared norms [M] of all rows about the origin."""
        pairs = zip(self.cut.by_shard(self._products), self.cut.router.nodes, strict=True)
        return self.cut.router.gather([rows.gather(1, nodes[:, None]).squeeze(1) for rows, nodes in pairs], "products")

    @cached_property
    def _gram(self) -> Tensor:
        return self.cut.router.gather(self.cut.by_shard(self._products), "products")

    def distances(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Squared distances [b, M] from the receivers of each shard, given as node numbers, to all rows."""
        square, distances = self._squares, []
        for nodes, held, rows in zip(given, self.cut.router.nodes, self.cut.by_shard(self._products), strict=True):
            products = rows.index_select(0, torch.searchsorted(held, nodes))
            distances.append((square[nodes][:, None] + square).sub_(products, alpha=2).clamp_min_(0.0))
        return distances

    def gram(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Inner products [J, J] of the rows whose node numbers each shard gives."""
        return [self._gram.index_select(0, columns).index_select(1, columns) for columns in given]
