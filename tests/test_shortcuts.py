"""Shortcuts of every round against the long way: sorting, tables of places, what a fuse and a stream remember."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import Inbox, LocalNetwork
from bymi.attacks import Adversary, Dissensus
from bymi.attacks.base import directions
from bymi.core.linalg import VectorStack, all_finite, ascending, lower_median, medoid
from bymi.core.neighbour_lists import NeighbourLists, PerArcLists, median_by_number
from bymi.core.random_streams import Stream, stream
from bymi.core.topic import PARAMETERS
from bymi.core.topology import ErdosRenyi
from bymi.detection.clip_parameter_messages import SelfCentredClipping, shorten
from bymi.runs.simulate import local_network
from tests.inbox_fixtures import narrow, wide

SIZE, DIM = 12, 4
MEMBERS = torch.arange(SIZE) < 5
GRAPH = ErdosRenyi(0.8).draw(SIZE, seed=2, must_connect=~MEMBERS)
VECTORS = stream(4, "vectors").normal(SIZE, DIM) + 3.0


def told_each(step: int = 0) -> Inbox:
    """A round in which Byzantine nodes tell each receiver something else: more messages for one than for all."""
    adversary = Adversary(MEMBERS, Dissensus())
    (inbox,) = local_network(GRAPH, adversary).exchange(step, {PARAMETERS: VECTORS})
    assert isinstance(inbox.lists, PerArcLists)
    assert len(inbox.messages) > 2 * SIZE
    return inbox


def by_columns(inbox: Inbox) -> Inbox:
    """The same round as a matrix of receivers and messages."""
    assert isinstance(inbox.lists, PerArcLists)
    expected, weight = (wide(inbox.lists, part, len(inbox.messages)) for part in (inbox.expected, inbox.weight))
    return Inbox.receive(
        inbox.own,
        inbox.messages,
        expected=expected,
        weight=weight,
        self_weight=inbox.self_weight,
        own_column=inbox.own_column,
        senders=inbox.senders,
    )


def test_sorted_and_medians() -> None:
    values = stream(0, "values").normal(6, 5, 9)
    values[0, 0, 3] = torch.nan
    assert torch.equal(ascending(values).nan_to_num(7.0), values.sort(-1).values.nan_to_num(7.0))
    among = stream(0, "among").uniform(6, 5, 9) < 0.6
    among[2, 1] = False
    got = lower_median(values, among)
    for place in np.ndindex(6, 5):
        some = sorted(v for v, m in zip(values[place].tolist(), among[place].tolist(), strict=True) if m and v == v)
        if some:
            assert float(got[place]) == some[(len(some) - 1) // 2]
        else:
            assert bool(got[place].isnan())


def test_the_midst_of_many_sets_is_the_origin_of_each() -> None:
    points, valid = stream(1, "points").normal(7, 10, 3), stream(1, "valid").uniform(7, 10) < 0.7
    points[:, 0] = 1e6
    for place, found in enumerate(medoid(points, valid)):
        assert torch.equal(found, VectorStack(points[place][valid[place]]).origin)


@pytest.mark.parametrize("singles", [0, 3, 40])
def test_medians_by_number(singles: int) -> None:
    """Numbers that one value has, numbers that many have, and some that none has."""
    numbers = torch.cat([torch.arange(singles) + 10, stream(0, "numbers").integers(9, 0 if singles == 40 else 30)])
    values = stream(0, "of numbers").normal(len(numbers))
    got = median_by_number(numbers, values, 60, 5.0)
    for number in range(60):
        some = sorted(values[numbers == number].tolist())
        assert float(got[number]) == (some[(len(some) - 1) // 2] if some else 5.0)


@pytest.mark.parametrize("some", [None, [1, 7, 9]])
@pytest.mark.parametrize("dim", [DIM, 300])
def test_a_table_is_the_matrix(dim: int, some: list[int] | None) -> None:
    """Distances and weighted sums, of all receivers and of a few; by either way to sum."""
    inbox = told_each()
    messages = stream(0, "long").normal(len(inbox.messages), dim)
    inbox = replace(inbox, own=messages[:SIZE], messages=messages)
    matrix = by_columns(inbox)
    if some is not None:
        inbox, matrix = (each.of(torch.tensor(some)) for each in (inbox, matrix))
    lists = inbox.lists
    assert isinstance(lists, PerArcLists)
    assert torch.equal(matrix.expected.gather(1, lists.index) & lists.mask, inbox.expected)
    torch.testing.assert_close(
        inbox.dist2_to_own()[inbox.expected], narrow(lists, matrix.dist2_to_own())[inbox.expected], rtol=1e-12, atol=0
    )
    mixed, expected = (each.mix(each.average()) for each in (inbox, matrix))
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-12)


def test_plain_lists_measure_like_a_table() -> None:
    inbox = told_each()
    assert inbox.lists is not None
    exact = NeighbourLists(inbox.lists.index, inbox.lists.mask).dist2(inbox.own, inbox.messages)
    torch.testing.assert_close(inbox.dist2_to_own()[inbox.expected], exact[inbox.expected], rtol=1e-12, atol=0)


def test_the_fuse_of_a_table_is_that_of_the_matrix() -> None:
    inbox = told_each()
    assert isinstance(inbox.lists, PerArcLists)
    one, two = shorten(inbox, 1.3), shorten(by_columns(inbox), 1.3)
    for by_place, by_message in zip(one, two, strict=True):
        expected = narrow(inbox.lists, by_message)
        torch.testing.assert_close(by_place[inbox.expected].double(), expected[inbox.expected].double(), rtol=1e-12, atol=0)


def rounds() -> list[Inbox]:
    """One after another: nothing new, others unheard, other weights, and one in which nobody stands off."""
    network = LocalNetwork(GRAPH)
    (first,) = network.exchange(0, {PARAMETERS: VECTORS})
    (again,) = network.exchange(1, {PARAMETERS: VECTORS + stream(1, "moved").normal(SIZE, DIM)})
    fewer = GRAPH.hears & (stream(0, "fewer").uniform(SIZE, SIZE) < 0.8)
    (cut,) = network.over(GRAPH.prune(~fewer), whole=GRAPH).exchange(2, {PARAMETERS: VECTORS})
    (close,) = network.exchange(3, {PARAMETERS: torch.eye(SIZE, dtype=torch.float64)})
    return [first, again, replace(again, heard=fewer, weight=again.weight * fewer), cut, first, close]


def test_a_fuse_that_has_seen_other_rounds_is_as_good_as_new() -> None:
    fuse, seen = SelfCentredClipping(1.2), 0
    for inbox in rounds():
        for known, fresh in zip(fuse(inbox), shorten(inbox, 1.2), strict=True):
            assert torch.equal(known, fresh)
            seen += int((fresh < 1).sum())
    assert seen > 0


def test_a_stream_draws_once_what_is_asked_again() -> None:
    opened: list[int] = []

    def find() -> Tensor:
        opened.append(1)
        return stream(0, "x").keys

    source = Stream(find)
    assert not opened
    like = torch.zeros(1, dtype=torch.float64)
    first, again = directions(source, 2, 6, like), directions(source, 2, 6, like)
    assert torch.equal(first, again)
    assert torch.equal(first, directions(stream(0, "x"), 2, 6, like))
    assert not torch.equal(first, directions(source, 2, 7, like)[:, :6])
    assert opened == [1]


def test_all_finite() -> None:
    """Also where a sum of finite numbers is not."""
    assert all_finite(torch.tensor([[1e308, 1e308], [1.0, 2.0]], dtype=torch.float64))
    for bad in (torch.nan, torch.inf):
        assert not all_finite(torch.tensor([[bad, 1.0]]))
