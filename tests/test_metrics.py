"""The metrics by hand: error rates, edges lost, gaps, outcomes."""

from __future__ import annotations

import pytest
import torch

from bymi import Complete, LocalNetwork, Ring
from bymi.commands.run import worst
from bymi.core.errors import EXIT_CODES
from bymi.core.graph import Graph
from bymi.core.topic import PARAMETERS
from bymi.detection import Verdict
from bymi.problems import LinearProblem, linear_problem, linear_shard
from bymi.runs.evaluators import LinearEvaluator
from bymi.runs.metrics import ENDING_CODES, Recorder, false_discoveries, honest_edge_loss, sure_detection
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.training.state import Snapshot

BYZANTINE = torch.tensor([False, False, False, True, True])


def mask(*rows: str) -> torch.Tensor:
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_error_rates_by_hand() -> None:
    """Paper, eq:fdptpr. Node 0 flags one honest and both bad, node 1 both bad, node 2 nobody and hears only 4."""
    hears = mask(".xxxx", "x.xxx", "xx..x", "xxx.x", "xxxx.")
    flagged = mask(".x.xx", "...xx", ".....", "xxx..", "xxx..")
    assert false_discoveries(flagged, Graph.from_hears(hears), BYZANTINE) == pytest.approx((1 / 3 + 0 + 0) / 3)
    assert sure_detection(flagged, Graph.from_hears(hears), BYZANTINE) == pytest.approx(2 / 3)
    hears[2, 4] = False  # no Byzantine neighbour left: nothing to miss
    assert sure_detection(flagged, Graph.from_hears(hears), BYZANTINE) == 1.0


def test_honest_edges_lost_counts_arcs_between_honest_nodes() -> None:
    before = Complete().draw(5)
    cuts = mask(".x.xx", "...xx", ".....", "xxx..", "xxx..")
    assert honest_edge_loss(before, before.prune(cuts), BYZANTINE) == pytest.approx(1 / 6)


def problem() -> LinearProblem:
    return linear_problem(linear_shard(torch.arange(5), dim=4, samples=20, seed=0), seed=0)


def snapshot(theta: torch.Tensor, graph: Graph, step: int, flagged: torch.Tensor | None = None) -> Snapshot:
    network = LocalNetwork(graph)
    (inbox,) = network.exchange(0, {PARAMETERS: torch.zeros(5, 4, dtype=torch.float64)})
    if flagged is None:
        return Snapshot(step, "warm-up", theta, inbox)
    verdict = Verdict(flagged.double(), torch.ones(5, dtype=torch.float64), flagged, flagged.to(torch.int8))
    return Snapshot(step, "detection", theta, inbox, verdict=verdict, network=network.prune(flagged))


def recorder(graph: Graph) -> Recorder:
    return Recorder(LinearEvaluator(problem(), BYZANTINE), graph, BYZANTINE, steps=10, every=5)


def test_the_gap_is_zero_at_the_honest_minimiser_and_byzantine_nodes_do_not_count() -> None:
    graph, honest = Complete().draw(5), torch.tensor([0, 1, 2])
    theta = problem().minimiser(honest).expand(5, -1).clone()
    theta[3:] = 100.0
    watch = recorder(graph)
    assert watch.see(snapshot(theta, graph, 3)) is None
    row = watch.see(snapshot(theta, graph, 5))
    assert row is not None
    assert row["gap"] < 1e-25
    assert row["gap_true"] < 0  # the minimiser beats the truth on the samples
    assert row["gap_population"] > 0
    theta[0] += 3.0  # the mean of three moves by one
    moved = watch.see(snapshot(theta, graph, 10))
    assert moved is not None
    expected = problem().risk(theta[:3].mean(0), honest) - problem().risk(problem().minimiser(honest), honest)
    assert moved["gap"] == pytest.approx(float(expected))


def test_after_a_detection_the_gap_is_over_the_core() -> None:
    graph = Complete().draw(5)
    flagged = mask("...xx", "...xx", "...xx", ".....", ".....")
    watch = recorder(graph)
    theta = problem().minimiser(torch.tensor([0, 1, 2])).expand(5, -1).clone()
    theta[3:] = 100.0
    watch.see(snapshot(theta, graph, 5, flagged))
    summary = watch.summary()
    assert summary["gap"] < 1e-25
    assert summary["gap_weighted"] < 1e-25
    assert (summary["core_size"], summary["core_byzantine"], summary["core_closed"]) == (3, 0, True)
    assert (summary["fdp"], summary["pa"], summary["honest_edge_loss"]) == (0.0, 1.0, 0.0)
    assert summary["outcome"] == "finished"
    assert tuple(summary) == SUMMARY_KEYS


