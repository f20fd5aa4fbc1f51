"""Time-varying graphs: several draws of a topology take turns, and detection is over the union of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bymi.core.errors import is_integer, require
from bymi.core.graph import Graph, MatrixGraph
from bymi.core.inbox import Inbox
from bymi.core.network import ListedVariants, LocalNetwork, Outgoing, Variants
from bymi.core.random_streams import stream
from bymi.core.topic import Topic
from bymi.core.topology import Topology


@dataclass(frozen=True, eq=False)
class RedrawnGraph:
    """Graphs of the same nodes that take turns, each for `every` rounds: round k is over graph floor(k / every) mod G.

    A window of G x `every` rounds sees all of them. A detection judges every neighbour that a node has within a window, so
    its `union` is what is judged and pruned; messages of a round travel over the graph of the round.
    """

    graphs: Sequence[Graph]
    every: int

    def __post_init__(self) -> None:
        require(is_integer(self.every) and self.every >= 1, "redraw_every", self.every, "an integer, 1 or more")
        require(len(self.graphs) >= 2, "redraw_graphs", len(self.graphs), "2 or more")
        dense = all(isinstance(graph, MatrixGraph) for graph in self.graphs)
        require(dense, "redraw_every", f"{self.every} with neighbour lists", "with fewer nodes, or more neighbours each")
        sizes = {graph.size for graph in self.graphs}
        require(len(sizes) == 1, "graphs", sorted(sizes), "graphs of the same number of nodes")
        differ = any(not torch.equal(graph.hears, self.graphs[0].hears) for graph in self.graphs)
        require(differ, "redraw_every", f"{self.every} with a graph that is not drawn", "with a random graph, or off")

    @staticmethod
    def draw(
        topology: Topology,
        nodes: int,
        *,
        every: int,
        graphs: int = 4,
        seed: int = 0,
        must_connect: Tensor | None = None,
    ) -> RedrawnGraph:
        """`graphs` draws of a topology; the first is the one that `seed` gives without redrawing."""
        require(is_integer(graphs) and graphs >= 2, "redraw_graphs", graphs, "2 or more")
        seeds = [seed, *stream(seed, "redraw").integers(1 << 62, graphs - 1).tolist()]
        return RedrawnGraph([topology.draw(nodes, seed=one, must_connect=must_connect) for one in seeds], every)

    @cached_property
    def union(self) -> Graph:
        """All arcs of a window, with Metropolis weights."""
        return Graph.from_hears(torch.stack([graph.hears for graph in self.graphs]).any(0))

    def at(self, step: int) -> Graph:
        """The graph of round `step`."""
        return self.graphs[step // self.every % len(self.graphs)]

    def to(self, device: torch.device | str) -> RedrawnGraph:
        return RedrawnGraph([graph.to(device) for graph in self.graphs], self.every)


class RedrawnNetwork(LocalNetwork):
    """The network of a RedrawnGraph: messages of a round travel over its graph, `arcs` and `graph` are those of the window.

    `window` is the network over the union, in which a detection takes place.
    """

    def __init__(self, window: LocalNetwork, turns: Sequence[LocalNetwork], every: int) -> None:
        super().__init__(window.graph, variants=window.variants, whole=window.whole)
        self.window, self._turns, self._every = window, turns, every

    @staticmethod
    def of(graph: RedrawnGraph, *, variants: Variants | ListedVariants | None = None) -> RedrawnNetwork:
        """The network before any pruning."""
        window, *turns = [LocalNetwork(one, variants=variants) for one in (graph.union, *graph.graphs)]
        return RedrawnNetwork(window, turns, graph.every)

    def exchange(self, step: int, vectors: Mapping[Topic, Tensor | Outgoing]) -> tuple[Inbox, ...]:
        return self._turns[step // self._every % len(self._turns)].exchange(step, vectors)

    def prune(self, flagged: Tensor) -> RedrawnNetwork:
        return RedrawnNetwork(self.window.prune(flagged), [turn.prune(flagged) for turn in self._turns], self._every)

    def reweight(self, flagged: Tensor, *, mutual: bool, exile: float | None) -> RedrawnNetwork:
        window, *turns = [one.reweight(flagged, mutual=mutual, exile=exile) for one in (self.window, *self._turns)]
        return RedrawnNetwork(window, turns, self._every)
