"""A dense inbox sharded by coordinate: rules use it as any other, and it computes products and mixtures on slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bymi.core.dense_inbox import DenseInbox
from bymi.core.inbox import Inbox, Mixture
from bymi.core.linalg import VectorStack
from bymi.core.neighbourhoods import Work
from bymi.distributed.coordinate_shards import once
from bymi.distributed.dense_shards import DenseShards


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedDenseInbox(DenseInbox):
    """The inbox of one shard, whose rows have not been sent. All receivers accept all their neighbours.

    Every method is collective: all shards must call the same methods in the same order, or the run deadlocks.
    """

    messages: Tensor = field(init=False, repr=False)  # fetched on first access
    nodes: Tensor  # [B] numbers of the receivers, ascending
    shards: DenseShards = field(repr=False)
    seat: int  # index of the shard within its process

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
    def _sources(self) -> tuple[VectorStack, Tensor]:
        return DenseShardVectors(inbox=self), torch.searchsorted(self.columns, self.nodes)

    @property
    def _row_count(self) -> int:
        return self.heard.shape[1]  # every node has sent what it holds

    def dist2_to_own(self) -> Tensor:
        if self.shards.whole or not self.shards.by_distances:
            self.fetch()
            return super().dist2_to_own()
        return once(self, "distances", self.nodes, self.shards.distances).index_select(1, self.columns)

    def averages_of(self, receivers: Tensor) -> Tensor:
        return Inbox.averages_of(self, receivers)  # rows may be with other shards

    def mix(self, mixture: Mixture) -> Tensor:
        mixed: Tensor | None = None
        if not self.shards.whole:
            usual = self.complete and mixture.weight is self.weight and mixture.own is self.self_weight
            mixed = self.shards.meet(self.seat, (self.nodes, None if usual else self._wide(mixture)), self.shards.mix)
        return super().mix(mixture) if mixed is None else mixed

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
            reduced = self.shards.meet(self.seat, (self.nodes, self.complete, work), self.shards.reduce_coordinates)
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