@pytest.mark.parametrize(
    ("graph", "flagged", "value", "ending", "words"),
    [
        (Complete(), mask(".xxxx", ".....", ".....", ".....", "....."), 0.0, "isolated", "1 honest nodes flagged all"),
        (Ring(), mask(".x..x", "x.x..", ".....", "....x", "...x."), 0.0, "fragmented", "2 of 5 nodes"),
        (Complete(), mask("...xx", "...x.", "...xx", ".....", "....."), 0.0, "infiltrated", "2 of the 5 nodes in the core"),
        (Complete(), mask("...xx", "...xx", "...x.", ".....", "...x."), 0.0, "infiltrated", "1 of the 4 nodes in the core"),
        # The worst thing first: a node alone beside Byzantine nodes in the core, and a core in pieces that holds some.
        (Complete(), mask(".xxxx", "...x.", ".....", ".....", "....."), 0.0, "isolated", "1 honest nodes flagged all"),
        (Complete(), mask(".xxxx", "x.xxx", "xx.xx", ".....", "....."), 0.0, "fragmented", "2 of 5 nodes"),
        (Complete(), mask(".....", ".....", ".....", ".....", "....."), float("nan"), "diverged", "3 of 3 honest nodes"),
        (Complete(), mask(".....", ".....", ".....", ".....", "....."), 1e10, "diverged", "by step 5"),
    ],
)
def test_outcomes(graph: Complete | Ring, flagged: torch.Tensor, value: float, ending: str, words: str) -> None:
    drawn = graph.draw(5)
    watch = recorder(drawn)
    watch.see(snapshot(torch.full((5, 4), value, dtype=torch.float64), drawn, 5, flagged))
    summary = watch.summary()
    assert summary["outcome"] == ending
    assert words in summary["sentence"]
    assert watch.diverged == (ending == "diverged")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e10])
def test_divergence_is_seen_in_any_round(value: float) -> None:
    """On a CPU, also between recorded rounds: it gets a row, and is not forgotten by a node that comes back."""
    graph = Complete().draw(5)
    watch = recorder(graph)
    fine = torch.zeros(5, 4, dtype=torch.float64)
    assert watch.see(snapshot(fine, graph, 2)) is None
    assert not watch.diverged
    wild = fine.clone()
    wild[1] = value
    row = watch.see(snapshot(wild, graph, 3))
    assert row is not None
    assert row["step"] == 3
    assert watch.diverged
    assert "1 of 3 honest nodes left all bounds by step 3, first node 1" in watch.summary()["sentence"]
    watch.see(snapshot(fine, graph, 5))
    assert watch.summary()["outcome"] == "diverged"


def test_a_diverging_byzantine_node_is_not_a_diverging_run() -> None:
    graph = Complete().draw(5)
    watch = recorder(graph)
    theta = torch.zeros(5, 4, dtype=torch.float64)
    theta[4] = float("inf")
    assert watch.see(snapshot(theta, graph, 4)) is None
    watch.see(snapshot(theta, graph, 5))
    assert watch.summary()["outcome"] == "finished"


def test_every_ending_has_a_documented_exit_code() -> None:
    assert set(ENDING_CODES.values()) <= set(EXIT_CODES)
    assert list(ENDING_CODES) == ["diverged", "fragmented", "isolated", "infiltrated", "finished"], "the worst first"
    for ending, code in ENDING_CODES.items():
        assert ending in EXIT_CODES[code]


def test_the_worst_of_several_endings_counts() -> None:
    assert worst(["finished", "infiltrated"]) == 8
    assert worst(["isolated", "infiltrated"]) == 5
    assert worst(["finished", "finished"]) == 0


def test_a_baseline_has_no_core_that_could_be_infiltrated() -> None:
    graph = Complete().draw(5)
    watch = recorder(graph)
    watch.see(snapshot(torch.zeros(5, 4, dtype=torch.float64), graph, 5))
    summary = watch.summary()
    assert (summary["outcome"], summary["core_byzantine"]) == ("finished", None)
