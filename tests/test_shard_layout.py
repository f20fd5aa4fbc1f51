"""Who holds which nodes, which rows travel, and how shards of one process meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import networkx as nx
import pytest
import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.core.graph import Graph
from bymi.core.list_graph import ListGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.collectives import Group
from bymi.distributed.shard_layout import Routes, ShardLayout, order_nodes, rows_sent
from bymi.distributed.shard_lockstep import Lockstep


class Post:
    """Groups that hand rows to each other inside one process, each in its own thread."""

    def __init__(self, size: int) -> None:
        self._size, self._box = size, [[torch.empty(0)] * size for _ in range(size)]
        self._all = threading.Barrier(size, timeout=10)

    def group(self, rank: int) -> Group:
        post = self

        class Member(Group):
            def swap(self, rows: Tensor, counts: list[int], coming: list[int], name: str) -> Tensor:  # type: ignore[override]
                assert sum(counts) == len(rows)
                for other, part in enumerate(rows.split(list(counts))):
                    post._box[other][rank] = part
                post._all.wait()
                got = list(post._box[rank])
                post._all.wait()
                assert [len(part) for part in got] == list(coming)
                return torch.cat(got)

        return Member(rank, self._size)


@pytest.mark.parametrize(("size", "shards", "ranks"), [(10, 4, 1), (10, 4, 2), (11, 4, 4), (7, 3, 3), (5, 1, 4)])
def test_every_node_is_in_one_shard_and_every_shard_on_one_rank(size: int, shards: int, ranks: int) -> None:
    layout = ShardLayout.even(size, shards, ranks)
    assert torch.cat(list(layout.shards)).tolist() == list(range(size))
    assert [shard for held in layout.held for shard in held] == list(range(max(shards, ranks)))
    assert all(len(held) for held in layout.held)
    for rank in range(ranks):
        assert (layout.holder[layout.nodes(rank)] == rank).all()


def test_more_ranks_than_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="got 5 ranks for 4 nodes"):
        ShardLayout.even(4, 4, 5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("numbers", [1, 30, 1000])
def test_routes_bring_what_is_wanted(ranks: int, mixed: bool, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against picking rows from the whole stack; at once, and with so few numbers at a time that coordinates go by turns."""
    monkeypatch.setattr(LIMITS, "routed_rows", numbers)
    layout = ShardLayout.even(10, 4, ranks)
    if mixed:  # a placement that is not in order of numbers
        parts = torch.tensor([7, 0, 4, 9, 2, 1, 8, 3, 6, 5]).split([3, 2, 3, 2])
        layout = ShardLayout(tuple(part.sort().values for part in parts), layout.held)
    rows = torch.arange(70.0).reshape(10, 7) ** 2
    wanted = [torch.tensor(nodes) for nodes in ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [3], [0, 9], [2, 4, 5])]
    post, found = Post(ranks), [None] * ranks

    def work(rank: int) -> None:
        found[rank] = Routes(layout, post.group(rank), wanted).carry(rows[layout.nodes(rank)], "rows")  # type: ignore[call-overload]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for held, tables in zip(layout.held, found, strict=True):
        assert tables is not None
        for shard, table in zip(held, tables, strict=True):
            torch.testing.assert_close(table, rows[wanted[shard]], rtol=0, atol=0)


def test_shards_walk_in_step_and_a_failure_ends_all() -> None:
    lockstep = Lockstep(Group(), ShardLayout.even(6, 3, 1))

    def count(place: int, last: int) -> Iterator[int]:
        for step in range(last):
            sums = lockstep.meet(place, place + step, lambda given: [sum(given)] * 3)
            assert sums == 3 + 3 * step
            if step == 2 and place == 1:
                raise ArithmeticError("one of them cannot go on")
            yield 10 * place + step

    makers = [lambda place=place: count(place, 2) for place in range(3)]
    assert list(lockstep.walk(makers)) == [[0, 10, 20], [1, 11, 21]]
    lockstep = Lockstep(Group(), ShardLayout.even(6, 3, 1))
    with pytest.raises(ArithmeticError, match="cannot go on"):
        list(lockstep.walk([lambda place=place: count(place, 5) for place in range(3)]))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shard")]


def test_a_walk_that_is_left_early_leaves_no_thread() -> None:
    lockstep = Lockstep(Group(), ShardLayout.even(6, 3, 1))
    walk = lockstep.walk([lambda: (step for step in range(100))] * 3)
    assert next(walk) == [0, 0, 0]
    walk.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shard")]


def hears_of(graph: nx.Graph[int], seed: int) -> torch.Tensor:
    size = len(graph)
    hears = torch.zeros(size, size, dtype=torch.bool)
    numbers = torch.argsort(torch.rand(size, generator=torch.Generator().manual_seed(seed)))
    places = {node: int(number) for node, number in zip(graph, numbers, strict=True)}
    for one, other in graph.edges:
        hears[places[one], places[other]] = hears[places[other], places[one]] = True
    return hears


def test_rows_sent_against_a_count_by_hand() -> None:
    hears = hears_of(nx.gnp_random_graph(30, 0.1, seed=2), 3)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(4))
    slow = 0
    for block in order.tensor_split(4):
        heard = {sender for node in block.tolist() for sender in range(30) if hears[node, sender]}
        slow += len(heard - set(block.tolist()))
    graph = Graph.from_hears(hears)
    assert rows_sent(graph, order, 4) == rows_sent(ListGraph.of_graph(graph), order, 4) == slow


@pytest.mark.parametrize("shards", [2, 4])
def test_neighbours_share_a_shard_where_that_pays(shards: int) -> None:
    grid = Graph.from_hears(hears_of(nx.grid_2d_graph(12, 12), 1))
    for graph in (grid, ListGraph.of_graph(grid)):
        order = order_nodes(graph, shards)
        assert sorted(order.tolist()) == list(range(144))
        assert rows_sent(graph, order, shards) < 0.3 * rows_sent(graph, torch.arange(144), shards)


def test_a_dense_graph_keeps_its_order() -> None:
    dense = hears_of(nx.gnp_random_graph(60, 0.3, seed=1), 1)
    assert order_nodes(Graph.from_hears(dense), 4).tolist() == list(range(60))
