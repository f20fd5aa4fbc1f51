"""Large graphs by lists: every rule, detector, cut and count gives what matrices give; drawn and run with many nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from bymi import RULES, Graph, Inbox, LocalNetwork, Round, sparse, vectors
from bymi.attacks import Adversary, Dissensus, Huge, Poison, SignFlip, Silent
from bymi.attacks.placement import PLACEMENTS, place
from bymi.detection import CENTRES, SCALES, Detector, Record, Verdict, identify_asked, identify_neighbours
from bymi.detection.fuse import fused, shorten
from bymi.detection.trail import Trail
from bymi.errors import GraphError, InputError
from bymi.experiment import load
from bymi.graph import perron_vector
from bymi.lists import Lists
from bymi.phases import premix
from bymi.plan import Optimisation
from bymi.runs import run
from bymi.runs.scene import build_scene
from bymi.runs.store import read_json
from bymi.sparse import SparseGraph, connected
from bymi.streams import stream
from bymi.topology import TOPOLOGIES, EdgeFile, ErdosRenyi, Regular, Ring
from tests.reference import graphs as plain

NODES, DIM = 70, 6
MEMBERS = torch.arange(NODES) % 6 == 2


def drawn(seed: int, *, nodes: int = NODES, directed: bool = False) -> tuple[Graph, SparseGraph]:
    """One graph in both forms; directed: a fifth of the arcs missing one way."""
    graph = ErdosRenyi(0.15).draw(nodes, seed=seed)
    assert isinstance(graph, Graph)
    if directed:
        graph = graph.prune(stream(seed, "cut").uniform(nodes, nodes) < 0.2)
    return graph, SparseGraph.of_graph(graph)


def at_places(values: Tensor, lists: Lists, fill: float) -> Tensor:
    """What matrices [M, M] have at each place of the lists [M, n]."""
    return torch.where(lists.there, values.gather(1, lists.at), torch.tensor(fill, dtype=values.dtype))


def vectors_of(seed: int, dim: int = DIM) -> Tensor:
    """Vectors near one point, liars off, and one node that has diverged."""
    vectors = 3.0 + stream(seed, "vectors").normal(NODES, dim)
    vectors[MEMBERS] += 4.0
    vectors[11] = torch.nan
    return vectors


ADVERSARIES: dict[str, Adversary | None] = {
    "nobody": None,
    "silent": Adversary(MEMBERS, Silent()),
    "huge": Adversary(MEMBERS, Huge(1e8)),
    "two faces": Adversary(MEMBERS, SignFlip(), level="message", faces="two"),
    "dissensus": Adversary(MEMBERS, Dissensus()),
    "under the fuse": Adversary(MEMBERS, Poison("fuse")),
}


def networks(seed: int, how: str, *, directed: bool = False) -> tuple[LocalNetwork, LocalNetwork, SparseGraph]:
    graph, by_lists = drawn(seed, directed=directed)
    adversary = ADVERSARIES[how]
    tamper = None if adversary is None else adversary.tamper
    return LocalNetwork(graph, tamper, adversary), LocalNetwork(by_lists, tamper, adversary), by_lists


def close(one: Tensor, two: Tensor, scale: float = 1.0) -> None:
    assert torch.allclose(one, two, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


# The lists themselves


def test_lists_of_arcs() -> None:
    lists = Lists.of_arcs(torch.tensor([2, 0, 2, 0, 2]), torch.tensor([1, 3, 0, 1, 3]), 4)
    assert lists.at.tolist() == [[1, 3, 0], [0, 0, 0], [0, 1, 3], [0, 0, 0]]
    assert lists.there.tolist() == [[True, True, False], [False] * 3, [True] * 3, [False] * 3]
    assert lists.count(torch.ones(4, 3, dtype=torch.bool), 5).tolist() == [1, 2, 0, 2, 0]
    values = torch.tensor([[5.0, 1.0, 9.0], [0.0, 0.0, 0.0], [7.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert lists.median(values, 5, -1.0).tolist() == [7.0, 2.0, -1.0, 1.0, -1.0]
    assert lists.of(torch.tensor([2, 1])).flat[1].tolist() == [0, 1, 3]


@pytest.mark.parametrize("seed", range(3))
def test_totals_and_medians_of_lists(seed: int) -> None:
    """Against loops over receivers and over numbers."""
    _, graph = drawn(seed, directed=True)
    lists, held = graph.lists, stream(seed, "x").normal(NODES, 3)
    weight = stream(seed, "weights").normal(*graph.weight.shape)
    total = lists.total(weight, held)
    heard: dict[int, list[float]] = {node: [] for node in range(NODES)}
    for receiver in range(NODES):
        expected = torch.zeros(3, dtype=torch.float64)
        for spot in lists.there[receiver].nonzero().flatten().tolist():
            sender = int(lists.at[receiver, spot])
            expected += weight[receiver, spot] * held[sender]
            heard[sender].append(float(weight[receiver, spot]))
        close(total[receiver], expected)
    medians = lists.median(weight, NODES, 0.5)
    for sender, values in heard.items():
        assert float(medians[sender]) == (sorted(values)[(len(values) - 1) // 2] if values else 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_sets(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pair by pair, a few coordinates at a time."""
    monkeypatch.setattr(vectors, "_NUMBERS", 30)
    left, right = (stream(seed, "x").normal(9, 8).to(dtype) for seed in (1, 2))
    at, other = torch.tensor([[3, 0, 8], [1, 1, 2]]), torch.tensor([[4, 5], [6, 0]])
    origin = left[4]
    found = vectors.inner_of_sets(left, at, right, other, origin)
    assert found.dtype == torch.float64
    for row in range(2):
        for one in range(3):
            for two in range(2):
                away = left[at[row, one]].double() - origin.double(), right[other[row, two]].double() - origin.double()
                assert float(found[row, one, two]) == pytest.approx(float(away[0] @ away[1]), rel=1e-12, abs=1e-12)
    rows = vectors.Rows(left)
    close(rows.among(at), rows.gram[at[:, :, None], at[:, None, :]])
    close(rows.points(at) @ rows.points(at).mT, rows.among(at))


