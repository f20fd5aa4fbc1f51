"""Messages that are not what their sender holds: one for all, or one for some and another for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bymi.graph import Graph
from bymi.sparse import SparseGraph
from bymi.topic import Topic

Sent = Mapping[int, Tensor | None] | Tensor
"""Messages that are not what their sender holds, by row, None for silence; or all messages of the round in one stack."""


class Tamper(Protocol):
    """What senders really put on the wire."""

    def __call__(self, vectors: Tensor, senders: Tensor, topic: Topic, step: int) -> Sent: ...


@dataclass(frozen=True, eq=False)
class Faces:
    """Further messages: number c comes from `senders[c]` for those in `audience[:, c]`, who hear this one of it only."""

    senders: Tensor  # [C]
    audience: Tensor  # [M, C] bool

    @cached_property
    def receivers(self) -> Tensor:
        """The first receiver in the audience of each [C]."""
        return self.audience.to(torch.uint8).argmax(0)


@dataclass(frozen=True, eq=False)
class ListedFaces:
    """The same by lists: which of the further messages stands at each place, -1 for none."""

    senders: Tensor  # [C]
    receivers: Tensor  # [C] somebody in the audience of each
    at: Tensor  # [M, n]


class TwoFaced(Protocol):
    """Senders who tell different receivers different things."""

    def layout(self, graph: Graph | SparseGraph) -> Faces | ListedFaces | None:
        """Which further messages there are in all rounds over these arcs, by lists if the graph is; None for none."""
        ...

    def differs(self, topic: Topic) -> bool:
        """Whether receivers are ever told different things under this topic."""
        ...

    def show(
        self,
        vectors: Tensor,
        faces: Faces | ListedFaces,
        graph: Graph | SparseGraph,
        topic: Topic,
        step: int,
        which: Tensor | None = None,
    ) -> Tensor | list[Tensor | None]:
        """The further messages of one round [C, D], from the vectors that all nodes hold [M, D]; `which` [K]: only these."""
        ...

    def reply(self, vectors: Tensor, senders: Tensor, asker: int, topic: Topic, step: int) -> Sent:
        """What `senders` really answer to one asker."""
        ...
