"""Rows of a round sharded by coordinate: each shard has some coordinates of all rows, in place of whole rows of some nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bymi.core.linalg import sampled_dist2_to_median

if TYPE_CHECKING:
    from bymi.distributed.router import Router


class CoordinateShards(ABC):
    """The rows of one topic in a round, of which each shard works on one slice of the coordinates, for all receivers.

    Slices belong to shards, not to ranks: every product has the same shape and every sum over slices goes in shard order, so
    the bits do not depend on the number of ranks. Public methods are collective: they run in `meet`, on all ranks.
    """

    def __init__(self, router: Router, dim: int) -> None:
        self.router, self.group, self.dim = router, router.lockstep.group, dim
        self.shards, self.held = router.lockstep.layout.shards, router.lockstep.layout.held
        count = len(self.shards)
        self.all_spans = [(shard * dim // count, (shard + 1) * dim // count) for shard in range(count)]
        self.held_here = self.held[self.group.rank]
        self.spans = [self.all_spans[shard] for shard in self.held_here]

    @property
    @abstractmethod
    def slices(self) -> Sequence[Tensor]:
        """One slice [R, D / S] of all rows per shard of this rank, of its `spans`. Collective."""

    def meet(self, slot: int, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Result for the shard `slot` of this process of `act`, called once for all of them. Collective."""
        return self.router.lockstep.meet(slot, given, act)

    def sum_over_slices(self, parts: Sequence[Sequence[Tensor]], *shape: int) -> Tensor:
        """Sum over all slices for this rank, of the given shape, from `parts` for each rank and slice held here. Collective."""
        blocks, shapes = [torch.stack(list(rank)) for rank in parts], [(len(held), *shape) for held in self.held]
        return reduce(torch.add, torch.cat(self.group.trade(blocks, shapes, "products")).unbind())

    def nearest_to_median(self, candidates: Tensor | None = None) -> Tensor:
        """Index of the row nearest to the coordinate-wise median, the origin of `VectorStack`, among candidates or all."""
        slices = self.slices if candidates is None else [part[candidates] for part in self.slices]
        away = torch.stack(
            [sampled_dist2_to_median(part, self.dim, first) for part, (first, _) in zip(slices, self.spans, strict=True)]
        )
        nearest = reduce(torch.add, self.group.collect(away, [len(held) for held in self.held], "products").unbind()).argmin()
        return nearest if candidates is None else candidates[nearest]

    def receivers(self, given: Sequence[tuple[Tensor, bool]]) -> tuple[list[Tensor], Tensor]:
        """Receivers of each shard of the network, and a mask [M] of those that are marked, both on the CPU.

        Given: node numbers and whether they are marked, per shard of this rank.
        """
        pairs = zip(given, self.router.nodes, strict=True)
        marks = [torch.isin(nodes, some).to(torch.uint8) * (1 + marked) for (some, marked), nodes in pairs]
        kinds = self.router.gather(marks, "weights").to("cpu")
        return [nodes[kinds[nodes] > 0] for nodes in self.router.lockstep.layout.shards_on_cpu], kinds > 1


def once(inbox: Any, name: str, given: Any, act: Callable[[list[Any]], Sequence[Tensor]]) -> Tensor:
    """The result of `act` for the shard of a sharded inbox, cached in the inbox under `name`. Collective.

    Not a cached_property: before Python 3.12 its lock keeps the other shards of the process out while one waits in `meet`. For
    the same reason rows are fetched before any cached property of Inbox reads them.
    """
    if name not in inbox.__dict__:
        inbox.__dict__[name] = inbox.shards.meet(inbox.slot, given, act)
    result: Tensor = inbox.__dict__[name]
    return result
