"""A dense inbox sharded by coordinate: rules use it as any other, and it computes products and mixtures on slices.

A shard mixes (or reduces) its coordinates for all receivers and sends the results back; inner products are sums over slices.
With P ranks this takes 2 / P of the bytes of whole rows on a dense graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bymi.core.dense_inbox import DenseInbox
from bymi.core.graph import MatrixGraph
from bymi.core.inbox import Mixture
from bymi.core.linalg import VectorStack, inner
from bymi.core.message_validity import MAX_NORM_RATIO, OVERFLOW
from bymi.core.neighbourhoods import Work, reduce_members
from bymi.distributed.coordinate_shards import CoordinateShards, once

if TYPE_CHECKING:
    from bymi.distributed.router import Router


def acceptable(lengths: Tensor) -> bool:
    """Whether every receiver may accept every message, from the norms [M] of all rows; if not, receivers must check."""
    return bool((lengths.max() <= MAX_NORM_RATIO * lengths.min().clamp_min(1.0)) & (lengths.max() < OVERFLOW))


class DenseShardPlan:
    """What all rounds on a graph have in common: the order of nodes, and when slices cost less traffic than whole rows."""

    def __init__(self, router: Router) -> None:
        layout, hears = router.lockstep.layout, router.whole.hears
        self.router, self._shards = router, len(layout.shards)
        self.order = torch.cat(list(layout.shards))  # [M] node numbers, shard by shard
        self.place = torch.argsort(self.order)  # [M] position of each node in `order`
        self.nodes = [sum(len(layout.shards[shard]) for shard in held) for held in layout.held]  # per rank
        self.member = hears | torch.eye(len(hears), dtype=torch.bool, device=hears.device)
        self.sizes = self.member.sum(1).to("cpu")
        self.weights, self.products = int(self.sizes.sum()), self.member.numel()  # numbers of weights, and of all pairs
        self._crossing = sum(int(hears[nodes].any(0).index_fill(0, nodes, False).sum()) for nodes in layout.shards)

    def pays(self, rows: Tensor, numbers: int = 0) -> bool:
        """Whether slices of `rows` (out and back) plus `numbers` float64 to all shards are less traffic than whole rows."""
        row, others = rows.shape[1] * rows.element_size(), self._shards - 1
        return 2 * len(self.order) * others / self._shards * row + 8 * numbers * others < self._crossing * row


class DenseShards(CoordinateShards):
    """The rows of one round on a matrix graph, sharded by coordinate."""

    def __init__(self, plan: DenseShardPlan, parts: Sequence[Tensor]) -> None:
        """`parts`: rows [B, D] of each shard held by this rank."""
        super().__init__(plan.router, parts[0].shape[1])
        self.plan, self._parts = plan, parts
        self._ranges = [(self.all_spans[held[0]][0], self.all_spans[held[-1]][1]) for held in self.held]  # per rank
        self.by_distances = plan.pays(parts[0], plan.weights + plan.products)
        self.by_products = plan.pays(parts[0], plan.weights + 2 * plan.products)
        self._by_weights = plan.pays(parts[0], plan.weights)

    @property
    def whole(self) -> bool:
        """Whether whole rows have been fetched already; slices then save nothing."""
        return "rows" in self.__dict__

    @cached_property
    def rows(self) -> list[Tensor]:
        """Whole rows [J, D] received by each shard of this rank. Collective."""
        return self.router.needed.carry(torch.cat(list(self._parts)), "parameters")

    @cached_property
    def slices(self) -> list[Tensor]:
        rows, (start, stop) = torch.cat(list(self._parts)), self._ranges[self.group.rank]
        blocks = [rows[:, first:last] for first, last in self._ranges]
        received = torch.cat(self.group.trade(blocks, [(count, stop - start) for count in self.plan.nodes], "parameters"))
        return [received[:, first - start : last - start].index_select(0, self.plan.place) for first, last in self.spans]

    def _back(self, results: Sequence[Tensor], receivers: Sequence[Tensor]) -> list[Tensor]:
        """Whole rows per shard of this rank, from results on slices [n, D / S] for all receivers. Collective."""
        counts = [sum(len(receivers[shard]) for shard in held) for held in self.held]
        blocks = torch.cat(list(results), 1).split(counts)
        shapes = [(counts[self.group.rank], stop - start) for start, stop in self._ranges]
        received = self.group.trade(blocks, shapes, "mixtures")
        return list(torch.cat(received, 1).split([len(receivers[shard]) for shard in self.held_here]))

    def mix(self, given: Sequence[tuple[Tensor, Tensor | None]]) -> Sequence[Tensor | None]:
        """Mixed rows for the receivers of each shard, given as (node numbers, weights [b, M] or None for the graph's weights).

        Returns None per shard if sending the weights would cost more than whole rows.
        """
        plan, graph = self.plan, self.router.graph
        by_shard, marked = self.receivers([(nodes, weight is not None) for nodes, weight in given])
        receivers = torch.cat(by_shard)
        if not len(receivers):
            return [part[:0] for part in self._parts]
        assert isinstance(graph, MatrixGraph)  # list graphs use list_shards
        weights = graph.mixing[receivers]
        if bool(marked.any()):
            if not self._by_weights:
                return [None] * len(given)
            # Only weights on arcs, which all shards know; the others are zero.
            sent = [weights.new_zeros(0)] + [weight[plan.member[nodes]] for nodes, weight in given if weight is not None]
            sizes = [int(plan.sizes[nodes[marked[nodes]]].sum()) for nodes in by_shard]
            values = self.group.collect(torch.cat(sent), [sum(sizes[shard] for shard in held) for held in self.held], "weights")
            own = receivers[marked[receivers]]
            weights[marked[receivers]] = torch.zeros_like(weights[: len(own)]).masked_scatter(plan.member[own], values)
        return self._back([weights.to(part.dtype) @ part for part in self.slices], by_shard)

    def reduce_coordinates(self, given: Sequence[tuple[Tensor, bool, Work]]) -> Sequence[Tensor | None]:
        """Results of a coordinate-wise reduction, for receivers that accepted all their neighbours' messages.

        Returns None per shard if some receiver did not: the other shards do not know which message is missing.
        """
        by_shard, marked = self.receivers([(nodes, not complete) for nodes, complete, _ in given])
        receivers = torch.cat(by_shard)
        if bool(marked.any()):
            return [None] * len(given)
        if not len(receivers):
            return [part[:0] for part in self._parts]
        work, member = given[0][2], self.plan.member[receivers]
        results = [reduce_members(VectorStack(part), member, work, receivers.to(part.device)) for part in self.slices]
        return self._back(results, by_shard)

    @cached_property
    def _products(self) -> list[Tensor]:
        """Inner products [B, M] about the origin of the nodes of each shard of this rank with all nodes, float64."""
        plan, origin = self.plan, self.nearest_to_median()
        parts = [inner(part, part, part[origin]).index_select(0, plan.order).split(plan.nodes) for part in self.slices]
        products = self.sum_over_slices(list(zip(*parts, strict=True)), plan.nodes[self.group.rank], len(plan.order))
        return list(products.split([len(nodes) for nodes in self.router.nodes]))

    @cached_property
    def _squares(self) -> Tensor:
        """Squared norms [M] of all rows about the origin."""
        pairs = zip(self._products, self.router.nodes, strict=True)
        return self.router.gather([rows.gather(1, nodes[:, None]).squeeze(1) for rows, nodes in pairs], "products")

    @cached_property
    def _gram(self) -> Tensor:
        return self.router.gather(self._products, "products")

    def distances(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Squared distances [b, M] from the receivers of each shard, given as node numbers, to all rows."""
        square, distances = self._squares, []
        for nodes, held, rows in zip(given, self.router.nodes, self._products, strict=True):
            products = rows.index_select(0, torch.searchsorted(held, nodes))
            distances.append((square[nodes][:, None] + square).sub_(products, alpha=2).clamp_min_(0.0))
        return distances

    def gram(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Inner products [J, J] of the rows whose node numbers each shard gives."""
        return [self._gram.index_select(0, columns).index_select(1, columns) for columns in given]


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedDenseInbox(DenseInbox):
    """The inbox of one shard, whose rows have not been sent. All receivers accept all their neighbours.

    Every method is collective: all shards must call the same methods in the same order, or the run deadlocks.
    """

    messages: Tensor = field(init=False, repr=False)  # fetched on first access
    nodes: Tensor  # [B] numbers of the receivers, ascending
    shards: DenseShards = field(repr=False)
    slot: int  # index of the shard within its process

    def __getattr__(self, name: str) -> Tensor:
        if name != "messages":
            raise AttributeError(name)
        return self._whole_rows()

    def fetch(self) -> None:
        self._whole_rows()

    def _whole_rows(self) -> Tensor:
        """All messages [J, D]. Collective."""
        return once(self, "messages", None, lambda given: self.shards.rows)

    @property
    def columns(self) -> Tensor:
        """[J] node numbers, ascending, of the senders that this shard's receivers hear."""
        assert self.senders is not None
        return self.senders

    def _selected(self, receivers: Tensor) -> dict[str, Any]:
        nodes = self.nodes.index_select(0, receivers)
        assert bool((nodes.diff() > 0).all())  # results come back in this order
        return {**super()._selected(receivers), "nodes": nodes}

    @cached_property
    def rows(self) -> VectorStack:
        return DenseShardVectors(inbox=self)

    @cached_property
    def own_row(self) -> Tensor:
        return torch.searchsorted(self.columns, self.nodes)

    @property
    def _row_count(self) -> int:
        return self.heard.shape[1]  # every node has sent what it holds

    def dist2_to_own(self) -> Tensor:
        if self.shards.whole or not self.shards.by_distances:
            self.fetch()
            return super().dist2_to_own()
        return once(self, "distances", self.nodes, self.shards.distances).index_select(1, self.columns)

    def mix(self, mixture: Mixture) -> Tensor:
        mixed: Tensor | None = None
        if not self.shards.whole:
            usual = self.complete and mixture.weight is self.weight and mixture.own is self.self_weight
            mixed = self.shards.meet(self.slot, (self.nodes, None if usual else self._wide(mixture)), self.shards.mix)
        return super().mix(mixture) if mixed is None else mixed

    def averages_of(self, receivers: Tensor) -> Tensor:
        some = self.of(receivers)
        return some.mix(some.average())

    def _wide(self, mixture: Mixture) -> Tensor:
        """Weights [B, M] on all nodes."""
        size = self.shards.router.graph.size
        wide = torch.zeros(len(self.nodes), size, dtype=torch.float64, device=self.own.device)
        return wide.index_copy_(1, self.columns, mixture.weight.to(wide)).scatter_(
            1, self.nodes[:, None], mixture.own.to(wide)[:, None]
        )

    def reduce_coordinates(self, work: Work) -> Tensor:
        reduced: Tensor | None = None
        if not self.shards.whole:
            reduced = self.shards.meet(self.slot, (self.nodes, self.complete, work), self.shards.reduce_coordinates)
        return super().reduce_coordinates(work) if reduced is None else reduced


@dataclass(frozen=True, eq=False)
class DenseShardVectors(VectorStack):
    """The rows of a sharded dense inbox: products from slices where that is less traffic; `vectors` fetches whole rows."""

    vectors: Tensor = field(init=False, repr=False)
    inbox: ShardedDenseInbox = field(kw_only=True)

    def __getattr__(self, name: str) -> Tensor:
        if name != "vectors":
            raise AttributeError(name)
        return self.inbox.messages

    @property
    def dim(self) -> int:
        return self.inbox.shards.dim

    @property
    def origin(self) -> Tensor:
        self.inbox.fetch()
        return super().origin

    @property
    def gram(self) -> Tensor:
        shards = self.inbox.shards
        if shards.whole or not shards.by_products:
            self.inbox.fetch()
            return super().gram
        return once(self.inbox, "products", self.inbox.columns, shards.gram)
