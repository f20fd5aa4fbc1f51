"""The study of what the published optimisation needs beside what is printed: its runs, its table, its claims in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bymi.core.errors import InputError
from bymi.experiment import read_spec, run_all
from bymi.paper import page_step_cap_and_floor as report
from bymi.paper import study_step_cap_and_floor as published_step
from bymi.paper.find_study import find_study
from bymi.paper.study_step_cap_and_floor import SETTINGS, StepStudy, build_step_study
from bymi.runs.run_folder import folder_of
from tests.commands import bymi

ROOT = Path(__file__).parents[1]
AS_IT_IS, NO_CAP = "the profile as it is: step falling to zero, y at its limit, cap, floor", "cap and floor off"


def test_all_rows_share_warm_up_and_detection() -> None:
    study = build_step_study(seeds=3)
    assert len(study.specs) == 3 * len(SETTINGS)
    assert len({spec.digest for spec in study.specs}) == len(study.specs)
    for name, spec in study.trials:
        assert (spec.profile, spec.label) == ("paper", "BALANCE-DRSGD-ByMI")
        default = read_spec({"method": "published", "seed": spec.seed, "record_every": 500})
        assert spec.model_copy(update={"optimisation": default.optimisation}) == default
        assert (spec == default) == (name == AS_IT_IS)


@pytest.mark.parametrize("options", [{"only": ["paper"]}, {"mu": 1.0}, {"dims": [30]}])
def test_options_of_other_studies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--only|--mu"):
        find_study("published-step", **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> StepStudy:
    """The same runs with few nodes and rounds, of one seed."""
    shape = {"nodes": 40, "steps": 100, "data": {"dim": 5, "samples": 40}, "graph": "erdos-renyi:p=0.5"}
    monkeypatch.setattr(published_step, "read_spec", lambda values: read_spec({**values, **shape}))
    return build_step_study(seeds=1)


def test_the_table_says_what_the_runs_say(small: StepStudy, tmp_path: Path) -> None:
    summaries = dict(zip(SETTINGS, run_all(small.specs, tmp_path, jobs=1), strict=True))
    page, data = report.draw(small, tmp_path, "a command")
    held = json.loads(data.read_text())
    assert page.read_text() == report.page(held), "the page comes from the JSON alone"
    headings, rows = report.table(held)
    assert [row[0] for row in rows] == list(SETTINGS)
    table = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    fine, lost = summaries[AS_IT_IS], summaries[NO_CAP]
    assert isinstance(fine, dict)
    assert isinstance(lost, dict)
    assert table[AS_IT_IS]["gap"] == f"{fine['gap']:.1e}"
    assert table[AS_IT_IS]["steps capped %"] == f"{100 * fine['capped']:.1f}"
    assert (table[NO_CAP]["steps capped %"], table[NO_CAP]["trackers floored %"]) == ("off", "off")
    assert lost["outcome"] == "diverged"
    assert table[NO_CAP]["runs"] == "1: 1 diverged"
    assert table[NO_CAP]["diverged in round"] == str(lost["steps_done"] - 10)
    assert lost["sentence"].startswith(f"{table[NO_CAP]['nodes lost']} of 32 honest nodes")


def test_ranges_say_of_how_many() -> None:
    runs = [{"gap": 1e-5}, {"gap": None}, {"gap": 3e-5}]
    assert report._range(runs, "gap", "{:.1e}") == "1.0e-05 to 3.0e-05 (2 of 3)"
    assert report._range(runs[:1], "gap", "{:.1e}") == "1.0e-05"
    assert report._range(runs[1:2], "gap", "{:.1e}") == "-"


def test_the_command(small: StepStudy, tmp_path: Path) -> None:
    answer = bymi("reproduce", "published-step", "--fast", "--jobs", 1, "--out", tmp_path)
    assert answer.code == 0, answer
    place = tmp_path / "reproduce-published-step-fast"
    assert {path.name for path in place.iterdir() if path.is_file()} == {"published-step-fast.json", "published-step-fast.md"}
    assert folder_of(place, small.specs[0]).is_dir()
    assert "cap and floor off" in answer.words


def test_the_committed_table_says_that_cap_and_falling_step_are_needed() -> None:
    """What profiles.py, the README and docs/hardened.md say of the published optimisation, in the committed runs."""
    place = ROOT / "docs/results/published-step"
    data = json.loads((place / "published-step.json").read_text())
    assert (place / "published-step.md").read_text().startswith(report.page(data))
    runs = {setting["setting"]: setting["runs"] for setting in data["settings"]}
    assert list(runs) == list(SETTINGS)
    for name, found in runs.items():
        assert {run["outcome"] for run in found} == ({"diverged"} if "cap" in name and "off" in name else {"finished"}), name
    assert {run["round"] for run in runs[NO_CAP]} == {1}
    assert all(run["capped"] > 0.03 for run in runs[AS_IT_IS])
    worst = max(run["gap"] for run in runs[AS_IT_IS])
    assert all(run["gap"] > worst for run in runs["constant step"])
    assert all(run["capped"] == 1.0 for run in runs["theorem's step, y at its limit, cap and floor on"])
