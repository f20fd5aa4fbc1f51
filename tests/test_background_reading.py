"""Work beside what comes next, and products in one go."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from bymi import BALANCE, Detector, ErdosRenyi, Optimisation, Plan, StepSize, WarmUp
from bymi.core.linalg import inner, inner_of_both
from bymi.core.performance_thresholds import LIMITS
from bymi.detection import Panel, Watch
from bymi.detection import neighbour_half_gradients as half_gradients
from bymi.detection.neighbour_half_gradients import BackgroundReader
from bymi.problems import linear_problem, linear_shard
from bymi.runs.simulate import simulate
from tests.modules import draw

CPU = torch.device("cpu")
LONG, SHORT = half_gradients._LONG, 3


@pytest.mark.parametrize("worth", [[LONG] * 5, [SHORT] * 5, [LONG, SHORT, LONG, SHORT, LONG]], ids=["long", "short", "mixed"])
def test_all_work_is_done(worth: list[int]) -> None:
    done: list[int] = []
    with BackgroundReader() as beside:
        for number, numbers in enumerate(worth):
            beside(partial(done.append, number), numbers=numbers, device=CPU)
    assert sorted(done) == list(range(5))


def test_few_pieces_are_behind() -> None:
    gate, behind = threading.Event(), 0

    def wait() -> None:
        nonlocal behind
        behind += 1
        gate.wait(10)
        behind -= 1

    with BackgroundReader() as beside:
        for _ in range(half_gradients._WORKERS):
            beside(wait, numbers=LONG, device=CPU)
        threading.Timer(0.05, gate.set).start()
        beside(lambda: None, numbers=LONG, device=CPU)  # waits for the first of those before
        assert behind < half_gradients._WORKERS


def test_a_thread_aside_has_no_more_threads_and_others_keep_theirs() -> None:
    counts: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with BackgroundReader() as beside:
            for _ in range(4):
                beside(lambda: counts.append(torch.get_num_threads()), numbers=LONG, device=CPU)
        assert torch.get_num_threads() == 2
        other = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        other.start()
        other.join()
    finally:
        torch.set_num_threads(before)
    assert counts == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(("cores", "elsewhere"), [(1, False), (2, True)])
def test_another_thread_needs_another_core(cores: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_gradients, "_cores", lambda: cores)
    threads: list[threading.Thread] = []
    with BackgroundReader() as beside:
        beside(lambda: threads.append(threading.current_thread()), numbers=LONG, device=CPU)
    assert (threads[0] is not threading.main_thread()) == elsewhere


@pytest.mark.parametrize("worth", [LONG, SHORT], ids=["long", "short"])
def test_what_fails_aside_fails_here(worth: int) -> None:
    with pytest.raises(ZeroDivisionError), BackgroundReader() as beside:
        beside(lambda: 1 // 0, numbers=worth, device=CPU)  # type: ignore[arg-type, return-value]


def test_products_of_both_are_those_of_each() -> None:
    left, right = draw(5, 9000, seed=0, dtype=torch.float32), draw(4, 9000, seed=1, dtype=torch.float32)
    one, two, cross = inner_of_both(left, right, left[2])
    # Not bit by bit: in which order a product is summed up depends on its shape, on some processors.
    for found, each in ((one, (left, left)), (two, (right, right)), (cross, (left, right))):
        torch.testing.assert_close(found, inner(*each, left[2]), rtol=1e-12, atol=1e-9)


def test_a_hardened_run_whose_answers_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question at a time, products aside: the numbers of a run in which nothing is."""
    problem = linear_problem(linear_shard(torch.arange(12), dim=5, samples=40, seed=1), seed=1)
    plan = Plan(
        steps=12,
        warm_up_steps=4,
        warm_up=WarmUp(BALANCE(), StepSize(0.05), 8),
        detector=Detector(point="receiver", cross_fit=True, panel=Panel(), probe=True, sample=20, pruning="mutual"),
        optimisation=Optimisation(StepSize(0.1), 8, max_local_step=0.2),
        watch=Watch(every=4),
        identification=20,
    )
    graph = ErdosRenyi(0.8).draw(12, seed=3)
    usual = list(simulate(problem, graph, plan))
    monkeypatch.setattr(half_gradients, "_LONG", 1)
    monkeypatch.setattr(LIMITS, "replies_alone", 1)
    long = list(simulate(problem, graph, plan))
    torch.testing.assert_close(long[-1].theta, usual[-1].theta, rtol=1e-12, atol=1e-12)
    verdicts = [[snapshot.verdict for snapshot in run if snapshot.verdict is not None] for run in (usual, long)]
    assert len(verdicts[0]) > 1
    for one, other in zip(*verdicts, strict=True):
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert torch.equal(one.reason, other.reason)