def test_a_row_of_totals_does_not_depend_on_the_others() -> None:
    _, graph = drawn(1)
    held = stream(0, "x").normal(NODES, 9)
    some = torch.tensor([5, 60, 2])
    alone = graph.lists.of(some).total(graph.weight[some], held)
    assert torch.equal(alone, graph.lists.total(graph.weight, held)[some])


# Graphs


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_graph_there_and_back(seed: int, directed: bool) -> None:
    graph, by_lists = drawn(seed, directed=directed)
    back = by_lists.dense()
    assert torch.equal(back.hears, graph.hears)
    assert torch.equal(back.mixing, graph.mixing)
    assert by_lists.symmetric == graph.symmetric == (not directed)
    assert nx.utils.graphs_equal(by_lists.to_networkx(), graph.to_networkx())
    arcs = SparseGraph.of_arcs(*graph.hears.nonzero(as_tuple=True), NODES)
    close(arcs.dense().mixing, torch.from_numpy(plain.metropolis(graph.hears.numpy())))


@pytest.mark.parametrize("seed", range(4))
def test_pruning_by_lists(seed: int) -> None:
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < 0.25
    flagged[:, 5] = True
    marked = at_places(flagged, by_lists.lists, False)
    pairs = [(graph.prune(flagged), by_lists.prune(marked))]
    pairs += [(graph.prune_mutually(flagged, exile=e), by_lists.prune_mutually(marked, exile=e)) for e in (None, 0.3)]
    for matrices, lists in pairs:
        assert torch.equal(lists.dense().hears, matrices.hears)
        close(lists.dense().mixing, matrices.mixing)
        assert lists.lists is by_lists.lists
    close(pairs[0][1].dense().mixing, torch.from_numpy(plain.prune(graph.mixing.numpy(), (flagged & graph.hears).numpy())))
    with pytest.raises(GraphError, match="directed"):
        pairs[0][1].prune_mutually(marked)


@pytest.mark.parametrize("cut", [0.3, 0.8, 0.93])
@pytest.mark.parametrize("seed", range(3))
def test_the_core_by_lists(seed: int, cut: float) -> None:
    """From one component over some that hear others to crumbs."""
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < cut
    expected, got = graph.prune(flagged).core(), by_lists.prune(at_places(flagged, by_lists.lists, False)).core()
    assert torch.equal(got.members, expected.members)
    assert got.closed == expected.closed
    close(got.perron, expected.perron)


