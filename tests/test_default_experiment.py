"""What the default experiment promises, and where the published detector is blind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bymi.experiment import load, run, run_all
from bymi.report.tables import COLUMNS, cells


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that a run that two of them need is made once."""
    return tmp_path_factory.mktemp("runs")


def test_the_table_in_the_readme_is_what_the_command_prints(out: Path) -> None:
    """All cells but the seconds, which come last."""
    assert COLUMNS[-1][1] == "seconds"
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (shown,) = [block for block in re.findall(r"```text\n(.*?)```", readme, re.DOTALL) if "FDP" in block]
    lines = [line.split()[:-1] for line in shown.splitlines()]
    for summary in run_all(load(None).expand(), out, jobs=1):
        assert isinstance(summary, dict)
        assert cells(summary)[:-1] in lines


def test_two_seeds_of_the_default_experiment(out: Path) -> None:
    """The hardened profile: all attackers found, hardly an honest edge lost, and a smaller gap than the published method's."""
    for summary in run_all([load(None, ["method=drsgd-bymi"], seed) for seed in range(2)], out, jobs=1):
        assert summary["pa"] == 1.0
        assert summary["worst_edge_loss"] < 0.05
        assert summary["core_byzantine"] == 0
        assert summary["core_size"] >= 114
        assert summary["gap"] < 4e-5
        assert summary["outcome"] == "finished"
        assert summary["detections"] == 11


def test_five_seeds_of_scenario_a_as_published(out: Path) -> None:
    """Paper, section 5.1, Scenario A: all attackers found, none in the core, gap below 1e-4, plain DSGD far off."""
    bymi = run_all([load(None, ["profile=paper", "method=drsgd-bymi"], seed) for seed in range(5)], out, jobs=1)
    dsgd = run_all([load(None, ["method=dsgd"], seed) for seed in range(5)], out, jobs=1)
    assert sum(summary["gap"] < 1e-4 for summary in bymi) >= 4
    assert all(summary["pa"] == 1.0 for summary in bymi)
    assert all(summary["core_byzantine"] == 0 and summary["core_closed"] for summary in bymi)
    assert sum(summary["fdp"] for summary in bymi) / 5 <= 0.30
    for ours, plain in zip(bymi, dsgd, strict=True):
        assert plain["gap"] > 1000 * ours["gap"]
        assert ours["outcome"] == plain["outcome"] == "finished"


BLIND = ["profile=paper", "method=drsgd-bymi", "steps=301", "warm_up.steps=300", "warm_up.step_size=0.5", "attack.share=0.8"]


@pytest.mark.parametrize("rule", ["ubar", "balance:gamma=1.0"])
def test_the_published_detector_is_blind_to_attackers_at_their_own_optimum(tmp_path: Path, rule: str) -> None:
    """Attackers that average nobody, or run the rule and end among themselves, train to their own optimum.

    Their gradient is zero there, like everybody's, and nobody finds all of them. With plain averaging in between, the same
    attackers are all found: so the linear recipes use it. Many samples, so that nobody overfits its warm-up set.
    """
    words = [*BLIND, f"warm_up.rule={rule}", "data.samples=1000", "data.identification=50"]
    found = {
        mixing: run(load(None, [*words, f"byzantine_mixing={mixing}"]), tmp_path)["pa"] for mixing in ("none", "rule", "plain")
    }
    assert found == {"none": 0.0, "rule": 0.0, "plain": 1.0}


def test_with_few_samples_overfitting_gives_the_lonely_away(tmp_path: Path) -> None:
    """With 50 warm-up samples in 30 dimensions a lonely attacker overfits, and that shift is common to its halves."""
    words = [*BLIND, "warm_up.rule=ubar"]
    assert run(load(None, [*words, "byzantine_mixing=none"]), tmp_path)["pa"] == 1.0
    assert run(load(None, [*words, "byzantine_mixing=rule"]), tmp_path)["pa"] == 0.0


def test_gradient_level_attacks_on_the_linear_problem(tmp_path: Path) -> None:
    for recipe in ("gradient", "ipm"):
        summary = run(load(recipe, ["profile=paper", "method=drsgd-bymi"]), tmp_path)
        assert summary["pa"] == 1.0
        assert summary["core_byzantine"] == 0
        assert summary["gap"] < 1e-3
