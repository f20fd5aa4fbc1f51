"""Going back at the last detection: from whom, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bymi.detection import REASONS, Verdict
from bymi.detection.verdict import DEEDS
from bymi.experiment.spec import read_spec
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import simulate
from bymi.training.algorithm import to_roll_back
from bymi.training.state import KEPT, KeptStates


def verdict(why: Tensor) -> Verdict:
    return Verdict(torch.zeros(why.shape), torch.zeros(len(why)), why != 0, why.to(torch.int8))


@pytest.mark.parametrize("name", REASONS)
def test_only_deeds_of_those_listened_to_count(name: str) -> None:
    """Three receivers: 1 of 20 is not more than 5 %, 2 of 20 are, and so is 1 of 19 where the other attacker had no weight."""
    why = torch.zeros(3, 20)
    used = torch.ones(3, 20, dtype=torch.bool)
    why[0, 3] = why[1, 3] = why[1, 4] = why[2, 3] = why[2, 4] = REASONS.index(name)
    used[2, 4] = False
    assert to_roll_back(verdict(why), used, 0.05).tolist() == [False, name in DEEDS, name in DEEDS]


def test_whoever_listens_to_nobody_stays() -> None:
    nobody = torch.zeros(1, 5, dtype=torch.bool)
    assert not to_roll_back(verdict(torch.full((1, 5), REASONS.index("drift"))), nobody, 0.05).any()


def test_the_best_state_is_that_with_the_shortest_mean_claim() -> None:
    """Two nodes over seven detections: the last four and the present are looked at, of equal ones the latest is taken."""
    lengths = torch.tensor([[0.1, 5, 3, 4, 3, 6, 7], [9, 8, 7, 6, torch.nan, torch.inf, 5]], dtype=torch.float64)
    kept = KeptStates.blank(torch.zeros(2, 1))
    for step in range(6):
        kept = kept.add(torch.full((2, 1), float(step)), lengths[:, step])
    assert kept.theta.shape == (2, KEPT, 1)
    assert kept.add(torch.full((2, 1), 6.0), lengths[:, 6], KEPT + 1).best.tolist() == [[4.0], [6.0]]


@pytest.mark.parametrize("point", ["receiver", "sender"])
@pytest.mark.parametrize("dim", [5, 80])
def test_the_mean_claim_is_that_of_all_who_are_kept(point: str, dim: int) -> None:
    """Gradients of the kept neighbours and of the node itself, on all samples; in few and in many dimensions."""
    words = {"nodes": 20, "steps": 30, "method": "drsgd-bymi", "attack": "sign-flip", "warm_up": {"steps": 10}, "seed": 1}
    data = {"name": "linear", "dim": dim, "samples": 12}
    scene = set_up_run(read_spec({**words, "data": data, "detection": {"point": point}}).resolved)
    for snapshot in simulate(scene.problem, scene.graph, scene.plan, None):
        if snapshot.verdict is not None:
            break
    theta, problem = snapshot.theta, scene.problem
    every = torch.arange(12).expand(20, 12)
    for node in range(20):
        members = [*(scene.graph.hears[node] & ~snapshot.verdict.flagged[node]).nonzero().flatten().tolist(), node]
        at = theta[node].expand(20, -1) if point == "receiver" else theta
        mean = problem.gradient(at, torch.arange(20), every)[members].mean(0)
        assert float(snapshot.verdict.mean_claim[node]) == pytest.approx(float(mean.norm()), rel=1e-9)


@pytest.mark.parametrize("start", [61, 101])
def test_late_poison_is_undone_at_the_last_detection(start: int) -> None:
    """Good nodes stand where the mean claim was shortest; poison that was found earlier leaves the last detection alone."""
    spec = read_spec(
        {
            **{"nodes": 40, "steps": 120, "method": "drsgd-bymi", "attack": "poison:how=fuse", "byzantine_start": start},
            **{"warm_up": {"steps": 20}, "watch": {"every": 40}, "graph": "complete"},
            "optimisation": {"step_size": 0.3, "max_local_step": 0.4},
        }
    )
    scene = set_up_run(spec.resolved)
    good = (~scene.byzantine).nonzero().flatten().tolist()
    rounds = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))
    detections = [place for place, snapshot in enumerate(rounds) if snapshot.verdict is not None]
    assert [rounds[place].step for place in detections] == [20, 30, 60, 100, 116]
    states = [rounds[place - 1].theta for place in detections]  # what nodes held before each
    claims = [rounds[place].verdict.mean_claim for place in detections]
    went_back = 0
    for node in good:
        best = min(range(5), key=lambda k: float(claims[k][node])) if start == 101 else 4
        assert torch.equal(rounds[detections[-1]].theta[node], states[best][node])
        went_back += best < 4
    assert went_back > len(good) / 2 or start == 61
