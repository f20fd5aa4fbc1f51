"""Going back at the last detection: from whom, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bymi.detection import REASONS, Verdict
from bymi.detection.reasons import DEEDS
from bymi.detection.rollback import to_roll_back
from bymi.experiment.spec import read_spec
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import simulate


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


@pytest.mark.parametrize("start", [61, 101])
def test_late_poison_is_undone_at_the_last_detection(start: int) -> None:
    """Good nodes stand where they stood one detection before; poison that was found earlier leaves the last one alone."""
    spec = read_spec(
        {
            **{"nodes": 40, "steps": 120, "method": "drsgd-bymi", "attack": "poison:how=fuse", "byzantine_start": start},
            **{"warm_up": {"steps": 20}, "watch": {"every": 40}, "graph": "complete"},
        }
    )
    scene = set_up_run(spec.resolved)
    good = ~scene.byzantine
    detections = [s for s in simulate(scene.problem, scene.graph, scene.plan, scene.adversary) if s.verdict is not None]
    assert [s.step for s in detections] == [20, 30, 60, 100, 116]
    went_back = (detections[-1].theta == detections[-2].theta).all(1)
    assert bool(went_back[good].all() if start == 101 else not went_back[good].any())