def test_connected_parts() -> None:
    ring = Ring().draw(40)
    lists = SparseGraph.of_graph(ring).lists
    everybody = torch.ones(40, dtype=torch.bool)
    assert connected(lists, everybody)
    assert connected(lists, torch.arange(40) < 20)
    assert not connected(lists, torch.arange(40) % 20 < 5)
    assert not connected(lists, ~everybody)


# The tracker's limit


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.8, 0.93])
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_of_the_tracker_is_where_premixing_ends(seed: int, cut: float) -> None:
    """Also with several closed classes, with nodes on their way to zero, and with liars who are not heard in it."""
    graph, by_lists = drawn(seed)
    flagged = stream(seed, "flags").uniform(NODES, NODES) < cut
    adversary = Adversary(MEMBERS, Silent()) if seed == 1 else None
    tamper = None if adversary is None else adversary.tamper
    exact = LocalNetwork(graph.prune(flagged), tamper)
    short = LocalNetwork(by_lists.prune(at_places(flagged, by_lists.lists, False)), tamper)
    tracker, settled = premix(exact, Optimisation()) if cut < 0.5 else (None, False)  # more cuts, and it takes too long
    pair = [premix(network, Optimisation(premix_rounds=7))[0] for network in (exact, short)]
    close(pair[0], pair[1])
    (heard,) = exact.exchange(0, premix=torch.ones(NODES, 1, dtype=torch.float64))
    mixture = heard.average()
    endless = mixture.weight + torch.diag(mixture.own)
    for _ in range(40):
        endless = endless @ endless
        endless = endless / endless.sum(1, keepdim=True)  # else rounding errors double every time
    if tracker is not None and settled:
        assert torch.allclose(endless.diagonal(), tracker.diagonal(), rtol=1e-9, atol=1e-9)
    entries, settled = premix(short, Optimisation())
    assert settled
    assert entries.shape == (NODES,)
    assert torch.allclose(entries, endless.diagonal(), rtol=1e-9, atol=1e-12)


def test_the_limit_is_the_perron_vector_of_what_is_connected() -> None:
    graph, by_lists = drawn(4, directed=True)
    entries, _ = premix(LocalNetwork(by_lists), Optimisation())
    close(entries, perron_vector(graph.mixing))


# Rounds


def assert_same_round(one: Inbox, two: Inbox) -> None:
    """The messages that each receiver hears from each node, and with which weight."""
    assert two.lists is not None
    assert one.complete == two.complete
    size = len(one.own)
    for receiver in range(size):
        by_node = {}
        for column in one.expected[receiver].nonzero().flatten().tolist():
            sender = column if one.senders is None else int(one.senders[column])
            by_node[sender] = (one.messages[column], one.heard[receiver, column], one.weight[receiver, column])
        seen = set()
        for spot in two.expected[receiver].nonzero().flatten().tolist():
            column = int(two.lists.at[receiver, spot])
            sender = column if two.senders is None else int(two.senders[column])
            message, heard, weight = by_node[sender]
            seen.add(sender)
            assert torch.equal(two.messages[column], message) or not bool(heard)
            assert bool(two.heard[receiver, spot]) == bool(heard)
            assert float(two.weight[receiver, spot]) == float(weight)
        assert seen == set(by_node)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("how", ADVERSARIES)
def test_the_same_messages_are_heard(how: str, directed: bool) -> None:
    exact, short, _ = networks(2, how, directed=directed)
    (one,), (two,) = (network.exchange(3, parameters=vectors_of(2)) for network in (exact, short))
    close(one.own, two.own)
    if how in ("nobody", "silent", "huge"):
        assert_same_round(one, two)
    else:
        assert one.senders is not None
        assert len(two.messages) == len(one.messages)
        close(one.mix(one.average())[~MEMBERS], two.mix(two.average())[~MEMBERS])


