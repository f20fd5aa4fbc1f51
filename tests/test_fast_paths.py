"""What is done in one go for speed, against the same done plainly."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor

from bymi import RULES, Adversary, ErdosRenyi, Graph, LocalNetwork, Round
from bymi.aggregation import CAF
from bymi.aggregation.spectral_filtering import top_eigenpair
from bymi.attacks.gradient import Zero
from bymi.attacks.unusable_messages import Huge, Inf, MessageAttack, NaN, Silent
from bymi.core import message_usage as usage
from bymi.core.inbox import Inbox
from bymi.core.linalg import ascending, inner_of_both, join, lower_median, norms_surely_below
from bymi.core.named_parts import build_part, read_shorthand
from bymi.core.neighbour_lists import PerArcLists
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import _FIRST, _SECOND, _mix, stream
from bymi.core.topic import PARAMETERS
from bymi.detection.clip_parameter_messages import shorten
from bymi.detection.robust_statistics import median
from bymi.detection.update_history import UpdateHistory

_WORD = 1 << 64


def some(*shape: int, seed: int = 0) -> Tensor:
    return stream(seed, "test").normal(*shape)


@pytest.mark.parametrize("seed", range(20))
def test_the_core_is_the_largest_component_that_networkx_finds(seed: int) -> None:
    hears = (stream(seed, "arcs").uniform(9, 9) < 0.17) & ~torch.eye(9, dtype=torch.bool)
    parts = nx.strongly_connected_components(Graph.from_hears(hears).to_networkx())
    largest = max(parts, key=lambda part: (len(part), -min(part)))
    assert set(Graph.from_hears(hears).core().members.nonzero().flatten().tolist()) == largest


def test_words_are_mixed_as_splitmix64_says() -> None:
    def plainly(word: int) -> int:
        word = (word ^ (word >> 30)) * (_FIRST % _WORD) % _WORD
        word = (word ^ (word >> 27)) * (_SECOND % _WORD) % _WORD
        return word ^ (word >> 31)

    words = torch.tensor([0, 1, -1, 2**62, -(2**63), 123456789012345])
    before = words.clone()
    assert [int(word) % _WORD for word in _mix(words)] == [plainly(int(word) % _WORD) for word in words]
    assert int(_mix(words[3])) % _WORD == plainly(2**62)
    assert torch.equal(words, before)


@pytest.mark.parametrize("seed", range(10))
def test_medians_among_some(seed: int) -> None:
    values, among = some(6, 11, seed=seed), stream(seed, "among").uniform(6, 11) < 0.5
    values[0, :3], values[1, 2], values[2, 3] = torch.nan, torch.inf, -torch.inf
    among[3] = False
    for row, there, low, middle in zip(values, among, lower_median(values, among), median(values, among), strict=True):
        left = sorted(float(value) for value in row[there] if not value.isnan())
        if not left:
            assert low.isnan()
            assert middle.isnan()
            continue
        one, two = left[(len(left) - 1) // 2], left[len(left) // 2]
        assert float(low) == one
        assert float(middle) == pytest.approx(one + (two - one) / 2, nan_ok=True)


@pytest.mark.parametrize("attack", [NaN(), Inf(), Huge(), Silent()], ids=lambda attack: type(attack).__name__)
def test_messages_in_one_go_are_those_one_by_one(attack: MessageAttack) -> None:
    vectors, rows = some(5, 3), torch.tensor([1, 4])
    found = attack.put_on(vectors, rows)
    for row in range(5):
        told = attack(vectors[row]) if row in (1, 4) else vectors[row]
        got = found[row] if isinstance(found, Tensor) else found.get(row, vectors[row])
        assert (got is None and told is None) or torch.equal(torch.nan_to_num(got), torch.nan_to_num(told))  # type: ignore[arg-type]


def test_attackers_keep_the_plain_average() -> None:
    """One that is told anew after each pruning."""
    members, nodes, own = torch.tensor([True, False, False, True, False, False]), torch.arange(6), some(6, 4)
    adversary = Adversary(members, Zero())
    for seed in (0, 1):
        graph = Graph.from_hears((stream(seed, "arcs").uniform(6, 6) < 0.7) & ~torch.eye(6, dtype=torch.bool))
        inbox = Inbox.receive(
            own, own, expected=graph.hears, weight=graph.weight, self_weight=graph.self_weight, own_column=nodes
        )
        for _ in range(2):
            kept = adversary.keep(inbox, torch.zeros_like(own), nodes, step=3)
            plain = graph.mixing @ own
            torch.testing.assert_close(kept, torch.where(members[:, None], plain, torch.zeros_like(plain)))


@pytest.mark.parametrize("seed", range(5))
def test_trails_by_a_table_are_those_by_lists(seed: int) -> None:
    """Six nodes, and a further message for each arc from node 0."""
    hears = (stream(seed, "arcs").uniform(6, 6) < 0.8) & ~torch.eye(6, dtype=torch.bool)
    hears[1, 0] = True
    at = torch.arange(6).expand(6, -1).clone()
    receivers = hears[:, 0].nonzero().flatten()
    at[receivers, 0] = 6 + torch.arange(len(receivers))
    own, table = some(6, 3, seed=seed), PerArcLists(at, hears)
    messages = torch.cat([own, 5 + some(len(receivers), 3, seed=seed + 50)])
    weight = hears / (1.0 + hears.sum(1, keepdim=True))
    inbox = Inbox.receive(
        own, messages, expected=hears, weight=weight, self_weight=1 - weight.sum(1), own_column=torch.arange(6), lists=table
    )
    assert inbox.complete
    share = torch.where(stream(seed, "share").uniform(6, 6) < 0.6, stream(seed, "part").uniform(6, 6), 1.0)
    used, heard = inbox.usage(share)
    places = usage._Places.of(inbox, share, table)
    assert places is not None
    torch.testing.assert_close(used, usage._as_used_by_lists(inbox, messages, places), rtol=1e-12, atol=1e-12)
    assert torch.equal(heard, places.acceptable(len(messages)))


def test_rows_that_lie_one_above_the_other_are_not_copied() -> None:
    whole = some(7, 5)
    assert join(whole[:4], whole[4:]).data_ptr() == whole.data_ptr()
    apart = [(whole[:4], whole[5:]), (whole[:3], whole[4:]), (whole[4:], whole[:4]), (whole[:4], whole[4:].clone())]
    narrow = [(whole[:4, :3], whole[4:, :3]), (whole.T[:2], whole.T[2:]), (whole[:4], whole[:0]), (whole[:0], whole[2:])]
    for above, below in [(whole[:4], whole[4:]), *apart, *narrow]:
        assert torch.equal(join(above, below), torch.cat([above, below]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quick_look_is_sure_or_says_nothing(dtype: torch.dtype) -> None:
    usual = some(4, 60).to(dtype)
    assert norms_surely_below(usual, 1e6)
    assert norms_surely_below(usual[:0], 1e6)
    for wrong in (torch.nan, torch.inf, -torch.inf, 1e6, 1e30, 1e38):
        vectors = usual.clone()
        vectors[2, 7] = wrong
        assert not norms_surely_below(vectors, 1e6), wrong


@pytest.mark.parametrize("dim", [3, 1024, 2500])
def test_products_of_two_halves_are_those_of_each_pair(dim: int) -> None:
    left, right = some(6, dim).float(), some(9, dim, seed=1).float()
    left[4] = 1e4
    origin = left[2]
    one, two = (rows.double() - origin.double() for rows in (left, right))
    for found, plain in zip(inner_of_both(left, right, origin), (one @ one.T, two @ two.T, one @ two.T), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-6)  # beside a row of 1e4 in each coordinate


@pytest.mark.parametrize("dim", [20, 300])
@pytest.mark.parametrize("name", ["ios", "faba", "filtering", "filtering:about=median", "caf", "geometric-median", "nnm+ios"])
def test_rules_decide_alike_where_the_host_does_not_look(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms for accelerators, here on a CPU: common and separate products, outliers near, far and absurdly far."""
    random = torch.Generator().manual_seed(3)
    vectors = torch.randn(40, dim, generator=random, dtype=torch.float64)
    for row, factor in enumerate((2.0, 2.0, 30.0, 1e3, 1e5)):
        vectors[7 * row] += factor
    network = LocalNetwork(ErdosRenyi(0.6).draw(40, seed=1))
    found = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(LIMITS, "looked_at", devices)
        (inbox,) = network.exchange(0, {PARAMETERS: vectors})
        found.append(build_part(RULES, read_shorthand(name))(inbox, Round(1, 10)))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_the_top_eigenpair_is_that_of_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of matrices with equal eigenvalues, of one point, and of zeros; there only the eigenvalue equation has to hold."""
    random = torch.Generator().manual_seed(5)
    points = torch.randn(6, 40, 90, generator=random, dtype=torch.float64)
    points[3], points[4, 1:], points[5] = torch.eye(40, 90), 0.0, 0.0
    matrices = points @ points.mT
    values = torch.linalg.eigvalsh(matrices)[:, -1:]
    for devices in (("cpu",), ()):
        monkeypatch.setattr(LIMITS, "looked_at", devices)
        value, vector = top_eigenpair(matrices)
        torch.testing.assert_close(value, values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close((matrices @ vector[:, :, None]).squeeze(2), value * vector, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_is_that_of_torch_in_any_dimension(dtype: torch.dtype) -> None:
    values = torch.randn(3, 17, 5, generator=torch.Generator().manual_seed(2), dtype=dtype)
    values[1, 4, 2], values[0, 3, 1] = torch.nan, torch.inf
    for dim in (0, 1, -1):
        torch.testing.assert_close(ascending(values, dim), values.sort(dim).values, rtol=0, atol=0, equal_nan=True)


def test_threads_change_no_bit() -> None:
    """A filter of sets of many points goes over threads in batches that do not depend on their number."""
    points = torch.randn(40, 50, 80, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    valid = torch.rand(40, 50, generator=torch.Generator().manual_seed(5)) < 0.9
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(CAF().weights(points @ points.mT, valid))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("far", [0.0, 4.0, 1e4])
def test_rounds_are_recorded_alike_where_the_host_does_not_look(far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances, clipping and update history in the forms for accelerators: nothing clipped, some, and receivers far out."""
    vectors = torch.randn(40, 90, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    vectors = torch.zeros_like(vectors) if not far else vectors
    vectors[:6] += far
    network = LocalNetwork(ErdosRenyi(0.6).draw(40, seed=1))
    found = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(LIMITS, "looked_at", devices)
        history = UpdateHistory((0.0, 2.0))
        for number in (1.0, 2.0):
            (inbox,) = network.exchange(0, {PARAMETERS: number * vectors})
            share, far_out = shorten(inbox, 3.0)
            history.see(inbox, 0.1, share, far_out, number / 2)
        assert history.refused is not None
        found.append((inbox.dist2_to_own(), share, far_out, history.vectors(), history.refused))
    assert bool((found[0][1] < 1).any()) == bool(far)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
