"""A partition: samples in order of their labels, cut into equal pieces. `partition = "sorted_partition:Sorted"`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bymi.core.random_streams import stream
from bymi.datasets import Partition


@dataclass(frozen=True)
class Sorted(Partition):
    """Node i of M has the i-th part of the samples; `mixed`: the share of samples that are dealt at random instead."""

    mixed: float = 0.5

    def rows(self, labels: Tensor, nodes: int, size: int, seed: int) -> Tensor:
        order = labels.argsort(stable=True)[: nodes * size]
        moved = stream(seed, "sorted").uniform(len(order)).to(order.device) < self.mixed
        places = moved.nonzero().flatten()
        order[places] = order[places[stream(seed, "dealt").permutation(len(places)).to(order.device)]]
        return order.view(nodes, size)