@pytest.mark.parametrize("how", ADVERSARIES)
@pytest.mark.parametrize("name", RULES)
def test_every_rule_gives_the_same_vectors(name: str, how: str) -> None:
    vectors = vectors_of(5)
    targets = 3.0 + stream(5, "targets").normal(NODES, DIM)

    def losses(tried: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        own = targets if receivers is None else targets[receivers]
        return torch.where(wanted, torch.cdist(own, tried).square(), torch.inf)

    exact, short, _ = networks(5, how)
    rule = RULES[name]()
    moment = Round(3, 50, losses)
    (one,), (two,) = (network.exchange(3, parameters=vectors) for network in (exact, short))
    expected, got = rule(one, moment), rule(two, moment)
    assert bool(torch.isfinite(expected[12:]).all())
    close(got, expected, 10.0)
    some = torch.tensor([3, 40, 41])
    if name != "ubar":
        close(rule(two.of(some), moment), expected[some], 10.0)


@pytest.mark.parametrize("dim", [4, 200])
@pytest.mark.parametrize("name", RULES)
def test_rules_in_few_and_many_dimensions(name: str, dim: int) -> None:
    """Filtering decomposes points or products; products of sets are formed in pieces."""
    vectors = vectors_of(7, dim)
    exact, short, _ = networks(7, "nobody")

    def losses(tried: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        return torch.where(wanted, tried.square().sum(1), torch.inf)

    one, two = (RULES[name]()(network.exchange(0, x=vectors)[0], Round(1, 9, losses)) for network in (exact, short))
    close(two, one, 10.0)


def test_what_needs_matrices_says_so() -> None:
    _, short, _ = networks(1, "nobody")
    (inbox,) = short.exchange(0, parameters=vectors_of(1))
    with pytest.raises(InputError, match="SetRule"):
        _ = inbox.member
    with pytest.raises(InputError, match="SetRule"):
        inbox.split(torch.zeros(NODES, NODES))


# Detection


def assert_same_verdict(one: Verdict, two: Verdict, lists: Lists, arcs: Tensor) -> None:
    scale = float(one.scores[one.scores.isfinite()].abs().max())
    close(at_places(one.scores, lists, torch.nan), two.scores, scale)
    close(one.threshold, two.threshold, scale)
    assert torch.equal(at_places(one.flagged & arcs, lists, False), two.flagged)
    assert torch.equal(at_places(one.why, lists, 0), two.why)


@pytest.mark.parametrize("how", ["nobody", "silent"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_verdicts_at_the_senders_point(centre: str, scale: str, how: str) -> None:
    exact, short, graph = networks(8, how, directed=True)
    halves = {topic: vectors_of(seed) for seed, topic in enumerate(("first half", "second half"))}
    for cross_fit in (False, True) if centre not in ("median", "trimmed-mean") else (False,):
        detector = Detector(centre=CENTRES[centre](), scale=SCALES[scale](), cross_fit=cross_fit)
        one, two = (identify_neighbours(*network.exchange(0, **halves), detector) for network in (exact, short))
        assert bool(one.flagged.any())
        assert_same_verdict(one, two, graph.lists, exact.arcs)


@pytest.mark.parametrize("how", ["nobody", "silent"])
def test_verdicts_at_the_receivers_point(how: str) -> None:
    exact, short, graph = networks(9, how, directed=True)
    theta = vectors_of(9)
    theta[11] = 1.0
    own = vectors_of(10)

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[str, Tensor]:
        return {topic: points[:, :] * k + own[nodes] for k, topic in enumerate(("first half", "second half"))}

    asks = torch.arange(NODES) != 4
    one, two = (identify_asked(network.ask(0, theta, answer, asks), Detector(), network.arcs) for network in (exact, short))
    assert_same_verdict(one, two, graph.lists, exact.arcs)


@pytest.mark.parametrize("dim", [DIM, 80])
@pytest.mark.parametrize("how", ADVERSARIES)
def test_the_fuse_and_the_trail(how: str, dim: int) -> None:
    exact, short, graph = networks(6, how)
    trails = Trail(), Trail()
    for step in range(4):
        vectors = vectors_of(20 + step, dim)
        vectors[11] = 1e3
        inboxes = [network.exchange(step, parameters=vectors)[0] for network in (exact, short)]
        found = [shorten(inbox, 3.0) for inbox in inboxes]
        mixed = [inbox.mix(fused(inbox, share)) for inbox, (share, _) in zip(inboxes, found, strict=True)]
        close(mixed[0], mixed[1], 1e3)
        for inbox, trail, (share, blown) in zip(inboxes, trails, found, strict=True):
            trail.see(inbox, 0.1, share, blown)
        one, two = (inbox.by_sender(blown, NODES) for inbox, (_, blown) in zip(inboxes, found, strict=True))
        assert torch.equal(at_places(one & exact.arcs, graph.lists, False), two)
    close(trails[0].vectors(), trails[1].vectors(), 1e4)


def test_a_record_by_lists() -> None:
    graph, by_lists = drawn(3)
    lists, limits = by_lists.lists, torch.zeros(NODES, dtype=torch.float64)
    whole, short = Record.blank(graph.hears, 16), Record.blank(by_lists.hears, 16)
    for turn in range(6):
        why = (stream(turn, "why").integers(14, NODES, NODES) * graph.hears).to(torch.int8)
        few = at_places(why, lists, 0)
        whole, one = whole.add(Verdict(why.double(), limits, why > 0, why))
        short, two = short.add(Verdict(few.double(), limits, few > 0, few))
        assert torch.equal(at_places(one.why, lists, 0), two.why)
    assert bool(short.serving.any())
    assert torch.equal(at_places(whole.left, lists, 0), short.left)


# Whole runs


CASES: dict[str, list[str]] = {
    "hardened": ["watch.every=12"],
    "hardened, two faces": ["attack=sign-flip", "byzantine_faces=two", "watch.every=12", "byzantine_level=message"],
    "hardened, dissensus": ["attack=dissensus", "watch.every=12"],
    "hardened at the sender": ["detection.point=sender", "watch.every=12", "detection.pruning=directed"],
    "paper": ["profile=paper"],
    "paper at the receiver": ["profile=paper", "detection.point=receiver", "attack=silent"],
    "paper, high dimensions": ["profile=paper", "data.dim=70", "detection.scale=pca", "optimisation.premix_rounds=40"],
    "ubar": ["profile=paper", "warm_up.rule=ubar", "byzantine_pruning=all"],
}


def both_ways(keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int = 60) -> list[tuple[Any, Any, Any]]:
    """A run by matrices and by lists on the same graph: summary, verdict, rows."""
    edges = tmp_path / "edges.txt"
    if not edges.exists():
        graph = ErdosRenyi(0.15).draw(nodes, seed=1)
        edges.write_text("\n".join(f"{one} {two}" for one, two in graph.hears.triu().nonzero().tolist()))
    usual = ["method=drsgd-bymi", f"nodes={nodes}", "steps=36", "warm_up.steps=12", "data.samples=40", "data.dim=8"]
    spec = load(None, [*usual, f"graph=file:path={edges}", *keys])
    results = []
    for start, kind in ((1000, Graph), (nodes, SparseGraph)):
        monkeypatch.setattr(sparse, "LISTS_FROM", start)
        monkeypatch.setattr(sparse, "_SHORT", 1)
        sheet = spec.sheet
        assert isinstance(build_scene(sheet).graph, kind)
        out = tmp_path / kind.__name__
        summary = run(sheet, out)
        (folder,) = out.iterdir()
        results.append((summary, read_json(folder / "verdict.json"), (folder / "metrics.jsonl").read_text()))
    return results


@pytest.mark.parametrize("case", CASES)
def test_a_run_by_lists_is_the_run_by_matrices(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (summary, verdict, _), (short, told, _) = both_ways(CASES[case], tmp_path, monkeypatch)
    for key, value in summary.items():
        if "seconds" in key:
            continue
        assert short[key] == (pytest.approx(value, rel=1e-6, abs=1e-12) if isinstance(value, float) else value), key
    assert told["byzantine"] == verdict["byzantine"]
    for one, two in zip(verdict["receivers"], told["receivers"], strict=True):
        assert {key: one[key] for key in ("neighbours", "flagged", "why")} == {
            key: two[key] for key in ("neighbours", "flagged", "why")
        }
        scores = [[torch.nan if score is None else score for score in each["scores"]] for each in (one, two)]
        assert scores[1] == pytest.approx(scores[0], rel=1e-6, abs=1e-8, nan_ok=True)


@pytest.mark.parametrize("how", PLACEMENTS)
def test_places_of_liars(how: str) -> None:
    graph, by_lists = drawn(2)
    assert torch.equal(place(graph, 12, how, seed=4), place(by_lists, 12, how, seed=4))  # type: ignore[arg-type]


# Many nodes


def test_large_graphs_are_drawn_as_lists(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("\n".join(f"{node} {(node + step) % 1200}" for node in range(1200) for step in (1, 7)))
    part = torch.arange(1200) % 5 != 0
    for recipe, degree in ((ErdosRenyi(0.02), None), (Regular(6), 6), (Ring(), 2), (EdgeFile(str(path)), 4)):
        graph = recipe.draw(1200, seed=3, must_connect=part if degree is None else None)
        assert isinstance(graph, SparseGraph)
        assert graph.symmetric
        assert connected(graph.lists, torch.ones_like(part))
        if degree is not None:
            assert bool((graph.hears.sum(1) == degree).all())
        else:
            assert connected(graph.lists, part)
            again = recipe.draw(1200, seed=3, must_connect=part)
            assert isinstance(again, SparseGraph)
            assert torch.equal(again.lists.at, graph.lists.at)
    assert sparse.lists_pay(1000, 250)
    assert not sparse.lists_pay(1000, 251)
    assert not sparse.lists_pay(999, 2)
    assert set(TOPOLOGIES) == {"erdos-renyi", "regular", "ring", "complete", "file"}


def test_a_sparse_draw_has_its_density() -> None:
    """1,999,000 pairs at p = 0.01: six standard deviations, false alarm 2e-9; each node's share of them likewise fits."""
    graph = ErdosRenyi(0.01).draw(2000, seed=0)
    assert isinstance(graph, SparseGraph)
    assert abs(int(graph.hears.sum()) / 2 - 19990) < 6 * (19990 * 0.99) ** 0.5
    arcs = torch.stack(graph.lists.flat, 1)
    assert len(arcs.unique(dim=0)) == len(arcs)
    assert bool((arcs[:, 0] != arcs[:, 1]).all())
    degrees = graph.hears.sum(1).numpy()
    assert abs(np.corrcoef(degrees, np.arange(2000))[0, 1]) < 6 / 2000**0.5
    assert int(degrees.max()) < 60


def test_a_regular_graph_of_few_nodes() -> None:
    graph = Regular(4).draw(30, seed=2)
    assert isinstance(graph, Graph)
    assert bool((graph.hears.sum(1) == 4).all())
    with pytest.raises(InputError, match="degree"):
        Regular(3).draw(31)


@pytest.mark.parametrize("keys", [["profile=paper"], ["profile=hardened", "watch.every=off"]])
def test_two_thousand_nodes(keys: list[str], tmp_path: Path) -> None:
    """verdict.json grows with the edges."""
    shape = ["nodes=2000", "graph=erdos-renyi:p=0.01", "data.dim=10", "data.samples=40", "steps=12", "warm_up.steps=6"]
    sheet = load(None, ["method=drsgd-bymi", "attack=sign-flip", *shape, *keys]).sheet
    summary = run(sheet, tmp_path)
    assert summary["outcome"] in ("finished", "isolated")
    assert summary["found"] > 0.5
    (folder,) = tmp_path.iterdir()
    assert (folder / "verdict.json").stat().st_size < 100 * 2000 * 20 * 1.2


def test_the_page_shows_the_figures_measured() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "scale.md").read_text()
    for row in read_json(root / "benchmarks" / "results" / "large.json")["rows"]:
        growth = f"{row['times_of_small']:.2f}" if "times_of_small" in row else ""
        figures = [row["seconds"], row["processor_seconds"], row["scene_seconds"], row["detection_seconds"] or 0]
        figures += [row["microseconds_a_node_and_round"], row["peak_megabytes"]]
        line = [row["what"], f"{row['nodes']:,}", *(f"{figure:,.0f}" for figure in figures), growth]
        assert f"| {' | '.join(line)} |" in page


def test_the_tracker_is_not_attacked_where_none_is_sent() -> None:
    keys = ["method=drsgd-bymi", "nodes=2500", "graph=ring", "attack=y-poison", "data.dim=2", "data.samples=8"]
    sheet = load(None, keys).sheet
    with pytest.raises(InputError, match="premix_rounds"):
        build_scene(sheet)
    build_scene(load(None, [*keys, "optimisation.premix_rounds=3"]).sheet)
